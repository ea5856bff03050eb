"""Files as a source: each new file gets the next offset, which is recorded in a journal.

Files are read whole, once, in order of (modification time, name) among those found together. Offsets count files;
inside a slice, `file << 40 | row` identifies a row. Folders such as `dt=2024-03-01` are searched, and fill columns.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.connectors.dead_letters import Origin, dead_letter_table, without_missing
from millstream.connectors.files.bounds import FileBounds
from millstream.connectors.files.formats import Part, parts_of, row_groups
from millstream.connectors.files.journal import Entry, Journal
from millstream.connectors.source import Offsets, Slab, Slice, Source, balanced
from millstream.errors import InvalidInput, NotFound
from millstream.log.storage.disk import storage_errors
from millstream.plan.steps.partition_folders import folder_values, is_folder_name
from millstream.records import Failure, Schema

if TYPE_CHECKING:
    from millstream.connectors.files.endpoint import Files

PARTITION = "files"
BATCH_BYTES = 256 << 20
ROW_BITS = 40
LOOK_SECONDS = 0.2
SPLIT_BYTES = 1 << 20  # the footer of a smaller Parquet file is not worth reading


class FilesSource(Source):
    def __init__(self, endpoint: Files, schema: Schema, *, folder: Path, columns: Schema | None = None) -> None:
        """Of Parquet only `columns` are read; a line of text is always decoded as a whole."""
        endpoint.check_read()
        self.endpoint = endpoint
        self.schema = columns if columns is not None and endpoint.format == "parquet" else schema
        self._pattern = self._place()
        self._journal = Journal(folder / "files.journal", Entry)

    @property
    def decodes(self) -> bool:
        return self.endpoint.decodes

    # ------------------------------------------------------------ what there is

    @property
    def partitions(self) -> list[str]:
        return [PARTITION]

    def earliest(self) -> Offsets:
        return {PARTITION: 0}

    def latest(self) -> Offsets:
        self._discover()
        return {PARTITION: len(self._journal)}

    def at(self, moment: datetime) -> Offsets:
        raise InvalidInput(
            "files cannot be read from a point in time",
            where=str(self.endpoint),
            next_step="start at 'earliest' or 'latest'",
        )

    def _discover(self) -> None:
        """Adds new files to the journal."""
        self._journal.refresh()
        self._journal.append(sorted(self._new_files(), key=lambda entry: (entry.modified_ns, entry.path)))

    def _place(self) -> str:
        """The folder, file or pattern, without ambiguity."""
        return os.path.abspath(os.path.expanduser(self.endpoint.path))  # noqa: PTH100, PTH111 - it may be a glob

    def _new_files(self) -> list[Entry]:
        found = []
        with storage_errors(Path(self._pattern)):
            for path in self._listed():
                if path not in self._journal:
                    with suppress(FileNotFoundError):  # renamed or deleted in between
                        about = os.stat(path)  # noqa: PTH116 - a Path per file is slow in large folders
                        found.append(Entry(path, about.st_size, about.st_mtime_ns))
        return found

    def _listed(self) -> Iterator[str]:
        if os.path.isdir(self._pattern):  # noqa: PTH112
            yield from _in_folder(self._pattern)
            return
        if glob.has_magic(self._pattern):
            spelled_out = _spelled_out(self._pattern)
            for path in glob.iglob(self._pattern, recursive=True):  # noqa: PTH207
                if os.path.isfile(path) and not is_below_hidden(Path(path[spelled_out:])):  # noqa: PTH113
                    yield path
            return
        if not os.path.isfile(self._pattern):  # noqa: PTH113
            raise NotFound(
                "there is no such folder or file",
                where=self._pattern,
                next_step="create the folder first, or use a glob such as 'data/*.parquet'",
            )
        yield self._pattern

    # ------------------------------------------------------------ planning a batch

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        """At most `files_per_batch` files; their number of rows is not known in advance.

        By default, a limited batch takes files up to a total size.
        """
        begun, end = start.get(PARTITION, 0), self.latest()[PARTITION]
        if self.endpoint.files_per_batch is not None:
            end = min(end, begun + self.endpoint.files_per_batch)
        elif limit_rows is not None:
            size_bytes, number = 0, begun
            while number < end and size_bytes < BATCH_BYTES:
                size_bytes, number = size_bytes + self._journal.entry(number).size_bytes, number + 1
            end = number
        return {PARTITION: max(begun, end)}

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        """By file, and by row group for large Parquet files; balanced by bytes."""
        units: list[tuple[Slice, int]] = []
        for number in range(start.get(PARTITION, 0), end[PARTITION]):
            units += self._units(number)
        made = balanced(units, tasks)
        for task in made:
            joined: list[Slice] = []
            for unit in task:
                if joined and joined[-1].end == unit.start and joined[-1].start >> ROW_BITS == unit.start >> ROW_BITS:
                    joined[-1] = Slice(PARTITION, joined[-1].start, unit.end)
                else:
                    joined.append(unit)
            task[:] = joined
        return made

    def _units(self, number: int) -> list[tuple[Slice, int]]:
        """The smallest pieces of a file that can be read separately, with their sizes."""
        entry = self._journal.entry(number)
        first, end = number << ROW_BITS, (number + 1) << ROW_BITS
        groups = (
            row_groups(Path(entry.path)) if self.endpoint.format == "parquet" and entry.size_bytes > SPLIT_BYTES else []
        )
        if len(groups) < 2:
            return [(Slice(PARTITION, first, end), entry.size_bytes + 1)]
        units, row = [], first
        for index, (rows, size_bytes) in enumerate(groups):
            until = end if index == len(groups) - 1 else row + rows
            units.append((Slice(PARTITION, row, until), size_bytes + 1))
            row = until
        return units

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.latest()[PARTITION] <= start.get(PARTITION, 0):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, LOOK_SECONDS))
        return True

    # ------------------------------------------------------------ reading

    def read(self, slice: Slice) -> Iterator[Slab]:
        number = slice.start >> ROW_BITS
        first = slice.start - (number << ROW_BITS)
        until = slice.end - (number << ROW_BITS)
        entry = self._journal.entry(number)
        self._check_unchanged(entry)
        whole = until == 1 << ROW_BITS
        below = self._below(entry.path)
        folders = folder_values(below)
        name = os.fsencode(below if folders else Path(entry.path).name).decode(errors="replace")
        with self._opened(entry) as path, storage_errors(path):
            bounds = FileBounds(entry.size_bytes, self.endpoint.max_record_bytes, self.endpoint.max_expansion)
            for part in parts_of(
                path, self.endpoint.format, self.schema, first, None if whole else until, bounds, folders
            ):
                yield self._slab(part, number, name)
        self._check_unchanged(entry)  # again afterwards: it may have been modified meanwhile

    def _below(self, path: str) -> str:
        """The path of a file relative to the endpoint's folder, or to the fixed part of its glob."""
        if path.startswith(self._pattern.rstrip(os.sep) + os.sep):
            return path[len(self._pattern.rstrip(os.sep)) + 1 :]
        if path == self._pattern or not glob.has_magic(self._pattern):
            return os.path.basename(path)  # noqa: PTH119
        return path[_spelled_out(self._pattern) :]

    def _slab(self, part: Part, number: int, name: str) -> Slab:
        origin = Origin(name, 0)
        dead: pa.Table | None = None
        if part.bad:
            at = np.array([line for line, _, _ in part.bad], dtype=np.int64)
            failures = [Failure(index, reason) for index, (_, _, reason) in enumerate(part.bad)]
            dead = dead_letter_table([content for _, content, _ in part.bad], at, failures, origin)
        offsets = part.numbers + (number << ROW_BITS)
        return without_missing(PARTITION, origin, part.rows, offsets, self.schema.arrow, dead, part.numbers)

    @contextmanager
    def _opened(self, entry: Entry) -> Iterator[Path]:
        """The file on the local disk."""
        yield Path(entry.path)

    def _now(self, entry: Entry) -> Entry | None:
        """The file as it is; None if it is gone."""
        try:
            about = os.stat(entry.path)  # noqa: PTH116
        except FileNotFoundError:
            return None
        return Entry(entry.path, about.st_size, about.st_mtime_ns)

    def _check_unchanged(self, entry: Entry) -> None:
        about = self._now(entry)
        if about is None:
            raise InvalidInput(
                "the file was deleted after the job found it and before it was read",
                where=entry.path,
                next_step="restore it; delete files only after the batch that reads them is complete",
            )
        if about != entry:
            raise InvalidInput(
                f"the file has changed since the job found it: {entry.size_bytes} bytes then, {about.size_bytes} now",
                where=entry.path,
                next_step="restore its content and modification time; write new files under a name starting with '.' "
                "and rename them when they are complete",
            )

    def close(self) -> None:
        return None


def _in_folder(folder: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """The files of a folder and its partition folders, each column once, so that links do not loop."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                if not is_hidden(entry.name):
                    yield entry.path
            elif is_folder_name(entry.name) and (column := entry.name.partition("=")[0]) not in above:
                with suppress(FileNotFoundError, NotADirectoryError):  # deleted meanwhile, or not a folder
                    yield from _in_folder(entry.path, above | {column})


def is_hidden(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith(".tmp")


def is_below_hidden(path: Path) -> bool:
    return is_hidden(path.name) or any(is_hidden(part) and not is_folder_name(part) for part in path.parent.parts)


def _spelled_out(pattern: str) -> int:
    """The length of the fixed part of a glob."""
    magic = min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=len(pattern))
    return pattern[:magic].rfind(os.sep) + 1
