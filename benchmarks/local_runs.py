"""A step in this process, timed: what the benchmarks of operators share."""

from __future__ import annotations

import time
from collections.abc import Sequence

import polars as pl

import millstream as ms
from millstream.local import Flowing, Local
from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.clock import Clock
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import BEGINNING, END


def timed_run(
    stream: ms.Stream,
    made: ms.Stream,
    bundles: Sequence[pl.DataFrame],
    delay: int,
    beside: tuple[ms.Stream, pl.DataFrame] | None = None,
) -> tuple[float, int]:
    """The seconds of processor time for all bundles and the end of the input, and the rows that the step sends.

    The watermark follows the newest event time with this delay, in microseconds. `beside` is another input and its
    rows, which come before the time is taken.
    """
    runner, watermark, sent = Local([made.node]), BEGINNING, 0
    others: dict[Node, pl.DataFrame] = {}
    if beside is not None:
        others = {beside[0].node: beside[1].clear()}
        before = Clock(BEGINNING, BEGINNING, 0, 0)
        runner.run({stream.node: Flowing(bundles[0].clear(), before), beside[0].node: Flowing(beside[1], before)})

    def run(rows: pl.DataFrame, clock: Clock) -> int:
        given = {node: Flowing(nothing, clock) for node, nothing in others.items()}
        return len(runner.run({stream.node: Flowing(rows, clock), **given})[made.node].rows)

    start = time.process_time()  # other work on the machine must not count
    for bundle in bundles:
        after = max(watermark, int(bundle[TIME].max()) - delay)  # type: ignore[arg-type]
        sent += run(bundle, Clock(watermark, after, 0, 0))
        watermark = after
    sent += run(bundles[0].clear(), Clock(watermark, END, 0, 0))
    return time.process_time() - start, sent
