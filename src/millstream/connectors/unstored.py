"""Sources whose rows are processed without being stored: they are in memory until they are read, at most once.

The rows of one run are a log in a folder of the system's memory, since workers are other processes. Their numbers start
at the time of the run in microseconds, so that none has the number of a row of an earlier run. A batch that is repeated
after its run has ended has no rows.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from millstream.connectors.source import Offsets, Slab, Slice, Source
from millstream.connectors.spooled import Receiving
from millstream.connectors.topic.source import TopicSource
from millstream.log import EmbeddedLog
from millstream.private_files import private_folder
from millstream.records import Schema

MEMORY = Path("/dev/shm")
HELD_BYTES_MAX, SEGMENT_BYTES = 256 << 20, 16 << 20
PARTITION = "0"


def folder_in_memory(folder: Path) -> Path:
    """A private folder in memory that belongs to a folder of a job; a temporary one where memory has no folders."""
    root = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    name = hashlib.blake2b(str(folder.absolute()).encode(), digest_size=12).hexdigest()
    return private_folder(root / f"millstream-passing-{os.geteuid()}") / name


class Held:
    """The rows of one run."""

    def __init__(self, path: Path, topic: str, columns: Schema, *, is_new: bool = False) -> None:
        self.first = int(path.name)
        self.path = path
        self.log = EmbeddedLog(path)
        if is_new:
            self.log.create_topic(topic, schema=columns, retention_bytes=HELD_BYTES_MAX, segment_bytes=SEGMENT_BYTES)
        self.rows = TopicSource(topic, columns, broker=str(path), on_lost="earliest")

    def inside(self, offsets: Offsets) -> Offsets:
        return {name: max(0, offset - self.first) for name, offset in offsets.items()}

    def outside(self, offsets: Offsets) -> Offsets:
        return {name: offset + self.first for name, offset in offsets.items()}

    def close(self) -> None:
        self.rows.close()
        self.log.close()


class PassingSource(Source):
    def __init__(self, topic: str, columns: Schema, folder: Path) -> None:
        self._topic, self._columns = topic, columns
        self._folder = folder_in_memory(folder)
        self._held: dict[int, Held] = {}
        self._own: Held | None = None
        self._receiver: Receiving | None = None

    @abstractmethod
    def _receiving(self, log: EmbeddedLog) -> Receiving:
        """Starts to receive rows, into the log."""

    @abstractmethod
    def _checked(self, slab: Slab) -> Slab:
        """The requested columns of received rows."""

    @property
    def partitions(self) -> list[str]:
        return [PARTITION]

    def earliest(self) -> Offsets:
        return {PARTITION: 0}

    def latest(self) -> Offsets:
        own = self._receive()
        return own.outside(own.rows.latest())

    def at(self, moment: datetime) -> Offsets:
        """Rows of the past are gone, and those of the future are not there: it starts now."""
        return self.latest()

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        own = self._receive(start.get(PARTITION, 0))
        return own.outside(own.rows.limited(own.inside(start), limit_rows))

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        own = self._receive()
        if end.get(PARTITION, 0) <= own.first:  # of an earlier run
            return []
        found = own.rows.slices(own.inside(start), own.inside(end), tasks)
        return [
            [Slice(each.partition, each.start + own.first, each.end + own.first) for each in task] for task in found
        ]

    def read(self, slice: Slice) -> Iterator[Slab]:
        held = self._of(slice.start)
        if held is None:
            return
        for slab in held.rows.read(Slice(slice.partition, slice.start - held.first, slice.end - held.first)):
            yield self._checked(Slab(slab.partition, slab.rows, slab.offsets + held.first, slab.dead))

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        own = self._receive(start.get(PARTITION, 0))
        return own.rows.wait(own.inside(start), timeout_s)

    def take_losses(self) -> list[str]:
        return [] if self._own is None else self._own.rows.take_losses()

    def _receive(self, least: int = 0) -> Held:
        """Only the planner receives. What an earlier run has left is deleted."""
        if self._own is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700)
            first = max(time.time_ns() // 1000, least)  # a clock that goes back must not skip rows
            self._own = self._held[first] = Held(self._folder / str(first), self._topic, self._columns, is_new=True)
            self._receiver = self._receiving(self._own.log)
        return self._own

    def _of(self, offset: int) -> Held | None:
        """The run that an offset belongs to; None if its rows are gone."""
        if self._own is None:
            try:
                firsts = sorted(int(each.name) for each in self._folder.iterdir())
            except FileNotFoundError:
                return None
            for first in firsts:
                if first not in self._held:
                    self._held[first] = Held(self._folder / str(first), self._topic, self._columns)
        fitting = [first for first in self._held if first <= offset]
        return self._held[max(fitting)] if fitting else None

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        for held in self._held.values():
            held.close()
        if self._own is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
