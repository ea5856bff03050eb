"""The outputs of a query: each batch is collected once and written to its sinks.

A sink writes a batch once, so a batch that is repeated after a crash changes nothing. While a sink is down the batch
waits, no other is started, and nothing is lost.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from millstream.connectors.opening import connector_errors
from millstream.connectors.refusals import Refusal
from millstream.connectors.sink import Sink
from millstream.errors import MillstreamError, SinkFailed, SinkUnavailable
from millstream.jobs.apps.owed_batches import OwedBatches
from millstream.jobs.job_folder import SINKS
from millstream.jobs.measuring.batch_events import BatchEvents
from millstream.jobs.measuring.job_metrics import JobMetrics, Phases
from millstream.jobs.measuring.job_progress import Progress
from millstream.jobs.results.output_claims import OutputClaims
from millstream.jobs.results.refused_rows import RefusedRows, dead_letters_of
from millstream.jobs.results.table_changes import TableChanges
from millstream.jobs.shown.notices import Notices
from millstream.jobs.shown.recent_rows import RecentRows
from millstream.operators.elementwise import OFFSET, frame_of, net
from millstream.operators.stateful import DEAD, SENT
from millstream.plan.apps import flow_of
from millstream.plan.bad_rows import record_failed
from millstream.plan.nodes import Dead, Node, Write
from millstream.plan.time.bundles import BEGINNING, END
from millstream.secrets import concealed
from millstream.spark.query.batch_offsets import REACHED, STOP
from millstream.spark.query.failing_rows import FailingRows
from millstream.spark.query.packing import DRIVER, TOPIC, as_written, from_bytes
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.spark_steps import TASK_BITS
from millstream.spark.query.task_messages import (
    DiscardReport,
    PreparedReport,
    Report,
    SourceReport,
    StepReport,
    report_from_bytes,
)
from millstream.spark.query_failures import users_failure

Result = TypeVar("Result")
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0
WAITS_FOR_FLOW_S = 5.0
"""How long the other flows of an app wait for the sink of one."""
UNPACKING = min(4, os.cpu_count() or 1)
"""Threads that unpack frames, which happens outside the interpreter lock."""
UNPACKED_ALONE_BYTES = 1 << 18
"""With less, handing frames to threads takes longer than unpacking them."""
PackedPart = tuple[int, int, bytes]
"""A task, a position within the batch, and packed rows."""


class PackedRow(NamedTuple):
    step: int
    task: int
    blob: bytes


def collected(batch: DataFrame) -> list[PackedRow]:
    """The rows of a batch, by Arrow: Spark would pickle each separately."""
    table = batch.select("step", "task", "blob").toArrow()
    return list(map(PackedRow, *(column.to_pylist() for column in table.columns)))


class Stopped(MillstreamError):
    """The job was stopped while a sink was down; the next run repeats the batch."""


@dataclass(frozen=True)
class WrittenPlan:
    """The plan of some batches, and what the driver has for its outputs."""

    physical_plan: PhysicalPlan
    sinks: Mapping[Write, Sink]
    recent: RecentRows
    failing_rows: FailingRows


class Outputs:
    def __init__(
        self,
        plan: WrittenPlan,
        claims: OutputClaims,
        folder: Path,
        progress: Progress,
        metrics: JobMetrics,
        notices: Notices,
        on_batch: Callable[[int, Mapping[str, pa.Table]], None] | None = None,
        *,
        events: BatchEvents | None = None,
        changes: TableChanges | None = None,
        shift: int = 0,
        fails_alone: bool = False,
    ) -> None:
        """`shift` is added to the numbers of Spark's batches: a restored job counts on from what its outputs have.

        With `fails_alone`, a sink of one flow of an app does not stop the others.
        """
        self._claims = claims
        self._folder = folder
        self._progress = progress
        self._metrics = metrics
        self._notices = notices
        self._on_batch = on_batch
        self._events = events
        self._changes = changes
        self._shift = shift
        self._ended_at = self._written_at = time.monotonic()
        self._fails_alone = fails_alone
        self._owed = OwedBatches(folder)
        self.failed_flows: dict[str, MillstreamError] = {}
        """By flow of an app, why its outputs could not be written."""
        self._unpacking = ThreadPoolExecutor(UNPACKING, thread_name_prefix="millstream-unpacking")
        self.failure: BaseException | None = None
        self.on_start: Callable[[int], None] | None = None
        """Called with the number of each batch before anything else."""
        self.take(plan)

    def take(self, plan: WrittenPlan) -> None:
        """The batches from now on have this plan."""
        self._physical_plan, self._sinks = plan.physical_plan, plan.sinks
        self._recent, self._failing_rows = plan.recent, plan.failing_rows
        self._numbers: dict[Write, int] = {}
        self._empty: dict[Write, pl.DataFrame] = {}
        self._flows: dict[str, list[Write]] = {}
        """Outputs by flow, if flows fail alone; else all, without the name of a flow."""
        for step, output in enumerate(plan.physical_plan.outputs, len(plan.physical_plan.chain)):
            assert isinstance(output, Write)
            self._numbers[output] = step
            self._empty[output] = frame_of([], output)
            self._flows.setdefault(flow_of(output.name) if self._fails_alone else "", []).append(output)

    def __call__(self, batch: DataFrame, number: int) -> None:
        try:
            if self.on_start is not None:
                self.on_start(number)
            self._write_batch(batch, number)
        except BaseException as error:
            self.failure = error
            raise

    def _write_batch(self, batch: DataFrame, number: int) -> None:
        began = time.monotonic()
        rows = self._failing_rows.without_them(batch, number, collected)
        number += self._shift
        numbered = [
            (row.task, report_from_bytes(row.blob)) for row in sorted(row for row in rows if row.step == DRIVER)
        ]
        reports = [report for _, report in numbered]
        self._record_progress(reports, number)
        self._metrics.observe(reports, time.time())
        processed = time.monotonic()
        self._write_outputs(rows, reports, number)
        written = time.monotonic()
        if self._events is not None:
            written_rows = dict(self._progress.written)
            self._events.record(number, number - self._shift, numbered, written_rows, self._sinks)
        sources = [report for report in reports if isinstance(report, SourceReport)]
        self._metrics.ended(
            Phases(
                total=written - self._written_at,
                wait=sum(report.waited_s for report in sources),
                plan=sum(report.planned_s for report in sources),
                process=processed - began,
                write=written - processed,
            )
        )
        self._written_at = written

    def _write_outputs(self, rows: Sequence[PackedRow], reports: Sequence[Report], number: int) -> None:
        tables: dict[str, pa.Table] = {}
        packed: dict[int, list[PackedPart]] = {}
        for position, row in enumerate(rows):
            packed.setdefault(row.step, []).append((row.task, position, row.blob))
        for flow, outputs in self._flows.items():
            frame_of_output = partial(self._frame, packed)
            if not flow:
                tables |= self._write_flow(outputs, number, frame_of_output, reports)
            elif self._owed.numbers(flow):  # an earlier batch comes first
                self._owe(flow, number, frame_of_output)
            else:
                try:
                    tables |= self._write_flow(outputs, number, frame_of_output, reports)
                except Stopped:
                    raise
                except MillstreamError as error:  # only this flow stops
                    self._owe(flow, number, frame_of_output)
                    self.failed_flows[flow] = error
                    self._progress.waits_for = None  # the batch no longer waits for it
        if self._on_batch is not None:
            try:
                self._on_batch(number, tables)
            except MillstreamError:
                raise
            except Exception as error:
                raise users_failure(error, "on_batch") from error

    def _owe(self, flow: str, number: int, frame_of_output: Callable[[Write], pl.DataFrame]) -> None:
        self._owed.keep(flow, number, {output.name: frame_of_output(output) for output in self._flows[flow]})

    def write_owed(self) -> None:
        """Writes what flows of an app owe, before their first batch. A flow that still cannot stops, not the others."""
        for flow, outputs in self._flows.items():
            try:
                for number in self._owed.numbers(flow) if flow else ():
                    kept = self._owed.of(flow, number)
                    self._write_flow(outputs, number, partial(_kept_rows, kept), [])
                    self._owed.done(flow, number)
            except Stopped:
                raise
            except MillstreamError as error:
                self.failed_flows[flow] = error

    def _frame(self, packed: Mapping[int, list[PackedPart]], output: Write) -> pl.DataFrame:
        """The rows of a batch for an output, in order."""
        parts = sorted(packed.get(self._numbers[output], []))
        is_small = sum(len(blob) for _, _, blob in parts) < UNPACKED_ALONE_BYTES
        frames = map(self._unpacked, parts) if is_small else self._unpacking.map(self._unpacked, parts)
        return pl.concat([self._empty[output], *frames], how="diagonal")

    def _write_flow(
        self,
        outputs: Sequence[Write],
        number: int,
        frame_of_output: Callable[[Write], pl.DataFrame],
        reports: Sequence[Report],
    ) -> dict[str, pa.Table]:
        tables = {}
        refused: dict[Node, list[pl.DataFrame]] = {}
        for output in outputs:
            frame = pl.concat([frame_of_output(output), *refused.get(output, [])], how="diagonal")
            if output.net:
                frame = net(frame, output.schema.names)
            table, weights = as_written(frame, output)
            receipts = [
                report.receipt
                for report in reports
                if isinstance(report, PreparedReport) and report.output == output.name
            ]
            dead_letters = self._write(output, number, frame, table, weights, receipts)
            if len(dead_letters):
                self._progress.rows_dead += len(dead_letters)
                self._metrics.refused(output.name, len(dead_letters))
                region = self._physical_plan.refused(output)
                made = region.run({SENT: frame.clear(), DEAD: dead_letters}, self._progress.now)
                for other in self._physical_plan.outputs:
                    if other in made and other is not output:
                        refused.setdefault(other, []).append(made[other])
            tables[output.name] = table
            self._recent.note(output, table, weights)
            count = len(table) - len(dead_letters)
            self._progress.written[output.name] = self._progress.written.get(output.name, 0) + count
        return tables

    def _unpacked(self, packed: PackedPart) -> pl.DataFrame:
        """Rows of an output, with the name of their source if they carry their offset."""
        task, _, blob = packed
        frame = from_bytes(blob)
        if OFFSET not in frame.columns or TOPIC in frame.columns:
            return frame
        source = self._physical_plan.fed_sources[task % (1 << TASK_BITS) >> 16].source
        return frame.with_columns(pl.lit(str(source)).alias(TOPIC))

    def _write(
        self,
        output: Write,
        number: int,
        frame: pl.DataFrame,
        table: pa.Table,
        weights: pa.Array | None,
        receipts: Sequence[Any],
    ) -> pl.DataFrame:
        """Writes a batch, and returns the dead letters of the rows that the sink refused."""
        sink = self._sinks[output]
        kept = RefusedRows(self._folder / SINKS / output.name, output.name)
        refused: list[int] | None = None
        has_dead_letters = any(
            isinstance(node, Dead) and node.inputs[0] is output for node in self._physical_plan.order
        )

        def refuse(refusals: Sequence[Refusal]) -> None:
            nonlocal refused
            refused = [refusal.row for refusal in refusals]
            dead_letters = dead_letters_of(output, frame, table, refusals, self._progress.now)
            if len(dead_letters) and not has_dead_letters:
                raise record_failed(output, dead_letters.row(0, named=True))
            kept.keep(number, dead_letters)

        def write() -> None:
            with connector_errors(output.sink, output.name):
                sink.write_prepared(number, table, weights, receipts, refuse)

        self._retrying(output, write)
        dead_letters = self._retrying(output, lambda: kept.of(number))
        if self._changes is not None:
            is_known = refused is not None or not len(dead_letters)  # a batch that was written before refuses nothing
            self._changes.note(output, number, table, weights, (refused or []) if is_known else None)
        return dead_letters

    def _retrying(self, output: Write, attempt: Callable[[], Result]) -> Result:
        """Retries until the sink is available, unless the job is asked to stop or the sink's policy says so."""
        pause, began = PAUSE_S_MIN, time.monotonic()
        while True:
            try:
                self._claims.claim_late(output.name)
                result = attempt()
                self._progress.waits_for = None
                return result
            except SinkUnavailable as error:
                self._progress.waits_for = concealed(f"{output.name}: {error.what}")
                if (self._folder / STOP).exists():
                    raise Stopped(
                        f"stopped while the sink of '{output.name}' was down: {error.what}",
                        where=error.where,
                        next_step="run the job again: it writes the batch first",
                    ) from error
                left = math.inf if output.retry is None else output.retry.at_most.total_seconds()
                left = left if "" in self._flows else min(left, WAITS_FOR_FLOW_S)
                left -= time.monotonic() - began
                if left <= 0:
                    policy = "" if output.retry is None else f", and the policy is to {output.retry}"
                    raise SinkFailed(
                        f"the sink of '{output.name}' is down{policy}: {error.what}",
                        where=error.where,
                        next_step="run the job again when the sink is back: it writes the batch first, nothing is lost",
                    ) from error
                time.sleep(min(pause, left))
                pause = min(PAUSE_S_MAX, pause * 2)

    def _record_progress(self, reports: Sequence[Report], number: int) -> None:
        progress, ended = self._progress, time.monotonic()
        progress.batch = number
        progress.batch_seconds, self._ended_at = ended - self._ended_at, ended
        progress.batch_rows = sum(report.rows for report in reports if isinstance(report, SourceReport))
        progress.rows_read += progress.batch_rows
        watermarks: dict[str, int] = {}
        held: dict[str, int] = {}
        for report in reports:
            match report:
                case DiscardReport():
                    for output, count in report.rows.items():
                        progress.written[output] = progress.written.get(output, 0) + count
                case PreparedReport():
                    progress.written[report.output] = progress.written.get(report.output, 0) + report.rows
                case SourceReport():
                    progress.now = max(progress.now, report.now)
                    progress.rows_dead += report.dead
                    progress.offsets.setdefault(report.source, {}).update(report.ends)
                case StepReport(step=step):
                    progress.now = max(progress.now, report.now)
                    watermarks[step] = min(watermarks.get(step, report.watermark), report.watermark)
                    held[step] = held.get(step, 0) + report.rows
                    progress.rows_late += report.late
        progress.watermarks |= watermarks
        progress.rows_held |= held
        self._notices.observe(reports, progress.watermarks)
        known = [
            progress.watermarks.get(step.name, END) for step in self._physical_plan.chain
        ]  # not reported yet: may be anything
        self._publish_watermark(max(known, default=BEGINNING))

    def _publish_watermark(self, watermark: int) -> None:
        """Tells the planner the highest watermark, so that rows which may be late are sent unfolded."""
        if not self._physical_plan.chain:
            return
        path = self._folder / REACHED
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps({"clock": self._progress.now, "watermark": watermark}))
        draft.replace(path)


def _kept_rows(kept: Mapping[str, pl.DataFrame], output: Write) -> pl.DataFrame:
    """Rows that an output is owed; none if it is newer than the batch."""
    return kept.get(output.name, frame_of([], output))
