"""A snapshot restores the state as it was, or the events before it are not recorded."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import InvalidInput, StorageError
from millstream.events.snapshots import kept_state, restored_state
from millstream.events.store import EventStore
from properties import examples

from .conftest import Open


class Seen(ms.Aggregate):
    snapshot_every = 2

    def __init__(self) -> None:
        self.what: set[str] = set()
        self.at: list[tuple[datetime, int]] = []
        self.by_number: dict[int, Decimal] = {}
        self._last: str | None = None

    @ms.event("Seen")
    def _seen(self, what: str) -> None:
        self.what.add(what)
        self.at.append((datetime(2026, 1, 2, tzinfo=UTC), len(self.at)))
        self.by_number[len(self.at)] = Decimal("0.10")
        self._last = what


def test_a_state_of_other_types_than_those_of_json_is_restored(open_store: Open) -> None:
    store = open_store()
    for what in ("a", "b", "c"):
        store.execute(Seen, "s", lambda seen, what=what: seen.record("Seen", what=what))
    assert store._index.snapshot(Seen.snapshot_kind(), "s", 3) is not None
    rebuilt = Seen.begun("s")
    for event in store.read("s"):
        rebuilt.apply(event)
    loaded = store.load(Seen, "s")
    assert vars(loaded) == vars(rebuilt)
    assert (loaded.what, loaded._last, type(loaded.at[0])) == ({"a", "b", "c"}, "c", tuple)


@dataclass
class Line:
    item: str


class Odd(ms.Aggregate):
    snapshot_every = 3

    def __init__(self) -> None:
        self.lines: list[Line] = []

    @ms.event("Added")
    def _added(self, item: str) -> None:
        self.lines.append(Line(item))


def test_a_state_that_cannot_be_restored_is_refused_before_its_events_are_recorded(store: EventStore) -> None:
    odd = store.load(Odd, "s")
    odd.record("Added", item="tea")
    with pytest.raises(
        InvalidInput, match=r"state of Odd cannot be kept .*: state.lines\[0\] is of type .*Line"
    ) as refused:
        store.save(odd)
    assert "override state() and restore()" in str(refused.value.next_step)
    assert (store.version("s"), len(odd.pending)) == (0, 1)

    class Late(Odd):
        """Only its third event has what cannot be kept."""

        @ms.event("Added")
        def _added(self, item: str) -> None:
            if len(self.lines) < 3:
                self.lines.append(item)  # type: ignore[arg-type]
            if item == "last":
                self.lines.append(Line(item))

    for item in ("tea", "milk"):
        store.execute(Late, "s", lambda late, item=item: late.record("Added", item=item))
    with pytest.raises(InvalidInput, match="cannot be kept"):
        store.execute(Late, "s", lambda late: late.record("Added", item="last"))
    assert store.version("s") == 2

    class Fixed(Odd):
        def state(self) -> Any:
            return tuple(line.item for line in self.lines)

        def restore(self, state: Any) -> None:
            self.lines = [Line(item) for item in state]

    store.execute(Fixed, "s", lambda fixed: fixed.record("Added", item="jam"))
    assert store._index.snapshot(Fixed.snapshot_kind(), "s", 3) == (3, b'{"$tuple":["tea","milk","jam"]}')
    loaded = store.load(Fixed, "s")
    assert loaded.lines == [Line("tea"), Line("milk"), Line("jam")]
    loaded.record("Added", item="bread")
    with pytest.raises(InvalidInput, match="not saved"):
        store.snapshot(loaded)


def test_events_are_recorded_though_their_snapshot_fails(
    store: EventStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*given: object) -> None:
        raise StorageError("no space left on the disk")

    monkeypatch.setattr(store._index, "save_snapshot", full)
    seen = store.load(Seen, "s")
    seen.record("Seen", what="a")
    seen.record("Seen", what="b")
    saved = store.save(seen)
    assert saved is not None
    assert (saved.version, seen.pending) == (2, [])
    assert "no snapshot of stream 's' was kept; its events were: no space left" in caplog.text
    assert store.load(Seen, "s").what == {"a", "b"}


def test_events_that_were_recorded_before_leave_no_snapshot_of_a_later_version(store: EventStore) -> None:
    """The aggregate has applied them twice: once when it was loaded, and once by the command."""
    events = [ms.Event("Seen", {"what": what}, id=what) for what in ("a", "b")]
    store.append("s", events)
    seen = store.load(Seen, "s")
    for event in events:
        seen.record(event)
    saved = store.save(seen)
    assert saved is not None
    assert saved.is_repeated
    assert store._index.snapshot(Seen.snapshot_kind(), "s", 9) is None
    store.append("s", [ms.Event("Seen", {"what": what}) for what in ("c", "d")])
    assert len(store.load(Seen, "s").at) == 4


def test_handlers_get_what_they_will_get_when_the_aggregate_is_rebuilt(store: EventStore) -> None:
    class Got(ms.Aggregate):
        def __init__(self) -> None:
            self.data: list[Any] = []

        @ms.event("Got")
        def _got(self, at: Any, pair: Any) -> None:
            self.data.append((at, list(pair)))
            pair.append("by the handler")

    got, pair = store.load(Got, "s"), ["a", (1, 2)]
    got.record("Got", at=datetime(2026, 1, 2, tzinfo=UTC), pair=pair)
    pair.append("by the caller")
    store.save(got)
    assert got.data == store.load(Got, "s").data == [("2026-01-02T00:00:00+00:00", ["a", [1, 2]])]
    with pytest.raises(InvalidInput, match="must be JSON"):
        got.record("Got", at=object(), pair=[])
    assert (got.version, got.pending) == (1, [])


zones = st.sampled_from([None, UTC, timezone(timedelta(hours=-3, minutes=30))])
keys = st.text() | st.integers() | st.booleans() | st.none() | st.dates() | st.tuples(st.integers(), st.text())
leaves = (
    keys
    | st.floats(allow_nan=False)
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.timedeltas()
    | st.datetimes(timezones=zones, allow_imaginary=True)
    | st.times(timezones=zones)
    | st.sets(keys)
    | st.frozensets(keys)
    | st.sampled_from(["$set", {"$set": [1]}, {"$mapping": []}])
)
states = st.recursive(leaves, lambda each: st.lists(each) | st.tuples(each, each) | st.dictionaries(keys, each))


@examples(300)
@given(states)
def test_any_state_is_restored_with_its_types(state: Any) -> None:
    assert described(restored_state(kept_state(state))) == described(state)


def described(value: Any) -> Any:
    """With the types, as 1 == True == 1.0."""
    kind = type(value).__name__
    if isinstance(value, list | tuple):
        return kind, [described(each) for each in value]
    if isinstance(value, dict):
        return kind, [(described(name), described(each)) for name, each in value.items()]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(described(each)) for each in value)
    return kind, repr(value), getattr(value, "fold", 0)


def test_numbers_that_json_does_not_have_are_restored() -> None:
    assert math.isnan(restored_state(kept_state(math.nan)))
    assert restored_state(kept_state([math.inf, -math.inf, 1 << 70])) == [math.inf, -math.inf, 1 << 70]


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, Line("x")]}, r"state.a\[1\]"),
        ({"a": defaultdict(int)}, "state.a is of type collections.defaultdict"),
        ({Line: 1}, "state has a key that is of type builtins.type"),
        ({1: {"x": object()}}, r"state\[1\].x is of type builtins.object"),
        (datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")), "state is of type datetime.datetime"),
        (time(tzinfo=ZoneInfo("Europe/Berlin")), "state is of type datetime.time"),
    ],
)
def test_what_cannot_be_restored_is_named(state: Any, place: str) -> None:
    with pytest.raises(TypeError, match=place):
        kept_state(state)


def test_old_snapshots_are_read() -> None:
    assert restored_state(b'{"items": {"tea": 1}, "at": null}') == {"items": {"tea": 1}, "at": None}
    assert restored_state(kept_state(UUID(int=1))) == UUID(int=1)
    assert restored_state(kept_state(date(2026, 1, 2))) == date(2026, 1, 2)
