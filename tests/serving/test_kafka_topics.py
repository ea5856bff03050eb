"""Tables in Kafka topics: rows by key, up to date at the time of the request, and merged views."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import millstream as ms
from kafka_cluster import KafkaCluster
from log.kafka.settling import settle
from log.kafka.support import new
from millstream.errors import NotFound, UnknownTopic
from millstream.log.kafka.failures import client_module
from millstream.log.kafka.log import KafkaLog
from millstream.serving import Tables, TableUnavailable, newest, open_table
from millstream.serving.kafka_topics import KafkaTopicTable
from millstream.serving.newest import home_of
from millstream.serving.served import Served
from millstream.serving.topics import text_table

from .running import Running
from .support import Job, put, total, totals_flow
from .test_changes import shown, state_of, until_current


class Aborted(Exception):
    """Raised in a transaction, which ends it."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """Made by another."""
    name = new()
    with KafkaLog(f"kafka://{kafka.bootstrap}") as other:
        other.create_topic(name, schema="n int", partitions=3)
    return name


@pytest.fixture
def both(log: KafkaLog, topic: str) -> Iterator[list[KafkaTopicTable]]:
    """One that follows the topic, and one that rereads it each time."""
    made = [KafkaTopicTable(log, text_table(topic, log), follows=follows) for follows in (True, False)]
    yield made
    for table in made:
        table.close()


def values(tables: list[KafkaTopicTable], key: str) -> dict[str, Any] | None:
    """What all say, which is the same."""
    first, *others = [None if (row := table.row(key)) is None else row.values() for table in tables]
    assert others == [first] * len(others)
    return first


def write(job: Job, *changes: tuple[dict[str, Any], int]) -> None:
    job.write(*changes)
    assert isinstance(job.log, KafkaLog)
    settle(job.log, str(job.outputs[0].sink))


# ---------------------------------------------------------------- tables of jobs


def test_a_lookup_sees_every_batch_of_a_job(log: KafkaLog) -> None:
    name = new()
    job = Job(log, totals_flow(name, name=f"{name}-job"))
    write(job, (total("red", 5), 1), (total(None, 2), 1))
    with open_table(name, log.address) as table:
        assert table.key == ("team",)
        assert (table.get("red"), table.get(None), table.get("blue")) == (total("red", 5), total(None, 2), None)
        write(job, (total("red", 5), -1), (total("red", 7), 1))
        assert table.get({"team": "red"}) == total("red", 7)
        write(job, (total("red", 7), -1), (total("blue", 1), 1))
        assert (table.get("red"), table.get("blue")) == (None, total("blue", 1))
    job.close()


@pytest.mark.more
def test_tables_are_known_by_what_jobs_noted_and_by_their_compaction(log: KafkaLog, kafka: KafkaCluster) -> None:
    name, other, plain = new(), new(), new()
    job = Job(log, totals_flow(name, name=f"{name}-job"))
    log.create_topic(other, compaction=True)
    log.create_topic(plain)
    where = f"kafka://{kafka.bootstrap}"
    tables = Tables(log)
    known = tables.known()
    assert (known[name].key, known[name].where, known[name].job) == (("team",), where, f"{name}-job")
    assert (known[other].key, known[other].where, known[other].job) == (("key",), where, None)
    assert plain not in known
    log.switch(plain, name)
    write(job, (total("red", 5), 1))
    assert tables.row(plain, "red").values() == total("red", 5)  # as the readers of this name
    log.unswitch(plain)
    with pytest.raises(NotFound, match=f"the table '{name}' has no row with team = \"green\"") as refused:
        tables.row(name, "green")
    assert refused.value.next_step == "keys that exist: red"
    with pytest.raises(NotFound, match="there is no table"):
        tables.row(new(), "red")
    tables.close()
    job.close()


def test_rows_over_http(log: KafkaLog) -> None:
    name = new()
    job = Job(log, totals_flow(name, name=f"{name}-job"))
    served = Served(Tables(log))
    running = Running(served)
    try:

        def ask(path: str) -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{running.port}{path}", timeout=60) as answer:
                return json.loads(answer.read())

        for points in (1, 2):
            write(job, (total("red", points), 1))
            assert ask(f"/tables/{name}/red") == total("red", points)
        assert {"name": name, "kind": "topic", "key": ["team"]} in ask("/tables")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(f"/tables/{name}/blue")
    finally:
        running.close()
        served.close()
        job.close()


@pytest.mark.more
def test_a_table_is_followed_and_resumed(log: KafkaLog) -> None:
    """Each batch ends with a record of the transaction that no reader sees."""
    name = new()
    job = Job(log, totals_flow(name, name=f"{name}-job"))
    write(job, (total("red", 5), 1), (total("blue", 1), 1))
    write(job, (total("blue", 1), -1))
    with open_table(name, log.address) as table:
        changes = table.subscribe()
        assert state_of(until_current(changes)) == {"red": 5}
        write(job, (total("green", 2), 1))
        green = next(changes)
        assert shown(green) == ("row", total("green", 2))
        write(job, (total("red", 5), -1))
        assert shown(next(changes)) == ("deleted", "red")
        changes.close()
        resumed = table.subscribe(green.position)
        assert shown(next(resumed)) == ("deleted", "red")
        assert next(resumed).kind == "current"
        resumed.close()
    job.close()


# ---------------------------------------------------------------- what the records add up to


@pytest.mark.more
def test_a_history_of_records(log: KafkaLog, topic: str, both: list[KafkaTopicTable]) -> None:
    """Goal: both ways give the newest committed record of each key. Method: a dict beside them."""
    expected: dict[str, int | None] = {}
    history: list[tuple[str, dict[str, int | None]]] = [
        ("send", {}),
        ("send", {"a": 1, "b": 2, "c": 3}),
        ("abort", {"a": 9, "d": 9}),
        ("send", {"b": None, "d": 4}),
        ("grow", {}),
        ("send", {"a": 5, "b": 6, "c": None}),
        ("abort", {"b": None}),
        ("send", {"c": 7, "d": None}),
    ]
    producer = log.producer(name=new("p"))
    for step, (what, records) in enumerate(history):
        if what == "grow":
            log.change_topic(topic, partitions=5)
            producer.close()
            producer = log.producer(name=new("p"))
        else:
            with suppress(Aborted), producer.transaction():
                for key, number in records.items():
                    producer.send(topic, None if number is None else {"n": number}, key)
                if what == "abort":
                    raise Aborted
            settle(log, topic)
        expected |= records if what == "send" else {}
        for key in "abcd":
            wanted = None if expected.get(key) is None else {"n": expected[key]}
            assert values(both if step % 2 else both[:1], key) == wanted, (what, records)
    with producer.transaction():
        producer.send(topic, {"n": 8}, "a")
        producer.flush()
        assert values(both, "a") == {"n": 5}  # not committed yet
    producer.close()
    settle(log, topic)
    assert values(both, "a") == {"n": 8}
    assert sorted(both[0].some_keys(9)) == ["a", "b", "c"]


def test_a_key_that_lies_elsewhere_is_found(log: KafkaLog, topic: str, both: list[KafkaTopicTable]) -> None:
    where = home_of(b"a", 3)
    others = [number for number in range(3) if number != where]
    put(log, topic, ("a", {"n": 1}), partition=others[0], timestamp=_at(1))
    assert values(both, "a") == {"n": 1}
    put(log, topic, ("a", {"n": 2}), partition=where, timestamp=_at(2))
    assert values(both, "a") == {"n": 2}
    put(log, topic, ("a", {"n": 0}), partition=others[1], timestamp=_at(1))  # an older one that came late
    assert values(both, "a") == {"n": 2}
    put(log, topic, ("a", None), partition=others[1], timestamp=_at(3))
    assert values(both, "a") is None


def _at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def test_rows_have_the_columns_that_the_topic_has_now(
    log: KafkaLog, topic: str, both: list[KafkaTopicTable], kafka: KafkaCluster
) -> None:
    put(log, topic, ("a", {"n": 1}), ("b", {"n": 1}))
    assert values(both, "a") == {"n": 1}
    with KafkaLog(f"kafka://{kafka.bootstrap}") as other:
        other.change_topic(topic, schema="n bigint, name string")
        put(other, topic, ("b", {"n": 2**40, "name": "x"}))
    log.topic(topic, fresh=True)
    assert (values(both, "a"), values(both, "b")) == ({"n": 1, "name": None}, {"n": 2**40, "name": "x"})
    producer = client_module().Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"no row", b"b")
    producer.flush()
    for table in both:
        assert table.row("a") is not None  # one bad record is nobody else's
        with pytest.raises(TableUnavailable, match="does not fit the schema of its topic"):
            table.row("b")


@pytest.mark.more
def test_deleted_or_recreated_topics_are_gone(
    log: KafkaLog, topic: str, both: list[KafkaTopicTable], kafka: KafkaCluster
) -> None:
    log.change_topic(topic, retention="7 days")
    put(log, topic, ("a", {"n": 1}), ("b", {"n": 1}), partition=0)
    assert values(both, "a") == {"n": 1}
    put(log, topic, ("a", {"n": 2}), ("b", {"n": 2}), ("a", {"n": 3}), partition=0)
    admin = log.clients.admin
    cut = client_module().TopicPartition(topic, 0, 4)
    admin.delete_records([cut])[cut].result(30)  # behind what was read, and before what was not
    assert (values(both, "a"), values(both, "b")) == ({"n": 3}, None)
    with KafkaLog(f"kafka://{kafka.bootstrap}") as other:  # of which this log hears nothing
        other.delete_topic(topic)
        for table in both:
            with pytest.raises(UnknownTopic, match=f"there is no topic '{topic}'"):
                table.row("a")
        other.create_topic(topic, schema="n int", partitions=3)
        put(other, topic, *[("b", {"n": number}) for number in range(7)], partition=0)
    assert (values(both, "a"), values(both, "b")) == (None, {"n": 6})


def test_a_question_reads_only_what_is_new(
    log: KafkaLog, topic: str, both: list[KafkaTopicTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(log, topic, *[(f"k{number % 700}", {"n": number}) for number in range(3000)])
    follower, _ = both
    assert values(both, "k199") == {"n": 2999}
    assert values(both, "k200") == {"n": 2300}
    read: list[int] = []
    take = newest.Held.take

    def noted(held: newest.Held, stored: pa.RecordBatch, offsets: np.ndarray) -> list[bytes]:
        read.append(stored.num_rows)
        return take(held, stored, offsets)

    monkeypatch.setattr(newest.Held, "take", noted)
    put(log, topic, ("k200", {"n": 0}), ("new", {"n": 1}))
    assert [row and row.values() for row in map(follower.row, ("k200", "new", "k201"))] == [
        {"n": 0}, {"n": 1}, {"n": 2301}
    ]  # fmt: skip
    assert sum(read) == 2


# ---------------------------------------------------------------- a batch and the live rest


@pytest.mark.more
def test_a_merged_view_of_topics_on_kafka(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, live = new(), new()
    for name in (batch, live):
        log.create_topic(name, schema="team string, total int", partitions=2)
    put(log, batch, *[(team, total(team, 1)) for team in ("red", "blue", "green")])
    put(log, live, ("red", total("red", 5)))
    monkeypatch.setenv("MILLSTREAM_BROKER", log.address)
    with ms.merged(batch, live, key="team") as view:
        assert _held(view.frame) == [total("blue", 1), total("green", 1), total("red", 5)]
        with log.producer(name=new("p")) as producer:
            with producer.transaction():
                producer.send(live, total("blue", 7), "blue")
                producer.send(live, None, "green")
            with suppress(Aborted), producer.transaction():
                producer.send(live, total("red", 0), "red")
                raise Aborted
        settle(log, live)
        assert _held(view.refresh()) == [total("blue", 7), total("red", 5)]
        assert _held(view.refresh()) == [total("blue", 7), total("red", 5)]
    frame = pl.DataFrame({"team": ["red"], "total": [10]}, schema_overrides={"total": pl.Int32})
    with ms.merged(frame, live, key="team", combine={"total": "sum"}, log=log) as view:
        assert _held(view.frame) == [total("blue", 7), total("red", 15)]


def _held(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.sort("team").to_dicts()
