"""Where the rows of a job come from: topics, files, a steady rate, lines from a socket, all read by range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.connectors.files.source import FilesSource
from millstream.connectors.kafka.source import KafkaSource
from millstream.connectors.rate import RateSource
from millstream.connectors.socket_lines import SocketSource
from millstream.connectors.source import Offsets, Slab, Slice, Source
from millstream.connectors.topic.source import TopicSource
from millstream.errors import InvalidInput
from millstream.log.kafka.address import KafkaAddress, address_of, as_kafka
from millstream.plan.endpoints import Files, Kafka, Rate, Socket
from millstream.private_files import make_folders
from millstream.records import Schema

__all__ = ["KafkaSource", "Offsets", "Slab", "Slice", "Source", "TopicSource", "open_source"]


def open_source(
    place: Any,
    schema: Schema,
    *,
    broker: str | KafkaAddress | None,
    folder: Path,
    name: str,
    format: str = "json",
    columns: Schema | None = None,
    on_lost: str = "error",
) -> Source:
    """The source a flow reads from. `folder` is where it keeps what it needs to give the same rows again.

    Opening is cheap, looks for nothing and receives nothing: that begins with the first look at what there is, which
    only the planner of a job takes. `format` says how the values of a topic without a schema are decoded. Nobody looks
    at other columns than `columns`: they may be left out where rows are stored by column.
    """
    if isinstance(place, Kafka):
        return KafkaSource(
            address_of(place.servers, place.settings, broker, topic=place.topic, step=name),
            place.topic,
            schema,
            format=place.format,
            registry=place.registry,
            on_lost=place.on_lost,
        )
    if isinstance(place, str):
        address = as_kafka(broker)
        if address is not None:
            return KafkaSource(address, place, schema, format=format, on_lost=on_lost)
        return TopicSource(
            place,
            schema,
            broker=str(broker) if broker is not None else None,
            format=format,
            columns=columns,
            on_lost=on_lost,
        )
    make_folders(folder)
    if isinstance(place, Files):
        return FilesSource(place, schema, folder=folder, columns=columns)
    if isinstance(place, Rate):
        return RateSource(place, schema, folder=folder)
    if isinstance(place, Socket):
        return SocketSource(place, schema, folder=folder)
    raise InvalidInput(
        f"nothing can be read from {place!r}",
        where=name,
        next_step="give the name of a topic, or kafka(…), files(…), rate(…) or socket(…)",
    )
