"""Events that no stream keeps leave the topic for good; versions, rules, ids and all readers stay right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms
from log.storage.support import Killed, Steps
from millstream.errors import InvalidInput, OffsetLost, StreamClosed, WrongVersion
from millstream.events.embedded_log import INDEX
from millstream.events.store import EventStore
from millstream.log.storage.segment import segment_names
from waiting import until

from .conftest import Open

NOW = "1 microsecond"


def ids(store: EventStore, stream: str) -> list[str]:
    return [event.id for event in store.read(stream)]


def record(store: EventStore, stream: str, count: int, first: int = 1) -> None:
    store.append(stream, [ms.Event("E", {"text": "x" * 100}, id=f"{stream}{n}") for n in range(first, first + count)])


def stored(address: str, name: str) -> list[str]:
    """The ids of the events that are in the topic, as any consumer sees them."""
    with ms.connect(address) as broker, broker.consumer(name) as consumer:
        rows = [record.value for record in consumer.until_caught_up()]
    return [row["id"] for row in rows if row["version"] is not None]


@pytest.fixture
def limited(open_store: Open) -> EventStore:
    """Ten events of a stream that keeps three, then two of a stream that keeps all."""
    store = open_store()
    record(store, "a", 10)
    store.keep("a", last=3)
    record(store, "b", 2)
    return store


def test_expired_events_leave_the_topic(limited: EventStore, open_store: Open, address: str) -> None:
    late = open_store()  # has read nothing yet
    early = open_store()
    assert early.version("a") == 10
    assert limited.scavenge(older_than=NOW) == 7
    left = ["a8", "a9", "a10", "b1", "b2"]
    assert stored(address, limited.name) == left
    for store in (limited, early, late, open_store()):
        assert (store.version("a"), store.version("b")) == (10, 2)
        assert ids(store, "a") == ["a8", "a9", "a10"]
        assert [event.version for event in store.read("a")] == [8, 9, 10]
        assert [event.id for event in store.read_all()] == left
    with early.subscribe() as following:
        assert [event.id for event in following.poll(30)] == left
    with early.subscribe(2) as following:  # at an event that is gone
        assert [event.id for event in following.poll(30)] == left
    assert limited.scavenge(older_than=NOW) == 0


def test_the_rules_hold_afterwards_and_removed_events_do_not_come_back(limited: EventStore, open_store: Open) -> None:
    limited.scavenge(older_than=NOW)
    early = open_store()
    record(limited, "a", 2, first=11)
    for store in (limited, early, open_store()):  # on Kafka others see an append a little later
        until(lambda store=store: ids(store, "a") == ["a10", "a11", "a12"], "all see the new events")
    limited.keep("a")
    for store in (limited, open_store()):
        assert ids(store, "a") == ["a8", "a9", "a10", "a11", "a12"]
    with pytest.raises(WrongVersion) as refused:
        limited.append("a", ms.Event("E"), expected_version=5)
    assert refused.value.current_version == 12


def test_young_events_stay_so_that_repeated_appends_are_recognized(limited: EventStore, open_store: Open) -> None:
    other = open_store()
    assert limited.scavenge() == limited.scavenge(older_than="1 hour") == 0
    first = ms.Event("E", {"text": "x" * 100}, id="a1")
    assert limited.append("a", first).is_repeated
    limited.scavenge(older_than=NOW)
    for store in (limited, other):
        with pytest.raises(WrongVersion):  # its id is forgotten, versions are not
            store.append("a", first, expected_version=0)
        assert store.append("a", ms.Event("E", {"text": "x" * 100}, id="a9")).is_repeated
    assert limited.append("a", first).version == 11
    for store in (limited, other, open_store()):
        store._index.flush()
        assert store.append("a", first).is_repeated


def test_the_newest_event_stays_however_old_it_is(store: EventStore, open_store: Open) -> None:
    record(store, "a", 4)
    store.keep("a", age="1 microsecond")
    store.close_stream("a")
    store.keep("a", last=4, age="2 microseconds")  # the rules of a closed stream can be changed
    assert store.scavenge(older_than=NOW) == 3
    for each in (store, open_store()):
        assert (each.version("a"), ids(each, "a"), each.is_closed("a")) == (4, [], True)
        with pytest.raises(StreamClosed):
            each.append("a", ms.Event("E"))
    store.keep("a")
    assert ids(store, "a") == ["a4"]


def test_a_store_without_limits_loses_nothing(store: EventStore) -> None:
    record(store, "a", 5)
    assert store.scavenge(older_than=NOW) == 0
    assert len(ids(store, "a")) == 5
    with pytest.raises(InvalidInput):
        store.scavenge(older_than="yesterday")


def test_a_reader_in_the_middle_of_a_stream_passes_over_what_was_removed(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.events.store.READ_ROWS", 2)
    store, other = open_store(), open_store()
    for number in range(1, 10):
        record(store, "a", 1, first=number)
    until(lambda: other.version("a") == 9, "the other sees all events")
    reading = iter(other.read("a"))
    assert next(reading).id == "a1"
    store.keep("a", last=2)
    store.scavenge(older_than=NOW)
    rest = [event.id for event in reading]
    assert rest[-2:] == ["a8", "a9"]
    assert rest == sorted(rest)
    if store._log.has_random_access:  # on Kafka each process has a copy of its own
        assert rest == ["a2", "a8", "a9"]


# ---------------------------------------------------------------- on Kafka


@pytest.mark.more
@pytest.mark.parametrize("address", ["kafka"], indirect=True)
def test_on_kafka_only_what_comes_before_the_first_kept_event_is_removed(
    open_store: Open, address: str, name: str
) -> None:
    store = open_store()
    store.keep("a", last=1)
    record(store, "a", 5)
    record(store, "b", 1)
    record(store, "a", 5, first=6)
    assert store.scavenge(older_than=NOW) == 5
    assert stored(address, name) == ["b1", *(f"a{n}" for n in range(6, 11))]
    assert store.scavenge(older_than=NOW) == 0
    again = open_store()
    assert ids(again, "a") == ["a10"]  # the rule was before the first event, and is still known
    store.keep("b", last=1)
    record(store, "b", 1, first=2)
    assert store.scavenge(older_than=NOW) == 5
    assert stored(address, name) == ["a10", "b2"]


# ---------------------------------------------------------------- in a folder


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[EventStore]:
    """Several segments, with streams that keep a few events, one that keeps all, and an index on disk."""
    with ms.connect(tmp_path / "log") as log:
        with ms.event_store(log, "s") as store:
            store.append("first", ms.Event("E"))
        log.change_topic("s", segment_bytes=10_000)
    with ms.event_store(tmp_path / "log", "s") as store:
        for number in range(12):
            record(store, "a", 1, first=number)
            record(store, "b", 1, first=number)
            record(store, "all", 1, first=number)
            if number == 5:
                store.keep("a", last=2)
                store.keep("b", last=4)
        yield store


def state(store: EventStore) -> list[object]:
    streams = {event.stream for event in store.read_all()}
    return [(name, store.version(name), ids(store, name)) for name in sorted(streams)]


def everything(store: EventStore) -> list[str]:
    return [event.id for event in store.read_all()]


def test_a_crash_at_every_step(filled: EventStore, tmp_path: Path) -> None:
    """The process dies before each file it writes, renames or deletes: nothing kept is lost, the next one clears up."""
    before, expected = everything(filled), state(filled)
    filled._index.flush()
    died, after_steps = True, 0
    while died:
        copy = tmp_path / f"copy{after_steps}"
        shutil.copytree(filled._broker.path, copy)  # type: ignore[attr-defined]
        store = ms.event_store(copy, "s")
        try:
            with Steps(after_steps):
                store.scavenge(older_than=NOW)
            died = False
        except Killed:
            pass
        if after_steps % 2:
            (copy / "topics" / "s" / INDEX).unlink()
            for ending in ("-wal", "-shm"):
                (copy / "topics" / "s" / f"{INDEX}{ending}").unlink(missing_ok=True)
        with ms.event_store(copy, "s") as again:
            assert state(again) == expected
            found = everything(again)
            assert found == [each for each in before if each in set(found)]
            again.scavenge(older_than=NOW)
            assert state(again) == expected
            assert len(everything(again)) == 2 + 4 + 12 + 1
            record(again, "a", 1, first=12)
            assert ids(again, "a") == ["a11", "a12"]
            assert not list(copy.glob("**/*.compacting"))
        store.close()
        shutil.rmtree(copy)
        after_steps += 1
    assert after_steps > 5


def test_the_disk_space_is_freed(filled: EventStore) -> None:
    partition = filled._log._partition  # type: ignore[attr-defined]
    size, segments = partition.size_bytes(), len(segment_names(partition.folder)[0])
    filled.keep("all", last=1)
    assert filled.scavenge(older_than=NOW) == 10 + 8 + 11
    assert partition.size_bytes() < size / 2
    assert len(segment_names(partition.folder)[0]) < segments
    (rows,) = filled._index._ask("SELECT count(*) FROM ids WHERE id LIKE 'a%'")
    assert rows == (2 + 1,)


def test_segments_without_expired_events_are_left_alone(filled: EventStore) -> None:
    folder = filled._log._partition.folder  # type: ignore[attr-defined]
    filled.keep("a")
    filled.keep("b")
    filled.scavenge(older_than=NOW)
    assert all(name.end is None for name in segment_names(folder)[0])


def test_events_that_are_missing_without_a_limit_are_reported(filled: EventStore) -> None:
    """Another process turned compaction on, which removes events of streams that have no limit."""
    with ms.connect(filled._broker.path) as log:  # type: ignore[attr-defined]
        log.change_topic("s", compaction=True)
        filled._log._partition.roll()  # type: ignore[attr-defined]
        log.clean("s")
    filled._log._frames.clear()  # type: ignore[attr-defined]
    with pytest.raises(OffsetLost, match="no longer stored"):
        ids(filled, "all")


def test_removed_events_are_passed_over_by_a_group(filled: EventStore) -> None:
    """Its committed offset is that of an event that is gone."""
    with filled.subscribe(group="g") as first:
        found = []
        while len(found) < 5:
            found += first.poll(10, max_events=1)
        first.commit()
    filled.scavenge(older_than=NOW)
    with filled.subscribe(group="g") as second:
        rest = [event.position for event in filled.read_all() if event.position >= 5]
        found = []
        while len(found) < len(rest):
            found += [event.position for event in second.poll(10)]
    assert found == rest
