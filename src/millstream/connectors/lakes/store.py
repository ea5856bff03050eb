"""What the sinks of all lake formats need of a table: its columns and files, and one atomic commit.

A commit adds data files, removes data files and records the number of the batch, all in one version of the table. So a
batch is visible completely or not at all, and the table itself knows which batches it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from millstream.connectors.claims import Claim, digest
from millstream.errors import InvalidSchema
from millstream.records import Schema

OWNER = "millstream.output."
"""The prefix of the table properties that hold the claims of jobs."""


@dataclass(frozen=True)
class Run:
    """The writer of a table: every run of a job numbers its batches from 0."""

    job: str
    step: str
    run: str

    @property
    def id(self) -> str:
        return f"{self.job}/{self.step}/{self.run}"

    @property
    def claim_property(self) -> str:
        """The table property with the claim of this job and step."""
        return OWNER + digest(self.job, self.step)

    @property
    def folder(self) -> str:
        """The folder of this run's data files, below that of the table."""
        return f"millstream-{digest(self.job, self.step)}-{self.run}"

    @classmethod
    def of(cls, claim: Claim) -> Run:
        return cls(claim.job, claim.step, claim.run)


class Conflict(Exception):
    """Another writer has changed the table since it was read."""


@dataclass(frozen=True)
class Places:
    """A file system, and the folder in it that paths are relative to."""

    files: fs.FileSystem
    root: str

    def path(self, below: str) -> str:
        return f"{self.root}/{below}" if self.root else below


class Storage(ABC):
    """How a task reaches the data files of a table. It is pickled, so it holds settings, not connections."""

    @abstractmethod
    def opened(self) -> Places | None:
        """None if tasks lack what is needed to reach them."""


@dataclass(frozen=True)
class NewFile:
    """A Parquet file that no version of the table refers to yet."""

    path: str
    """Below the folder for data."""
    size_bytes: int
    footer: bytes
    """Its metadata, from which formats take their statistics."""
    partition: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def metadata(self) -> pq.FileMetaData:
        return pq.read_metadata(pa.BufferReader(self.footer))

    def receipt(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "size_bytes": self.size_bytes,
            "footer": self.footer,
            "partition": dict(self.partition),
        }

    @classmethod
    def of(cls, receipt: Mapping[str, Any]) -> NewFile:
        return cls(receipt["path"], receipt["size_bytes"], receipt["footer"], receipt["partition"])


@dataclass(frozen=True)
class StoredFile:
    """A data file of the current version."""

    path: str
    """As the format names it."""
    size_bytes: int
    partition: Mapping[str, Any]
    lower: Mapping[str, Any]
    """At most the least value of a column; columns without one are unknown."""
    upper: Mapping[str, Any]
    may_be_null: Mapping[str, bool] = field(default_factory=dict)


class Store(ABC):
    """One table of a lake. Errors are those of its library; `explained` turns them into errors of Millstream."""

    where: str
    partition_by: tuple[str, ...]
    """Of the table as it is."""
    leaves_out_partitions: bool
    """Whether data files do not have the partition columns."""

    @abstractmethod
    def refresh(self) -> bool:
        """Loads the newest version; False if there is no table."""

    @abstractmethod
    def create(self, schema: Schema, partition_by: Sequence[str], properties: Mapping[str, str]) -> None: ...

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns of the table."""

    @abstractmethod
    def as_stored(self, schema: Schema) -> Schema:
        """The types that a table made for these rows has."""

    @abstractmethod
    def add_columns(self, fields: Sequence[pa.Field]) -> None: ...

    def check_writable(self, changes_rows: bool) -> None:
        """Raises InvalidSchema for a table with features that this module does not write."""
        if reasons := self.reasons_against_writing(changes_rows):
            raise InvalidSchema(
                f"Millstream cannot write to this table: {'; '.join(reasons)}",
                where=self.where,
                next_step="write to another table",
            )

    @abstractmethod
    def reasons_against_writing(self, changes_rows: bool) -> list[str]: ...

    @property
    @abstractmethod
    def properties(self) -> Mapping[str, str]: ...

    @abstractmethod
    def set_property(self, name: str, value: str) -> None: ...

    @abstractmethod
    def newest(self, run: Run) -> int | None:
        """The newest batch of a run that the table has."""

    @abstractmethod
    def storage(self) -> Storage: ...

    @abstractmethod
    def places(self) -> Places:
        """The data files, as the driver reaches them."""

    @abstractmethod
    def written_schema(self) -> pa.Schema:
        """The columns of a data file, in the types of Parquet files of this format."""

    @abstractmethod
    def files(self) -> list[StoredFile]: ...

    @abstractmethod
    def rows(self, file: StoredFile) -> pa.Table:
        """The rows of a data file, with the columns of the table."""

    @abstractmethod
    def commit(self, run: Run, batch: int, added: Sequence[NewFile], removed: Sequence[StoredFile]) -> None:
        """One new version. Raises Conflict if it depends on what another writer has changed."""

    @abstractmethod
    def is_empty(self) -> bool: ...

    @abstractmethod
    def clear(self) -> None:
        """A new version without rows."""

    @abstractmethod
    def explained(self, error: BaseException) -> tuple[str, bool] | None:
        """The message of an error of the library, and whether a retry may help; None for other errors."""
