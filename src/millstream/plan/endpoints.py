"""Where rows come from and where they go: a place is a value; sources and sinks give it its meaning.

A topic needs no value of its own: it is written as its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, ClassVar, Literal

import pyarrow as pa

from millstream.errors import InvalidInput, InvalidPlan
from millstream.plan.flat_columns import flat_columns
from millstream.plan.partition_folders import check_partitions, partition_names
from millstream.postgres_address import is_ambiguous, scheme_of, without_password
from millstream.records import Schema
from millstream.records.sizes import size_bytes
from millstream.secrets import Secret, hidden, shown_address
from millstream.user_lines import users_line, what_exists

TableMode = Literal["append", "upsert"]
FORMATS = ("parquet", "json", "csv", "avro")
WRITTEN_FORMATS = ("parquet", "json", "csv")
MODES = ("append", "upsert")
PORT_MAX = 65535
LOST_CHOICES = ("error", "earliest", "latest")
VALUE_FORMATS = ("json", "avro", "csv", "string", "bytes")
REGISTRY_FORMATS = ("json", "avro")
MAX_RECORD_BYTES, MAX_RECORD_BYTES_LIMIT = 16 << 20, 1 << 30
MAX_EXPANSION = 1000


@dataclass(frozen=True, eq=False)
class Place:
    """What all places have in common."""

    can_read: ClassVar[bool] = False
    can_write: ClassVar[bool] = False

    @property
    def decodes(self) -> bool:
        """Whether what is read is parsed, and may be malformed."""
        return False

    @property
    def name(self) -> str:
        """Short, for the name of a step."""
        raise NotImplementedError

    def check_written(self, schema: Schema) -> None:
        """Refuses rows that cannot be written here, where the user wrote it."""
        if not self.can_write:
            raise InvalidPlan(
                f"{self} can be read, not written",
                where=users_line(),
                next_step="write to a topic, or to kafka, files, sqlite, postgres, console, memory, foreach_batch or "
                "discard",
            )

    def check_read(self) -> None:
        if not self.can_read:
            raise InvalidPlan(
                f"{self} can be written, not read",
                where=users_line(),
                next_step="read a topic, or kafka, files, rate or socket",
            )


@dataclass(frozen=True)
class Files(Place):
    path: str
    format: str
    files_per_batch: int | None = None
    partition_by: tuple[str, ...] = ()
    max_record_bytes: int = MAX_RECORD_BYTES
    max_expansion: int | None = MAX_EXPANSION
    """How many times its size a file may become; None: as often as it does."""
    can_read: ClassVar[bool] = True
    can_write: ClassVar[bool] = True

    @property
    def decodes(self) -> bool:
        return self.format != "parquet"

    @property
    def name(self) -> str:
        return f"files {_last_part(shown_address(self.path))}"

    def check_written(self, schema: Schema) -> None:
        if self.format not in WRITTEN_FORMATS:
            raise InvalidPlan(
                f"files are read as {self.format}, not written",
                where=users_line(),
                next_step=f"formats to write: {', '.join(WRITTEN_FORMATS)}",
            )
        if self.format == "csv":
            flat_columns(schema)
        check_partitions(self.partition_by, schema, self)

    def check_read(self) -> None:
        if self.partition_by:
            raise InvalidPlan(
                f"partition_by says how files are written, and {self} is read",
                where=users_line(),
                next_step="leave it out: folders such as dt=2024-03-01 are found, and fill the columns of their names",
            )

    def __str__(self) -> str:
        folders = f", by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"files({shown_address(self.path)}, {self.format}{folders})"


@dataclass(frozen=True)
class Table(Place):
    """A table of a database. `key` names the columns whose newest row an upsert keeps."""

    table: str
    mode: TableMode
    key: tuple[str, ...]
    can_write: ClassVar[bool] = True

    def check_written(self, schema: Schema) -> None:
        self.key_columns(schema)

    def key_columns(self, schema: Schema) -> tuple[str, ...]:
        """The columns of the table that make up the key; a struct such as `window` stands for its parts."""
        columns = flat_columns(schema)
        known = {column.name: (column.name,) for column in columns}
        for column in columns:
            for depth in range(1, len(column.path)):
                whole = "_".join(column.path[:depth])
                known[whole] = (*known.get(whole, ()), column.name)
        for name in self.key:
            if name not in known:
                raise InvalidPlan(
                    f"the key names '{name}', and the rows for {self} have no such column",
                    where=users_line(),
                    next_step=what_exists(name, known),
                )
        return tuple(dict.fromkeys(part for name in self.key for part in known[name]))

    @property
    def _how(self) -> str:
        return f"upsert by {', '.join(self.key)}" if self.mode == "upsert" else "append"


@dataclass(frozen=True)
class Sqlite(Table):
    path: str

    @property
    def name(self) -> str:
        return f"sqlite {self.table}"

    def __str__(self) -> str:
        return f"sqlite({self.path}, {self.table}, {self._how})"


@dataclass(frozen=True)
class Postgres(Table):
    dsn: Secret = field(repr=False)  # it may hold a password, and plans are pickled

    @property
    def name(self) -> str:
        return f"postgres {self.table}"

    def __str__(self) -> str:
        return f"postgres({without_password(self.dsn.reveal())}, {self.table}, {self._how})"


@dataclass(frozen=True, eq=False)
class Console(Place):
    """Two consoles are never the same place: several streams may be printed."""

    rows: int
    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "console"

    def __str__(self) -> str:
        return "console()"


@dataclass(frozen=True)
class Memory(Place):
    """Rows kept in this process under a name; `rows()` gives them."""

    label: str
    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"memory {self.label}"

    @property
    def collected(self) -> Collected:
        return _collected.setdefault(self.label, Collected())

    def rows(self) -> list[dict[str, Any]]:
        """All rows written so far, as dicts; those of a changing stream have a weight."""
        return [row for table in self.collected.tables for row in table.to_pylist()]

    def arrow(self) -> pa.Table | None:
        """The same as an Arrow table; None before the first batch."""
        tables = self.collected.tables
        return pa.concat_tables(tables, promote_options="default") if tables else None

    def clear(self) -> None:
        """Forgets the rows; batches that were written stay written."""
        self.collected.tables.clear()

    def __str__(self) -> str:
        return f"memory({self.label})"


@dataclass
class Collected:
    """What a memory holds: its rows, and the newest batch of each job, step and run."""

    tables: list[pa.Table] = field(default_factory=list)
    batches: dict[tuple[str, ...], int] = field(default_factory=dict)


_collected: dict[str, Collected] = {}


@dataclass(frozen=True)
class Foreach(Place):
    function: Callable[[pa.Table, int], Any]
    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"foreach {getattr(self.function, '__name__', 'function').strip('<>')}"

    def __str__(self) -> str:
        return f"foreach_batch({getattr(self.function, '__name__', type(self.function).__name__)})"


@dataclass(frozen=True, eq=False)
class Discard(Place):
    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "discard"

    def __str__(self) -> str:
        return "discard()"


@dataclass(frozen=True)
class Kafka(Place):
    """A topic of a Kafka, wherever the other topics of the flow are."""

    servers: str | None
    """None: those of the job's broker."""
    topic: str
    format: str = "json"
    registry: str | None = None
    on_lost: str = "error"
    settings: Mapping[str, str | Secret] = field(default_factory=dict, hash=False)
    can_read: ClassVar[bool] = True
    can_write: ClassVar[bool] = True

    def check_written(self, schema: Schema) -> None:
        if self.format != "json" or self.registry is not None:
            what = f"as {self.format}" + (" by a registry" if self.registry else "")
            raise InvalidPlan(
                f"a topic of Kafka can be read {what}, not written: records are written as JSON",
                where=users_line(),
                next_step=f"leave it out: kafka(…, topic='{self.topic}')",
            )

    @property
    def decodes(self) -> bool:
        return self.format != "bytes"

    @property
    def name(self) -> str:
        return f"kafka {self.topic}"

    def __str__(self) -> str:
        return f"kafka({self.servers}, {self.topic})" if self.servers else f"kafka({self.topic})"


@dataclass(frozen=True)
class Rate(Place):
    rows_per_second: int
    can_read: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "rate"

    def __str__(self) -> str:
        return f"rate({self.rows_per_second} rows a second)"


@dataclass(frozen=True)
class Socket(Place):
    host: str
    port: int
    can_read: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"socket {self.port}"

    def __str__(self) -> str:
        return f"socket({self.host}:{self.port})"


# ---------------------------------------------------------------- what a user writes


def files(
    path: str | PathLike[str],
    format: str = "parquet",
    *,
    files_per_batch: int | None = None,
    partition_by: str | Sequence[str] | None = None,
    max_record: str | int = MAX_RECORD_BYTES,
    max_expansion: int = MAX_EXPANSION,
) -> Files:
    """A folder of files, as a source or a sink.

    As a source: parquet, json (lines), csv or avro, at most `files_per_batch` new files at a time. A line or record
    larger than `max_record` becomes a dead letter, and a file that unpacks to more than 1 GiB and more than
    `max_expansion` times its size is not read further.
    As a sink: parquet, json (lines) or csv, one file per batch, or several for a large one. With `partition_by`, the
    names of columns, there is a folder for each of their values, such as `dt=2024-03-01`; a source recognizes such
    folders by itself.
    """
    if format not in FORMATS:
        raise _refuse(f"there is no file format {format!r}", what_exists(format, FORMATS, kind="formats"))
    if files_per_batch is not None:
        _whole_number(files_per_batch, "files_per_batch", "leave it out to read all that are new")
    record_bytes = size_bytes(max_record, what="max_record")
    if not 0 < record_bytes <= MAX_RECORD_BYTES_LIMIT:
        raise _refuse(f"max_record is at least one byte and at most 1 GiB, not {max_record!r}", "max_record='64 MiB'")
    _whole_number(max_expansion, "max_expansion", f"leave it out: {MAX_EXPANSION}")
    place, folders = _path(path, "files('data/in')"), partition_names(partition_by)
    return Files(place, format, files_per_batch, folders, record_bytes, max_expansion)


def sqlite(
    path: str | PathLike[str], table: str, *, mode: TableMode | None = None, key: str | Sequence[str] | None = None
) -> Sqlite:
    """A table in a SQLite file: every row, or with `key` the newest row of each key."""
    made, columns = _mode(mode, key)
    name = _text(table, "a table has a name", "sqlite('scores.db', 'totals')")
    if name.lower().startswith(("sqlite_", "_millstream")):
        raise _refuse(f"the table name '{name}' is reserved", "choose another name")
    return Sqlite(name, made, columns, _path(path, "sqlite('scores.db', 'totals')"))


def postgres(
    dsn: str, table: str, *, mode: TableMode | None = None, key: str | Sequence[str] | None = None
) -> Postgres:
    """A table ("table" or "schema.table") in Postgres: every row, or with `key` the newest row of each key."""
    made, columns = _mode(mode, key)
    example = "postgres('postgresql://user@host/database', 'totals')"
    address, name = _text(dsn, "a database has an address", example), _text(table, "a table has a name", example)
    scheme = scheme_of(address)
    if scheme not in (None, "postgresql", "postgres"):
        raise _refuse(f"'{scheme}://' is not an address of Postgres", f"for example {example}")
    if scheme is None and "=" not in address:
        raise _refuse("the address of the database cannot be read", f"for example {example}")
    if is_ambiguous(address):
        raise _refuse(
            "the address of the database has a '@', '/' or '?' too many",
            "in a password write %40 for '@', %2F for '/' and %3F for '?'",
        )
    if name.count(".") > 1 or not all(name.split(".")):
        raise _refuse(f"{name!r} is not the name of a table", "write 'table' or 'schema.table'")
    if name.rpartition(".")[2].startswith("_millstream"):
        raise _refuse(f"the table name '{name}' is reserved", "choose another name")
    return Postgres(name, made, columns, Secret(address))


def console(rows: int = 20) -> Console:
    """A sink that prints every batch, up to `rows` rows of it."""
    return Console(_whole_number(rows, "rows", "for example console(rows=50)"))


def memory(name: str) -> Memory:
    """A sink that keeps the rows in this process: `memory(name).rows()` returns them."""
    return Memory(_text(name, "a memory has a name", "memory('totals')"))


def foreach_batch(function: Callable[[pa.Table, int], Any]) -> Foreach:
    """A sink that calls `function(rows, batch)` with the Arrow table and the number of every batch that has rows."""
    if not callable(function):
        raise _refuse(
            f"foreach_batch takes a function, not {function!r}",
            "for example foreach_batch(lambda rows, batch: print(rows))",
        )
    return Foreach(function)


def discard() -> Discard:
    """A sink that only counts rows, where they are made: to measure what comes before it."""
    return Discard()


def kafka(
    servers: str | None = None,
    *,
    topic: str,
    format: str = "json",
    registry: str | None = None,
    on_lost: str = "error",
    settings: Mapping[str, str] | None = None,
) -> Kafka:
    """A topic of Apache Kafka. `servers` is "host:9092", several with commas; default: the job's own broker.

    `format` is how values are encoded: json, avro, csv, string or bytes. With `registry`, the address of a schema
    registry, json and avro are in Confluent's wire format. `on_lost` decides what happens if records were deleted
    before they were read: "error", or continue at the "earliest" or "latest". `settings` are those of librdkafka, such
    as sasl.username; passwords among them are never shown or stored.
    """
    example = "kafka('host:9092', topic='scores')"
    if servers is not None:
        servers = _text(servers, "Kafka has servers", example).removeprefix("kafka://")
        if "@" in servers or "?" in servers:
            raise _refuse("servers are names and ports alone", "give what else there is with settings={…}")
    if format not in VALUE_FORMATS:
        raise _refuse(f"there is no format {format!r}", what_exists(format, VALUE_FORMATS, kind="formats"))
    if registry is not None and format not in REGISTRY_FORMATS:
        raise _refuse(f"a registry has schemas of {' and '.join(REGISTRY_FORMATS)}, not of {format}", "format='avro'")
    if registry is not None and shown_address(registry) != registry:
        raise _refuse(
            "a user, a password or a query does not belong into the address of a registry: it is shown and stored",
            "give the user with settings={'basic.auth.user.info': 'name:password'}",
        )
    if on_lost not in LOST_CHOICES:
        raise _refuse(f"on_lost={on_lost!r} is unknown", what_exists(on_lost, LOST_CHOICES, kind="choices"))
    named = {str(name): str(value) for name, value in (settings or {}).items()}
    return Kafka(servers, _text(topic, "a topic has a name", example), format, registry, on_lost, hidden(named))


def rate(rows_per_second: int) -> Rate:
    """A source that counts up, `rows_per_second` rows each second: for trying things out."""
    return Rate(_whole_number(rows_per_second, "rows_per_second", "for example rate(10)"))


def socket(host: str, port: int) -> Socket:
    """A source of text lines from a server: for trying things out, since lost lines cannot be read again."""
    if _whole_number(port, "port", "for example socket('localhost', 9999)") > PORT_MAX:
        raise _refuse(f"a port is at most {PORT_MAX}, not {port}", None)
    return Socket(_text(host, "a server has a name", "socket('localhost', 9999)"), port)


# ---------------------------------------------------------------- checks


def _mode(mode: object, key: str | Sequence[str] | None) -> tuple[TableMode, tuple[str, ...]]:
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if isinstance(key, Mapping) or not all(isinstance(name, str) and name.strip() for name in names):
        raise _refuse(f"key takes the names of columns, not {key!r}", "for example key=['team', 'window']")
    if mode not in (None, *MODES):
        raise _refuse(f"there is no mode {mode!r}", what_exists(mode, MODES, kind="modes"))
    if mode == "upsert" and not names:
        raise _refuse("mode='upsert' keeps the newest row of a key, and none is named", "for example key='team'")
    if mode == "append" and names:
        raise _refuse("mode='append' keeps every row and has no use for a key", "leave out key=, or use mode='upsert'")
    return ("upsert" if names else "append"), names


def _path(path: object, example: str) -> str:
    if isinstance(path, PathLike):
        path = fspath(path)
    return _text(path, "a path is text or a Path", example)


def _text(value: object, what: str, example: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise _refuse(f"{what}, and {value!r} is none", f"for example {example}")
    return value


def _whole_number(value: object, what: str, next_step: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _refuse(f"{what} is a whole number from 1 on, not {value!r}", next_step)
    return value


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1] or path


def _refuse(what: str, next_step: str | None) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)
