"""The messages of `pgoutput`, Postgres's own format of logical replication, version 1.

Values are texts, as bytes; None is null. A large value that an update did not change is not sent: UNSENT.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

EPOCH_US = 946_684_800_000_000
"""The start of 2000, from where Postgres counts, in microseconds since 1970."""
_BEGIN, _COMMIT = Struct(">QqI"), Struct(">BQQq")
_U16, _U32, _U64 = Struct(">H"), Struct(">I"), Struct(">Q")
_COLUMN = Struct(">Ii")


class Unsent:
    """The value of a column that the database did not send."""

    def __repr__(self) -> str:
        return "UNSENT"


UNSENT: Final = Unsent()
Texts: TypeAlias = "list[bytes | Unsent | None]"


@dataclass(frozen=True, slots=True)
class Begin:
    commit_lsn: int
    at_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int
    modifier: int
    in_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns of a table, sent before its first change and after it was altered."""

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A change of a row. `old` has only the columns of the key if `is_key_only`."""

    op: str
    oid: int
    old: Texts | None
    new: Texts | None
    is_key_only: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Emitted:
    """A logical message: `pg_logical_emit_message`."""

    lsn: int
    prefix: bytes
    content: bytes


Message: TypeAlias = Begin | Commit | Relation | Row | Truncate | Emitted


def decoded(data: bytes) -> Message | None:
    """A message; None for those without a meaning here: origins and types."""
    kind = data[:1]
    if kind == b"I":
        new, _ = _row(data, 6)
        return Row("insert", _U32.unpack_from(data, 1)[0], None, new, False)
    if kind == b"U":
        return _update(data)
    if kind == b"D":
        old, _ = _row(data, 6)
        return Row("delete", _U32.unpack_from(data, 1)[0], old, None, data[5:6] == b"K")
    if kind == b"B":
        lsn, time, xid = _BEGIN.unpack_from(data, 1)
        return Begin(lsn, time + EPOCH_US, xid)
    if kind == b"C":
        return Commit(_COMMIT.unpack_from(data, 1)[2])
    if kind == b"R":
        return _relation(data)
    if kind == b"T":
        count = _U32.unpack_from(data, 1)[0]
        return Truncate(tuple(_U32.unpack_from(data, 6 + 4 * number)[0] for number in range(count)))
    if kind == b"M":
        prefix, at = _text(data, 10)
        return Emitted(_U64.unpack_from(data, 2)[0], prefix.encode(), data[at + 4 :])
    return None


def _update(data: bytes) -> Row:
    oid, at, old, is_key_only = _U32.unpack_from(data, 1)[0], 5, None, False
    if data[at : at + 1] in (b"K", b"O"):
        is_key_only = data[at : at + 1] == b"K"
        old, at = _row(data, at + 1)
    new, _ = _row(data, at + 1)
    return Row("update", oid, old, new, is_key_only)


def _row(data: bytes, at: int) -> tuple[Texts, int]:
    (count,) = _U16.unpack_from(data, at)
    at += 2
    values: Texts = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 116:  # t
            (length,) = _U32.unpack_from(data, at)
            at += 4
            values.append(data[at : at + length])
            at += length
        else:  # n or u
            values.append(None if kind == 110 else UNSENT)
    return values, at


def _relation(data: bytes) -> Relation:
    (oid,) = _U32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity, (count,) = chr(data[at]), _U16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        in_key = bool(data[at] & 1)
        column, at = _text(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(column, type_oid, modifier, in_key))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
