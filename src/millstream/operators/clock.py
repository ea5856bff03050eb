"""What an operator knows of time in one step, and the frames it reads and returns."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

Frames = dict[str, pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Clock:
    """The watermark and the processing time, before and after a step."""

    watermark_before: int
    watermark: int
    now_before: int
    now: int
