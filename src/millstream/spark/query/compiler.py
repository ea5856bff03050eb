"""Compiles a physical plan to a streaming DataFrame of packed rows: its sources, then the chain of steps with state.

Topics and files come through our own feed, which also runs the element-wise steps after them. Expressions after a Spark
DataFrame stay Spark SQL, and the steps that follow run where its rows are packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType

import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.errors import InvalidPlan
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.source_watermarks import advanced
from millstream.operators.stateful import SENT
from millstream.plan.nodes import Dead, Node, Project, Read, Where, WithEventTime, Write
from millstream.plan.on_spark.needs_spark import SparkFunction, expressions_of, reasons
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.time.bundles import AHEAD
from millstream.plan.time.timing import Timed
from millstream.plan.time.watermarks import Bounded
from millstream.plan.time.windows import FIRST, LAST, microseconds
from millstream.plan.walking import in_order
from millstream.secrets import delivery
from millstream.spark.query import task_messages
from millstream.spark.query.data_source import FEED, FORMAT, PACKED, Feed, FeedSource, as_option
from millstream.spark.query.packing import DRIVER, REPORT, Packed, to_batch
from millstream.spark.query.past_rows import check_past
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.processor import SharedStageProcessor, StageProcessor
from millstream.spark.query.spark_parts import SparkPart
from millstream.spark.query.spark_steps import ONLY_PARTITION, spark_type, with_part
from millstream.spark.query.state_runner import Shipment
from millstream.spark.query.task_messages import SourceControl, SourceReport
from millstream.spark.query_failures import marked

PARTITIONS = "spark.sql.shuffle.partitions"
CODEGEN = "spark.sql.codegen.wholeStage"
KEEP = "__keep"
NOW = "__now"
HIDDEN = (TIME, WEIGHT, KEEP, NOW)
_starting = Lock()
"""One query at a time changes the session's settings."""


def compiled(
    spark: SparkSession,
    shipment: Shipment,
    feed: Feed,
    slots: Mapping[str, int] | None = None,
    stages_min: int = 0,
    resting: Mapping[int, Sequence[int]] = MappingProxyType({}),
    *,
    shares_states: bool = False,
) -> DataFrame:
    """All packed rows for the outputs of a flow; `slots` has the slot of each step's state.

    A checkpoint with more stages than the flow needs keeps them, since Spark cannot remove a stateful operator. By
    stage, `resting` has further slots, whose state is kept for steps that do not run now. With `shares_states` the
    slots of a stage share their states of Spark, so that steps can be added while the query runs.
    """
    slots = shipment.physical_plan.first_slots() if slots is None else slots
    _check_refused(shipment.physical_plan)
    if shipment.log is not None:
        check_past(shipment.physical_plan)
    spark.sparkContext.environment.update(delivery())  # before Spark starts its Python processes
    spark.dataSource.register(FeedSource)
    packed = spark.readStream.format(FORMAT).schema(PACKED).option(FEED, as_option(feed, shipment.mark)).load()
    for number, source in enumerate(shipment.physical_plan.dataframe_sources):
        packed = packed.unionByName(NativeSteps(shipment.physical_plan, source).packed(shipment, number))
    packed = _with_parts(packed, shipment, 0)
    stages = shipment.physical_plan.stages
    for stage, numbers in enumerate([*stages, *([] for _ in range(stages_min - len(stages)))], 1):
        stage_slots = [slots[shipment.physical_plan.chain[number].name] for number in numbers]
        packed = packed.groupBy("label").transformWithState(
            SharedStageProcessor(shipment, stage, numbers, stage_slots)
            if shares_states
            else StageProcessor(shipment, numbers, stage_slots, resting.get(stage, ())),
            outputStructType=PACKED,
            outputMode="append",
            timeMode="None",
        )
        packed = _with_parts(packed, shipment, stage) if numbers else packed
    return packed


def _check_refused(physical_plan: PhysicalPlan) -> None:
    """The steps after the dead letters of a sink run in the driver, without Spark's engine."""
    for output in physical_plan.outputs:
        for step in physical_plan.refused(output).steps if isinstance(output, Write) else ():
            if step in physical_plan.in_spark:
                raise InvalidPlan(
                    f"the step '{step.name}' handles rows that a sink has refused, which only expressions with a "
                    f"translation can: {'; '.join(reasons(step))}",
                    where=step.user_line,
                    next_step="write the dead letters to a topic, and read that in another flow",
                )


def _with_parts(packed: DataFrame, shipment: Shipment, stage: int) -> DataFrame:
    """Runs what needs Spark's own engine behind the sources (0), or behind a stage."""
    for part in shipment.physical_plan.spark_parts_after(stage):
        packed = with_part(packed, part, shipment)
    return packed


def started(spark: SparkSession, shipment: Shipment, writer: DataStreamWriter) -> StreamingQuery:
    """Starts a query with its own settings: it copies those of the session, which are restored after."""
    settings = {PARTITIONS: str(shipment.partitions)}
    if not shipment.physical_plan.dataframe_sources and not shipment.physical_plan.spark_parts:
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
    """The steps right after a DataFrame that run in Spark SQL: a sequence of expressions.

    A row that a `where` excludes still advances the watermark, so it is only marked, and dropped when it is packed.
    """

    def __init__(self, physical_plan: PhysicalPlan, source: Read) -> None:
        self._physical_plan = physical_plan
        self.source = source
        assert isinstance(source.source, SparkFrame)
        self.frame: DataFrame = source.source.frame
        self.last: Node = source
        self._visit_read(source)
        while (step := self._next()) is not None:
            getattr(self, f"_visit_{type(step).__name__.lower()}")(step)
            self.last = step

    def _next(self) -> Where | Project | WithEventTime | None:
        """The next step, if it is an expression and the only consumer of these rows."""
        timed = self._physical_plan.timing.get(self.source)
        if timed is not None and not isinstance(timed.watermark, Bounded):
            return None  # it needs the columns of the rows that have just got their time
        consumers = [node for node in self._physical_plan.order if self.last in node.inputs]
        if len(consumers) != 1 or self.last in self._physical_plan.outputs:
            return None
        if any(consumers[0] is part.first and _needs_single_rows(part) for part in self._physical_plan.spark_parts):
            return None  # only what is behind a filter may see a filtered row
        if any(made.makes_rows for made in expressions_of(consumers[0])):
            return None  # a filtered row would make several
        if any(isinstance(node, Dead) and consumers[0] in node.inputs for node in self._physical_plan.order):
            return None  # Spark would stop at a row that belongs into its dead letters
        return consumers[0] if isinstance(consumers[0], Where | Project | WithEventTime) else None

    def _visit_read(self, node: Read) -> None:
        moment = sf.expr(f"unix_micros(`{node.event_time}`)") if node.event_time else sf.lit(None).cast("long")
        weight = (
            sf.coalesce(sf.col("weight").cast("int"), sf.lit(1))
            if node.changes and "weight" in node.schema.names
            else sf.lit(1)
        )
        columns = [sf.col(f"`{field.name}`").cast(spark_type(node.schema, field.name)) for field in node.schema.arrow]
        named = [column.alias(name) for column, name in zip(columns, node.schema.names, strict=True)]
        self.frame = self.frame.select(
            *named,
            self._as_time(moment, node).alias(TIME),
            weight.cast("int").alias(WEIGHT),
            sf.lit(True).alias(KEEP),
            _batch_time().alias(NOW),
        )

    @staticmethod
    def _as_time(moment: Column, node: Timed) -> Column:
        """The time of a row: null if it is out of range, and marked if it is too far ahead of the processing time."""
        moment = sf.when(moment.between(FIRST, LAST), moment)
        ahead = getattr(node.watermark, "ahead_at_most", None)
        if ahead is None:
            return moment
        return sf.when(moment > _batch_time() + microseconds(ahead), sf.lit(AHEAD)).otherwise(moment)

    def _visit_where(self, node: Where) -> None:
        holds = sf.expr(f"case when {KEEP} then coalesce(({node.condition.spark}), false) else false end")
        self.frame = self.frame.withColumn(KEEP, holds)

    def _visit_witheventtime(self, node: WithEventTime) -> None:
        moment = sf.expr(f"case when {KEEP} then unix_micros(cast(({node.time.spark}) as timestamp)) end")
        self.frame = self.frame.withColumn(TIME, self._as_time(moment, node))

    def _visit_project(self, node: Project) -> None:
        made = [
            sf.expr(f"case when {KEEP} then ({value.spark}) end").cast(spark_type(node.schema, name)).alias(name)
            for name, value in node.columns
        ]
        self.frame = self.frame.select(*made, *HIDDEN)

    def packed(self, shipment: Shipment, number: int) -> DataFrame:
        pack = Pack(shipment, self.source.name, self.last.name, number)
        return self.frame.mapInArrow(pack, PACKED)


def _needs_single_rows(part: SparkPart) -> bool:
    """Whether a part must see only rows that were kept, and so cannot be split."""
    if any(isinstance(step, SparkFunction) for step in part.steps):
        return True
    made = [each for step in part.steps for each in expressions_of(step)]
    return any(each.native is not None or each.calls_python or each.makes_rows for each in made)


def _batch_time() -> Column:
    """The time of the batch, in microseconds. Spark stores it with its offsets, so a repeated batch has the same."""
    return sf.expr("unix_micros(current_timestamp())")


@dataclass(frozen=True)
class Pack:
    """Packs the rows of a DataFrame in a task, after the remaining element-wise steps."""

    shipment: Shipment
    source: str
    entry: str
    number: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked(self.shipment.mark, self.source):
            yield to_batch(list(self._packed(batches)))

    def _packed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Packed]:
        plan = self.shipment.worker_plan
        named = {node.name: node for node in plan.physical_plan.order}
        source, entry = named[self.source], named[self.entry]
        assert isinstance(source, Read)
        context = TaskContext.get()
        task = ((self.number + 1) << 24) + (context.partitionId() if context else 0)
        packer = plan.packer(source, task=task, entry=entry)
        timed, before = plan.physical_plan.timing.get(source), in_order([entry])
        marked_by: tuple[int | None, bool] = None, False
        count = 0
        for batch in batches:
            rows = pl.from_arrow(batch)
            assert isinstance(rows, pl.DataFrame)
            count += len(rows)
            now = int(rows[NOW][0]) if len(rows) else 0  # the same for all rows of a batch, also if it is repeated
            made = packer.add({SENT: rows.filter(KEEP).drop(KEEP, NOW)}, now)
            if timed is not None:
                # Spark has dropped nothing yet: rows that a later condition excludes still advance the watermark.
                marked_by = advanced(marked_by, timed, rows if timed in before else made.get(timed))
        yield from packer.pack(SourceControl(source.name, 0, {ONLY_PARTITION: (marked_by[0], count > 0)}))
        report = SourceReport(source.name, count)
        yield plan.labels[0], DRIVER, REPORT, task, task_messages.to_bytes(report)
