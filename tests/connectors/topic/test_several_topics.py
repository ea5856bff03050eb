"""Several topics as one source, on the log and on Kafka: each partition of each topic once, also of new topics."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.connectors.opening import open_source
from millstream.connectors.source import Source
from millstream.errors import DamagedState, InvalidInput, InvalidPlan, MillstreamError, OffsetLost, UnknownTopic
from millstream.log import Broker, EmbeddedLog
from millstream.records import Schema
from waiting import until

from ..reading import dead, slabs

Open = Callable[..., Source]


@pytest.fixture(params=["embedded", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        return f"kafka://{request.getfixturevalue('kafka').bootstrap}"
    return str(request.getfixturevalue("log").path)


@pytest.fixture
def broker(address: str) -> Iterator[Broker]:
    with ms.connect(address) as opened:
        yield opened


@pytest.fixture
def opened(address: str, tmp_path: Path) -> Iterator[Open]:
    made: list[Source] = []

    def open_(given: Any, schema: str, **more: Any) -> Source:
        folder = tmp_path / "source"
        source = open_source(given, Schema.of(schema), broker=address, folder=folder, name="read", **more)
        made.append(source)
        return source

    yield open_
    for source in made:
        source.close()


def prefix() -> str:
    """The topics of one test: a broker is shared by all tests."""
    return f"t{uuid.uuid4().hex[:8]}"


def send(broker: Broker, topic: str, values: list[str], partition: int = 0) -> None:
    with broker.producer() as producer:
        for value in values:
            producer.send(topic, value.encode(), partition=partition)


def texts(source: Source, start: Any = None, end: Any = None) -> list[tuple[str, str]]:
    found = [row for slab in slabs(source, start, end, tasks=2) for row in slab.rows.to_pylist()]
    return sorted((row["topic"].rpartition(".")[2], row["value"]) for row in found)


TEXT = "value string, topic string"


def test_partitions_of_all_topics_and_the_name_of_each(broker: Broker, opened: Open) -> None:
    own = prefix()
    broker.create_topic(f"{own}.a", partitions=2)
    broker.create_topic(f"{own}.b")
    send(broker, f"{own}.a", ["a0"])
    send(broker, f"{own}.a", ["a1", "a2"], partition=1)
    send(broker, f"{own}.b", ["b0", "b1"])
    named = ms.Flow("f").read([f"{own}.a", f"{own}.b"], TEXT, format="string").node.source  # type: ignore[attr-defined]
    source = opened(named, TEXT)
    assert source.latest() == {f"{own}.a/0": 1, f"{own}.a/1": 2, f"{own}.b/0": 2}
    assert texts(source) == [("a", "a0"), ("a", "a1"), ("a", "a2"), ("b", "b0"), ("b", "b1")]
    assert sum(source.limited(source.earliest(), 3).values()) == 3
    end = source.limited(source.earliest(), 2)
    assert {name.rpartition("/")[0] for name, offset in end.items() if offset} == {f"{own}.a", f"{own}.b"}
    assert texts(source, end) + texts(source, None, end) != texts(source)
    assert sorted(texts(source, end) + texts(source, None, end)) == texts(source)


def test_a_topic_that_comes_later_is_found_and_read_from_its_beginning(broker: Broker, opened: Open) -> None:
    own = prefix()
    broker.create_topic(f"{own}.a")
    send(broker, f"{own}.a", ["a0"])
    source = opened(ms.topics(f"{own}[.].*").with_format("string"), TEXT)
    start = source.limited(source.earliest(), None)
    assert start == {f"{own}.a/0": 1}
    broker.create_topic(f"{own}.b")
    broker.create_topic(f"not.{own}.c")
    send(broker, f"{own}.b", ["b0"])
    until(lambda: source.limited(start, None) == {f"{own}.a/0": 1, f"{own}.b/0": 1}, "the new topic is found")
    assert texts(source, start, source.latest()) == [("b", "b0")]
    assert source.wait(start, 0.1)
    assert not source.wait(source.latest(), 0)


def test_a_topic_that_is_gone_or_another_stops_the_reader(broker: Broker, opened: Open) -> None:
    own = prefix()
    for name in "ab":
        broker.create_topic(f"{own}.{name}")
        send(broker, f"{own}.{name}", [name])
    pattern = ms.topics(f"{own}[.].*").with_format("string")
    source = opened(pattern, TEXT)
    start = source.limited(source.earliest(), None)
    broker.delete_topic(f"{own}.b")
    until(lambda: f"{own}.b" not in broker.topics(), "it is gone")
    with pytest.raises(OffsetLost, match=f"'{own}.b' was read before and no longer exists(?s:.*)on_lost"):
        opened(pattern, TEXT).limited(start, None)
    lenient = opened(pattern, TEXT, on_lost="earliest")
    assert lenient.limited(start, None) == {f"{own}.a/0": 1}
    assert "no longer exists" in lenient.take_losses()[0]
    assert opened(pattern, TEXT).limited(start, None) == {f"{own}.a/0": 1}  # its loss was accepted
    broker.create_topic(f"{own}.b")
    send(broker, f"{own}.b", ["x", "y"])
    again = opened(pattern, TEXT)
    with pytest.raises(UnknownTopic, match=f"'{own}.b' was deleted and created again"):
        again.limited(start, None)


def test_a_damaged_list_of_topics_is_reported(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("a")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "topics.json").write_text("{")
    source = open_source(["a"], Schema.of("n int"), broker=str(log.path), folder=tmp_path / "s", name="read")
    with pytest.raises(DamagedState, match="delete the file"):
        source.limited({}, None)
    source.close()


def test_dead_letters_name_their_topic(broker: Broker, opened: Open) -> None:
    own = prefix()
    for name in "ab":
        broker.create_topic(f"{own}.{name}")
        send(broker, f"{own}.{name}", [json.dumps({"n": 1}), name])
    letters = dead(opened(ms.topics(f"{own}.*"), "n int"))
    assert sorted((each["topic"], each["partition"], each["offset"]) for each in letters) == [
        (f"{own}.a", 0, 1),
        (f"{own}.b", 0, 1),
    ]


# ---------------------------------------------------------------- formats of one topic


@pytest.mark.parametrize(
    ("format", "value", "schema", "row"),
    [
        ("string", b"one, two", "value string", {"value": "one, two"}),
        ("bytes", b"\xff", "value binary, offset long", {"value": b"\xff", "offset": 0}),
        ("csv", b"ann,7", "user string, n int", {"user": "ann", "n": 7}),
        ("json", b'{"n": 7}', "n int", {"n": 7}),
        ("avro", b"\x02\x06ann", "user string", {"user": "ann"}),
    ],
)
def test_a_topic_of_bytes_is_read_in_any_format(
    log: EmbeddedLog, tmp_path: Path, format: str, value: bytes, schema: str, row: dict[str, Any]
) -> None:
    log.create_topic("raw")
    with log.producer() as producer:
        producer.send("raw", value)
    flow = ms.Flow("f", log=log.path)
    node: Any = flow.read("raw", schema, format=format).node
    source = open_source(node.source, node.schema, broker=str(log.path), folder=tmp_path / "s", name="read")
    assert [row for slab in slabs(source) for row in slab.rows.to_pylist()] == [row]
    source.close()


def test_texts_need_no_schema(log: EmbeddedLog) -> None:
    assert str(ms.Flow("f", log=log.path).read("raw", format="string").schema) == "value string"
    assert str(ms.Flow("f", log=log.path).read(["a", "b"], format="bytes").schema) == "value binary"
    assert str(ms.Flow("f").read(ms.kafka("h:1", topic="t"), format="string").schema) == "value string"


def test_topics_with_one_schema_need_none(log: EmbeddedLog) -> None:
    log.create_topic("a.1", schema="n int")
    log.create_topic("a.2", schema="n int")
    log.create_topic("b", schema="n string")
    assert str(ms.Flow("f", log=log.path).read(ms.topics("a.*")).schema) == "n int"
    with pytest.raises(InvalidPlan, match=r"'a.1' and 'b' have different schemas: n int and n string"):
        ms.Flow("f", log=log.path).read(["a.1", "b"])
    with pytest.raises(InvalidPlan, match="no topic matches it now"):
        ms.Flow("f", log=log.path).read(ms.topics("c.*"))


def test_a_format_for_a_topic_with_a_schema_is_refused(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("scores", schema="n int")
    for given in ("scores", ["scores"]):
        node: Any = ms.Flow("f").read(given, format="string").node
        place = {"broker": str(log.path), "folder": tmp_path / "s", "name": "read"}
        with pytest.raises(InvalidInput, match=r"has a schema: its values are stored as columns, not as string"):
            open_source(node.source, node.schema, **place).latest()


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda flow: flow.read("raw", "n int", format="jsn"), "no format 'jsn'(?s:.*)did you mean 'json'"),
        (lambda flow: flow.read(ms.rate(1), "value long", format="json"), "format applies to topics only"),
        (lambda flow: flow.read([], "n int"), "no topics in the list"),
        (lambda flow: flow.read(["a", "a"], "n int"), "listed twice"),
        (lambda flow: flow.read(["a", "b/c"], "n int"), "'b/c' is not a topic"),
        (lambda flow: flow.read(ms.topics("a["), "n int"), "not a regular expression"),
        (lambda flow: flow.read("a", "n int").write(["b", "c"]), "one output is one topic"),
        (lambda flow: flow.read(ms.topics("a.*"), "n int").write("a.out"), "reads and writes 'a.out'"),
        (lambda flow: flow.read("raw", format="csv"), "csv, which does not describe their columns"),
    ],
)
def test_mistakes_are_refused_where_they_are_made(read: Callable[[ms.Flow], object], message: str) -> None:
    with pytest.raises(MillstreamError, match=message):
        read(ms.Flow("f"))
