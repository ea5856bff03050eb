"""Goal: whatever producers and consumers do, in whatever order they come, go and die, the log tells one truth.

Method: random acts on several handles of one log, beside a model in plain Python that knows, per partition, what was
stored in which transaction and what became of it. Deaths are real to the others: the participant's lock is let go of.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from folders import MEMORY
from millstream.errors import MillstreamError, ProducerFenced
from millstream.log import EmbeddedLog, TopicPartition
from millstream.log.agreement import groups
from millstream.log.embedded import fetching
from properties import examples

PLACES = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
NAMES = ["p0", "p1"]
ROUNDS_MAX = 200  # of polling by everybody, until all must have come to rest
places = st.sampled_from(PLACES)
some_places = st.lists(places, min_size=1, max_size=5)
names = st.sampled_from(NAMES)
handles = st.integers(0, 1)


class Writer:
    """A named producer, and the transaction it is in."""

    def __init__(self, log, name):
        self.name = name
        self.producer = log.producer(name=name, linger="0 seconds")
        self.block = None
        self.transaction = None


class LogMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="millstream-model-", dir=MEMORY)
        self.logs = [EmbeddedLog(self.folder, upkeep=False) for _ in range(2)]
        self.stored = defaultdict(list)  # by place: value and the number of its transaction
        self.fate = {None: "committed"}  # by transaction
        self.writers = {}
        self.former = []
        self.members = []
        self.dead_members = []
        self.handed = defaultdict(set)  # by place: offsets given to some member
        self.delivered = set()
        self.count = 0

    @initialize()
    def topics(self):
        self.logs[0].create_topic("a", partitions=2)
        self.logs[0].create_topic("b")
        self.plain = self.logs[1].producer(linger="0 seconds")
        for handle, name in enumerate(NAMES):
            self.open_writer(handle, name)
            self.join(handle)

    # ------------------------------------------------------------ the model

    def number(self):
        self.count += 1
        return self.count

    def visible(self, place):
        """What committed readers see: all that is decided and committed, up to the first record that is not decided."""
        seen = []
        for value, transaction in self.stored[place]:
            if self.fate[transaction] == "open":
                break
            if self.fate[transaction] == "committed":
                seen.append(value)
        return seen

    # ------------------------------------------------------------ producing

    @rule(where=some_places)
    def send_plainly(self, where):
        self.send_from(self.plain, where, None)

    def send_from(self, producer, where, transaction):
        for place in where:
            value = b"%d" % self.number()
            producer.send(place.topic, value, partition=place.partition).wait(30)
            self.stored[place].append((value, transaction))

    @rule(handle=handles, name=names)
    def open_writer(self, handle, name):
        before = self.writers.pop(name, None)
        self.writers[name] = Writer(self.logs[handle], name)
        if before is not None:
            self.bury(before)

    @precondition(lambda self: any(w.block is None for w in self.writers.values()))
    @rule(data=st.data(), where=some_places)
    def begin(self, data, where):
        writer = data.draw(st.sampled_from([w for w in self.writers.values() if w.block is None]))
        writer.block = writer.producer.transaction()
        writer.block.__enter__()
        writer.transaction = self.number()
        self.fate[writer.transaction] = "open"
        self.send_from(writer.producer, where, writer.transaction)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), where=some_places)
    def send(self, data, where):
        writer = data.draw(st.sampled_from(list(self.writers.values())))
        self.send_from(writer.producer, where, writer.transaction)

    @precondition(lambda self: any(w.block is not None for w in self.writers.values()))
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data, commit):
        writer = data.draw(st.sampled_from([w for w in self.writers.values() if w.block is not None]))
        error = None if commit else ValueError()
        writer.block.__exit__(error and ValueError, error, None)
        self.fate[writer.transaction] = "committed" if commit else "aborted"
        writer.block = writer.transaction = None

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def kill_writer(self, data):
        writer = self.writers.pop(data.draw(st.sampled_from(sorted(self.writers))))
        writer.producer._storing.named._participant.close()
        self.bury(writer)

    def bury(self, writer):
        if writer.transaction is not None:
            self.fate[writer.transaction] = "aborted"
        self.former.append(writer)

    @precondition(lambda self: any(w.name in self.writers for w in self.former))
    @rule(data=st.data(), place=places)
    def a_fenced_writer_writes(self, data, place):
        writer = data.draw(st.sampled_from([w for w in self.former if w.name in self.writers]))
        with pytest.raises(ProducerFenced):
            writer.producer.send(place.topic, b"fenced", partition=place.partition).wait(30)

    # ------------------------------------------------------------ consuming

    @precondition(lambda self: len(self.members) < 4)
    @rule(handle=handles)
    def join(self, handle):
        self.members.append(self.logs[handle].consumer(["a", "b"], group="g"))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), most=st.integers(1, 5))
    def poll(self, data, most):
        self.poll_member(data.draw(st.sampled_from(self.members)), most)

    def poll_member(self, member, most=500):
        for record in member.poll(0, max_records=most):
            self.handed[TopicPartition(record.topic, record.partition)].add(record.offset)
            self.delivered.add(record.value)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), most=st.integers(1, 4))
    def loop(self, data, most):
        member = data.draw(st.sampled_from(self.members))
        for taken, record in enumerate(member.until_caught_up(), start=1):
            self.handed[TopicPartition(record.topic, record.partition)].add(record.offset)
            self.delivered.add(record.value)
            if taken == most:
                break

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def commit(self, data):
        data.draw(st.sampled_from(self.members)).commit()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data):
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        member.close()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def kill_member(self, data):
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        member._agreeing._membership._participant.close()
        self.dead_members.append(member)

    # ------------------------------------------------------------ what must hold

    @rule(handle=handles)
    def committed_readers_see_what_was_committed(self, handle):
        for place in PLACES:
            with self.logs[handle].consumer(place.topic, partitions=[place.partition]) as reader:
                assert [record.value for record in reader.until_caught_up()] == self.visible(place)

    @rule(handle=handles)
    def others_see_everything_in_order(self, handle):
        for place in PLACES:
            with self.logs[handle].consumer(
                place.topic, partitions=[place.partition], isolation="read_uncommitted"
            ) as reader:
                assert [r.value for r in reader.until_caught_up()] == [value for value, _ in self.stored[place]]

    @invariant()
    def a_partition_has_one_owner_at_most(self):
        owned = [place for member in self.members for place in member._agreeing._membership.owned]
        assert len(owned) == len(set(owned))

    @invariant()
    def only_what_was_handed_out_is_committed(self):
        for place, offset in groups.committed_offsets(self.logs[0].coordinator, "g").items():
            if offset and offset - 1 not in self.handed[place]:  # then only offsets without records lie in between
                with self.logs[0].consumer(place.topic, partitions=[place.partition]) as reader:
                    before = {record.offset for record in reader.until_caught_up() if record.offset < offset}
                assert before <= self.handed[place]

    def teardown(self):
        try:
            self.settle()
        finally:
            for writer in [*self.writers.values(), *self.former]:
                with suppress(MillstreamError):
                    if writer.block is not None:
                        writer.block.__exit__(ValueError, ValueError(), None)
                with suppress(MillstreamError):
                    writer.producer.close()
            for log in self.logs:
                with suppress(MillstreamError):
                    log.close()
            shutil.rmtree(self.folder)

    def settle(self):
        """In the end everybody who is left gets everything, and each partition has its one owner."""
        for name in list(self.writers):
            writer = self.writers.pop(name)
            writer.producer._storing.named._participant.close()
            self.bury(writer)
        if not self.members:
            self.join(0)
        expected = {value for place in PLACES for value in self.visible(place)}

        for _ in range(ROUNDS_MAX):
            for member in self.members:
                self.poll_member(member)
            owned = sorted(place for member in self.members for place in member.assignment)
            if owned == PLACES and expected <= self.delivered:
                break
        else:
            raise AssertionError(f"not settled: {[member.assignment for member in self.members]}")
        assert self.delivered <= expected
        shares = [len(member.assignment) for member in self.members]
        assert max(shares) - min(shares) <= 1


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch):
    """Members look after each other at every poll, so that no example has to wait."""
    monkeypatch.setattr(groups, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(fetching, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(fetching.EmbeddedFetching, "check_seconds", 0.0)


@pytest.mark.property
def test_the_log_behaves_as_its_model():
    run_state_machine_as_test(LogMachine, settings=examples(100, stateful_step_count=40))
