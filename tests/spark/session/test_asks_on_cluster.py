"""Questions to a flow on a cluster: each is answered once, also while a worker is lost with the tables it holds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms
from jobs.support import read, row
from millstream.calling import Client, Rows
from millstream.errors import NotFound
from millstream.jobs.measuring.executors import read_executors
from millstream.log import EmbeddedLog
from spark_cluster import HOST, START_S_MAX, SparkCluster
from waiting import until

from .on_cluster import SCHEMA, ClusterJob, bare_python

pytestmark = [pytest.mark.xdist_group("cluster2"), pytest.mark.timeout(900), pytest.mark.soak]

PATIENCE = "10 minutes"
USERS, CALLS = 6, 30
FLOW = f"""
import millstream as ms

flow = ms.Flow("clustered")
totals = flow.read("paid", "{SCHEMA}").group_by("user").agg(total=ms.sum("n"), name="totals")
flow.ask("total", "user string", lambda requests: requests.join(totals, on="user", how="left", as_of="now"))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return bare_python(tmp_path / "venv")


@pytest.fixture
def cluster(python: Path) -> Iterator[SparkCluster]:
    with SparkCluster(2, python=python) as made:
        yield made


@pytest.fixture
def job(cluster: SparkCluster, log: EmbeddedLog, tmp_path: Path, python: Path) -> Iterator[ClusterJob]:
    log.create_topic("paid", schema=SCHEMA, partitions=2)
    with log.producer() as producer:
        for number in range(USERS):
            producer.send("paid", row(f"user {number}", number, 0))
    file = tmp_path / "flow.py"
    file.write_text(FLOW)
    made = ClusterJob(cluster, tmp_path, file, str(log.path), python=python, ends=False)
    yield made
    made.close()


def asked(client: Client, job: ClusterJob, number: int) -> Rows | None:
    """The answer, or none if the job has not made its topics yet."""
    assert job.process.poll() is None, job.err.read_text()
    try:
        return client.call("total", PATIENCE, user=f"user {number}")
    except NotFound:
        return None


def test_questions_are_answered_while_a_worker_is_lost(
    cluster: SparkCluster, job: ClusterJob, log: EmbeddedLog
) -> None:
    began = time.time() - START_S_MAX
    with ms.client("clustered", broker=log) as client:
        until(lambda: asked(client, job, 5) == [{"user": "user 5", "total": 5}], "the first answer", 1.0)
        until(
            lambda: [each for each in read_executors(job.folder) if each["python_memory_bytes"]], "memory is reported"
        )
        executors = read_executors(job.folder)
        assert {each["host"] for each in executors} == {HOST}
        assert all(began < each["since"] < time.time() and each["cores"] > 0 for each in executors)
        assert max(each["jvm_memory_bytes"] or 0 for each in executors) > 1_000_000
        assert sum(each["task_s"] for each in executors) > 0
        calls = []
        for kill in (False, True, False):
            calls += [client.submit("total", PATIENCE, user=f"user {number % USERS}") for number in range(CALLS)]
            if kill:
                cluster.kill_worker(1)
        found = [call.result() for call in calls]
        assert found == [[{"user": f"user {number % USERS}", "total": number % USERS}] for number in range(CALLS)] * 3
    answers = Counter(each["request"] for each in read(log, "clustered.total.answers"))
    assert set(answers.values()) == {1}
    assert len(answers) >= len(calls)
    assert job.process.poll() is None, job.err.read_text()
