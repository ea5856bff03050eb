"""A store agrees with a dictionary of lists, whatever is done to it and however many handles there are on it."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import uuid

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import millstream as ms
from folders import MEMORY
from kafka_cluster import KafkaCluster
from millstream.errors import EventIdReused, StreamClosed, WrongVersion
from millstream.events import heads, index, kafka_log
from properties import examples

streams = st.sampled_from(["a", "b", "c"])
handles = st.integers(0, 1)


class Model(RuleBasedStateMachine):
    name = "s"
    is_scavenged = True

    @initialize()
    def open(self) -> None:
        self.address = self.new_address()
        self.stores = [ms.event_store(self.address, self.name) for _ in range(2)]
        self.events: dict[str, list[ms.Event]] = {"a": [], "b": [], "c": []}
        self.order: list[tuple[str, str]] = []
        self.closed: set[str] = set()
        self.limits: dict[str, int] = {}
        self.removed = {"a": 0, "b": 0, "c": 0}  # how many of the oldest events
        self.numbers = itertools.count()

    def new_address(self) -> str:
        """Where there is no store of this name yet."""
        return tempfile.mkdtemp(dir=MEMORY)

    def teardown(self) -> None:
        for store in getattr(self, "stores", ()):
            store.close()
        if hasattr(self, "address"):
            shutil.rmtree(self.address, ignore_errors=True)

    def new(self, count: int) -> list[ms.Event]:
        return [ms.Event("E", {"n": number}, id=f"e{number}") for number in itertools.islice(self.numbers, count)]

    def recorded(self, stream: str, events: list[ms.Event]) -> None:
        self.events[stream] += events
        self.order += [(stream, event.id) for event in events]

    @rule(handle=handles, stream=streams, count=st.integers(1, 3), error=st.sampled_from([0, 0, 0, None, -1, 1]))
    def append(self, handle: int, stream: str, count: int, error: int | None) -> None:
        version = len(self.events[stream])
        expected = None if error is None else max(0, version + error)
        events = self.new(count)
        if stream in self.closed:
            with pytest.raises(StreamClosed):
                self.stores[handle].append(stream, events, expected_version=expected)
        elif expected not in (None, version):
            with pytest.raises(WrongVersion) as refused:
                self.stores[handle].append(stream, events, expected_version=expected)
            assert refused.value.current_version == version
        else:
            assert self.stores[handle].append(stream, events, expected_version=expected).version == version + count
            self.recorded(stream, events)

    @rule(handle=handles, both=st.permutations(["a", "b", "c"]), error=st.sampled_from([0, 0, 1]))
    def append_together(self, handle: int, both: list[str], error: int) -> None:
        first, second, _ = both
        parts = [
            ms.Append(first, self.new(1), len(self.events[first])),
            ms.Append(second, self.new(2), len(self.events[second]) + error),
        ]
        if self.closed & {first, second} or error:
            with pytest.raises((StreamClosed, WrongVersion)):
                self.stores[handle].append_together(parts)
        else:
            self.stores[handle].append_together(parts)
            for part in parts:
                self.recorded(part.stream, list(part.events))

    @rule(handle=handles, stream=streams, start=st.integers(0, 5), count=st.integers(1, 3))
    def repeat(self, handle: int, stream: str, start: int, count: int) -> None:
        events = self.events[stream][start : start + count]
        if events and start >= self.removed[stream]:
            done = self.stores[handle].append(stream, events, expected_version=0)
            assert (done.is_repeated, done.version) == (True, start + len(events))
            with pytest.raises(EventIdReused):
                self.stores[handle].append(stream, [*events, *self.new(1)])

    @rule(handle=handles, stream=streams)
    def close_stream(self, handle: int, stream: str) -> None:
        if stream not in self.closed and len(self.events[stream]) > 4:
            self.stores[handle].close_stream(stream)
            self.closed.add(stream)

    @rule(handle=handles, stream=streams, last=st.none() | st.integers(1, 4))
    def keep(self, handle: int, stream: str, last: int | None) -> None:
        self.stores[handle].keep(stream, last=last)
        self.limits[stream] = last or 1_000_000

    @rule(handle=handles)
    def scavenge(self, handle: int) -> None:
        """On Kafka, what is removed also depends on the order of the events: the rule is not for it."""
        if self.is_scavenged:
            removed = self.stores[handle].scavenge(older_than="1 microsecond")
            for stream, last in self.limits.items():
                expired = max(self.removed[stream], len(self.events[stream]) - last)
                removed -= expired - self.removed[stream]
                self.removed[stream] = expired
            assert removed == 0

    @rule(handle=handles, stream=streams)
    def repeat_removed(self, handle: int, stream: str) -> None:
        """The id of a removed event is forgotten; the versions of its stream are not."""
        events = self.events[stream][: self.removed[stream]]
        if events and stream not in self.closed:
            with pytest.raises(WrongVersion):
                self.stores[handle].append(stream, events[:1], expected_version=0)
            again = ms.Event("E", events[0].data, id=events[0].id)
            self.stores[handle].append(stream, again)
            self.recorded(stream, [again])
            events[0] = self.events[stream][0] = ms.Event("E", id=f"forgotten{next(self.numbers)}")

    @rule(handle=handles)
    def flush(self, handle: int) -> None:
        with self.stores[handle]._turn:
            self.stores[handle]._index.flush()

    @rule(handle=handles)
    def reopen(self, handle: int) -> None:
        self.stores[handle].close()
        self.stores[handle] = ms.event_store(self.address, self.name)

    @rule(handle=handles, stream=streams, first=st.integers(1, 6), last=st.integers(1, 6))
    def read(self, handle: int, stream: str, first: int, last: int) -> None:
        found = [event.id for event in self.stores[handle].read(stream, first, last)]
        assert found == [event.id for event in self.events[stream][max(first - 1, self.kept_from(stream)) : last]]

    def kept_from(self, stream: str) -> int:
        return max(self.removed[stream], len(self.events[stream]) - self.limits.get(stream, 1_000_000))

    @invariant()
    def all_handles_agree(self) -> None:
        for store in getattr(self, "stores", ()):
            for stream, events in self.events.items():
                expected = [event.id for event in events[self.kept_from(stream) :]]
                assert [event.id for event in store.read(stream)] == expected
                assert store.version(stream) == len(events)
                assert store.is_closed(stream) == (stream in self.closed)
            assert [event.id for event in store.read_all()] == self.stored()

    def stored(self) -> list[str]:
        removed = {(s, number) for s, count in self.removed.items() for number in range(count)}
        counts = dict.fromkeys(self.events, 0)
        found = []
        for stream, each in self.order:
            if (stream, counts[stream]) not in removed:
                found.append(each)
            counts[stream] += 1
        return found


@pytest.mark.property
@pytest.mark.parametrize("lookups", [0, heads.LOOKUPS_BEFORE_HELD])
def test_a_store_agrees_with_a_dictionary(monkeypatch: pytest.MonkeyPatch, lookups: int) -> None:
    monkeypatch.setattr(heads, "LOOKUPS_BEFORE_HELD", lookups)
    monkeypatch.setattr(index, "FLUSH_EVENTS", 7)
    monkeypatch.setattr(index, "CACHED_STREAMS_MAX", 2)
    run_state_machine_as_test(Model, settings=examples(60, stateful_step_count=30))


@pytest.mark.more
@pytest.mark.property
def test_a_store_on_kafka_agrees_with_a_dictionary(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both handles are writers that take over from each other."""
    monkeypatch.setattr(kafka_log, "TURN_SECONDS", 0.0)

    class OnKafka(Model):
        is_scavenged = False

        def new_address(self) -> str:
            self.name = f"model-{uuid.uuid4().hex}"
            return f"kafka://{kafka.bootstrap}"

    run_state_machine_as_test(OnKafka, settings=examples(2, stateful_step_count=15))
