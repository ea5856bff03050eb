"""A delta is what one step changed in the state of a key group: one value with a checksum."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
from crc32c import crc32c

from millstream.state.arrow_bytes import from_stream, to_stream
from millstream.state.sorted_run import NO_HASHES, OWN, Hashes, Rows, rows_of, sorted_rows

HEAD = struct.Struct("<4sII")
MAGIC = b"MSd1"


def to_delta(tables: dict[str, Rows]) -> bytes:
    """For each table, its new rows as an Arrow stream, and the hashes that no longer have any."""
    sizes, contents = [], []
    for name, rows in tables.items():
        live, gone = rows, NO_HASHES
        if rows.dead is not None:
            live, gone = rows.at(np.flatnonzero(~rows.dead)), rows.hashes[rows.dead]
            live.dead = None
        contents += [to_stream(live.frame(), compressed=True), gone.astype("<u8").tobytes()]
        sizes.append([name, len(contents[-2]), len(gone)])
    head = json.dumps(sizes).encode()
    body = b"".join([head, *contents])
    return HEAD.pack(MAGIC, crc32c(body), len(head)) + body


def from_delta(
    delta: bytes, empty: dict[str, pl.DataFrame], defaults: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Rows]:
    """The inverse. Raises ValueError or an error of polars if the bytes are not a delta of these tables.

    With `defaults`, by table, the delta may be of an earlier version of the step.
    """
    tables = {}
    for name, frame, gone in _parts(delta):
        if name not in empty:
            raise ValueError(f"it has a table {name!r}, the step has {', '.join(empty)}")
        tables[name] = _sorted(rows_of(frame, empty[name], None if defaults is None else defaults.get(name, {})), gone)
    return tables


def tables_in(delta: bytes) -> dict[str, Rows]:
    """The tables of a delta, with the columns that they were stored with."""
    found = {}
    for name, frame, gone in _parts(delta):
        own = [column for column in frame.columns if not column.startswith(OWN)]
        found[name] = _sorted(rows_of(frame, frame.select(own).clear()), gone)
    return found


def _sorted(live: Rows, gone: Hashes) -> Rows:
    return sorted_rows(live.content, live.hashes, live.marks, gone)


def _parts(delta: bytes) -> Iterator[tuple[str, pl.DataFrame, Hashes]]:
    """By table: its name, its new rows, and the hashes that no longer have any."""
    if len(delta) < HEAD.size:
        raise ValueError("it is truncated")
    magic, checksum, head_bytes = HEAD.unpack_from(delta)
    body = memoryview(delta)[HEAD.size :]
    if magic != MAGIC or checksum != crc32c(body):
        raise ValueError("its checksum does not match")
    start = head_bytes
    for name, size, gone_count in json.loads(bytes(body[:head_bytes])):
        gone = np.frombuffer(body, "<u8", gone_count, start + size)
        yield name, from_stream(body[start : start + size]), gone
        start += size + gone.nbytes
