"""A step in this process, timed: what the benchmarks of operators share."""

from __future__ import annotations

import time
from collections.abc import Sequence

import polars as pl

import millstream as ms
from millstream.local import Flowing, Local
from millstream.operators.accumulators import TIME
from millstream.operators.clock import Clock
from millstream.plan.bundles import BEGINNING, END


def timed_run(stream: ms.Stream, made: ms.Stream, bundles: Sequence[pl.DataFrame], delay: int) -> tuple[float, int]:
    """The seconds of processor time for all bundles and the end of the input, and the rows that the step sends.

    The watermark follows the newest event time with this delay, in microseconds.
    """
    runner, watermark, sent = Local([made.node]), BEGINNING, 0
    start = time.process_time()  # other work on the machine must not count
    for bundle in bundles:
        after = max(watermark, int(bundle[TIME].max()) - delay)  # type: ignore[arg-type]
        sent += len(runner.run({stream.node: Flowing(bundle, Clock(watermark, after, 0, 0))})[made.node].rows)
        watermark = after
    ended = Flowing(bundles[0].clear(), Clock(watermark, END, 0, 0))
    sent += len(runner.run({stream.node: ended})[made.node].rows)
    return time.process_time() - start, sent
