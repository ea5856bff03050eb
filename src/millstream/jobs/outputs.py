"""What leaves a query: each batch is collected once, and its rows go to every output they are for.

A sink writes a batch once, so a batch that comes again after a crash changes nothing. A sink that is down holds the job
back: the batch waits, no other is begun, and nothing is lost.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from millstream.connectors.files.drafts import Draft
from millstream.connectors.files.sink import FilesSink
from millstream.connectors.sink import Refusal, Sink
from millstream.errors import MillstreamError, SinkUnavailable
from millstream.jobs.claims import Claims
from millstream.jobs.folder import SINKS
from millstream.jobs.notices import Notices
from millstream.jobs.progress import Progress
from millstream.jobs.refused_rows import TOPIC, RefusedRows, letters_of
from millstream.operators.elementwise import OFFSET, frame_of, net
from millstream.operators.stateful import DEAD, SENT
from millstream.plan.bad_rows import record_failed
from millstream.plan.bundles import BEGINNING, END
from millstream.plan.nodes import Dead, Node, Write
from millstream.spark.failures import of_users_code
from millstream.spark.query.job_feed import REACHED, STOP
from millstream.spark.query.packing import DRIVER, as_written, control_from_bytes, from_bytes
from millstream.spark.query.physical_plan import Layout

Answer = TypeVar("Answer")
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0
UNPACKING = min(4, os.cpu_count() or 1)
"""Threads that unpack frames, which the interpreter does not hold up."""


class PackedRow(NamedTuple):
    step: int
    task: int
    blob: bytes


def collected(batch: DataFrame) -> list[PackedRow]:
    """The rows of a batch, as Arrow: Spark would pickle each by itself."""
    table = batch.select("step", "task", "blob").toArrow()
    return list(map(PackedRow, *(column.to_pylist() for column in table.columns)))


class Stopped(MillstreamError):
    """The job was stopped while a sink was down; the batch comes again at the next start."""


class Outputs:
    def __init__(
        self,
        layout: Layout,
        sinks: Mapping[Write, Sink],
        claims: Claims,
        folder: Path,
        progress: Progress,
        on_noted: Callable[[], None],
        notices: Notices,
        on_batch: Callable[[int, Mapping[str, pa.Table]], None] | None = None,
    ) -> None:
        self._layout = layout
        self._sinks = sinks
        self._claims = claims
        self._folder = folder
        self._progress = progress
        self._on_noted = on_noted
        self._notices = notices
        self._on_batch = on_batch
        self._ended_at = time.monotonic()
        self._unpacking = ThreadPoolExecutor(UNPACKING, thread_name_prefix="millstream-unpacking")
        self.failure: BaseException | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        try:
            self._take(batch, number)
        except BaseException as error:
            self.failure = error
            raise

    def _take(self, batch: DataFrame, number: int) -> None:
        rows = collected(batch)
        reports = [control_from_bytes(row.blob) for row in sorted(row for row in rows if row.step == DRIVER)]
        self._note(reports, number)
        first = len(self._layout.chain)
        tables = {}
        refused: dict[Node, list[pl.DataFrame]] = {}
        for place, output in enumerate(self._layout.outputs):
            assert isinstance(output, Write)
            mine = sorted(
                (row.task, number_, row.blob) for number_, row in enumerate(rows) if row.step == first + place
            )
            frames = list(self._unpacking.map(self._unpacked, mine))
            frame = pl.concat([frame_of([], output), *frames, *refused.get(output, [])], how="diagonal")
            if output.net:
                frame = net(frame, output.schema.names)
            table, weights = as_written(frame, output)
            drafts = [report["drafts"] for report in reports if report.get("drafted") == output.name]
            letters = self._write(output, number, frame, table, weights, drafts)
            if len(letters):
                self._progress.rows_dead += len(letters)
                region = self._layout.refused(output)
                made = region.run({SENT: frame.clear(), DEAD: letters}, self._progress.now)
                for other in self._layout.outputs:
                    if other in made and other is not output:
                        refused.setdefault(other, []).append(made[other])
            tables[output.name] = table
            count = len(table) - len(letters)
            self._progress.written[output.name] = self._progress.written.get(output.name, 0) + count
        if self._on_batch is not None:
            try:
                self._on_batch(number, tables)
            except MillstreamError:
                raise
            except Exception as error:
                raise of_users_code(error, "on_batch") from error

    def _unpacked(self, packed: tuple[int, int, bytes]) -> pl.DataFrame:
        """Rows of an output; those that say where in a source they stood also with its name."""
        task, _, blob = packed
        frame = from_bytes(blob)
        if OFFSET not in frame.columns:
            return frame
        source = self._layout.fed_sources[task >> 16].source
        return frame.with_columns(pl.lit(str(source)).alias(TOPIC))

    def _write(
        self,
        output: Write,
        number: int,
        frame: pl.DataFrame,
        table: pa.Table,
        weights: pa.Array | None,
        drafts: Sequence[Sequence[Draft]],
    ) -> pl.DataFrame:
        """Writes a batch, and returns the dead letters of the rows that the sink refused."""
        sink = self._sinks[output]
        kept = RefusedRows(self._folder / SINKS / output.name, output.name)
        is_taken = any(isinstance(node, Dead) and node.inputs[0] is output for node in self._layout.order)

        def refuse(refusals: Sequence[Refusal]) -> None:
            letters = letters_of(output, frame, table, refusals, self._progress.now)
            if len(letters) and not is_taken:
                raise record_failed(output, letters.row(0, named=True))
            kept.keep(number, letters)

        def write() -> None:
            if isinstance(sink, FilesSink):
                sink.write_with_drafts(number, table, weights, drafts, refuse)
            else:
                sink.write(number, table, weights, refuse)

        self._retrying(output, write)
        return self._retrying(output, lambda: kept.of(number))

    def _retrying(self, output: Write, attempt: Callable[[], Answer]) -> Answer:
        """Tries until a sink is there, unless the job is to end."""
        pause = PAUSE_S_MIN
        while True:
            try:
                self._claims.settle_late(output.name)
                answer = attempt()
                self._progress.waits_for = None
                return answer
            except SinkUnavailable as error:
                self._progress.waits_for = f"{output.name}: {error.what}"
                if (self._folder / STOP).exists():
                    raise Stopped(
                        f"stopped while the sink of '{output.name}' was down: {error.what}",
                        where=error.where,
                        next_step="run the job again: the batch is written then",
                    ) from error
                time.sleep(pause)
                pause = min(PAUSE_S_MAX, pause * 2)

    def _note(self, reports: Sequence[dict[str, Any]], number: int) -> None:
        progress, ended = self._progress, time.monotonic()
        progress.batch = number
        progress.batch_seconds, self._ended_at = ended - self._ended_at, ended
        progress.batch_rows = sum(report["rows"] for report in reports if "source" in report)
        progress.rows_read += progress.batch_rows
        watermarks: dict[str, int] = {}
        held: dict[str, int] = {}
        for report in reports:
            if "discarded" in report:
                for output, count in report["discarded"].items():
                    progress.written[output] = progress.written.get(output, 0) + count
                continue
            if "drafted" in report:
                progress.written[report["drafted"]] = progress.written.get(report["drafted"], 0) + report["rows"]
                continue
            progress.now = max(progress.now, report["now"])
            if "source" in report:
                progress.rows_dead += report["dead"]
                progress.offsets.setdefault(report["source"], {}).update(report["ends"])
                continue
            step = report["step"]
            watermarks[step] = min(watermarks.get(step, report["watermark"]), report["watermark"])
            held[step] = held.get(step, 0) + report["rows"]
            progress.rows_late += report["late"]
        progress.watermarks |= watermarks
        progress.rows_held |= held
        self._notices.hear(reports, progress.watermarks)
        self._on_noted()
        known = [progress.watermarks.get(step.name, END) for step in self._layout.chain]  # unheard of: anything may be
        self._publish_watermark(max(known, default=BEGINNING))

    def _publish_watermark(self, watermark: int) -> None:
        """For the planner: how far watermarks have come at most, so that rows which may be late travel whole."""
        if not self._layout.chain:
            return
        path = self._folder / REACHED
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps({"clock": self._progress.now, "watermark": watermark}))
        draft.replace(path)
