"""A lake table as it is now: its columns, and all of its rows for a lookup table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.connectors.lakes.source import LakeSource
from millstream.errors import InvalidInput, MillstreamError
from millstream.records import Schema
from millstream.user_lines import users_line

if TYPE_CHECKING:
    from millstream.connectors.lakes.endpoints import LakeTable


def table_schema(endpoint: LakeTable) -> Schema:
    feed = endpoint.feed()
    try:
        return feed.schema()
    except MillstreamError:
        raise
    except Exception as error:
        found = feed.explained(error)
        if found is None:
            raise
        raise InvalidInput(
            f"the columns of {endpoint} cannot be read: {found[0]}",
            where=users_line(),
            next_step="check the address and the permissions; or give a schema: read(table, 'user string')",
        ) from error


def all_rows(endpoint: LakeTable, schema: Schema) -> pa.Table:
    found = [schema.arrow.empty_table()]
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        source = LakeSource(endpoint.feed(), schema, folder=Path(folder))
        for task in source.slices({}, source.latest(), 1):
            found += [slab.rows for part in task for slab in source.read(part)]
    return pa.concat_tables(found)
