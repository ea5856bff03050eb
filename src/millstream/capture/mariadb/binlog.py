"""Events of the binary log: the transactions of the server, in the order of their commits.

A transaction starts with its GTID and ends with its commit. Only events of tables that are wanted are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

from millstream.capture.changes import DELETE, INSERT, UPDATE
from millstream.capture.mariadb.table_maps import Charsets, TableMap, names_of, packed, table_map
from millstream.capture.mariadb.values import Value

_HEADER, _GTID, _QUERY = Struct("<IBIIIH"), Struct("<QIB"), Struct("<IIBHH")
QUERY, ROTATE, FORMAT, XID, TABLE_MAP, HEARTBEAT, XA_PREPARE, GTID = 2, 4, 15, 16, 19, 27, 38, 162
ROWS = {23: INSERT, 24: UPDATE, 25: DELETE, 30: INSERT, 31: UPDATE, 32: DELETE}
COMPRESSED = range(165, 172)
WITH_EXTRA = (30, 31, 32)
STANDALONE, PREPARED = 1, 64
CHECKSUM_BYTES, CRC32 = 4, 1
KIND_AT = 4
FILE_BITS = 32
IGNORED = re.compile(r"BEGIN\Z", re.IGNORECASE)
SAVEPOINT = re.compile(r"(SAVEPOINT|ROLLBACK TO)\s+(.*)\Z", re.IGNORECASE | re.DOTALL)
Image = tuple[Value, ...]


class Unsupported(ValueError):
    """An event that a capture cannot continue after."""


@dataclass(frozen=True, slots=True)
class Rows:
    op: str
    table: TableMap
    images: list[tuple[Image | None, Image | None]]
    """Before and after."""


@dataclass(frozen=True, slots=True)
class Statement:
    schema: str
    """The default database."""
    sql: str

    @property
    def folded(self) -> Statement:
        """With names as a server has them that does not distinguish their case."""
        return Statement(self.schema.lower(), self.sql.lower())


@dataclass(frozen=True, slots=True)
class Commit:
    gtids: str
    """The GTIDs up to which all transactions were sent, one for each domain."""
    place: int
    last: dict[str, Any]
    """This transaction, and the GTIDs before it: by this, a server shows that it has it."""


@dataclass(frozen=True, slots=True)
class Begin:
    gtid: str
    at_us: int
    place: int
    """Where the transaction starts; see `place_of`."""
    is_prepared: bool
    """The first phase of a transaction that is committed, or rolled back, later."""


Message = Begin | Commit | Rows | Statement


def place_of(file: str, offset: int) -> int:
    """A place in the binary log as a number that grows: the file's number, then the offset."""
    return int(file.rpartition(".")[2]) << FILE_BITS | offset


def gtids_text(domains: dict[int, str]) -> str:
    return ",".join(domains[domain] for domain in sorted(domains))


def domains_of(gtids: str) -> dict[int, str]:
    return {int(gtid.split("-")[0]): gtid for gtid in gtids.split(",") if gtid}


def is_heartbeat(event: bytes) -> bool:
    """Whether the server only says that it is there."""
    return event[KIND_AT] == HEARTBEAT


class Decoder:
    """Decodes events one after the other, from a known position on."""

    def __init__(self, gtids: str, place: int, wanted: Callable[[str, str], bool], charsets: Charsets) -> None:
        self.place = place
        """After the last event."""
        self._domains = domains_of(gtids)
        self._wanted = wanted
        self._charsets = charsets
        self._file = place >> FILE_BITS
        self._tables: dict[int, TableMap | None] = {}
        self._checksum_bytes = 0
        """Of each event, once the server has said so: TCP has checked them already."""
        self._begun: tuple[int, str, bool] | None = None
        self._begun_us = 0
        self._last: dict[str, Any] = {}
        self._changes = 0
        """Of wanted tables, in this transaction."""
        self._savepoints: dict[str, int] = {}
        """How many there were before each savepoint of this transaction."""

    def decoded(self, event: bytes) -> Iterator[Message]:
        seconds, kind, server, size, end, _ = _HEADER.unpack_from(event)
        if kind == FORMAT:
            self._checksum_bytes = CHECKSUM_BYTES if event[-CHECKSUM_BYTES - 1] == CRC32 else 0
        data = event[_HEADER.size : len(event) - self._checksum_bytes]
        if kind == ROTATE:
            self._file = int(data[8:].rpartition(b".")[2])
            self._tables.clear()
            self._move(int.from_bytes(data[:8], "little"))
            return
        if kind == GTID:
            yield self._begin(data, server, seconds, end - size)
        elif kind == TABLE_MAP:
            self._note(data)
        elif kind in ROWS:
            yield from self._rows(ROWS[kind], data, has_extra=kind in WITH_EXTRA)
        elif kind in COMPRESSED:
            raise Unsupported("the binary log is compressed (log_bin_compress)")
        if end:
            self._move(end)
        if kind == QUERY:
            yield from self._query(data)
        elif kind in (XID, XA_PREPARE):
            yield self._commit()

    def _move(self, offset: int) -> None:
        self.place = max(self.place, self._file << FILE_BITS | offset)

    def _begin(self, data: bytes, server: int, seconds: int, start: int) -> Begin:
        number, domain, flags = _GTID.unpack_from(data)
        gtid = f"{domain}-{server}-{number}"
        self._begun = domain, gtid, bool(flags & STANDALONE)
        self._begun_us = seconds * 1_000_000
        self._changes = 0
        self._savepoints.clear()
        return Begin(gtid, self._begun_us, self._file << FILE_BITS | start, bool(flags & PREPARED))

    def _commit(self) -> Commit:
        before = gtids_text(self._domains)
        if self._begun is not None:
            domain, gtid, _ = self._begun
            self._domains[domain] = gtid
            self._begun = None
            self._last = {"gtid": gtid, "at_us": self._begun_us, "before": before}
        return Commit(gtids_text(self._domains), self.place, self._last)

    def _query(self, data: bytes) -> Iterator[Message]:
        _, _, schema_size, _, status_size = _QUERY.unpack_from(data)
        start = _QUERY.size + status_size
        schema = data[start : start + schema_size].decode(errors="replace")
        sql = data[start + schema_size + 1 :].decode(errors="replace")
        is_end = sql.upper() in ("COMMIT", "ROLLBACK")
        if sql.upper() == "ROLLBACK":
            self._undo_to(0)
        elif found := SAVEPOINT.match(sql):
            self._savepoint(found[1].upper(), found[2].lower())
        elif not is_end and not IGNORED.match(sql):
            yield Statement(schema, sql)
        if is_end or (self._begun is not None and self._begun[2]):
            yield self._commit()

    def _savepoint(self, verb: str, name: str) -> None:
        if verb == "SAVEPOINT":
            self._savepoints[name] = self._changes
        else:
            self._undo_to(self._savepoints.get(name, 0))

    def _undo_to(self, changes: int) -> None:
        """The server logs what it rolls back if the transaction also did what it cannot roll back."""
        if self._changes > changes:
            raise Unsupported(
                "it has rows of a captured table that were rolled back, in a transaction that also changed a table "
                "without transactions or created a temporary table"
            )

    def _note(self, data: bytes) -> None:
        number = int.from_bytes(data[:6], "little")
        self._tables[number] = table_map(data, self._charsets) if self._wanted(*names_of(data)) else None

    def _rows(self, op: str, data: bytes, *, has_extra: bool) -> Iterator[Rows]:
        table = self._tables.get(int.from_bytes(data[:6], "little"))
        if table is None:
            return
        at = 8 + (int.from_bytes(data[8:10], "little") if has_extra else 0)
        count, at = packed(data, at)
        bitmap = (count + 7) // 8
        for _ in range(2 if op == UPDATE else 1):
            if int.from_bytes(data[at : at + bitmap], "little") & (1 << count) - 1 != (1 << count) - 1:
                raise Unsupported("rows are not complete (binlog_row_image)")
            at += bitmap
        images: list[tuple[Image | None, Image | None]] = []
        while at < len(data):
            first, at = _image(table, data, at)
            if op == UPDATE:
                second, at = _image(table, data, at)
                images.append((first, second))
            else:
                images.append((None, first) if op == INSERT else (first, None))
        self._changes += len(images)
        yield Rows(op, table, images)


def _image(table: TableMap, data: bytes, at: int) -> tuple[Image, int]:
    size = (len(table.columns) + 7) // 8
    nulls = int.from_bytes(data[at : at + size], "little")
    at += size
    values: list[Value] = []
    for read in table.readers:
        if nulls & 1:
            values.append(None)
        else:
            value, at = read(data, at)
            values.append(value)
        nulls >>= 1
    return tuple(values), at
