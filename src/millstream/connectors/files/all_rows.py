"""All rows of a folder of files, read once: for a lookup table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.connectors.files.source import FilesSource
from millstream.errors import InvalidInput
from millstream.records import Schema

if TYPE_CHECKING:
    from millstream.connectors.files.endpoint import Files


def source_of(endpoint: Files, schema: Schema, folder: Path, columns: Schema | None = None) -> FilesSource:
    if endpoint.is_remote:
        from millstream.connectors.files.remote_source import RemoteFilesSource

        return RemoteFilesSource(endpoint, schema, folder=folder, columns=columns)
    return FilesSource(endpoint, schema, folder=folder, columns=columns)


def all_rows(endpoint: Files, schema: Schema) -> pa.Table:
    found = [schema.arrow.empty_table()]
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        source = source_of(endpoint, schema, Path(folder))
        for task in source.slices(source.earliest(), source.latest(), 1):
            for part in task:
                for slab in source.read(part):
                    if slab.dead is not None and slab.dead.num_rows:
                        raise _unfit(slab.dead.slice(0, 1).to_pylist()[0], endpoint, schema)
                    found.append(slab.rows)
    return pa.concat_tables(found)


def _unfit(dead: dict[str, Any], endpoint: Files, schema: Schema) -> InvalidInput:
    counted = "line" if endpoint.format in ("csv", "json") else "row"
    return InvalidInput(
        f"{counted} {dead['offset']} of {dead['topic']} does not fit: {dead['reason']}",
        where=str(endpoint),
        next_step=f"the schema is {schema}",
    )
