"""Plays a test with Kafka in and Kafka out: its rows are read from topics, and its output is read back from topics.

`MILLSTREAM_PLAY_BROKER=kafka://…` plays every Spark test this way. It shows that rows, times and weights pass through
Kafka unchanged; ordinary tests do not need it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from millstream.connectors.kafka.endpoint import kafka
from millstream.connectors.kafka.source import KafkaSource
from millstream.connectors.opening import open_sink
from millstream.connectors.source import Slice
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.log import KafkaLog
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.plan.nodes import Node
from millstream.records import Schema

HIDDEN = ((TIME, pa.int64()), (WEIGHT, pa.int32()))
PATIENCE_S, LOOK_S = 30.0, 0.002
ONLY = "0"
"""Rows of a test have an order, so their topics have one partition."""


@dataclass(frozen=True)
class Portion:
    """Rows of a topic, by their offsets."""

    address: str
    topic: str
    schema: str
    start: int
    end: int

    def frame(self) -> pl.DataFrame:
        schema = Schema.of(self.schema)
        source = KafkaSource(KafkaAddress.of(self.address), self.topic, schema)
        try:
            slabs = list(source.read(Slice(ONLY, self.start, self.end))) if self.end > self.start else []
            assert all(slab.dead is None for slab in slabs), [slab.dead.to_pylist() for slab in slabs if slab.dead]
            frame = pl.from_arrow(pa.concat_tables([schema.arrow.empty_table(), *(slab.rows for slab in slabs)]))
            assert isinstance(frame, pl.DataFrame)
            return frame
        finally:
            source.close()


class Through:
    """The topics of one play."""

    def __init__(self, address: str, folder: Path) -> None:
        self._log = KafkaLog(address)
        self._address = address
        self._folder = folder
        self._play = uuid.uuid4().hex[:12]

    def sent(self, name: str, node: Node, frames: Sequence[pl.DataFrame]) -> list[Portion]:
        """Writes frames as batches of a sink; returns where the rows of each are now."""
        topic, schema = f"play.{self._play}.{name}", _schema(node)
        sink = open_sink(
            kafka(topic=topic),
            schema,
            job=self._play,
            step=name,
            broker=self._address,
            folder=self._folder / name,
        )
        portions, start = [], 0
        source: KafkaSource | None = None
        try:
            for number, frame in enumerate(frames):
                sink.write(number, frame.select(schema.names).to_arrow().cast(schema.arrow), None)
                source = source or KafkaSource(KafkaAddress.of(self._address), topic, schema)
                end = _behind(source, start, frame.height)
                portions.append(Portion(self._address, topic, schema.ddl, start, end))
                start = end
        finally:
            sink.close()
            if source is not None:
                source.close()
        return portions

    def close(self) -> None:
        for topic in self._log.topics():
            if topic.startswith(f"play.{self._play}."):
                self._log.delete_topic(topic)
        self._log.close()


def _behind(source: KafkaSource, start: int, rows: int) -> int:
    """The end of a batch of a sink, visible shortly after its commit: its rows, and a mark after them."""
    wanted = start + rows + 1 if rows else start
    deadline = time.monotonic() + PATIENCE_S
    while (end := source.latest()[ONLY]) < wanted:
        assert time.monotonic() < deadline, f"{wanted - end} of {rows} rows have not arrived after {PATIENCE_S} seconds"
        time.sleep(LOOK_S)
    return end


def _schema(node: Node) -> Schema:
    return Schema.from_arrow(pa.schema([*node.schema.arrow, *(pa.field(name, kind) for name, kind in HIDDEN)]))
