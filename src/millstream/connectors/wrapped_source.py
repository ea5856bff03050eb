"""A source over another one: whatever a subclass does not change is asked of the inner source."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from millstream.connectors.source import Offsets, Slab, Slice, Source


class WrappedSource(Source):
    def __init__(self, inner: Source) -> None:
        self._inner = inner

    @property
    def decodes(self) -> bool:
        return self._inner.decodes

    @property
    def identity(self) -> str | None:
        return self._inner.identity

    def earliest(self) -> Offsets:
        return self._inner.earliest()

    def latest(self) -> Offsets:
        return self._inner.latest()

    def at(self, moment: datetime) -> Offsets:
        return self._inner.at(moment)

    def written_at(self, partition: str, offset: int) -> float | None:
        return self._inner.written_at(partition, offset)

    def row_bytes(self) -> float | None:
        return self._inner.row_bytes()

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        return self._inner.limited(start, limit_rows)

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        return self._inner.slices(start, end, tasks)

    def pieces(self, partition: str, start: int, end: int) -> list[Slice]:
        return self._inner.pieces(partition, start, end)

    def read(self, slice: Slice) -> Iterator[Slab]:
        return self._inner.read(slice)

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        return self._inner.wait(start, timeout_s)

    def take_losses(self) -> list[str]:
        return self._inner.take_losses()

    @property
    def dropped_rows(self) -> int:
        return self._inner.dropped_rows

    def close(self) -> None:
        self._inner.close()
