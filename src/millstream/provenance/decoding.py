"""Records as a source decodes them, without its topic."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.connectors.opening import open_source
from millstream.connectors.source import Slice
from millstream.errors import InvalidInput
from millstream.log import connect
from millstream.plan.nodes import Read
from millstream.records import batch_to_rows


def decoded_values(node: Read, values: Sequence[bytes | None]) -> list[dict[str, Any] | str]:
    """Each value as a row, or the reason why it is none: through a temporary topic, as the source reads its own."""
    topic = node.source.broker_topic
    if topic is None:
        raise InvalidInput(
            f"{node.source} is not a topic of the job's log, and only its records can be decoded again",
            where=node.user_line,
            next_step="ask about a topic that is read by its name",
        )
    with tempfile.TemporaryDirectory(prefix="millstream-records-") as folder:
        with connect(folder) as log:
            log.create_topic(topic, partitions=1)
            with log.producer() as producer:
                for value in values:
                    producer.send(topic, value)
        source = open_source(node.source, node.schema, broker=folder, folder=Path(folder), name=node.name)
        try:
            found: list[dict[str, Any] | str] = [""] * len(values)
            for slab in source.read(Slice("0", 0, len(values))):
                rows = [row for batch in slab.rows.to_batches() for row in batch_to_rows(batch)]
                for offset, row in zip(slab.offsets.tolist(), rows, strict=True):
                    found[offset] = row
                for letter in (slab.dead if slab.dead is not None else pa.table({})).to_pylist():
                    found[letter["offset"]] = letter["reason"]
        finally:
            source.close()
    return found
