"""Rows as messages with ids: the id of a row is of its contents, so it is the same when its batch is repeated."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa

from millstream.connectors.connector import Writing
from millstream.connectors.weights import one_batch
from millstream.records import Schema, codec

ID_BYTES = 16


class Identified(NamedTuple):
    id: str | None
    """None: the row was left out."""
    body: bytes
    """Its columns, as JSON."""


def run_of(writing: Writing) -> str:
    """Distinguishes the batches of one run of a step from all others."""
    return f"{writing.job}/{writing.step}/{writing.run}"


def identified(run: str, batch: int, rows: pa.Table, left_out: Collection[int]) -> list[Identified]:
    """A message for each row. Its id does not depend on the order of the batch's rows."""
    if not rows.num_rows:
        return []
    usable = [row for row in range(rows.num_rows) if row not in left_out]
    found = rows.take(pa.array(usable, pa.int64()))
    bodies = codec("json", Schema.of(found.schema)).encode(one_batch(found)).to_pylist() if usable else []
    seen: Counter[bytes] = Counter()
    made = [Identified(None, b"")] * rows.num_rows
    for row, body in zip(usable, bodies, strict=True):
        text = f"{run}/{batch}/{seen[body]}/".encode()
        seen[body] += 1
        made[row] = Identified(hashlib.blake2b(text + body, digest_size=ID_BYTES).hexdigest(), body)
    return made
