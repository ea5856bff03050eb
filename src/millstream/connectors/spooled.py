"""Sources that cannot be read again: what they deliver is spooled to a log in the job's folder, and read from there.

Only the planner receives, in a thread that starts with the first request for offsets; workers read the spool.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from millstream.connectors.source import Offsets, Slab, Slice, Source
from millstream.connectors.topic.source import TopicSource
from millstream.errors import AlreadyExists
from millstream.log import EmbeddedLog
from millstream.records import Schema

RETENTION = "7 days"


class Receiving(Protocol):
    """What fills the spool."""

    def close(self) -> None: ...


class SpooledSource(Source):
    def __init__(self, topic: str, columns: Schema, folder: Path, keep: str | timedelta = RETENTION) -> None:
        self._log = EmbeddedLog(folder / "spool")
        with suppress(AlreadyExists):
            self._log.create_topic(topic, schema=columns, retention=keep)
        self._spool = TopicSource(topic, columns, broker=str(folder / "spool"))
        self._receiver: Receiving | None = None

    @abstractmethod
    def _receiving(self) -> Receiving:
        """Starts to fill the spool."""

    @abstractmethod
    def _checked(self, slab: Slab) -> Slab:
        """The requested columns of spooled rows."""

    @property
    def partitions(self) -> list[str]:
        return self._spool.partitions

    def earliest(self) -> Offsets:
        return self._spool.earliest()

    def latest(self) -> Offsets:
        self._receive()
        return self._spool.latest()

    def at(self, moment: datetime) -> Offsets:
        """The first rows received at or after a time."""
        return self._spool.at(moment)

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        self._receive()
        return self._spool.limited(start, limit_rows)

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        return self._spool.slices(start, end, tasks)

    def read(self, slice: Slice) -> Iterator[Slab]:
        for slab in self._spool.read(slice):
            yield self._checked(slab)

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        self._receive()
        return self._spool.wait(start, timeout_s)

    def _receive(self) -> None:
        if self._receiver is None:
            self._receiver = self._receiving()

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._spool.close()
        self._log.close()
