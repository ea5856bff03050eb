"""Rows that steps in Spark's own engine are known to fail on, and their dead letters.

The driver finds them after a batch has failed, and sends them to the tasks of its second attempt in a local property.
A row is identified by the task that reads it and its place among the rows of that task for the part.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
from pyspark import TaskContext

from millstream.operators.elementwise import frame_of
from millstream.spark.query.task_messages import RowsOrigin
from millstream.state.arrow_bytes import from_stream, to_stream

PROPERTY = "millstream.known_failures"
PART, CAME_FROM, PLACE, STEP = "__part", "__came_from", "__place", "__step"


def place_of(origin: RowsOrigin) -> str:
    """What identifies the rows of a task that have the same origin."""
    return f"{origin.origin}/{origin.task}/{origin.source}/{origin.partition}"


class KnownFailures:
    """One row per failing row: where it comes from, the step that fails on it, and its dead letter."""

    def __init__(self, frame: pl.DataFrame | None = None) -> None:
        self._frame = frame

    @classmethod
    def of(cls, letters: Sequence[dict[str, Any]]) -> KnownFailures:
        types = {PART: pl.Int64, CAME_FROM: pl.String, PLACE: pl.Int64, STEP: pl.String}
        keys = [pl.Series(name, [letter[name] for letter in letters], kind) for name, kind in types.items()]
        return cls(frame_of(letters, None).with_columns(keys))

    def to_text(self) -> str:
        assert self._frame is not None
        return base64.b64encode(to_stream(self._frame, compressed=True)).decode()

    @classmethod
    def in_task(cls) -> KnownFailures:
        """Those that the task at hand was sent."""
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(PROPERTY)
        return cls(from_stream(base64.b64decode(text)) if text else None)

    def places(self, part: int, origin: RowsOrigin) -> list[int]:
        """The places of failing rows among those of an origin."""
        found = self._of(part, origin)
        return [] if found is None else found[PLACE].to_list()

    def dead_letters(self, part: int, origin: RowsOrigin) -> Iterator[tuple[str, pl.DataFrame]]:
        """By name of the step, the dead letters of an origin's rows."""
        found = self._of(part, origin)
        if found is None:
            return
        for (step,), letters in found.group_by(STEP, maintain_order=True):
            yield str(step), letters.drop(PART, CAME_FROM, PLACE, STEP)

    def _of(self, part: int, origin: RowsOrigin) -> pl.DataFrame | None:
        if self._frame is None:
            return None
        return self._frame.filter((pl.col(PART) == part) & (pl.col(CAME_FROM) == place_of(origin)))
