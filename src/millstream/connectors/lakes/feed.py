"""What sources of all lake formats need: which data files each version of a table added or removed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from millstream.records import Schema

SNAPSHOT, INSERT, DELETE, MIXED = "snapshot", "insert", "delete", "mixed"
CHANGE_TYPE = "_change_type"
"""In files with changes of both kinds, as Delta's change feed has them: one per row."""


class Piece(NamedTuple):
    """A data file whose rows a version of the table has added or removed."""

    path: str
    version: int
    """Delta's version; Iceberg's snapshot id."""
    committed_ms: int
    change: str
    """SNAPSHOT: it was there when the source started; INSERT, DELETE, or MIXED."""
    rows: int
    partition: Mapping[str, Any]
    """The values of columns that the file does not have."""


class Feed(ABC):
    where: str

    @abstractmethod
    def schema(self) -> Schema:
        """The columns of the table; raises NotFound if there is no table."""

    @abstractmethod
    def start(self) -> list[Piece]:
        """The files of the newest version."""

    @abstractmethod
    def of(self, version: int, *, whole: bool) -> list[Piece]:
        """What a version changed, or all of its files; in the same order each time."""

    @abstractmethod
    def after(self, version: int) -> list[int]:
        """The later versions, in order. Raises OffsetLost if one is no longer known."""

    @abstractmethod
    def batches(self, piece: Piece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a file: these columns of the table, as far as the file has them, and CHANGE_TYPE if MIXED."""

    @abstractmethod
    def explained(self, error: BaseException) -> tuple[str, bool] | None:
        """As of a store."""
