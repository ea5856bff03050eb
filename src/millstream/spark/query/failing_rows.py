"""Finds the rows that steps in Spark's own engine fail on, after a batch has failed.

Spark's error names neither the row nor its offset. So the rows of the batch are read again, and evaluated in halves,
until the failing ones are alone. If the dead letters of the step are used the batch is repeated without these rows;
else the error of the first one is raised, with its topic, partition and offset. Both repeat exactly: a batch that is
done again after a crash finds the same rows.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from millstream.errors import MillstreamError, RecordFailed
from millstream.operators.elementwise import OFFSET, hidden_of, table_of
from millstream.plan.bad_rows import position_of
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import dead_letter_values
from millstream.records import batch_to_rows
from millstream.records.variants import VARIANT
from millstream.spark.expression_failures import of_expression
from millstream.spark.frame_functions import dataframe_of
from millstream.spark.pyspark_logs import errors_not_logged
from millstream.spark.query.data_source import BETWEEN, FEED, FORMAT, PACKED, Feed, as_option
from millstream.spark.query.known_failures import CAME_FROM, PART, PLACE, PROPERTY, STEP, KnownFailures, place_of
from millstream.spark.query.packing import split_origin
from millstream.spark.query.physical_plan import SourcePartition
from millstream.spark.query.spark_parts import SparkPart
from millstream.spark.query.spark_steps import evaluated, typed_rows, with_part
from millstream.spark.query.state_runner import Shipment
from millstream.spark.query.task_messages import RowsOrigin, origin_from_bytes
from millstream.spark.query_failures import reason_of

Result = TypeVar("Result")
_CANCELLED = re.compile(r"\[SPARK_JOB_CANCELLED\]|(?:[\w.]+: )?Job \d+ cancelled")
FAILING_MAX = 1_000
"""More failing rows in a batch stop the job: each takes a few jobs of Spark to find."""
FOUND_OFFSETS = 2
"""The line of a file of Spark's offset log with the offsets of our feed, behind a version and metadata."""


@dataclass(frozen=True)
class Piece:
    """Rows of one origin as a part gets them, and the place of the first among all of that origin."""

    origin: RowsOrigin
    first: int
    rows: pl.DataFrame


@dataclass(frozen=True)
class PartRow:
    origin: RowsOrigin
    place: int
    row: pl.DataFrame


@dataclass(frozen=True)
class FailingRows:
    """What is needed to read a batch of a query again."""

    shipment: Shipment
    feed: Feed
    checkpoint: Path

    def without_them(self, batch: DataFrame, number: int, work: Callable[[DataFrame], Result]) -> Result:
        """The result of work on a batch; if it fails because of single rows, without these."""
        with errors_not_logged():
            return self._without_them(batch, number, work)

    def _without_them(self, batch: DataFrame, number: int, work: Callable[[DataFrame], Result]) -> Result:
        try:
            return work(batch)
        except (PySparkException, Py4JJavaError) as error:
            if not self.shipment.physical_plan.spark_parts_after(0) or self._is_other(error):
                raise
            context = batch.sparkSession.sparkContext
            try:
                if not self._find(batch.sparkSession, number):
                    raise
                return work(batch)
            finally:
                context.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]

    def _is_other(self, error: Exception) -> bool:
        """Whether an error cannot be that of a row in Spark's own engine: it is ours, or the job is being stopped."""
        return self.shipment.mark in str(error) or _CANCELLED.match(str(error)) is not None

    def _find(self, spark: SparkSession, number: int) -> bool:
        """Finds the failing rows of a batch, part by part, and sends them to the next tasks. Returns if any fail."""
        between = self._between(number)
        if between is None:
            return False
        feed = as_option(self.feed, self.shipment.mark)
        packed = spark.read.format(FORMAT).schema(PACKED).option(FEED, feed).option(BETWEEN, json.dumps(between)).load()
        letters: list[dict[str, Any]] = []
        for part in self.shipment.physical_plan.spark_parts_after(0):
            pieces = _pieces_of(packed, part)
            if pieces:
                letters += self._letters(_Tried(spark, part, pieces), part, FAILING_MAX - len(letters))
            if letters:
                spark.sparkContext.setLocalProperty(PROPERTY, KnownFailures.of(letters).to_text())
            packed = with_part(packed, part, self.shipment)
        return bool(letters)

    def _between(self, number: int) -> list[Any] | None:
        end = self._offsets(number)
        return None if end is None else [self._offsets(number - 1) or self.feed.initial(), end]

    def _offsets(self, number: int) -> Any:
        path = self.checkpoint / "offsets" / str(number)
        if not path.exists():
            return None
        text = path.read_text().splitlines()[FOUND_OFFSETS]
        return None if text == "-" else json.loads(text)

    def _letters(self, tried: _Tried, part: SparkPart, limit: int) -> Iterator[dict[str, Any]]:
        """The dead letters of the rows that a part fails on; raises if they are not used."""
        left = list(range(tried.count))
        if tried.error(left, len(part.steps)) is None:
            return
        for depth, step in enumerate(part.steps, 1):
            failing: set[int] = set()
            for place, error in tried.failing(left, depth):
                failing.add(place)
                yield self._letter(part, step, tried.row(place), tried.given(place, depth), error)
                limit -= 1
                if limit < 0:
                    raise RecordFailed(
                        f"the step '{step.name}' fails on more than {FAILING_MAX:,} records of a batch",
                        where=step.user_line,
                        next_step="fix the expression, use a function that returns null instead, such as try_cast(…), "
                        "or a map(…), which handles failing rows one by one",
                    ).of_step(step.name)
            left = [place for place in left if place not in failing]

    def _letter(
        self, part: SparkPart, step: Node, bad: PartRow, row: dict[str, Any], error: Exception
    ) -> dict[str, Any]:
        found = of_expression(str(error), [step])
        reason = _reason(step, found, error)
        carried = bad.row.select(hidden_of(bad.row)).row(0, named=True)
        letter = dead_letter_values(row, f"{step.name}: {reason}", bad.origin.now) | carried
        letter["offset"] = carried.get(OFFSET)
        if bad.origin.source is not None:
            partition = SourcePartition(bad.origin.source, str(bad.origin.partition))
            letter |= {"topic": partition.topic, "partition": partition.number}
        if step not in self.shipment.physical_plan.listening:
            line = (found.where if found else None) or step.user_line
            raise RecordFailed(
                f"the step '{step.name}' cannot handle a record: {reason}: {row}",
                where="; ".join(filter(None, (position_of(letter), line))),
                next_step="fix the step or the record, and run the job again: it resumes there; or redirect such "
                f"records: write .dead of '{step.name}' to a topic",
            ).of_step(step.name)
        return letter | {PART: part.number, CAME_FROM: place_of(bad.origin), PLACE: bad.place, STEP: step.name}


def _pieces_of(packed: DataFrame, part: SparkPart) -> list[Piece]:
    found: list[Piece] = []
    counts: Counter[str] = Counter()
    for blob in packed.where(sf.col("step") == part.number).select("blob").toArrow()["blob"]:
        described, rows = split_origin(blob.as_py())
        origin = origin_from_bytes(described)
        found.append(Piece(origin, counts[place_of(origin)], rows))
        counts[place_of(origin)] += len(rows)
    return found


def _shown(column: Column, field: pa.Field) -> Column:
    """A column of a dead letter; a variant as JSON."""
    return sf.to_json(column).alias(field.name) if field.type == VARIANT else column


def _reason(step: Node, found: MillstreamError | None, error: Exception) -> str:
    if found is None:
        return reason_of(str(error)) or type(error).__name__
    for start in (f"the step '{step.name}' failed: ", f"the step '{step.name}' cannot handle a record: "):
        found_reason = found.what.removeprefix(start)
        if found_reason != found.what:
            return found_reason
    return found.what


class _Tried:
    """Evaluates the first steps of a part over some of its rows."""

    def __init__(self, spark: SparkSession, part: SparkPart, pieces: Sequence[Piece]) -> None:
        self._spark = spark
        self._part = part
        self._pieces = pieces
        self._starts = list(accumulate((len(piece.rows) for piece in pieces), initial=0))
        self._rows = pl.concat([piece.rows for piece in pieces], how="diagonal")

    @property
    def count(self) -> int:
        return len(self._rows)

    def row(self, place: int) -> PartRow:
        number = bisect_right(self._starts, place) - 1
        piece = self._pieces[number]
        return PartRow(piece.origin, piece.first + place - self._starts[number], self._rows[[place]])

    def _frame(self, places: Sequence[int], depth: int) -> DataFrame:
        now = self._pieces[0].origin.now  # the same for all rows of a batch
        table = typed_rows(self._rows[list(places)], self._part, 0, now)
        return evaluated(dataframe_of(table, self._spark), self._part, self._part.steps[:depth])

    def error(self, places: Sequence[int], depth: int) -> Exception | None:
        try:
            self._frame(places, depth).write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            return error if isinstance(error, Exception) else None
        return None

    def failing(
        self, places: Sequence[int], depth: int, known: Exception | None = None
    ) -> Iterator[tuple[int, Exception]]:
        """The rows that fail, each with its error; `known` is the error of all these rows together."""
        error = known or (self.error(places, depth) if places else None)
        if error is None:
            return
        if len(places) == 1:
            yield places[0], error
            return
        middle = len(places) // 2
        found = False
        for each in self.failing(places[:middle], depth):  # one by one: the first may already stop the job
            found = True
            yield each
        yield from self.failing(places[middle:], depth, None if found else error)

    def given(self, place: int, depth: int) -> dict[str, Any]:
        """The row as the last of some steps gets it; as the part gets it, if the steps before make several of it."""
        if depth > 1:
            before = self._part.steps[depth - 2].schema
            columns = [_shown(sf.col(f"`{field.name}`"), field) for field in before.arrow]
            made = self._frame([place], depth - 1).select(*columns).toArrow()
            if len(made) == 1:
                return batch_to_rows(made.combine_chunks().to_batches()[0])[0]
        (row,) = batch_to_rows(table_of(self._whole(place), self._part.given.schema).to_batches()[0])
        return row

    def _whole(self, place: int) -> pl.DataFrame:
        """A row with all columns: those that were not read are null."""
        row = self._rows[[place]]
        missing = [name for name in self._part.given.schema.names if name not in row.columns]
        return row.with_columns(pl.lit(None).alias(name) for name in missing)
