"""Captured changes as a source: the planner captures into a log in the job's folder, and workers read from there.

So the database is read once, whatever is repeated after a crash, and the same offsets are always the same changes.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from millstream import terminal
from millstream.capture.capturing import Capture
from millstream.capture.changes import DELETE, SNAPSHOT, TIME, TRUNCATE
from millstream.capture.ports import Opener
from millstream.connectors.source import Offsets, Slab, Slice, Source
from millstream.connectors.topic.source import TopicSource
from millstream.errors import InvalidInput, MillstreamError
from millstream.log import EmbeddedLog
from millstream.plan.endpoints import Endpoint, KeptTable
from millstream.private_files import make_folders
from millstream.records import Schema

RETENTION = "7 days"
NAME_FILE = "capture.name"
OP, AT, POSITION, NUMBER = "__op", "__at", "__position", "__number"
"""Of a source of rows: what happened to a row, when and where, under names that no column of the table has."""
APART = (OP, AT, POSITION, NUMBER)
Rows = Callable[[pa.Table], pa.Table]
NEW_SNAPSHOT = "start the job over, which reads a new snapshot: millstream run flow.py --start-over"
logger = terminal.logger(__name__)


class CaptureSource(Source):
    """The changes of one table."""

    def __init__(self, opened: Opener, topic: str, folder: Path, columns: Rows) -> None:
        """`columns` makes the source's rows of a topic's: as many, in the same order."""
        self._opened = opened
        self._topic = topic
        self._folder = folder
        self._columns = columns
        self._spool: TopicSource | None = None
        self._capturing: Capturing | None = None

    def earliest(self) -> Offsets:
        return self._caught_up().earliest()

    def latest(self) -> Offsets:
        return self._caught_up().latest()

    def at(self, moment: datetime) -> Offsets:
        """The first changes that were captured at or after a time."""
        return self._caught_up().at(moment)

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        return self._caught_up().limited(start, limit_rows)

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        return self._stored().slices(start, end, tasks)

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        return self._caught_up().wait(start, timeout_s)

    def row_bytes(self) -> float:
        return self._stored().row_bytes()

    def read(self, slice: Slice) -> Iterator[Slab]:
        for slab in self._stored().read(slice):
            yield Slab(slab.partition, self._columns(slab.rows), slab.offsets, slab.dead)

    def _stored(self) -> TopicSource:
        if self._spool is None:
            spool = self._folder / "spool"
            with EmbeddedLog(spool) as log:
                schema = log.topic(self._topic).settings.schema
            assert schema is not None
            self._spool = TopicSource(self._topic, schema, broker=str(spool))
        return self._spool

    def _caught_up(self) -> TopicSource:
        """Starts the capture: at first, everything that is in the database is captured before this returns."""
        if self._capturing is None:
            make_folders(self._folder)
            self._capturing = Capturing(self._folder, self._opened)
        self._capturing.check()
        return self._stored()

    def close(self) -> None:
        if self._capturing is not None:
            self._capturing.close()
        if self._spool is not None:
            self._spool.close()


class Capturing:
    """A capture in a thread of its own."""

    def __init__(self, folder: Path, opened: Opener) -> None:
        self._log = EmbeddedLog(folder / "spool")
        self._stop = threading.Event()
        self._error: BaseException | None = None
        with ExitStack() as opening:
            opening.callback(self._log.close)
            capture = Capture(self._log, _name(folder), opened, is_inner=True, retention=RETENTION)
            self._capture = opening.enter_context(capture)
            self._capture.catch_up(self._stop)
            opening.pop_all()
        self._thread = threading.Thread(target=self._run, name="millstream-capture", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._capture.run(self._stop)
        except BaseException as error:  # raised where the source is used
            self._error = error

    def check(self) -> None:
        """Raises what has ended the capture."""
        if isinstance(self._error, MillstreamError):
            raise self._error
        if self._error is not None:
            raise RuntimeError(f"the capture failed: {self._error!r}") from self._error

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._capture.close()
        self._log.close()


def _name(folder: Path) -> str:
    """The name of the capture in the database, chosen once: it stays the same if the folder is moved."""
    file = folder / NAME_FILE
    if not file.exists():
        draft = file.with_suffix(".draft")
        draft.write_text(f"flow_{secrets.token_hex(6)}")
        draft.replace(file)
    return file.read_text()


# ---------------------------------------------------------------- columns


def envelopes(schema: Schema) -> Rows:
    """Changes with the requested columns, which may be fewer than the topic has gained since."""

    def columns(rows: pa.Table) -> pa.Table:
        arrays = [_fitted(rows.column(field.name), field.type) for field in schema.arrow]
        return pa.Table.from_arrays(arrays, schema=schema.arrow)

    return columns


def kept_table(source: Endpoint, columns: Schema, key: tuple[str, ...]) -> KeptTable:
    """A source of rows as a table with these columns."""
    types = (pa.string(), TIME, pa.int64(), pa.int32())
    schema = Schema.of(pa.schema([*columns.arrow, *zip(APART, types, strict=True)]))
    deleted, emptied = (f"{OP} = '{op}'" for op in (DELETE, TRUNCATE))
    return KeptTable(source, schema, key, AT, deleted, emptied, (POSITION, NUMBER), APART)


def rows_of_table(schema: Schema, where: str, to_continue: str = NEW_SNAPSHOT) -> Rows:
    """The rows of the table: the image after a change, or the deleted row; with OP and AT.

    `to_continue` is what helps once the rows of the table do not follow from its changes.
    """

    def columns(changes: pa.Table) -> pa.Table:
        ops = changes.column("op")
        _check_complete(changes, where, to_continue)
        is_deleted = pc.equal(ops, DELETE)
        # Rows of a snapshot are numbered by themselves, and come before the changes at their position, where known.
        is_first = pc.and_(pc.equal(ops, SNAPSHOT), pc.is_valid(changes.column("position")))
        number = pc.if_else(is_first, pa.scalar(-1, pa.int32()), changes.column("number"))
        images = pc.if_else(is_deleted, changes.column("before"), changes.column("after"))
        known = {field.name for field in images.type}
        made = {OP: ops, AT: changes.column("at"), POSITION: changes.column("position"), NUMBER: number}
        arrays = []
        for field in schema.arrow:
            if field.name in made:
                arrays.append(made[field.name])
            elif field.name in known:
                arrays.append(_fitted(pc.struct_field(images, field.name), field.type))
            else:
                arrays.append(pa.nulls(changes.num_rows, field.type))
        return pa.Table.from_arrays(arrays, schema=schema.arrow)

    return columns


def _check_complete(changes: pa.Table, where: str, to_continue: str) -> None:
    """Raises if the rows of the table do not follow from the changes alone."""
    if changes.column("unsent").null_count < changes.num_rows:
        unsent = changes.filter(pc.is_valid(changes.column("unsent"))).column("unsent")[0].as_py()
        raise InvalidInput(
            f"an update does not have the values of {', '.join(unsent)}: Postgres does not send large values that are "
            "unchanged",
            where=where,
            next_step=f"have it log whole rows, ALTER TABLE … REPLICA IDENTITY FULL; then {to_continue}",
        )


def _fitted(array: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column with the requested type: the fields of a struct by name."""
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind):
        chunks = [_struct(chunk, kind) for chunk in array.chunks]
        return pa.chunked_array(chunks, kind)
    return array.cast(kind)


def _struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    known = {field.name for field in array.type}
    fields = [
        array.field(field.name).cast(field.type) if field.name in known else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
