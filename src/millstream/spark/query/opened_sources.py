"""The sources of a run: each is opened once per process, in the driver and in the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.connectors.opening import open_source
from millstream.connectors.source import Source
from millstream.log.kafka.address import KafkaAddress
from millstream.plan.nodes import Read
from millstream.spark.query.physical_plan import PhysicalPlan

SOURCES_KEPT = 256
_OPENED: dict[tuple[Any, ...], Source] = {}


def opened(
    node: Read, physical_plan: PhysicalPlan, broker: str | KafkaAddress | None, folder: Path, run: str
) -> Source:
    """Opens a source once per process and run: the next run may start over in the same folder.

    Steps that read the same topic share a source.
    """
    columns = physical_plan.shared_reading[node]
    place = (*physical_plan.reads_as[node], repr(columns), str(broker), str(folder), run)
    if place not in _OPENED:
        while len(_OPENED) >= SOURCES_KEPT:
            _OPENED.pop(next(iter(_OPENED))).close()
        own = folder / "sources" / node.name
        _OPENED[place] = open_source(
            node.source,
            node.schema,
            broker=broker,
            folder=own,
            name=node.name,
            columns=columns,
            on_lost=node.on_lost,
        )
    return _OPENED[place]
