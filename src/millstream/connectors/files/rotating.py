"""A sink of one file that grows and is rotated, as programs write their logs: each row is a line, exactly once."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.file_ledger import unavailable_if_refused
from millstream.connectors.files.rotated_file import Limits, RotatedFile
from millstream.connectors.flat_rows import check_json, flat_rows
from millstream.connectors.refusals import AS_TEXT, Refuse, refusals_of, stop, unfit, without
from millstream.connectors.sink import Sink
from millstream.connectors.weights import aligned, one_batch, with_weights
from millstream.errors import InvalidInput, InvalidPlan, SinkUnavailable
from millstream.plan.steps.flat_columns import flat_columns
from millstream.records import Schema, align, codec
from millstream.records.durations import duration
from millstream.records.sizes import size_bytes
from millstream.user_lines import users_line, what_exists

LineFormat = Literal["json", "csv", "text"]
FORMATS: tuple[str, ...] = get_args(LineFormat)
MAX_SIZE = "100 MiB"
KEEP = 10


@dataclass(frozen=True)
class RotatingFile(Connector):
    path: str
    format: LineFormat
    limits: Limits
    can_write: ClassVar[bool] = True
    refuses_rows: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"rotating file {Path(self.path).name}"

    @property
    def target(self) -> Hashable:
        return ("rotating_file", str(Path(self.path).expanduser().absolute()))

    def check_written(self, schema: Schema) -> None:
        if self.format == "csv":
            flat_columns(schema)
        if self.format == "text" and [str(field.type) for field in schema.arrow] != ["string"]:
            raise InvalidPlan(
                f"a line of text is one column of text, not {schema.ddl}",
                where=users_line(),
                next_step="select one column of text, or write json or csv",
            )

    def open_sink(self, writing: Writing) -> Sink:
        return RotatingFileSink(self, writing)

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, path=self.path + suffix)

    def __str__(self) -> str:
        return f"rotating_file({self.path}, {self.format})"


def rotating_file(
    path: str | PathLike[str],
    format: LineFormat = "json",
    *,
    max_size: str | int | None = MAX_SIZE,
    max_age: str | timedelta | None = None,
    keep: int | None = KEEP,
) -> RotatingFile:
    """A file that grows by a line of json, csv or text for every row, and is rotated: `rotating_file("app.log")`.

    Before it is larger than `max_size`, or older than `max_age` when a row comes, it becomes `app.log.000001`, the next
    one `app.log.000002`, and so on; the newest `keep` of them are kept, and all with `keep=None`. Each row is written
    exactly once.
    """
    if format not in FORMATS:
        raise arguments.refused(f"there is no line format {format!r}", what_exists(format, FORMATS, kind="formats"))
    most = None if max_size is None else size_bytes(max_size, what="max_size")
    oldest = None if max_age is None else duration(max_age, what="max_age").total_seconds()
    if most == 0 or oldest == 0:
        raise arguments.refused("max_size and max_age must be more than zero", "max_size='100 MiB', max_age='1 day'")
    if keep is not None:
        arguments.whole_number(keep, "keep", "keep=None keeps all files")
    given = arguments.path(path, "rotating_file('app.log')")
    if given.endswith("/") or Path(given).name in ("", ".."):
        raise arguments.refused(f"{given!r} does not name a file", "for example rotating_file('logs/app.log')")
    return RotatingFile(given, format, Limits(most, oldest, keep))


class RotatingFileSink(Sink):
    def __init__(self, endpoint: RotatingFile, writing: Writing, now: Callable[[], float] = time.time) -> None:
        path = Path(endpoint.path).expanduser().absolute()
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise InvalidInput(
                "only a plain file can be rotated, not a folder or a link",
                where=str(path),
                next_step="use another path",
            )
        if endpoint.format == "json":
            check_json(writing.schema)
        self._format = endpoint.format
        self._writing = writing
        self._file = RotatedFile(path, endpoint.limits, now)

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        ledger, run = self._writing.ledger, self._writing.run
        if ledger.has(batch):
            return
        if ledger.newest() is not None and not self._file.path.parent.is_dir():
            raise SinkUnavailable(
                f"there is no folder {self._file.path.parent}",
                where=f"step '{self._writing.step}'",
                next_step="check that the disk is mounted, or create the folder; the batch is retried",
            )
        with unavailable_if_refused(str(self._file.path), self._writing.step):
            newest = self._file.newest(run)
        if newest is not None and batch <= newest:
            return
        rows = aligned(rows, self._writing.schema)
        refused = self._unfit(rows, weights)
        refuse(refusals_of(refused))
        lines, header = self._lines(without(with_weights(rows, weights) if self._has_weights else rows, refused))
        with unavailable_if_refused(str(self._file.path), self._writing.step):
            self._file.append(run, batch, lines, header)

    @property
    def _has_weights(self) -> bool:
        return self._format != "text"

    def _unfit(self, rows: pa.Table, weights: pa.Array | None) -> dict[int, str]:
        if self._format != "text":
            return unfit(rows, AS_TEXT)
        column = rows.column(0)
        tests = [
            (pc.is_null(column), "a null is no line of text"),
            (pc.match_substring_regex(column, r"[\r\n]"), "the text has a line break"),
        ]
        if weights is not None:
            tests.append((pc.less(weights, 0), "a retraction is no line of text"))
        return {row: why for flags, why in tests for row, is_unfit in enumerate(flags.to_pylist()) if is_unfit}

    def _lines(self, rows: pa.Table) -> tuple[list[bytes], bytes]:
        """Lines with their line break, and what every file begins with."""
        batch, heading = one_batch(rows), b""
        if self._format == "text":
            values: list[bytes] = batch.column(0).cast(pa.binary()).to_pylist()
        elif self._format == "json":
            schema = Schema.of(batch.schema)
            values = codec("json", schema).encode(align(batch, schema.arrow)).to_pylist()
        else:
            flat = flat_rows(batch)
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerow(flat.schema.names)
            heading = text.getvalue().encode()
            values = codec("csv", Schema.of(flat.schema)).encode(flat).to_pylist()
        return [value + b"\n" for value in values], heading

    def close(self) -> None:
        self._file.close()
