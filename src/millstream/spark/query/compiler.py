"""From a layout to a streaming DataFrame of packed rows: what feeds it, then the chain of steps that keep state.

Topics and files come through our own feed, with the element-wise steps behind them done where they are read. A
DataFrame of Spark comes as it is: the expressions behind it stay Spark SQL, and what follows is done as it is packed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Lock

import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.operators.accumulators import TIME, WEIGHT
from millstream.operators.stateful import SENT
from millstream.operators.watermarks import told as told_by
from millstream.plan.nodes import Node, Project, Read, Where
from millstream.plan.spark_frames import SparkFrame
from millstream.plan.watermarks import Bounded
from millstream.records import Schema
from millstream.secrets import delivery
from millstream.spark.failures import marked
from millstream.spark.query.data_source import FEED, FORMAT, PACKED, Feed, FeedSource, as_option
from millstream.spark.query.packing import DRIVER, REPORT, Packed, control_to_bytes, to_batch
from millstream.spark.query.physical_plan import Layout
from millstream.spark.query.processor import StageProcessor
from millstream.spark.query.state_runner import Shipment

PARTITIONS = "spark.sql.shuffle.partitions"
CODEGEN = "spark.sql.codegen.wholeStage"
KEEP = "__keep"
HIDDEN = (TIME, WEIGHT, KEEP)
_starting = Lock()
"""One query at a time sets what is its own."""


def compiled(spark: SparkSession, shipment: Shipment, feed: Feed, places: Mapping[str, int] | None = None) -> DataFrame:
    """All rows of a flow, packed, on their way to its outputs; `places` says where its job keeps each step's state."""
    places = shipment.layout.first_places() if places is None else places
    spark.sparkContext.environment.update(delivery())  # before Spark's own processes are started
    spark.dataSource.register(FeedSource)
    packed = spark.readStream.format(FORMAT).schema(PACKED).option(FEED, as_option(feed, shipment.mark)).load()
    for number, source in enumerate(shipment.layout.framed_sources):
        packed = packed.unionByName(NativeSteps(shipment.layout, source).packed(shipment, number))
    for numbers in shipment.layout.stages:
        kept_at = [places[shipment.layout.chain[number].name] for number in numbers]
        packed = packed.groupBy("label").transformWithState(
            StageProcessor(shipment, numbers, kept_at), outputStructType=PACKED, outputMode="append", timeMode="None"
        )
    return packed


def started(spark: SparkSession, shipment: Shipment, writer: DataStreamWriter) -> StreamingQuery:
    """Starts a query, which takes a copy of the session's settings: here are those that are its own."""
    settings = {PARTITIONS: str(shipment.partitions)}
    if not shipment.layout.framed_sources:
        settings[CODEGEN] = "false"  # packed rows are few, and generating code for them takes 40 to 130 ms a batch
    with _starting:
        before = {key: str(spark.conf.get(key)) for key in settings}
        try:
            for key, value in settings.items():
                spark.conf.set(key, value)
            return writer.start()
        finally:
            for key, value in before.items():
                spark.conf.set(key, value)


class NativeSteps:
    """The steps right behind a DataFrame that Spark itself can do: those that are expressions, one after the other.

    A row that a `where` leaves out still says how far its source has come, so it is only marked; `pack` leaves it out.
    """

    def __init__(self, layout: Layout, source: Read) -> None:
        self._layout = layout
        self.source = source
        assert isinstance(source.source, SparkFrame)
        self.frame: DataFrame = source.source.frame
        self.last: Node = source
        self._visit_read(source)
        while (step := self._next()) is not None:
            getattr(self, f"_visit_{type(step).__name__.lower()}")(step)
            self.last = step

    def _next(self) -> Where | Project | None:
        """The one step behind, if it is an expression and nobody else needs the rows before it."""
        watermark = self.source.watermark
        if watermark is not None and not isinstance(watermark, Bounded):
            return None  # it looks at the columns as they come
        behind = [node for node in self._layout.order if self.last in node.inputs]
        if len(behind) != 1 or self.last in self._layout.outputs or not isinstance(behind[0], Where | Project):
            return None
        return behind[0]

    def _visit_read(self, node: Read) -> None:
        moment = sf.expr(f"unix_micros(`{node.event_time}`)") if node.event_time else sf.lit(None).cast("long")
        weight = (
            sf.coalesce(sf.col("weight").cast("int"), sf.lit(1))
            if node.changes and "weight" in node.schema.names
            else sf.lit(1)
        )
        columns = [sf.col(f"`{field.name}`").cast(_spark_type(node.schema, field.name)) for field in node.schema.arrow]
        named = [column.alias(name) for column, name in zip(columns, node.schema.names, strict=True)]
        self.frame = self.frame.select(
            *named, moment.alias(TIME), weight.cast("int").alias(WEIGHT), sf.lit(True).alias(KEEP)
        )

    def _visit_where(self, node: Where) -> None:
        holds = sf.expr(f"case when {KEEP} then coalesce(({node.condition.spark}), false) else false end")
        self.frame = self.frame.withColumn(KEEP, holds)

    def _visit_project(self, node: Project) -> None:
        made = [
            sf.expr(f"case when {KEEP} then ({value.spark}) end").cast(_spark_type(node.schema, name)).alias(name)
            for name, value in node.columns
        ]
        self.frame = self.frame.select(*made, *HIDDEN)

    def packed(self, shipment: Shipment, number: int) -> DataFrame:
        pack = Pack(shipment, self.source.name, self.last.name, number)
        return self.frame.mapInArrow(pack, PACKED)


def _spark_type(schema: Schema, name: str) -> str:
    said = str(Schema.from_arrow(pa.schema([schema.field(name)])))
    return said.removeprefix("`").split(" ", 1)[1].removesuffix(" not null")


@dataclass(frozen=True)
class Pack:
    """Packs the rows of a DataFrame in a task, after the element-wise steps that are left."""

    shipment: Shipment
    source: str
    entry: str
    number: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked(self.shipment.mark, self.source):
            yield to_batch(list(self._packed(batches)))

    def _packed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Packed]:
        plan = self.shipment.plan
        named = {node.name: node for node in plan.layout.order}
        source, entry = named[self.source], named[self.entry]
        assert isinstance(source, Read)
        context = TaskContext.get()
        task = ((self.number + 1) << 24) + (context.partitionId() if context else 0)
        packer = plan.packer(source, task=task, entry=entry)
        reached: int | None = None
        count = 0
        for batch in batches:
            rows = pl.from_arrow(batch)
            assert isinstance(rows, pl.DataFrame)
            count += len(rows)
            said = told_by(source, rows)
            reached = said if reached is None else max(reached, said if said is not None else reached)
            packer.add({SENT: rows.filter(KEEP).drop(KEEP)}, time.time_ns() // 1000)
        yield from packer.pack({"now": 0, "partitions": {"": (reached, count > 0)}})
        report = {"source": source.name, "rows": count, "dead": 0, "now": 0, "ends": {}}
        yield plan.labels[0], DRIVER, REPORT, task, control_to_bytes(report)
