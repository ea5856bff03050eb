"""Appending, reading and subscribing, on the embedded log and on Kafka."""

from __future__ import annotations

import math
import pickle
import re
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import (
    ArchiveUnavailable,
    ClosedError,
    EventIdReused,
    EventRefused,
    InvalidInput,
    StorageError,
    StreamClosed,
    WrongVersion,
)
from millstream.events.index import Index
from millstream.events.store import EventStore
from waiting import PATIENCE_S, until

from .conftest import Open


def types(store: EventStore, stream: str, **range_: int) -> list[str]:
    return [event.type for event in store.read(stream, **range_)]


def test_events_are_read_in_order_with_their_versions(store: EventStore) -> None:
    added = ms.Event("Added", {"item": "tea", "price": 3.5}, metadata={"user": "ann"})
    assert store.append("cart-1", [added, ms.Event("Removed", {"item": "tea"})], expected_version=0).version == 2
    store.append("cart-2", ms.Event("Added", {"item": "milk"}))
    first, second = store.read("cart-1")
    assert (first.stream, first.version, first.type) == ("cart-1", 1, "Added")
    assert first.data == {"item": "tea", "price": 3.5}
    assert first.metadata == {"user": "ann"}
    assert first.id == added.id
    assert abs((datetime.now(UTC) - first.at).total_seconds()) < 3600
    assert (second.version, second.metadata) == (2, None)
    assert types(store, "cart-1", from_version=2) == ["Removed"]
    assert types(store, "cart-1", to_version=1) == ["Added"]
    assert types(store, "nowhere") == []
    assert store.version("nowhere") == 0


def test_an_outdated_writer_is_refused_with_the_current_version(open_store: Open) -> None:
    mine, other = open_store(), open_store()
    mine.append("seat", ms.Event("Held"), expected_version=0)
    other.append("seat", ms.Event("Sold"), expected_version=1)
    with pytest.raises(WrongVersion) as refused:
        mine.append("seat", [ms.Event("Sold"), ms.Event("Paid")], expected_version=1)
    assert (refused.value.current_version, refused.value.expected_version) == (2, 1)
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (copy.stream, copy.current_version, str(copy)) == ("seat", 2, str(refused.value))
    assert types(mine, "seat") == types(other, "seat") == ["Held", "Sold"]


def test_a_repeated_append_stores_nothing_twice(open_store: Open) -> None:
    store = open_store()
    events = [ms.Event("Held"), ms.Event("Sold", {"to": "ann"})]
    first = store.append("seat", events, expected_version=0)
    store.append("seat", ms.Event("Paid"), expected_version=2)
    for again in (store, open_store()):
        repeated = again.append("seat", events, expected_version=0)
        assert (repeated.version, repeated.position, repeated.is_repeated) == (2, first.position, True)
    assert types(store, "seat") == ["Held", "Sold", "Paid"]


def test_recorded_events_cannot_be_changed(store: EventStore) -> None:
    store.append("seat", ms.Event("Sold", {"to": "ann"}, id="sale-1"))
    store.append("tags", ms.Event("Tagged", {"tag": "$personal", "n": 1}, id="tag-1"))
    changes = [
        ("tags", [ms.Event("Tagged", {"tag": "$personal", "n": 2}, id="tag-1")]),
        ("seat", [ms.Event("Sold", {"to": "bob"}, id="sale-1")]),
        ("seat", [ms.Event("Held", {"to": "ann"}, id="sale-1")]),
        ("other", [ms.Event("Sold", {"to": "ann"}, id="sale-1")]),
        ("seat", [ms.Event("Sold", {"to": "ann"}, id="sale-1"), ms.Event("Paid")]),
        ("new", [ms.Event("Held", id="twice"), ms.Event("Sold", id="twice")]),
    ]
    for stream, events in changes:
        with pytest.raises(EventIdReused):
            store.append(stream, events)
    assert [(event.stream, event.data) for event in store.read_all()] == [
        ("seat", {"to": "ann"}), ("tags", {"tag": "$personal", "n": 1}),
    ]  # fmt: skip


def test_an_append_to_several_streams_is_all_or_nothing(store: EventStore) -> None:
    done = store.append_together([
        ms.Append("ann", [ms.Event("Withdrawn", {"amount": 5})], expected_version=0),
        ms.Append("bob", [ms.Event("Deposited", {"amount": 5})], expected_version=0),
    ])  # fmt: skip
    assert [(each.stream, each.version) for each in done] == [("ann", 1), ("bob", 1)]
    with pytest.raises(WrongVersion) as refused:
        store.append_together([
            ms.Append("ann", [ms.Event("Withdrawn", {"amount": 5})], expected_version=1),
            ms.Append("bob", [ms.Event("Deposited", {"amount": 5})], expected_version=0),
        ])  # fmt: skip
    assert refused.value.stream == "bob"
    assert [store.version(stream) for stream in ("ann", "bob")] == [1, 1]
    with pytest.raises(EventRefused):
        store.append_together([ms.Append("ann", [ms.Event("A")]), ms.Append("ann", [ms.Event("B")])])


def test_many_appends_share_a_write_and_are_decided_in_turn(store: EventStore) -> None:
    outcomes = store.append_each([ms.Append("s", [ms.Event(f"E{number}")], number // 2) for number in range(4)])
    refused = [each.current_version if isinstance(each, WrongVersion) else None for each in outcomes]
    assert refused == [None, 1, None, 2]
    assert types(store, "s") == ["E0", "E2"]
    assert store.append_each([]) == []


def test_a_closed_stream_takes_no_more_events(open_store: Open) -> None:
    store = open_store()
    store.append("order", ms.Event("Shipped"))
    with pytest.raises(WrongVersion):
        store.close_stream("order", expected_version=0)
    store.close_stream("order", expected_version=1)
    for each in (store, open_store()):
        with pytest.raises(StreamClosed):
            each.append("order", ms.Event("Lost"))
        assert each.is_closed("order")
        assert types(each, "order") == ["Shipped"]
    assert [event.type for event in store.read_all()] == ["Shipped"]


def test_a_stream_returns_what_it_keeps(open_store: Open) -> None:
    store = open_store()
    store.append("log", [ms.Event(f"E{number}") for number in range(5)])
    store.keep("log", last=2)
    for each in (store, open_store()):
        assert types(each, "log") == ["E3", "E4"]
        assert each.version("log") == 5
    store.append("log", ms.Event("E5"), expected_version=5)
    assert types(store, "log") == ["E4", "E5"]
    store.keep("log", age="1 microsecond")
    time.sleep(0.001)
    assert types(store, "log") == []
    store.keep("log")
    assert len(types(store, "log")) == 6
    with pytest.raises(InvalidInput):
        store.keep("log", last=0)


def test_the_whole_store_is_read_from_any_position(store: EventStore) -> None:
    for number in range(4):
        store.append(f"s{number % 2}", ms.Event(f"E{number}"))
    everything = list(store.read_all())
    assert [event.type for event in everything] == ["E0", "E1", "E2", "E3"]
    rest = list(store.read_all(from_position=everything[2].position))
    assert rest == everything[2:]


def test_a_subscription_follows_the_store(open_store: Open) -> None:
    store = open_store()
    before = [store.append("s", ms.Event(f"E{number}")) for number in range(3)]
    seen: list[str] = []
    done = threading.Event()
    subscription = store.subscribe(before[1].position)

    def follow() -> None:
        for event in subscription:
            seen.append(event.type)
            if event.type == "E4":
                done.set()

    follower = threading.Thread(target=follow)
    follower.start()
    other = open_store()
    other.append("t", ms.Event("E3"))
    other.append("s", ms.Event("E4"))
    assert done.wait(PATIENCE_S), "the subscription has not seen the last event"
    subscription.close()
    follower.join(PATIENCE_S)
    assert not follower.is_alive(), "the subscription was closed, and its loop has not ended"
    assert seen == ["E1", "E2", "E3", "E4"]


def test_a_subscription_begins_at_any_point(store: EventStore) -> None:
    for number in range(3):
        store.append("s", ms.Event(f"E{number}"))
        time.sleep(0.002)  # Kafka keeps milliseconds
    events = list(store.read("s"))
    for start, first in (("earliest", 0), (events[1].position, 1), (events[2].at, 2), ("latest", None)):
        before = [event.type for event in store.read("s")]
        with store.subscribe(start) as subscription:
            found = [event.type for event in subscription.poll(0.1)]
            store.append("s", ms.Event(f"after {start}"))
            while f"after {start}" not in found:
                found += [event.type for event in subscription.poll(1)]
        assert found == [*([] if first is None else before[first:]), f"after {start}"]


def test_a_subscription_of_a_group_continues_where_the_last_one_stopped(store: EventStore) -> None:
    store.append("s", [ms.Event("E0"), ms.Event("E1"), ms.Event("E2")])
    with store.subscribe(group="mail") as first:
        assert [event.type for event in first.poll(10, max_events=2)] == ["E0", "E1"]
        first.commit()
    with store.subscribe(group="mail") as second:
        assert [event.type for event in second.poll(10)] == ["E2"]


def test_a_flow_reads_the_topic_of_a_store(store: EventStore, address: str) -> None:
    store.append("cart", ms.Event("Added", {"item": "tea"}))
    with ms.connect(address) as broker, broker.consumer(store.name) as consumer:
        (record,) = consumer.until_caught_up()
    assert record.key == b"cart"
    assert (record.value["type"], record.value["version"], record.value["data"]) == ("Added", 1, '{"item":"tea"}')


@pytest.mark.parametrize("damage", ["deleted", "damaged", "outdated"])
def test_the_index_is_built_again_from_the_log(tmp_path: Path, damage: str) -> None:
    with ms.event_store(tmp_path / "log", "s") as store:
        store.append("a", [ms.Event("E1", id="one"), ms.Event("E2")])
        path = store._index.path
        assert path is not None
        if damage == "outdated":
            store._index.waiting = 0  # closed without a flush, like a killed process
            store.append("a", ms.Event("E3"))
            store._index.waiting = 0
    if damage == "deleted":
        path.unlink()
    elif damage == "damaged":
        path.write_bytes(b"no database" * 1000)
    with ms.event_store(tmp_path / "log", "s") as store:
        expected = 3 if damage == "outdated" else 2
        assert store.version("a") == len(types(store, "a")) == expected
        assert store.append("a", ms.Event("E1", id="one")).is_repeated


def test_an_index_of_a_deleted_topic_is_not_used(tmp_path: Path) -> None:
    made = Index(tmp_path / "i.sqlite", "one", keeps_contents=False)
    made.save_snapshot("k", "s", 1, 0, b"1")
    made.close()
    assert Index(tmp_path / "i.sqlite", "two", keeps_contents=False).snapshot("k", "s", 9) is None


def test_flushes_of_two_processes_do_not_disturb_each_other(open_store: Open) -> None:
    mine, other = open_store(), open_store()
    for round_ in range(6):
        writer, flusher = (mine, other) if round_ % 2 else (other, mine)
        writer.append_each([ms.Append(f"s{number % 5}", [ms.Event(f"{round_}")]) for number in range(20)])
        flusher.version("s0")
        flusher._index.flush()
        if round_ % 3 == 0:
            writer._index.flush()
        for each in (mine, other):
            until(partial(has_versions, each, 4 * (round_ + 1)), f"round {round_} to be seen")  # on Kafka, later
            assert [event.version for event in each.read("s3")] == list(range(1, 4 * (round_ + 1) + 1))


def has_versions(store: EventStore, version: int) -> bool:
    return [store.version(f"s{number}") for number in range(5)] == [version] * 5


def test_bad_input_is_refused(store: EventStore) -> None:
    with pytest.raises(InvalidInput, match="type of an event"):
        ms.Event("")
    with pytest.raises(InvalidInput, match="the store's own"):
        ms.Event("$closed")
    for half in ({"type": "half \ud83d"}, {"type": "A", "id": "half \ud83d"}):
        with pytest.raises(InvalidInput):
            ms.Event(**half)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="mapping"):
        ms.Event("Added", ["tea"])  # type: ignore[arg-type]
    for stream, events, version in [
        ("", [ms.Event("A")], None),
        ("s", [], None),
        ("s", ["Added"], None),
        ("s", None, None),
        ("half \ud83d", [ms.Event("A")], None),
        ("s", [ms.Event("A", {"x": object()})], None),
        ("s", [ms.Event("A", {"$personal": 1})], None),
        ("s", [ms.Event("A", {"x": 1 << 64})], None),
        ("s", [ms.Event("A", metadata={"x": object()})], None),
        ("s", [ms.Event("A")], -1),
        ("s", [ms.Event("A")], True),
        ("s", [ms.Event("A", {"mail": "x"}, subject="ann", personal="mail")], None),
    ]:
        with pytest.raises(InvalidInput):
            store.append(stream, events, expected_version=version)  # type: ignore[arg-type]
    for wrong in ("junk", ms.Append("s", []), ms.Append("s", None)):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            store.append_each([ms.Append("s", [ms.Event("A")]), wrong])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="not a version"):
        list(store.read("s", from_version="1"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not a position"):
        list(store.read_all(-1))
    assert list(store.read_all()) == []
    store.close()
    with pytest.raises(ClosedError):
        store.append("s", ms.Event("A"))
    with pytest.raises(ClosedError):
        store.version("s")


class Odd(Enum):
    VALUE = math.nan


@dataclass
class Part:
    size: float


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"price": math.nan}, "nan at 'price'"),
        ({"price": math.inf, "none": None}, "inf at 'price'"),
        ({"a": {"b": [None, (1.5, -math.inf)]}}, "-inf at 'a.b.1.1'"),
        ({"part": Part(math.nan)}, "nan at 'part.size'"),
        ({"odd": Odd.VALUE}, "nan at 'odd'"),
    ],
)
def test_numbers_that_json_does_not_have_are_refused(store: EventStore, data: dict[str, Any], place: str) -> None:
    """They would be recorded as null."""
    for event in (ms.Event("A", data), ms.Event("A", metadata=data)):
        with pytest.raises(InvalidInput, match=f"must be JSON: {re.escape(place)} is not a number") as refused:
            store.append("s", [ms.Event("B"), event])
        assert refused.value.where == "event 'A'"
    assert store.version("s") == 0
    store.append("s", ms.Event("A", {"text": "null", "none": None, "price": 1e308}))
    assert [event.data for event in store.read("s")] == [{"text": "null", "none": None, "price": 1e308}]


def test_another_topic_is_not_a_store(address: str, name: str) -> None:
    plain = f"{name}-plain"
    with ms.connect(address) as log:
        log.create_topic(plain)
        with log.producer() as producer:
            producer.send(plain, "a record")
        with pytest.raises(InvalidInput, match="not an event store"):
            ms.event_store(log, plain)
        with ms.event_store(log, name) as store:
            store.append("s", ms.Event("A"))
        assert {name, plain} <= set(log.topics())  # a store that did not open the log does not close it
        log.change_topic(name, compaction=True)
        with pytest.raises(InvalidInput, match="compacted"):
            ms.event_store(log, name)


def test_an_index_that_is_deleted_while_the_store_is_open_is_reported(tmp_path: Path) -> None:
    """Two processes with different files under one name would not see the same versions."""
    store = ms.event_store(tmp_path / "log", "s")
    store.append("a", [ms.Event("E1"), ms.Event("E2")])
    assert store._index.path is not None
    store._index.path.unlink()
    for use in (lambda: store.version("a"), lambda: store.append("a", ms.Event("E3"), expected_version=0)):
        with pytest.raises(StorageError, match="deleted or replaced while the store was open"):
            use()
    store.close()
    with ms.event_store(tmp_path / "log", "s") as again:
        assert again.append("a", ms.Event("E3"), expected_version=2).version == 3


def test_a_store_whose_archive_is_away_takes_new_events(tmp_path: Path) -> None:
    with ms.connect(tmp_path / "log") as log, ms.event_store(log, "s") as store:
        store.append("a", ms.Event("E", {"text": "x" * 500}))
        archive = tmp_path / "archive"
        log.change_topic("s", segment_bytes=4096, retention_bytes=4096, retention_archive=archive)
        for _ in range(30):
            store.append("a", ms.Event("E", {"text": "x" * 500}))
        log.clean("s")
        store._index.flush()
        store.append("a", ms.Event("Newer"))  # the next one has to read this
        archive.rename(tmp_path / "away")
        with ms.event_store(log, "s") as other:
            assert other.append("a", ms.Event("Newest"), expected_version=32).version == 33
            assert types(other, "a", from_version=32) == ["Newer", "Newest"]
            with pytest.raises(ArchiveUnavailable):
                types(other, "a")
            (tmp_path / "away").rename(archive)
            assert len(types(other, "a")) == 33
