"""A preview: the results of a stream over what its sources have, computed in a temporary folder and written nowhere.

It reads what `run(batch=True)` would read, and like it closes every window at the end. A plan that can run without
Spark is run in this process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import polars as pl

from millstream import terminal
from millstream.connectors.opening import connector_errors, open_source
from millstream.connectors.source import Offsets, Source
from millstream.jobs.checked_sources import check_weights
from millstream.jobs.previews.local_reading import nothing_read, up_to_event_time, watermarks_of
from millstream.jobs.previews.on_spark import previewed_on_spark
from millstream.jobs.previews.results import Limits, Results
from millstream.local import Flowing, Local
from millstream.log import chosen_address
from millstream.log.kafka.address import as_kafka
from millstream.operators.clock import Clock
from millstream.operators.elementwise import OFFSET, frame_of
from millstream.operators.lateness import with_ahead_marked
from millstream.operators.source_watermarks import SourceWatermark
from millstream.plan.checks import refusal
from millstream.plan.nodes import Dead, Node, Read, Write
from millstream.plan.on_spark.needs_spark import needs_spark
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.stream import Stream
from millstream.plan.time.bundles import BEGINNING
from millstream.plan.time.timing import Timed, timing
from millstream.plan.walking import in_order
from millstream.spark.query.source_frames import dead_frame, framed

STEP_ROWS = 200_000
FIRST_ROWS = 2_000  # a stream without state needs few rows for its first results
WAIT_S = 0.2

logger = terminal.logger(__name__)


def previewed(
    stream: Stream,
    rows: int | None = None,
    seconds: float | None = None,
    broker: str | PathLike[str] | None = None,
) -> pl.DataFrame:
    """The results of a stream; see `Stream.preview`."""
    limits = Limits.of(rows, seconds)
    order = in_order([stream.node])
    if any(isinstance(node, Write) for node in order):
        raise refusal(
            "the rows that a sink rejects are known only once they are written, and a preview writes nothing",
            "preview the stream that is written",
        )
    check_weights(node for node in order if isinstance(node, Read))
    address = chosen_address(stream.flow.log if broker is None else broker)
    observed = [stream.node, *_dead_letters(stream, order)]
    with tempfile.TemporaryDirectory(prefix="millstream-preview-") as folder:
        if any(needs_spark(node) or _is_dataframe(node) for node in order):
            made = previewed_on_spark(observed, limits, address, Path(folder))
        else:
            made = _previewed_here(observed, limits, address, Path(folder))
    stream.flow.previews[stream.node] = made
    return made


def _is_dataframe(node: Node) -> bool:
    return isinstance(node, Read) and isinstance(node.source, SparkFrame)


def _dead_letters(stream: Stream, order: list[Node]) -> list[Node]:
    """The dead letters that the flow uses: in a preview, too, they do not stop the run."""
    return [
        side
        for side in stream.flow._sides.values()
        if isinstance(side, Dead) and side.inputs[0] in order and side not in order
    ]


# ---------------------------------------------------------------- in this process


@dataclass(frozen=True)
class Taken:
    """What one step reads of a source."""

    rows: pl.DataFrame
    dead: pl.DataFrame
    count: int


class Reader:
    """A source: the position in it, and the watermark of the rows read so far."""

    def __init__(self, node: Read, source: Source, timed: Timed | None, before: Local | None, clock: int) -> None:
        """`before` runs the steps up to the one that sets the event time, if that is not the source itself."""
        self.node = node
        self.source = source
        self.reached = BEGINNING
        self._timed = timed
        self._before = before
        with connector_errors(node.source, node.name):
            self.position: Offsets = dict(source.earliest())
            self.ends: Offsets = dict(source.latest())
        self.watermark = None if timed is None else SourceWatermark(timed, self.ends, clock)

    @property
    def behind(self) -> int:
        """The number of rows up to the ends that were there at the start."""
        return sum(max(0, end - self.position.get(part, 0)) for part, end in self.ends.items())

    def take(self, limit_rows: int, now: int, others: Mapping[Node, Flowing], *, bounded: bool) -> Taken:
        with connector_errors(self.node.source, self.node.name):
            return self._take(limit_rows, now, others, bounded=bounded)

    def _take(self, limit_rows: int, now: int, others: Mapping[Node, Flowing], *, bounded: bool) -> Taken:
        end = self.source.limited(self.position, limit_rows)
        if bounded:
            end = {part: min(offset, self.ends[part]) for part, offset in end.items() if part in self.ends}
        frames, dead = [frame_of([], self.node)], [frame_of([], None)]
        for pieces in self.source.slices(self.position, end, 1):
            for piece in pieces:
                for slab in self.source.read(piece):
                    rows = framed(slab, self.node, self.node.schema.names).drop(OFFSET)
                    rows = with_ahead_marked(rows, self.node, now)
                    frames.append(rows)
                    dead.append(dead_frame(slab))
                    self._observe(piece.partition, rows, dead[-1], now, others)
        for loss in self.source.take_losses():
            logger.warning("%s", loss)
        self.position |= end
        taken = pl.concat(frames)
        return Taken(taken, pl.concat(dead), len(taken))

    def _observe(
        self, partition: str, rows: pl.DataFrame, dead: pl.DataFrame, now: int, others: Mapping[Node, Flowing]
    ) -> None:
        if self.watermark is None or self._timed is None:
            return
        if self._before is not None:
            given = {**others, self.node: Flowing(rows, Clock(BEGINNING, BEGINNING, now, now))}
            rows = self._before.run(given, {self.node: dead})[self._timed].rows
        self.watermark.observe(partition, rows, now)


def _previewed_here(observed: list[Node], limits: Limits, address: str, folder: Path) -> pl.DataFrame:
    node, now = observed[0], _now()
    order = in_order(observed)
    results = Results(node, limits.rows)
    deadline = time.monotonic() + limits.seconds
    with ExitStack() as opened:
        readers = list(_readers(order, observed, address, folder, now, opened))
        local = Local(observed)
        step_rows = STEP_ROWS if any(each.keeps_state for each in order) else FIRST_ROWS
        while True:
            before, now = now, max(now, _now())
            taken = {
                each: each.take(step_rows, now, nothing_read(readers, now), bounded=not limits.follows)
                for each in readers
            }
            is_over = time.monotonic() >= deadline
            is_last = is_over or (not limits.follows and not any(each.behind for each in readers))
            given: dict[Node, Flowing] = {}
            dead: dict[Node, pl.DataFrame] = {}
            for each, reached in watermarks_of(readers, now, is_last=is_last).items():
                clock = Clock(each.reached, reached, before, now)
                given[each.node], dead[each.node] = Flowing(taken[each].rows, clock), taken[each].dead
                each.reached = reached
            results.add(local.run(given, dead)[node].rows)
            if is_last or results.are_complete:
                break
            step_rows = min(STEP_ROWS, step_rows * 10)
            if not any(taken[each].count for each in readers):
                left = min(WAIT_S, max(0.0, deadline - time.monotonic()))
                readers[0].source.wait(readers[0].position, left)
        behind = sum(each.behind for each in readers)
        if is_over and behind and not limits.follows:
            logger.warning(
                "the preview of '%s' ended after %g s and did not read the last %s rows; read longer with seconds=…",
                node.name,
                limits.seconds,
                f"{behind:,}",
            )
    return results.frame()


def _readers(
    order: list[Node], observed: list[Node], address: str, folder: Path, now: int, opened: ExitStack
) -> Iterator[Reader]:
    times = timing(order)
    for node in order:
        if not isinstance(node, Read):
            continue
        own = folder / "sources" / node.name
        source = open_source(
            node.source,
            node.schema,
            broker=as_kafka(address) or address,
            folder=own,
            name=node.name,
            on_lost=node.on_lost,
        )
        opened.callback(source.close)
        timed = times.get(node)
        yield Reader(node, source, timed, up_to_event_time(node, timed, observed), now)


def _now() -> int:
    return time.time_ns() // 1000
