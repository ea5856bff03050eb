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
from millstream.events import index, kafka_log
from properties import examples

streams = st.sampled_from(["a", "b", "c"])
handles = st.integers(0, 1)


class Model(RuleBasedStateMachine):
    name = "s"

    @initialize()
    def open(self) -> None:
        self.address = self.new_address()
        self.stores = [ms.event_store(self.address, self.name) for _ in range(2)]
        self.events: dict[str, list[ms.Event]] = {"a": [], "b": [], "c": []}
        self.order: list[str] = []
        self.closed: set[str] = set()
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
        self.order += [event.id for event in events]

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
        if events:
            done = self.stores[handle].append(stream, events, expected_version=0)
            assert (done.is_repeated, done.version) == (True, start + len(events))
            with pytest.raises(EventIdReused):
                self.stores[handle].append(stream, [*events, *self.new(1)])

    @rule(handle=handles, stream=streams)
    def close_stream(self, handle: int, stream: str) -> None:
        if stream not in self.closed and len(self.events[stream]) > 4:
            self.stores[handle].close_stream(stream)
            self.closed.add(stream)

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
        assert found == [event.id for event in self.events[stream][first - 1 : last]]

    @invariant()
    def all_handles_agree(self) -> None:
        for store in getattr(self, "stores", ()):
            for stream, events in self.events.items():
                assert [event.id for event in store.read(stream)] == [event.id for event in events]
                assert store.is_closed(stream) == (stream in self.closed)
            assert [event.id for event in store.read_all()] == self.order


@pytest.mark.property
def test_a_store_agrees_with_a_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FLUSH_EVENTS", 7)
    monkeypatch.setattr(index, "CACHED_STREAMS_MAX", 2)
    run_state_machine_as_test(Model, settings=examples(60, stateful_step_count=30))


@pytest.mark.more
@pytest.mark.property
def test_a_store_on_kafka_agrees_with_a_dictionary(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both handles are writers that take over from each other."""
    monkeypatch.setattr(kafka_log, "TURN_SECONDS", 0.0)

    class OnKafka(Model):
        def new_address(self) -> str:
            self.name = f"model-{uuid.uuid4().hex}"
            return f"kafka://{kafka.bootstrap}"

    run_state_machine_as_test(OnKafka, settings=examples(2, stateful_step_count=15))
