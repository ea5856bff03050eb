"""A log over Arrow Flight: the same calls as on the log itself, retries without duplicates, groups, tokens and TLS."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import millstream as ms
from millstream.bridges import flight_server
from millstream.bridges.flight_server import FlightServer
from millstream.errors import (
    AlreadyExists,
    BufferFull,
    InvalidInput,
    InvalidRecord,
    NoAccess,
    NotFound,
    OffsetLost,
    SourceUnavailable,
    UnknownTopic,
)
from millstream.log import Broker, EmbeddedLog
from millstream.log.flight.client import Connection
from millstream.log.flight.protocol import decoded
from waiting import until

from .support import records, values
from .test_listen_command import Listening
from .test_webhook import certified

T = TypeVar("T")

TOKEN = "0123456789abcdef"


@contextmanager
def served(log: EmbeddedLog, **more: Any) -> Iterator[FlightServer]:
    with FlightServer(log, "grpc+tcp://127.0.0.1:0", **more) as server:
        yield server


@pytest.fixture
def server(log: EmbeddedLog) -> Iterator[FlightServer]:
    with served(log) as made:
        yield made


@pytest.fixture
def remote(server: FlightServer) -> Iterator[Broker]:
    with ms.connect(f"flight://127.0.0.1:{server.port}") as made:
        yield made


def test_topics(remote: Broker, log: EmbeddedLog) -> None:
    made = remote.create_topic("scores", partitions=2, schema="user string, score int", retention="7 days")
    assert made.settings == log.topic("scores").settings
    assert [part.number for part in made.partitions] == [0, 1]
    assert remote.topics() == ["scores"]
    assert remote.topic("scores").stored_schema == log.topic("scores").stored_schema
    with pytest.raises(AlreadyExists):
        remote.create_topic("scores")
    remote.delete_topic("scores")
    with pytest.raises(UnknownTopic, match="scores"):
        remote.topic("scores")
    assert log.topics() == []


def test_so_many_consumers_of_groups_may_be_open(
    remote: Broker, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_server, "MEMBERS_MAX", 1)
    log.create_topic("clicks")
    with remote.consumer("clicks", group="one") as first:
        first.poll(0)
        with pytest.raises(BufferFull, match="1 consumers are open"), remote.consumer("clicks", group="two") as second:
            second.poll(0)
    with remote.consumer("clicks", group="two") as again:
        assert not again.poll(0)


def test_records_there_and_back(remote: Broker, log: EmbeddedLog) -> None:
    log.create_topic("clicks", partitions=3)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with remote.producer(acks="all") as producer:
        receipts = [
            producer.send("clicks", b"%d" % number, key=f"k{number}", timestamp=at, headers={"n": b"1"})
            for number in range(100)
        ]
        assert min(receipt.offset for receipt in receipts) == 0
    assert len(records(remote, "clicks")) == 100
    assert records(remote, "clicks") == records(log, "clicks")
    with remote.consumer("clicks") as consumer:
        assert consumer.lag() == 100


def test_columns_there_and_back(remote: Broker, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema="user string, score int")
    rows = pa.RecordBatch.from_pydict({"user": ["ann", "bob"] * 5000, "score": pa.array(range(10_000), pa.int32())})
    with remote.producer() as producer:
        receipt = producer.send_batch("scores", rows, key="user")
        bad = producer.send("scores", b'{"score": "x"}')
        assert receipt.offsets.tolist() == list(range(10_000))
        with pytest.raises(InvalidRecord):
            bad.wait()
        with pytest.raises(InvalidRecord):
            producer.flush()
    with remote.consumer("scores") as consumer:
        batches = consumer.poll_batches(10)
        assert pa.Table.from_batches([batch.values() for batch in batches]).equals(pa.Table.from_batches([rows]))
        consumer.seek(9_998, partition=0)
        assert [record.value["score"] for record in consumer.poll(10)] == [9_998, 9_999]


def test_a_consumer_waits_for_records(remote: Broker, log: EmbeddedLog) -> None:
    log.create_topic("clicks", partitions=2)
    with remote.consumer("clicks", start="latest") as consumer:
        assert consumer.poll(0.01) == []
        with log.producer(acks="all") as producer:
            producer.send("clicks", b"1", partition=1)
        found: list[Any] = []
        until(lambda: found.extend(consumer.poll(5)) or found, "the record")
        assert [(record.partition, record.value) for record in found] == [(1, b"1")]


def test_only_committed_records_are_read(remote: Broker, log: EmbeddedLog) -> None:
    log.create_topic("clicks")
    with log.producer(name="p") as producer:
        with suppress(RuntimeError), producer.transaction():
            producer.send("clicks", b"aborted")
            producer.flush()
            raise RuntimeError
        with producer.transaction():
            producer.send("clicks", b"committed")
    assert values(remote, "clicks") == [b"committed"]
    with remote.consumer("clicks", isolation="read_uncommitted") as consumer:
        assert [record.value for record in consumer.until_caught_up()] == [b"aborted", b"committed"]


def test_a_group_shares_partitions_and_resumes(remote: Broker, log: EmbeddedLog) -> None:
    log.create_topic("clicks", partitions=2)
    with log.producer() as producer:
        for number in range(10):
            producer.send("clicks", b"%d" % number, partition=number % 2)
    with remote.consumer("clicks", group="readers") as first:
        found: list[Any] = []
        until(lambda: found.extend(first.poll(1)) or len(found) == 10, "all records")
        first.commit()
        with log.consumer("clicks", group="readers") as second:  # one here, one there
            until(lambda: (first.poll(), second.poll(), len(second.assignment))[-1] == 1, "a partition moved")
            assert len(first.assignment) == 1
            assert {*first.assignment, *second.assignment} == {("clicks", 0), ("clicks", 1)}
        until(lambda: (first.poll(), len(first.assignment))[-1] == 2, "it came back")
    assert log.describe_group("readers").lag == 0
    assert log.describe_group("readers").members == ()
    assert remote.groups() == ["readers"]
    assert log.committed_offsets("readers") == {("clicks", 0): 5, ("clicks", 1): 5}


def test_a_lost_answer_does_not_double_records(
    remote: Broker, server: FlightServer, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the server stores frames, and fails before it answers."""
    log.create_topic("clicks")
    put = FlightServer.do_put
    fails = iter([True, True])

    class Broken:
        def write(self, answer: bytes) -> None:
            raise OSError("the answer is lost")

    def broken(self: FlightServer, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        put(self, context, descriptor, reader, Broken() if next(fails, False) else writer)

    monkeypatch.setattr(FlightServer, "do_put", broken)
    with remote.producer(acks="all") as producer:
        receipts = [producer.send("clicks", b"%d" % number) for number in range(3)]
        assert [receipt.wait().offset for receipt in receipts] == [0, 1, 2]
    assert values(log, "clicks") == [b"0", b"1", b"2"]


def test_a_server_that_restarts(log: EmbeddedLog) -> None:
    log.create_topic("clicks")
    with served(log) as first:
        port = first.port
        remote = ms.connect(f"flight://127.0.0.1:{port}")
        producer = remote.producer(acks="all")
        producer.send("clicks", b"1").wait()
        consumer = remote.consumer("clicks")
        until(lambda: consumer.poll(1), "the first record")
    waiting = producer.send("clicks", b"2")
    with pytest.raises(SourceUnavailable):
        consumer.poll(0.1)
    with FlightServer(log, f"grpc+tcp://127.0.0.1:{port}"):
        until(lambda: waiting.done, "the record is stored")
        found: list[Any] = []

        def polled() -> list[Any]:
            try:
                found.extend(consumer.poll(1))
            except SourceUnavailable:  # the connection comes back after a while
                return []
            return found

        assert until(polled, "the second record")[0].value == b"2"
        consumer.close()
        producer.close()
        remote.close()
    assert values(log, "clicks") == [b"1", b"2"]


def test_errors_are_the_same_as_on_the_log(remote: Broker, server: FlightServer, log: EmbeddedLog) -> None:
    log.create_topic("clicks", segment_bytes=4096, retention_bytes=4096)
    with pytest.raises(InvalidInput, match="setting"):
        remote.create_topic("other", colour="red")
    with pytest.raises(InvalidInput, match="named producers"):
        remote.producer(name="p")
    with pytest.raises(InvalidInput, match="queues"):
        remote.queue("q")
    with pytest.raises(InvalidInput, match="does not know"):
        remote.connection.ask("nothing")  # type: ignore[attr-defined]
    with remote.producer() as producer:
        for _ in range(5):
            producer.send("clicks", b"x" * 3000).wait()
    log.clean("clicks")
    with remote.consumer("clicks", start={0: 0}) as consumer, pytest.raises(OffsetLost):
        consumer.poll(1)
    with remote.consumer("clicks", start={0: 0}, on_lost="earliest") as consumer:
        until(lambda: consumer.poll(1), "the records that are left")
        assert consumer.lost
    with remote.consumer("clicks", group="g") as member:
        server.answers.close()
        with pytest.raises(NotFound, match="consumer"):
            until(lambda: member.poll(0.1) and False, "it was forgotten")
        with pytest.raises(NotFound):
            member.close()


def test_tokens_and_tls(log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = certified(tmp_path)
    tls = (certificate.read_bytes(), certificate.read_bytes())
    with FlightServer(log, "grpc+tls://127.0.0.1:0", token=TOKEN, tls=tls) as server:
        address = f"flight+tls://127.0.0.1:{server.port}?ca={certificate}"
        with pytest.raises(NoAccess, match="token"):
            ms.connect(address)
        monkeypatch.setenv("MILLSTREAM_TOKEN", TOKEN)
        with ms.connect(address) as remote:
            remote.create_topic("clicks")
        with pytest.raises(SourceUnavailable):
            ms.connect(f"flight+tls://127.0.0.1:{server.port}")  # an unknown certificate
    with pytest.raises(SourceUnavailable):
        ms.connect(address)
    with pytest.raises(InvalidInput):
        ms.connect("flight://127.0.0.1")
    with pytest.raises(InvalidInput):
        ms.connect("flight://127.0.0.1:1", shared_group="staff")


@pytest.mark.more
def test_the_command(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("clicks")
    listening = Listening(tmp_path / "log", "flight", "--port", "0")
    with ms.connect(f"flight://127.0.0.1:{listening.port}") as remote, remote.producer(acks="all") as producer:
        producer.send("clicks", b"1")
    listening.end(signal.SIGINT)
    assert values(log, "clicks") == [b"1"]


@contextmanager
def begun(port: int, log: EmbeddedLog, *, asks: bool = True) -> Iterator[tuple[Any, Any, pa.RecordBatch]]:
    """A call that stores records, before the server has any of them."""
    connection = Connection(f"flight://127.0.0.1:{port}")
    topic = log.topic("clicks")
    given = {"topic": "clicks", "identity": topic.identity, "partition": 0, "producer": 7, "sequence": 0}
    writer, answers = connection.put({**given, "sync": True, "tried_since": None}, topic.stored_schema)
    row = {"value": b"1", "timestamp": datetime(2026, 1, 1, tzinfo=UTC)}
    if asks:
        connection.ask("topics")  # the server answers later calls, so it has this one
    yield writer, answers, pa.RecordBatch.from_pylist([row], schema=topic.stored_schema)
    with suppress(pa.ArrowException, OSError):
        writer.close()


def is_refused(port: int) -> bool:
    try:
        ms.connect(f"flight://127.0.0.1:{port}").close()
    except SourceUnavailable:
        return True
    return False


def when_free(call: Callable[[], T]) -> T:
    """Tries again while the call before still has its place: it is given back after the answer."""
    for _ in range(1000):
        try:
            return call()
        except SourceUnavailable:
            time.sleep(0.01)
    return call()


def test_so_many_calls_may_be_in_progress(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: a call that does not go on takes the only place; a producer waits for it, and a reader gets an error."""
    log.create_topic("clicks")
    monkeypatch.setenv("MILLSTREAM_TOKEN", TOKEN)
    with served(log, calls_max=1, token=TOKEN) as server:
        address = f"flight://127.0.0.1:{server.port}"
        with ms.connect(address) as remote, remote.producer(acks="all") as producer:
            producer.send("clicks", b"0").wait()
            with begun(server.port, log, asks=False) as (writer, answers, row):
                until(lambda: is_refused(server.port), "the only place is taken")
                with pytest.raises(SourceUnavailable, match="1 calls in progress"):
                    remote.topics()
                waiting = producer.send("clicks", b"2")
                writer.write_batch(row)
                writer.done_writing()
                assert decoded(answers.read()) == [1]
            assert waiting.wait().offset == 2
            assert when_free(remote.topics) == ["clicks"]
            monkeypatch.setenv("MILLSTREAM_TOKEN", "another-token-0123")
            for _ in range(3):  # calls that are rejected leave their place
                with pytest.raises(NoAccess):
                    ms.connect(address)
            assert when_free(remote.topics) == ["clicks"]
            with pytest.raises(UnknownTopic):
                when_free(lambda: remote.topic("none"))
            assert when_free(remote.topics) == ["clicks"]
    assert values(log, "clicks") == [b"0", b"1", b"2"]


def test_what_is_being_stored_when_it_is_terminated_is_stored_and_answered(log: EmbeddedLog, tmp_path: Path) -> None:
    """Method: a call begins, the process gets SIGTERM and refuses others, and then the call goes on."""
    log.create_topic("clicks")
    listening = Listening(tmp_path / "log", "flight", "--port", "0")
    with begun(listening.port, log) as (writer, answers, row):
        listening.process.send_signal(signal.SIGTERM)
        until(lambda: is_refused(listening.port), "new calls are refused")
        writer.write_batch(row)
        writer.done_writing()
        assert decoded(answers.read()) == [0]
    assert "Traceback" not in listening.process.communicate(timeout=120)[1]
    assert listening.process.returncode == 0
    assert values(log, "clicks") == [b"1"]


@pytest.mark.more
def test_a_client_that_begins_and_does_not_go_on_does_not_hold_up_the_end(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("clicks")
    listening = Listening(tmp_path / "log", "flight", "--port", "0")
    with begun(listening.port, log):
        said = listening.end(signal.SIGTERM)
    assert "its call is abandoned" in said
    assert "Traceback" not in said
    assert listening.process.returncode == 0


def test_what_needs_the_log_itself_is_refused(remote: Broker, log: EmbeddedLog, server: FlightServer) -> None:
    address = f"flight://127.0.0.1:{server.port}"
    for broker in (remote, address):
        with pytest.raises(InvalidInput, match="an event store is in a folder or on Kafka") as refused:
            ms.event_store(broker, "carts")
        assert address in str(refused.value.where)
    log.create_topic("clicks", schema="user string")
    flow = ms.Flow("clicks", log=address)
    flow.read("clicks", "user string").write("copies")
    with pytest.raises(InvalidInput, match="flows run on a log in a folder or on Kafka"):
        flow.run(until="caught up")
    assert log.topics() == ["clicks"]
