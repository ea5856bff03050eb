"""Goal: whatever happens to a partition, in whatever order, its readers see what a plain list says they should.

Method: random operations by several handles on one folder, as of several processes, among them processes that die in
the middle of a write and machines that lose what was not synced; the list knows nothing of files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

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
from millstream.errors import OffsetLost
from millstream.log.storage.compaction import compact
from millstream.log.storage.frame import TRANSACTIONAL
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.reader import PartitionReader, offset_at_time
from millstream.log.storage.retention import delete_old, delete_replaced
from millstream.records import Schema
from properties import examples

from .support import (
    DyingDisk,
    DyingPartition,
    Killed,
    Rec,
    batch,
    layout,
    made,
    opened,
    read_all,
    read_mark,
    rebooted,
    records_of,
    segments,
)

DDL = ["n int", "n int, text string", "n bigint, text string, more double"]
SCHEMAS = [stored_schema(Schema.of(ddl)) for ddl in DDL]
COLUMNS = [["n"], ["n", "text"], ["n", "text", "more"]]
HANDLES = 3
PRODUCERS = 3

keys = st.sampled_from([b"", b"a", b"b", b"c" * 40, None])
times = st.none() | st.integers(0, 100)
rows = st.lists(st.tuples(keys, st.none() | st.sampled_from([0, 1, 30, 900, 5000]), times), min_size=1, max_size=4)
frames = st.lists(rows, min_size=1, max_size=4)
producers = st.none() | st.integers(0, PRODUCERS - 1)
handles = st.integers(0, HANDLES - 1)


@dataclass
class Piece:
    """A frame as the model knows it: records, the end of a transaction, or neither."""

    base: int
    records: list[Rec]
    owner: tuple[int, int] | None = None
    ends: bool | None = None
    span: int = 0

    def __post_init__(self) -> None:
        self.span = len(self.records)


@dataclass
class Model:
    pieces: list[Piece] = field(default_factory=list)
    start: int = 0
    end: int = 0
    synced: int = 0
    synced_pieces: int = 0
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    aborted: set[tuple[int, int]] = field(default_factory=set)
    left_behind: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.end = piece.base + piece.span
        if piece.owner is not None and piece.ends is None:
            self.open.setdefault(piece.owner, piece.base)
        elif piece.ends is not None and piece.owner in self.open:
            del self.open[piece.owner]
        if piece.ends is False:
            self.aborted.add(piece.owner)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def visible(self, *, committed: bool) -> list[Rec]:
        limit = self.stable if committed else self.end
        return [
            record
            for piece in self.pieces
            if not (committed and piece.owner in self.aborted)
            for record in piece.records
            if self.start <= record.offset < limit
        ]


class PartitionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="millstream-model-", dir=MEMORY))
        self.folder = self.home / "0"
        self.version = 0
        self.model = Model()
        self.history: dict[int, Rec] = {}
        self.epochs = dict.fromkeys(range(PRODUCERS), 1)
        self.handles = [self.new_handle() for _ in range(HANDLES)]
        self.readers: list[PartitionReader] = []
        self.numbers = 0

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    def new_handle(self):
        return opened(self.folder, schema=SCHEMAS[self.version])

    # ------------------------------------------------------------ appending

    def planned(self, frames_, producer):
        """Frames of random records, as drafts and as the model knows them once they are stored."""
        identity, owner = {}, None
        if producer is not None:
            owner = (producer, self.epochs[producer])
            identity = {"producer_id": producer, "epoch": owner[1], "flags": TRANSACTIONAL}
        drafts, pieces = [], []
        for given in frames_:
            values = []
            for _, size, _ in given:
                self.numbers += 1
                whole = {"n": self.numbers, "text": None if size is None else "x" * size, "more": 0.5}
                values.append(None if size == 0 else {name: whole[name] for name in COLUMNS[self.version]})
            keys_, times_ = [key for key, *_ in given], [time for *_, time in given]
            drafts.append(made(batch(values, keys_, times_, SCHEMAS[self.version]), **identity))
            records = [Rec(0, *row) for row in zip(keys_, values, times_, strict=True)]
            pieces.append(Piece(0, records, owner))
        return drafts, pieces

    def store(self, pieces, offsets):
        for piece, base in zip(pieces, offsets, strict=True):
            assert base >= self.model.end
            piece.base = base
            piece.records = [record._replace(offset=base + number) for number, record in enumerate(piece.records)]
            self.history |= {record.offset: record for record in piece.records}
            self.model.add(piece)

    def recover(self):
        """What a dead process left is found by the next writer; fillers use up an offset each."""
        left, self.model.left_behind = self.model.left_behind, []
        fillers = {found.base_offset for path in segments(self.folder) for found in layout(path) if found.is_filler}
        self.pass_over(fillers)
        for piece in left:
            self.store([piece], [self.model.end])
            self.pass_over(fillers)

    def pass_over(self, fillers):
        while self.model.end in fillers:
            self.model.end += 1

    @rule(handle=handles, frames_=frames, producer=producers, sync=st.booleans())
    def append(self, handle, frames_, producer, sync):
        drafts, pieces = self.planned(frames_, producer)
        offsets = self.handles[handle].append(drafts, sync=sync)
        self.recover()
        self.store(pieces, offsets)
        if sync:
            self.synced()

    def synced(self):
        self.model.synced, self.model.synced_pieces = self.model.end, len(self.model.pieces)

    @rule(handle=handles, producer=st.integers(0, PRODUCERS - 1), commit=st.booleans())
    def end_transaction(self, handle, producer, commit):
        owner = (producer, self.epochs[producer])
        self.handles[handle].end_transaction(*owner, commit=commit)
        self.recover()
        if owner in self.model.open:
            self.model.add(Piece(self.model.end, [], owner, commit))
            self.epochs[producer] += 1
        self.synced()

    @rule(handle=handles)
    def sync(self, handle):
        self.handles[handle].sync()
        self.recover()
        self.synced()

    @rule(handle=handles)
    def roll(self, handle):
        partition = self.handles[handle]
        before = read_mark(self.folder)
        partition.roll()
        after = read_mark(self.folder)
        if after != before:
            self.recover()

    # ------------------------------------------------------------ what goes wrong

    @precondition(lambda self: not self.model.left_behind)
    @rule(frames_=frames, producer=producers, share=st.floats(0, 1))
    def die_while_appending(self, frames_, producer, share):
        """A process dies after part of the bytes it would have written: frames, headers of new segments, the mark."""
        drafts, pieces = self.planned(frames_, producer)
        disk = DyingDisk()
        partition = DyingPartition("topic", 0, self.folder, SCHEMAS[self.version], 4096, disk)
        total = sum(draft.size_bytes for draft in drafts) + 600 * len(drafts) + 200
        disk.left_bytes = int(total * share)
        mark = read_mark(self.folder)
        try:
            offsets = partition.append(drafts, sync=False)
        except Killed:
            self.model.left_behind = pieces[: disk.frames_of_records]
            if read_mark(self.folder) != mark:  # all of the mark but some zeros at its end
                self.recover()
        else:
            self.recover()
            self.store(pieces, offsets)

    @rule(garbage=st.binary(min_size=1, max_size=200))
    def garbage_above_the_mark(self, garbage):
        """Bytes behind everything, that are no frame."""
        with segments(self.folder)[-1].open("ab") as file:
            file.write(garbage)

    @precondition(lambda self: not self.model.left_behind)
    @rule(size=st.integers(0, 100))
    def begin_the_next_segment(self, size):
        """A process died while it made the next segment."""
        if self.model.end != read_mark(self.folder).end.segment:
            (self.folder / f"{self.model.end:020}.seg").write_bytes(bytes(size))

    @rule(handle=handles)
    def restart(self, handle):
        self.handles[handle] = self.new_handle()

    @rule(share=st.floats(0, 1), bytes_left=st.integers(0, 100), later_gone=st.booleans())
    def reboot(self, share, bytes_left, later_gone):
        """The machine dies; of the frames above the synced place some survive, one may be torn."""
        self.readers.clear()
        self.handles[0].append([], sync=False)  # so that nothing of a dead process is left
        self.recover()
        synced = read_mark(self.folder).synced
        above = [
            (path, found)
            for path in segments(self.folder)
            for found in layout(path)
            if (int(path.name[:20]), found.position) >= (synced.segment, synced.position)
        ]
        survivors = above[: int(len(above) * share)]
        end = self.model.end
        if len(survivors) < len(above):
            path, torn = above[len(survivors)]
            end = torn.base_offset
            os.truncate(path, torn.position + min(bytes_left, torn.size - 64))
            for later in segments(self.folder):
                if later.name > path.name and later_gone:
                    later.unlink()
        self.lose(end, sum(not found.is_filler for _, found in survivors))
        rebooted(self.folder)
        self.handles = [self.new_handle() for _ in range(HANDLES)]
        self.synced()

    def lose(self, end, survived):
        """The list goes back to the synced place, and forth again over so many frames."""
        model = self.model
        kept, again = model.pieces[: model.synced_pieces], model.pieces[model.synced_pieces :]
        model.pieces = kept
        model.open = {owner: first for owner, first in model.open.items() if first < model.synced}
        for piece in again[:survived]:
            model.add(piece)
        model.end = end
        self.history = {offset: record for offset, record in self.history.items() if offset < end}
        self.epochs = {number: epoch + 1 - ((number, epoch) in model.open) for number, epoch in self.epochs.items()}

    # ------------------------------------------------------------ upkeep

    @rule(handle=handles, before=st.integers(0, 120), bytes_max=st.none() | st.integers(0, 40_000))
    def retention(self, handle, before, bytes_max):
        partition = self.handles[handle]
        mark = read_mark(self.folder)
        deleted = delete_old(partition, before, bytes_max)
        if read_mark(self.folder) != mark:
            self.recover()
        if read_mark(self.folder).synced != mark.synced:
            self.synced()
        start = partition.start_offset()
        assert self.model.start <= start <= self.model.stable or not deleted
        if bytes_max is None:
            gone = [record for record in self.model.visible(committed=False) if record.offset < start]
            assert all(record.time is None or record.time < before for record in gone)
        self.model.start = start

    @rule(handle=handles, before=st.integers(0, 120))
    def compaction(self, handle, before):
        partition = self.handles[handle]
        delete_replaced(partition)
        mark = read_mark(self.folder)
        closed_to = min(mark.end.segment, mark.stable.segment)
        if not compact(partition, tombstones_before_us=before, dirty_share_min=0):
            return
        self.recover()
        self.synced()
        model = self.model
        decided = [
            record
            for piece in model.pieces
            if piece.owner not in model.aborted
            for record in piece.records
            if model.start <= record.offset < closed_to
        ]
        newest = {record.key: record for record in decided if record.key is not None}
        kept = {
            record.offset
            for record in decided
            if (record.key is None or newest[record.key] is record)
            and not (record.value is None and record.time is not None and record.time < before)
        }
        for piece in model.pieces:
            piece.records = [rec for rec in piece.records if rec.offset >= closed_to or rec.offset in kept]

    @precondition(lambda self: self.version + 1 < len(SCHEMAS))
    @rule()
    def evolve(self):
        """The topic's schema grows; every process notices."""
        self.version += 1
        for partition in self.handles:
            partition.schema = SCHEMAS[self.version]

    # ------------------------------------------------------------ reading

    def now(self, records):
        """Records as they are read under the schema of now."""
        names = COLUMNS[self.version]
        return [
            record._replace(value=None if record.value is None else {name: record.value.get(name) for name in names})
            for record in records
        ]

    @rule(
        handle=handles, share=st.floats(-0.1, 1.1), committed=st.booleans(), max_bytes=st.sampled_from([1, 3000, 10**9])
    )
    def read_from(self, handle, share, committed, max_bytes):
        offset = int(share * (self.model.end + 1))
        limit = self.model.stable if committed else self.model.end
        if offset > self.model.end or (offset < self.model.start and offset < limit):
            with pytest.raises(OffsetLost, match=f"now has {self.model.start} to {self.model.end}"):
                read_all(self.handles[handle], offset, committed=committed)
            return
        expected = [record for record in self.model.visible(committed=committed) if record.offset >= offset]
        found = read_all(self.handles[handle], offset, committed=committed, max_bytes=max_bytes)
        assert found == self.now(expected)

    @rule(handle=handles, committed=st.booleans())
    def begin_to_follow(self, handle, committed):
        self.readers.append(PartitionReader(self.handles[handle], self.model.start, committed=committed))

    @rule(number=st.integers(0, 5), max_bytes=st.sampled_from([1, 5000, 10**9]))
    def follow(self, number, max_bytes):
        """A continuing reader: it may still see compacted records, but never anything else, and never less."""
        if not self.readers:
            return
        reader = self.readers[number % len(self.readers)]
        reader.partition.schema = SCHEMAS[self.version]
        before = reader.offset
        try:
            found = records_of(reader, max_bytes)
        except OffsetLost:
            assert reader.offset < self.model.start
            reader.seek(self.model.start)
            return
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        assert found == self.now([self.history[record.offset] for record in found])
        expected = [
            rec for rec in self.model.visible(committed=reader.committed) if before <= rec.offset < reader.offset
        ]
        assert {record.offset for record in expected} <= {record.offset for record in found}

    @rule(handle=handles, time=st.integers(-1, 102))
    def look_up_a_time(self, handle, time):
        expected = next(
            (rec.offset for rec in self.model.visible(committed=False) if rec.time is not None and rec.time >= time),
            self.model.end,
        )
        assert offset_at_time(self.handles[handle], time) == expected

    @invariant()
    def ends_are_where_they_should_be(self):
        partition = self.handles[0]
        assert (partition.start_offset(), partition.end_offset()) == (self.model.start, self.model.end)
        assert partition.stable_offset() == self.model.stable

    @initialize()
    def begin(self):
        """Nothing is there yet."""
        assert read_all(self.handles[0]) == []


@pytest.mark.property
def test_a_partition_behaves_as_its_model():
    run_state_machine_as_test(
        PartitionMachine, settings=examples(150, stateful_step_count=40, report_multiple_bugs=False)
    )
