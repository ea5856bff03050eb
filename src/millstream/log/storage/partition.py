"""A partition is a folder of segments and a mark; one appender at a time holds its lock, readers hold none.

    append:  lock, read the mark, write the frames after it, (sync,) move the mark, unlock

So whatever lies above the mark was never acknowledged. The next appender keeps the intact frames there and truncates
the rest: that is all of recovery.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from millstream.errors import ArchiveUnavailable, DamagedLog, InvalidRecord, TopicMoved, UnknownTopic
from millstream.log.storage import segment as segments
from millstream.log.storage.aborted import AbortedTransactions
from millstream.log.storage.archive import Archive
from millstream.log.storage.disk import Disk, FileLock, is_gone, storage_errors, sync_folder
from millstream.log.storage.frame import ABORTS, COMMITS, TRANSACTIONAL, Draft, Header, marker, skip
from millstream.log.storage.mark import BOOT, FrameBoundary, Mark, MarkFile
from millstream.log.storage.segment import IndexWriter, Segment, SegmentName, delete, segment_names
from millstream.private_files import create_alike, is_plain_folder, make_folder, open_private
from millstream.records import can_evolve

MARK = "mark"
LOCK = "lock"
UPKEEP_LOCK = "upkeep"  # taken before the other lock, to delete or replace files that are not written to
RETRIES_LOCK = "retries"  # shared by producers that may have stored frames, and recognize them by their headers
REPAIR = "restore the file from a copy, or run 'millstream topics repair' to keep what is intact"


def create(folder: Path, schema: pa.Schema, disk: Disk) -> None:
    with storage_errors(folder):
        make_folder(folder)
        for lock in (UPKEEP_LOCK, LOCK):
            os.close(create_alike(folder / lock))
        first = SegmentName(0, None, folder)
        start = FrameBoundary(0, 0, segments.create(first, schema, disk))
        _sync_file(first.path, disk)
        MarkFile.create(folder / MARK, Mark(end=start, synced=start, start=0), disk)
        sync_folder(folder)


class Partition:
    """The appending side of one partition in this process, and the mark that readers use."""

    def __init__(
        self,
        topic: str,
        number: int,
        folder: Path,
        schema: pa.Schema,
        segment_bytes: int,
        disk: Disk,
        *,
        renew: Callable[[], None] = lambda: None,
        on_truncate: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`renew` updates the schema, and raises if the topic was replaced.

        `on_truncate` is called with the partition's end after a crash of the machine, before anybody can write there:
        records after it may have been read.
        """
        self.topic = topic
        self.number = number
        self.folder = folder
        self.schema = schema
        self.segment_bytes = segment_bytes
        self._renew = renew
        self.moved_to: str | None = None  # the broker that has the topic now
        self.archive: Archive | None = None  # where retention moves segments
        self._on_truncate = on_truncate
        self._disk = disk
        if folder.is_symlink():
            raise DamagedLog("a partition's folder was replaced by a link", where=str(folder), next_step=REPAIR)
        if not folder.is_dir():
            raise self._deleted()
        if not (folder / MARK).exists():
            raise DamagedLog(
                "the mark of what was acknowledged is missing",
                where=str(folder / MARK),
                next_step="restore it, or run 'millstream topics repair' to keep what is intact",
            )
        self.marks = MarkFile(folder / MARK, disk)
        self.aborted = AbortedTransactions(folder / "aborted", disk)
        self._lock: FileLock | None = None
        self._active: _ActiveSegment | None = None
        self._check_boot()

    def __repr__(self) -> str:
        return f"{self.topic}/{self.number}"

    # ------------------------------------------------------------ contents

    def start_offset(self) -> int:
        """The first offset, in the archive or here: records missing after it are lost, not deleted by retention."""
        start = self.own_start_offset()
        return start if self.archive is None or start == 0 else self.archive.start(start)

    def known_start_offset(self) -> int:
        """The same, but without the archive if that is away."""
        try:
            return self.start_offset()
        except ArchiveUnavailable:
            return self.own_start_offset()

    def own_start_offset(self) -> int:
        start = self.marks.read().start
        return _first_offset(self.folder) if start is None else start

    def end_offset(self) -> int:
        return self.marks.read().end.offset

    def stable_offset(self) -> int:
        return self.marks.read().stable.offset

    def size_bytes(self) -> int:
        return sum(size_bytes(name.path) for name in segment_names(self.folder)[0])

    def check_alive(self) -> None:
        """Raises if the folder is no longer the one that was opened, even if there is a new one in its place."""
        if self.marks.gone or (self._lock is not None and self._lock.gone):
            raise self._deleted()

    def refresh(self) -> None:
        """Picks up changed settings of the topic, and raises if it was deleted."""
        self.check_alive()
        self._renew()

    def _deleted(self) -> UnknownTopic | DamagedLog:
        self._renew()  # raises if the topic was replaced
        if (self.folder.parent / "topic.json").exists() and not self.folder.exists():
            return DamagedLog(
                f"the folder of partition {self.number} is missing",
                where=str(self.folder),
                next_step=f"restore it from a copy, or run 'millstream topics repair {self.topic}': the partition "
                "then continues without its records",
            )
        return UnknownTopic(
            f"topic '{self.topic}' was deleted", where=str(self.folder), next_step="create it again, or stop using it"
        )

    @property
    def lock(self) -> FileLock:
        if self._lock is None:
            if not is_plain_folder(self.folder):
                raise self._deleted()
            self._lock = FileLock(self.folder / LOCK)
        return self._lock

    # ------------------------------------------------------------ appending

    def append(
        self,
        drafts: Sequence[Draft],
        *,
        sync: bool,
        permit: Callable[[], None] | None = None,
        tried_since: int | None = None,
    ) -> list[int]:
        """Appends frames, all or none; returns the base offset of each.

        `permit` is called under the lock and raises if the producer may no longer write. `tried_since` is given if the
        same frames may have been stored before, at that offset or later: those found are not stored again.
        """
        with self._writing() as mark:
            if permit:
                permit()
            return self._append(mark, drafts, sync=sync, tried_since=tried_since)

    def append_decided(self, decide: Callable[[], Sequence[Draft]], *, sync: bool) -> list[int]:
        """Appends the frames that `decide` returns. It is called under the lock, and can read all that is stored."""
        with self._writing() as mark:
            if mark.end != self.marks.read().end:  # a writer died after whole frames: they count from now on
                self._publish(mark, sync=True)
                mark = self.marks.read()
            drafts = decide()
            return self._append(mark, drafts, sync=sync) if drafts else []

    def _append(self, mark: Mark, drafts: Sequence[Draft], *, sync: bool, tried_since: int | None = None) -> list[int]:
        self._renew()
        if self.moved_to is not None:
            raise TopicMoved(
                f"topic '{self.topic}' was moved and can no longer be written to here",
                where=str(self.folder.parent),
                next_step=f"write to it where it is now: MILLSTREAM_BROKER={self.moved_to}",
            )
        for draft in drafts:
            self._check_schema(draft)
        known = self._find(drafts, tried_since, mark) if tried_since is not None else {}
        offsets: list[int] = []
        for draft in drafts:
            stored = known.get((draft.producer_id, draft.epoch, draft.sequence))
            if stored is None:
                mark = self._write(mark, draft)
                stored = mark.end.offset - draft.span
            offsets.append(stored)
        self._publish(mark, sync=sync)
        return offsets

    def _check_schema(self, draft: Draft) -> None:
        """Called under the same lock as changes of the schema: records of different kinds are never mixed."""
        if draft.schema is None or draft.schema.equals(self.schema):
            return
        old, new = draft.schema.field("value").type, self.schema.field("value").type
        if old.equals(new):
            return
        if not (pa.types.is_struct(old) and pa.types.is_struct(new)):
            reasons = ["it has gained or lost its schema"]
        else:
            reasons = can_evolve(pa.schema(old), pa.schema(new))
            if reasons and not can_evolve(pa.schema(new), pa.schema(old)):
                return  # laid out with a newer schema than this process has seen
        if reasons:
            raise InvalidRecord(
                f"the topic has changed since the records were sent: {'; '.join(reasons)}",
                where=f"topic '{self.topic}', partition {self.number}",
                next_step="send them again, as the topic describes them now",
            )

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Writes the marker that ends a transaction here; idempotent."""
        with self._writing() as mark:
            if any((known.producer_id, known.epoch) == (producer_id, epoch) for known in mark.open):
                mark = self._write(mark, marker(producer_id, epoch, commit=commit))
            self._publish(mark, sync=True)  # even if it was ended: perhaps by a process that died before it was durable

    def sync(self) -> None:
        """Makes everything acknowledged so far survive a crash of the machine.

        What a process wrote that died before it moved the mark becomes readable now, not with the next append.
        """
        with self._writing() as mark:
            self._publish(mark, sync=True)

    def roll(self) -> None:
        """Closes the active segment, so that it can be deleted or compacted; an empty one stays."""
        with self._writing() as mark:
            active = self._segment(mark)
            if mark.end.position > active.first_position:
                self._publish(self._rolled(mark, active.schema), sync=False)

    def begin_at(self, offset: int) -> None:
        """Durably moves the start, because records before it are about to be deleted."""
        with self._writing() as mark:
            self._publish(replace(mark, start=max(mark.start or 0, offset)), sync=True)

    @contextmanager
    def _writing(self) -> Iterator[Mark]:
        """Holds the lock, and rolls back what a failed block wrote."""
        with storage_errors(self.folder), self.lock.backstop, self.lock:
            self.check_alive()
            mark = self._recovered(self.marks.read())
            if mark.start is None:
                mark = replace(mark, start=_first_offset(self.folder))
            try:
                yield mark
            except BaseException:
                self._roll_back(mark)
                raise

    def _roll_back(self, mark: Mark) -> None:
        """Best effort: recovery does the same, except for whole frames, if this fails or never runs."""
        self._close_active()
        if self.marks.read().sequence != mark.sequence:
            return  # the mark was moved before the failure: what it covers must stay
        with suppress(OSError):
            for name in segment_names(self.folder)[0]:
                if name.base > mark.end.segment:
                    delete(name)
                elif name.base == mark.end.segment:
                    _cut(name.path, mark.end.position)

    def _segment(self, mark: Mark) -> _ActiveSegment:
        active = self._active
        if active is not None and active.name.base == mark.end.segment and active.sequence == mark.sequence:
            return active
        # Another process has written meanwhile; a repair may even have replaced this file.
        if active is not None and active.name.base == mark.end.segment and not is_gone(active.name.path, active.fd):
            active.catch_up(mark)
            return active
        self._close_active()
        self._active = _ActiveSegment(SegmentName(mark.end.segment, None, self.folder), mark)
        return self._active

    def _close_active(self) -> None:
        if self._active:
            self._active.close()
            self._active = None

    def _write(self, mark: Mark, draft: Draft) -> Mark:
        active = self._segment(mark)
        full = mark.end.position + draft.size_bytes > self.segment_bytes and mark.end.position > active.first_position
        if full or (draft.schema is not None and not active.schema.equals(draft.schema)):
            mark = self._rolled(mark, draft.schema or active.schema)
            active = self._segment(mark)
        # First check whether it may be stored at all: recovery must not find a rejected frame.
        after = self._with_frame(mark, draft.flags, draft.producer_id, draft.epoch, draft.span, draft.size_bytes)
        self._disk.write(active.fd, draft.at(mark.end.offset), mark.end.position)
        active.index.note(mark.end.offset, mark.end.position, draft.max_timestamp)
        return after

    def _with_frame(self, mark: Mark, flags: int, producer_id: int, epoch: int, span: int, size_bytes: int) -> Mark:
        """The mark after one more frame."""
        if flags & ABORTS:
            count = self.aborted.add(mark.aborted_count, producer_id, epoch, mark.end.offset)
            mark = replace(mark, aborted_count=count)
        if flags & (COMMITS | ABORTS):
            mark = mark.without_open(producer_id, epoch)
        elif flags & TRANSACTIONAL:
            mark = mark.with_open(producer_id, epoch, mark.end)
        return replace(
            mark, end=FrameBoundary(mark.end.offset + span, mark.end.segment, mark.end.position + size_bytes)
        )

    def _rolled(self, mark: Mark, schema: pa.Schema) -> Mark:
        if (
            mark.end.offset == mark.end.segment
        ):  # an empty segment gives up one offset, so that the next one has another name
            gap = skip()
            self._disk.write(self._segment(mark).fd, gap.at(mark.end.offset), mark.end.position)
            mark = self._with_frame(mark, gap.flags, gap.producer_id, gap.epoch, gap.span, gap.size_bytes)
        name = SegmentName(mark.end.offset, None, self.folder)
        position = segments.create(name, schema, self._disk)
        return replace(mark, end=FrameBoundary(mark.end.offset, name.base, position))

    def _publish(self, mark: Mark, *, sync: bool) -> None:
        if sync:
            if mark.synced.segment != mark.end.segment:
                for name in segment_names(self.folder)[0]:
                    if mark.synced.segment <= name.base < mark.end.segment:
                        _sync_file(name.path, self._disk)
                sync_folder(self.folder)
            self._disk.sync(self._segment(mark).fd)
            mark = replace(mark, synced=mark.end)
        active = self._segment(mark)
        active.sequence = self.marks.write(mark, sync=sync).sequence

    def _find(self, drafts: Sequence[Draft], since: int, mark: Mark) -> dict[tuple[int, int, int], int]:
        wanted = {(draft.producer_id, draft.epoch, draft.sequence) for draft in drafts}
        found = {}
        for header in self._headers_since(since, mark):
            identity = (header.producer_id, header.epoch, header.sequence)
            if identity in wanted and not header.is_control:
                found[identity] = header.base_offset
        return found

    def producer_ids(self) -> set[int]:
        """The producers of the records here; NO_PRODUCER for unnamed ones and for compacted records."""
        mark = self.marks.read()
        headers = self._headers_since(self.start_offset(), mark)
        return {header.producer_id for header in headers if header.rows and not header.is_control}

    def _headers_since(self, offset: int, mark: Mark) -> Iterator[Header]:
        names = segment_names(self.folder)[0]
        first = max((name.base for name in names if name.base <= offset), default=0)
        for name in names:
            if name.base < first:
                continue
            segment = Segment(name)
            limit = mark.end.position if name.base == mark.end.segment else segment.size_bytes()
            for _, header in segment.frames(segment.position_of(offset, limit), limit):
                if header.next_offset > offset:
                    yield header

    # ------------------------------------------------------------ recovery

    def _check_boot(self) -> None:
        """After a crash of the machine, the partition is recovered before anybody reads or writes."""
        if self.marks.read().boot == BOOT:
            return
        with storage_errors(self.folder), self.lock.backstop, self.lock:
            self.check_alive()
            mark = self.marks.read()
            if mark.boot != BOOT:
                recovered = self._recovered_from(mark, mark.synced)
                # Always: an unsynced mark may be older than what readers saw.
                self._on_truncate(recovered.end.offset)
                self._publish(recovered, sync=True)

    def _recovered(self, mark: Mark) -> Mark:
        active = SegmentName(mark.end.segment, None, self.folder).path
        size = size_bytes(active)
        if size == 0 and not active.exists():
            raise DamagedLog("the segment with the newest records is missing", where=str(active), next_step=REPAIR)
        if size == mark.end.position:
            following = SegmentName(mark.end.offset, None, self.folder).path
            if mark.end.offset == mark.end.segment or not following.exists():
                return mark
        self._close_active()
        return self._recovered_from(mark, mark.end)

    def _recovered_from(self, mark: Mark, safe: FrameBoundary) -> Mark:
        """Scans from a safe point, keeps every intact frame, and truncates after the last."""
        # Transactions that started after that point are found again from their frames.
        mark = replace(mark, end=safe, open=tuple(known for known in mark.open if known.first < safe))
        for name in segment_names(self.folder)[0]:
            if name.base < safe.segment:
                continue
            if name.base > mark.end.offset or (name.base > safe.segment and name.base != mark.end.offset):
                delete(name)
                continue
            mark = self._kept(mark, name)
        return mark

    def _kept(self, mark: Mark, name: SegmentName) -> Mark:
        """The mark after the intact frames of one segment above it; the rest of the file is truncated."""
        try:
            segment = Segment(name)
        except (DamagedLog, ValueError):
            if name.base == mark.end.segment:
                raise
            delete(name)  # a segment whose creation was interrupted
            return mark
        if name.base != mark.end.segment:
            mark = replace(mark, end=FrameBoundary(mark.end.offset, name.base, segment.first_position))
        size = segment.size_bytes()
        if size < mark.end.position:
            raise DamagedLog(
                f"acknowledged records are missing: the segment has {size} bytes of {mark.end.position}",
                where=f"{name.path}, byte {size}",
                next_step=REPAIR,
            )
        for _, header in segment.intact_frames(mark.end.position, size):
            if header.base_offset != mark.end.offset:
                break
            mark = self._with_frame(
                mark, header.flags, header.producer_id, header.epoch, header.span, header.size_bytes
            )
        if size > mark.end.position:
            _cut(name.path, mark.end.position)
        return mark

    def __del__(self) -> None:
        """Files are closed when the partition has no users left: never while a thread may still write to it."""
        if getattr(self, "_active", None):
            self._close_active()


class _ActiveSegment:
    """The segment that is written to, opened for writing, and consistent with one version of the mark."""

    def __init__(self, name: SegmentName, mark: Mark) -> None:
        self.name = name
        segment = Segment(name)
        self.schema = segment.schema
        self.first_position = segment.first_position
        self.index = IndexWriter(name.index_path)
        try:
            self._resume(segment, mark)
            self.fd = open_private(name.path, os.O_RDWR)
        except BaseException:
            self.index.close()
            raise

    def catch_up(self, mark: Mark) -> None:
        self._resume(Segment(self.name), mark)  # not kept open: a process may write to thousands of partitions

    def _resume(self, segment: Segment, mark: Mark) -> None:
        self.index.resume(segment, mark.end.position)
        self.sequence = mark.sequence

    def close(self) -> None:
        os.close(self.fd)
        self.index.close()


def _first_offset(folder: Path) -> int:
    """The first offset of the segments: the start of a partition whose mark an earlier version wrote."""
    return next((name.base for name in segment_names(folder)[0]), 0)


def _sync_file(path: Path, disk: Disk) -> None:
    fd = open_private(path, os.O_RDWR)
    try:
        disk.sync(fd)
    finally:
        os.close(fd)


def _cut(path: Path, size_bytes: int) -> None:
    fd = open_private(path, os.O_RDWR)
    try:
        os.ftruncate(fd, size_bytes)
    finally:
        os.close(fd)


def size_bytes(path: Path) -> int:
    """0 if the file was deleted since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
