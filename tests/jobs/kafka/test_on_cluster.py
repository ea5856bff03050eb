"""From Kafka through a Spark cluster to Kafka, with a worker that is lost on the way."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.support import START, read, t
from kafka_cluster import KafkaCluster
from millstream.log import connect
from spark.session.on_cluster import ClusterJob, bare_python
from spark_cluster import SparkCluster

pytestmark = [pytest.mark.xdist_group("cluster2"), pytest.mark.timeout(600), pytest.mark.soak]

EXAMPLES = Path(__file__).parents[3] / "examples"
SECONDS = 60
STEP_S = 0.05
THE_END_S = 10_000
NOBODY = "nobody"
DEMO = (EXAMPLES / "demo_flow.py").read_text()
FLOW = re.sub(r"^panes\.write\(ms\.sqlite\(.*$", 'panes.write("pumped", name="panes")', DEMO, flags=re.MULTILINE)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """Two workers that know nothing of Millstream."""
    with SparkCluster(2, python=bare_python(tmp_path / "bare")) as made:
        yield made


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The pumps of the demo, on a clock of their own."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import demo_fleet

    yield demo_fleet.Fleet(random.Random(2026), START.timestamp())
    sys.modules.pop("demo_fleet")


def test_the_demo_from_kafka_to_kafka(kafka: KafkaCluster, cluster: SparkCluster, fleet: Any, tmp_path: Path) -> None:
    address = f"kafka://{kafka.bootstrap}"
    file = tmp_path / "flow.py"
    file.write_text(FLOW)
    with connect(address) as log:
        log.create_topic("readings", partitions=2)
        with log.producer() as producer:
            for tick in range(int(SECONDS / STEP_S)):
                now = START.timestamp() + tick * STEP_S
                fleet.measure(now, STEP_S)
                fleet.send(producer, now)
            for partition in (0, 1):  # ends all windows: the run may be over before early panes are due
                last = {"device": NOBODY, "litres": 0, "at": t(THE_END_S).isoformat()}
                producer.send("readings", json.dumps(last).encode(), partition=partition)
        job = ClusterJob(cluster, tmp_path, file, address, "--batch-rows", "500", python=tmp_path / "bare/bin/python")
        try:
            job.until_batch(4)
            cluster.kill_worker(2)
            before = job.batches()
            job.ends()
        finally:
            job.close()
        assert job.batches() > before
        panes, late, dead = (read(log, topic) for topic in ("pumped", "readings.late", "readings.dead"))
    held = Counter()
    for pane in (each for each in panes if each["device"] != NOBODY):
        held[pane["device"], pane["window"]["start"], pane["litres"], pane["readings"]] += pane["weight"]
    left = [place for place, weight in held.items() if weight]
    assert all(weight in (0, 1) for weight in held.values())
    assert len({place[:2] for place in left}) == len(left)  # one result for each pump and ten seconds
    assert fleet.broken > 0
    assert len(dead) == fleet.broken
    assert sum(place[3] for place in left) + len(late) + len(dead) == fleet.sent
    assert sum(place[2] for place in left) + sum(each["litres"] for each in late) == fleet.litres
