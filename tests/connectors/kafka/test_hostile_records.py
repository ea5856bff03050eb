"""Records as any client may write them: odd ones harm no reader, and none is lost silently."""

from __future__ import annotations

import json
import logging
import uuid

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from jobs.support import CAUGHT_UP, read
from kafka_cluster import KafkaCluster
from millstream.connectors.kafka.markers import TOPIC as MARKERS
from millstream.connectors.kafka.markers import Marker, make_ready
from millstream.connectors.kafka.source import KafkaSource
from millstream.connectors.source import Slab
from millstream.errors import DamagedLog, InvalidRecord, SinkFailed
from millstream.log import EmbeddedLog
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.clients import Clients
from millstream.log.kafka.descriptions import TOPIC as DESCRIPTIONS
from millstream.log.kafka.log import KafkaLog
from millstream.records import Schema
from millstream.serving.tables import Tables
from waiting import until

from . import raw
from .raw import GZIP, Record
from .support import made

pytestmark = pytest.mark.usefixtures("either_way")
EVERYTHING = "key binary, timestamp timestamp, headers map<string, binary>, value binary"
FAR_MS = 9_000_000_000_000_000_000  # in the year 285,000,000
ANY_TIME = {"message_timestamp_after_max_ms": str(2**63 - 1), "message_timestamp_before_max_ms": str(2**63 - 1)}
FINE = Record(b"fine", b"k", 1000, [(b"h", b"x")])
BAD_NAME = Record(b"v", b"k", 1000, [(b"ok", b"1"), (b"\xff\xfe", b"2"), (b"z", b"3")])


def lasting(kafka: KafkaCluster, name: str | None = None, **config: str) -> str:
    """A topic in which records of long ago are not deleted."""
    return made(kafka.bootstrap, name=name, retention_ms="-1", **config)


def put(kafka: KafkaCluster, topic: str, *records: Record, attributes: int = 0, partition: int = 0) -> None:
    def taken() -> bool:
        code = raw.put(kafka.bootstrap, topic, *records, attributes=attributes, partition=partition)
        assert code in (0, raw.NO_LEADER_YET)
        return code == 0

    until(taken, "the partition's leader")


def slabs(kafka: KafkaCluster, topic: str, schema: str = EVERYTHING) -> list[Slab]:
    source = KafkaSource(KafkaAddress.of(f"kafka://{kafka.bootstrap}"), topic, Schema.of(schema), format="bytes")
    try:
        cut = source.slices(source.earliest(), source.latest(), 1)
        return [slab for group in cut for each in group for slab in source.read(each)]
    finally:
        source.close()


# ---------------------------------------------------------------- reading


def test_headers_of_any_kind_are_read(kafka: KafkaCluster, log: KafkaLog) -> None:
    """Twice the same name, none, an escape code, no value. A name ends at a zero byte: so Kafka's client has it."""
    topic = lasting(kafka)
    headers = [(b"h", b"1"), (b"h", b"2"), (b"", b"3"), (b"a\0b", b"4"), (b"\x1b[2J", None)]
    put(kafka, topic, Record(b"v", b"k", 0, headers))
    [slab] = slabs(kafka, topic)
    assert slab.rows.column("headers").to_pylist() == [[("h", b"2"), ("", b"3"), ("a", b"4"), ("\x1b[2J", None)]]
    with log.consumer([topic]) as consumer:
        [record] = consumer.poll(10)
    assert record.headers == (("h", b"1"), ("h", b"2"), ("", b"3"), ("a", b"4"), ("\x1b[2J", b""))


def test_a_header_whose_name_is_not_text_is_a_dead_letter(kafka: KafkaCluster) -> None:
    """Readers that do not ask for headers get the record."""
    topic = lasting(kafka)
    put(kafka, topic, FINE, BAD_NAME, FINE, BAD_NAME)
    [slab] = slabs(kafka, topic)
    assert slab.offsets.tolist() == [0, 2]
    assert slab.dead is not None
    assert slab.dead.column("offset").to_pylist() == [1, 3]
    assert set(slab.dead.column("reason").to_pylist()) == {"the name of a header is not valid UTF-8"}
    [slab] = slabs(kafka, topic, "value binary")
    assert slab.offsets.tolist() == [0, 1, 2, 3]


def test_a_consumer_stays_at_such_a_record_until_it_seeks_past_it(kafka: KafkaCluster, log: KafkaLog) -> None:
    topic = lasting(kafka)
    put(kafka, topic, FINE, BAD_NAME, FINE)
    with log.consumer([topic]) as consumer:
        assert [record.offset for record in consumer.poll(10)] == [0]
        for _ in range(2):
            with pytest.raises(InvalidRecord, match=r"(?s)name of a header is not valid UTF-8.*offset 1.*seek\(2\)"):
                consumer.poll(10)
        consumer.seek(2)
        assert [record.offset for record in consumer.poll(10)] == [2]


@pytest.mark.parametrize("time_ms", [-1, -5000, FAR_MS, 600_000_000_000_000])
def test_a_time_that_no_timestamp_can_hold_is_none(kafka: KafkaCluster, log: KafkaLog, time_ms: int) -> None:
    """Of a row it is null, so that it is late and moves no watermark; a consumer gets the nearest that there is."""
    topic = lasting(kafka, **ANY_TIME)
    put(kafka, topic, Record(b"v", b"k", time_ms))
    [slab] = slabs(kafka, topic)
    assert slab.rows.column("timestamp").to_pylist() == [None]
    with log.consumer([topic]) as consumer:
        [record] = consumer.poll(10)
    assert record.timestamp.year == (9999 if time_ms > 0 else 1969)


def test_a_table_is_served_from_records_of_any_time(kafka: KafkaCluster, log: KafkaLog) -> None:
    topic = lasting(kafka, cleanup_policy="compact", **ANY_TIME)
    put(kafka, topic, Record(b"old", b"k", -5000), Record(b"new", b"k", FAR_MS), Record(None, b"gone", FAR_MS))
    tables = Tables(log)
    try:
        assert b"new" in tables.row(topic, "k").json()
    finally:
        tables.close()


def test_a_small_batch_may_hold_much(kafka: KafkaCluster) -> None:
    """Compressed, 40 MB are 40 KB, and such a batch comes whole: it is taken apart before it is worked on."""
    topic = lasting(kafka, max_message_bytes=str(64 << 20))
    put(kafka, topic, *[Record(bytes(10 << 20), b"k", 1)] * 4, attributes=GZIP)
    assert [slab.rows.num_rows for slab in slabs(kafka, topic)] == [2, 2]


# ---------------------------------------------------------------- topics of our own


def test_garbage_in_the_topic_of_descriptions_is_skipped(
    kafka: KafkaCluster, log: KafkaLog, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"t{uuid.uuid4().hex}"
    log.create_topic(name, schema="a int")
    keys = [b"topic/x\x1b[2J", b"", b"\xff/\xfe", f"nonsense/{name}".encode()]
    for value in (b"[" * 200_000, b"\x80\x04cos\nsystem\n(S'true'\ntR.", b"null", b"\xff", None):
        put(kafka, DESCRIPTIONS, *[Record(value, key) for key in keys])
    with caplog.at_level(logging.WARNING), KafkaLog(log.address) as other:
        assert other.topic(name).settings.schema == Schema.of("a int")
    assert "\x1b" not in caplog.text


def test_a_description_that_is_not_ours_is_refused_by_name(kafka: KafkaCluster, log: KafkaLog) -> None:
    name = f"t{uuid.uuid4().hex}"
    log.create_topic(name, schema="a int")
    identity = log.topic(name, fresh=True).identity
    for schema in (5, ["a int"], "a nonsense", {"a": "int"}):
        put(
            kafka,
            DESCRIPTIONS,
            Record(json.dumps({"id": identity, "schema": schema}).encode(), f"topic/{name}".encode()),
        )
        with KafkaLog(log.address) as other, pytest.raises(DamagedLog, match=r"(?s)schema.*_millstream.*topic/NAME"):
            other.topic(name, fresh=True)
    put(kafka, DESCRIPTIONS, Record(None, f"topic/{name}".encode()))
    with KafkaLog(log.address) as other:
        assert other.topic(name, fresh=True).settings.schema is None


@pytest.mark.more
def test_a_queue_that_cannot_be_read_can_be_deleted(kafka: KafkaCluster, log: KafkaLog) -> None:
    name = f"q{uuid.uuid4().hex}"
    for document in ({}, {"topic": "x", "starts": 5}, {"topic": "x", "starts": {"a": 1}}, {"evil": 1}):
        put(kafka, DESCRIPTIONS, Record(json.dumps(document).encode(), f"queue/{name}".encode()))
        with KafkaLog(log.address) as other:
            with pytest.raises(DamagedLog, match=r"(?s)queue '.*delete the queue"):
                other.describe_queue(name)
            other.delete_queue(name)
            assert name not in [each.name for each in other.queues()]


@pytest.mark.parametrize(
    "value",
    [None, b"", b"[]", b"7", b"\xff", b"{}", b'{"batch": "7"}', b'{"batch": true}', b"[" * 200_000],
    ids=["tombstone", "empty", "list", "number", "no text", "no batch", "batch of text", "batch of truth", "too deep"],
)
def test_a_foreign_record_is_not_taken_for_a_marker(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture, value: bytes | None
) -> None:
    """Beside one of ours it is passed over; alone it may have taken the place of one, and the job is refused."""
    clients = Clients(KafkaAddress.of(f"kafka://{kafka.bootstrap}"))
    make_ready(clients)
    marker = Marker(clients, "a-producer", uuid.uuid4().hex)
    put(kafka, MARKERS, Record(value, marker.key), partition=marker.partition)
    with pytest.raises(SinkFailed, match=r"(?s)not known which batches.*_millstream_markers.*another name"):
        marker.newest()
    sent = marker.record(7)
    put(kafka, MARKERS, Record(sent["value"], sent["key"]), partition=marker.partition)
    put(kafka, MARKERS, Record(value, marker.key), partition=marker.partition)
    with caplog.at_level(logging.WARNING):
        assert marker.newest() == 7
    assert "not written by Millstream" in caplog.text


# ---------------------------------------------------------------- a job


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_a_job_goes_through_all_of_it(kafka: KafkaCluster, spark: SparkSession, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """In one topic, compacted and with an odd name. What is no row is a dead letter or late; each is somewhere."""
    topic = lasting(kafka, name=f"..._-{uuid.uuid4().hex}-A.b_C", cleanup_policy="compact", **ANY_TIME)
    hostile = [
        Record(b'{"n": 1}', b"one", 1000),
        Record(b'{"n": 2}', b"k" * 1_000_000, 2000),
        Record(None, b"deleted", 3000),
        Record(b'{"n": 4}', b"four", FAR_MS),
        Record(b'{"n": 5}', b"five", -1),
        Record(b'{"n": 6}', b"six", 4000, [(b"\xff", b"")]),
        Record(b'{"n": 7}', b"seven", 5000, [(b"", None), (b"h", b"1"), (b"h", b"2"), (b"\x1b[2J", b"x")]),
        Record(b'{"n": "\x1b[2J', b"eight", 6000),
        Record(b"[" * 100_000, b"nine", 6000),
        Record(b'{"n": 10}', b"ten", 7000),
    ]
    for record in hostile:
        put(kafka, topic, record, attributes=GZIP)
    assert raw.put(kafka.bootstrap, topic, FINE, attributes=raw.CONTROL) != 0  # that, the broker itself refuses
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        flow = ms.Flow("hostile")
        schema = "n int, timestamp timestamp, headers map<string, binary>"
        rows = flow.read(ms.kafka(kafka.bootstrap, topic=topic), schema, event_time="timestamp", name="rows")
        windows = rows.window(ms.fixed("1 hour")).agg(total=ms.sum("n"), k=ms.count())
        rows.select("n").write("rows")
        windows.late.select("n").write("late")
        rows.dead.select("offset", "reason").write("dead")
        flow.run(broker=log.path, until=CAUGHT_UP)
        assert sorted(row["n"] for row in read(log, "rows")) == [1, 2, 4, 5, 7, 10]
        assert sorted(row["n"] for row in read(log, "late")) == [4, 5]
        assert [row["offset"] for row in read(log, "dead")] == [5, 7, 8]
