"""Real-time mode: what it refuses, without Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from kafka_cluster import KafkaCluster
from millstream.errors import InvalidInput, InvalidSetting, JobChanged, RecordFailed, SparkFailed
from millstream.jobs import real_time, starting_spark
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.modes import refuse_after_real_time
from millstream.jobs.real_time import CHECKPOINT, _translated
from millstream.jobs.real_time_plan import real_time_plan
from millstream.jobs.shown.display import Display
from millstream.jobs.stop_request import StopRequest
from millstream.log.kafka.address import KafkaAddress
from millstream.plan.run_settings import Settings
from millstream.spark.real_time.java_client import java_settings
from millstream.spark.real_time.record_compiler import MARK

from .test_real_time import SCHEMA, flow_of, unchanged


@pytest.mark.parametrize(
    ("build", "step", "why"),
    [
        (lambda rows: rows.key_by("user").window(ms.fixed("1 m")).agg(n=ms.count()), r".*\.agg-", "keeps state"),
        (lambda rows: rows.distinct("user", name="once"), "once", "keeps state"),
        (lambda rows: rows.map(lambda row: row, name="mine"), "mine", "a Python function"),
        (
            lambda rows: rows.select("user", x="explode(array(score))", name="many"),
            "many",
            "a function that makes rows",
        ),
        (lambda rows: rows.where("score / 2 > 1", name="half").dead, r"half\.dead", "only sources and sinks"),
    ],
)
def test_a_step_that_cannot_run_so_is_named(build: Callable[[Any], Any], step: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"the step '{step}.*cannot run with mode='real time'.*{why}") as refused:
        real_time_plan(flow_of(build), Settings(mode="real time"))
    assert str(refused.value.where).startswith(__file__)
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("source", "sink", "why"),
    [
        (ms.rate(5), None, "is not a Kafka topic"),
        (None, ms.memory("x"), "is not a Kafka topic"),
        ("scores", None, "scores is on a broker that is not Kafka"),
        (ms.kafka("host", topic="scores", format="avro"), None, "not plain JSON"),
        (ms.kafka("host", topic="scores", on_lost="latest"), None, "on_lost='latest'"),
    ],
)
def test_an_endpoint_that_is_not_kafka_is_named(
    source: Any, sink: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_BROKER", raising=False)
    with pytest.raises(InvalidInput, match=why):
        real_time_plan(flow_of(unchanged, source, sink), Settings(mode="real time"))


@pytest.mark.parametrize("said", [{"until": "caught up"}, {"batch": True}, {"on_batch": print}])
def test_settings_of_micro_batches_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"{next(iter(said))} cannot be combined with mode='real time'"):
        real_time_plan(flow_of(unchanged), Settings(mode="real time", **said))
    with pytest.raises(InvalidInput, match="mode='fast' is unknown"):
        Settings(mode="fast").checked()


def test_all_outputs_go_to_one_kafka() -> None:
    flow = flow_of(unchanged)
    flow.read(ms.kafka("host", topic="more"), "n int").write(ms.kafka("other", topic="elsewhere"))
    with pytest.raises(InvalidInput, match=r"it writes to another Kafka cluster than kafka\(host:9092, good\)"):
        real_time_plan(flow, Settings(mode="real time"))


def test_topics_of_a_broker_that_is_a_kafka_are_its_topics() -> None:
    work = real_time_plan(
        flow_of(unchanged, "scores", "good"), Settings(mode="real time", broker="kafka://one,two:9093")
    )
    assert [str(topic) for topic in work.sources.values()] == ["kafka(one:9092,two:9093, scores)"]
    assert "each record at least once" in work.explain()


def test_a_job_that_ran_in_real_time_does_not_continue_in_micro_batches(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "quick")
    refuse_after_real_time(folder)
    (tmp_path / CHECKPOINT / "offsets").mkdir(parents=True)
    (tmp_path / CHECKPOINT / "offsets" / "0").touch()
    with pytest.raises(JobChanged, match="has run in real time"):
        refuse_after_real_time(folder)


@pytest.mark.more
def test_topics_are_prepared_and_sources_checked_before_spark_starts(
    kafka: KafkaCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class UpToSpark(Display):
        def phase(self, text: str) -> None:
            if text == "starting Spark":
                raise KeyboardInterrupt

    name = f"t{uuid.uuid4().hex[:12]}"
    with ms.connect(f"kafka://{kafka.bootstrap}") as log:
        for topic, partitions in (("scores", 3), ("more", 2)):
            log.create_topic(f"{name}.{topic}", partitions=partitions)
        log.create_topic(f"{name}.there")
        flow = ms.Flow(name)
        rows = flow.read(f"{name}.scores", SCHEMA, name="scores")
        more = flow.read(f"{name}.more", SCHEMA, name="more")
        rows.union(more).write(f"{name}.both")
        more.write(f"{name}.chosen", partitions=5)
        more.dead.write(f"{name}.more.dead")
        rows.write(f"{name}.there")
        settings = Settings(mode="real time", broker=f"kafka://{kafka.bootstrap}", folder=tmp_path / "job")
        with caplog.at_level("WARNING", "millstream.job"), pytest.raises(KeyboardInterrupt):
            real_time.start(flow, settings, UpToSpark(), StopRequest(handles_signals=False))
        made = ("both", "chosen", "more.dead", "there")
        assert [len(log.describe_topic(f"{name}.{topic}").partitions) for topic in made] == [3, 5, 2, 1]
    (message,) = caplog.messages
    assert "the first record of 'scores'" in message
    assert f'stream.dead.write("{name}.scores.dead")' in message


def test_settings_get_the_names_of_the_java_client(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_text("a certificate")
    said = {"sasl.mechanisms": "PLAIN", "sasl.username": "ann", "sasl.password": 'a"b\\c', "log_level": "0"}
    found = java_settings(KafkaAddress("h:9092", {**said, "ssl.ca.location": str(certificate)}))
    assert found == {
        "bootstrap.servers": "h:9092",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="ann" password="a\\"b\\\\c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "a certificate",
    }
    with pytest.raises(InvalidSetting, match=r"'enable\.ssl\.certificate\.verification' has no equivalent"):
        java_settings(KafkaAddress("h:9092", {"enable.ssl.certificate.verification": "false"}))


@pytest.mark.parametrize("said", ["{}", "{} and again {}", "MILLSTREAM-RECORD:cut off {}", "before\n{}\nafter {"])
def test_a_record_is_named_however_often_spark_repeats_it(said: str, tmp_path: Path) -> None:
    letter = {"step": "read", "topic": "scores", "partition": 0, "offset": 7, "reason": "it is no JSON: {"}
    error = _translated(RuntimeError(said.replace("{}", f"{MARK}{json.dumps(letter)}{MARK}")), tmp_path)
    assert isinstance(error, RecordFailed)
    assert (error.what, error.where) == (
        "the step 'read' cannot handle a record: it is no JSON: {",
        "topic scores, partition 0, offset 7",
    )


def test_a_truncated_record_does_not_crash(tmp_path: Path) -> None:
    error = RuntimeError(f'{MARK}{{"step": "re{MARK} {MARK}{{"step": "x"}}{MARK}')
    assert isinstance(_translated(error, tmp_path), SparkFailed)


def test_a_cluster_is_given_its_archive_and_waited_for(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many cores there are is asked when the workers have come."""
    happened: list[Any] = []

    class Cluster:
        master = "spark://host:7077"
        sparkContext = property(lambda self: self)  # noqa: N815 - Spark's name

    def session(**said: Any) -> Cluster:
        happened.append(said)
        return Cluster()

    def check(*_: Any) -> None:
        happened.append("looked at cores")
        raise KeyboardInterrupt

    monkeypatch.setattr(starting_spark, "session", session)
    monkeypatch.setattr(starting_spark, "activate", lambda _: None)
    monkeypatch.setattr(starting_spark, "wait_for_workers", lambda _: happened.append("waited"))
    monkeypatch.setattr(real_time, "_check_spark", check)
    with ms.connect(f"kafka://{kafka.bootstrap}") as broker:
        broker.create_topic("of-a-cluster")
    flow = flow_of(unchanged, ms.kafka(kafka.bootstrap, topic="of-a-cluster"), ms.kafka(kafka.bootstrap, topic="out"))
    asked = {"master": Cluster.master, "conf": {"spark.cores.max": "4"}, "archive": "env.tar.gz"}
    with pytest.raises(KeyboardInterrupt):
        flow.start(mode="real time", broker=tmp_path / "log", folder=tmp_path / "job", **asked)
    [said, *rest] = happened
    assert (said["master"], said["settings"], said["environment"]) == tuple(asked.values())
    assert rest == ["waited", "looked at cores"]
