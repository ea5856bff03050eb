"""Headers of records in a job: read, used, set and written, on both brokers."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from jobs.support import CAUGHT_UP
from kafka_cluster import KafkaCluster
from millstream.errors import InvalidPlan
from millstream.provenance.history import History


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    if request.param == "folder":
        return str(tmp_path / "log")
    cluster: KafkaCluster = request.getfixturevalue("kafka")
    return f"kafka://{cluster.bootstrap}"


@pytest.mark.more
@pytest.mark.parametrize("address", ["folder", "kafka"], indirect=True)
def test_headers_pass_through_a_job(address: str, spark: SparkSession) -> None:
    """Goal: content and headers are routed and changed together. Method: two routes by a header, one sets others."""
    name = f"h{uuid.uuid4().hex[:12]}"
    with ms.connect(address) as log:
        log.create_topic(f"{name}.in", schema="id string")
        with log.producer() as producer:
            for number in range(4):
                headers: dict[str, Any] = {"kind": "vip" if number % 2 else "plain", "trace": f"t{number}"}
                producer.send(f"{name}.in", {"id": f"i{number}"}, headers=headers)
            producer.send(f"{name}.in", {"id": "none"})
    flow = ms.Flow(name, log=address)
    rows = flow.read(f"{name}.in", headers=True)
    routes = rows.route(vip="cast(headers['kind'] as string) = 'vip'", other="true")
    routes["vip"].with_headers(by="'job'", kind="cast(null as string)").write(
        ms.topic(f"{name}.vip", headers="headers")
    )
    routes["other"].write(ms.topic(f"{name}.other", headers="headers"))
    flow.run(until=CAUGHT_UP)
    with ms.connect(address) as log:
        found = {}
        for topic in ("vip", "other"):
            with log.consumer(f"{name}.{topic}") as consumer:
                for record in consumer.until_caught_up():
                    assert list(record.value) == ["id"]
                    found[record.value["id"]] = (topic, dict(record.headers or {}))
    assert found == {
        "i0": ("other", {"kind": b"plain", "trace": b"t0"}),
        "i1": ("vip", {"by": b"job", "trace": b"t1"}),
        "i2": ("other", {"kind": b"plain", "trace": b"t2"}),
        "i3": ("vip", {"by": b"job", "trace": b"t3"}),
        "none": ("other", {}),
    }
    events = History(flow).events  # they are on the job's broker, whichever it is
    assert sum(step.rows_out or 0 for each in events for step in each.steps.values() if step.kind == "source") == 5


def test_what_cannot_be_a_header_is_refused() -> None:
    flow = ms.Flow("refused")
    with pytest.raises(InvalidPlan, match="only records of topics"):
        flow.read(ms.files("in/*.json"), "id string", headers=True)
    with pytest.raises(InvalidPlan, match="is string, not map"):
        flow.read("in", "id string, headers string", headers=True)
    rows = flow.read("in", "id string, ids array<string>", headers=True)
    assert rows.schema.ddl.endswith("headers map<string,binary>")
    with pytest.raises(InvalidPlan, match="a header is bytes"):
        rows.with_headers(ids="ids")
    with pytest.raises(InvalidPlan, match="at least one header"):
        rows.with_headers()
    with pytest.raises(InvalidPlan, match="name of a header"):
        rows.with_headers({"": "id"})
