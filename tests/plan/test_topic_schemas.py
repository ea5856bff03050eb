"""Goal: a topic that has a schema is read by it; where it cannot be asked, the error says why and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import InvalidPlan
from millstream.plan.on_spark.engine import collecting
from millstream.records import Schema

SCHEMA = "team string, score int, at timestamp"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The log of the environment, with a topic that has a schema and one that has none."""
    address = str(tmp_path / "log")
    monkeypatch.setenv("MILLSTREAM_BROKER", address)
    with ms.connect(address) as opened:
        opened.create_topic("scores", schema=SCHEMA)
        opened.create_topic("raw")
    return address


@pytest.mark.usefixtures("log")
def test_a_topic_brings_its_schema_along() -> None:
    flow = ms.Flow("f")
    stream = flow.read("scores", event_time="at")
    assert stream.schema == Schema.of(SCHEMA)
    with pytest.raises(InvalidPlan, match="'when'"):
        flow.read("scores", event_time="when")


def test_the_plan_keeps_to_the_schema_of_when_it_was_built(log: str) -> None:
    stream = ms.Flow("f").read("scores")
    with ms.connect(log) as opened:
        opened.change_topic("scores", schema=f"{SCHEMA}, more int")
    assert stream.schema == Schema.of(SCHEMA)


def test_the_flow_or_its_run_names_the_log(log: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLSTREAM_BROKER", str(tmp_path / "nothing"))
    assert ms.Flow("f", log=Path(log)).read("scores").schema == Schema.of(SCHEMA)
    with collecting(log):
        assert ms.Flow("f").read("scores").schema == Schema.of(SCHEMA)
    with pytest.raises(InvalidPlan, match="there is no log in") as raised:
        ms.Flow("f").read("scores")
    assert "MILLSTREAM_BROKER" in str(raised.value)
    assert __file__ in str(raised.value)
    assert not (tmp_path / "nothing").exists()  # asking makes nothing


@pytest.mark.usefixtures("log")
def test_a_topic_without_a_schema_or_without_a_topic() -> None:
    with pytest.raises(InvalidPlan, match="topic 'raw' needs a schema: it has none of its own"):
        ms.Flow("f").read("raw")
    with pytest.raises(InvalidPlan, match="its own cannot be looked up: there is no topic 'nowhere'"):
        ms.Flow("f").read("nowhere")
    with pytest.raises(InvalidPlan, match="its values are avro"):
        ms.Flow("f").read(ms.kafka("host:9092", topic="k", format="avro"))
    with pytest.raises(InvalidPlan, match="needs a schema"):
        ms.Flow("f").read(ms.rate(1))
