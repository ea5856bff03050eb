"""The steps of a script are values; what can be validated without the flow is validated where a step is written."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from millstream.errors import InvalidInput
from millstream.user_lines import PACKAGE

WITH_A_ZONE = "give it one: datetime(2026, 1, 31, 12, 0, tzinfo=timezone.utc)"


def written_at() -> str | None:
    """File and line of the nearest caller outside Millstream; the `__init__` of a dataclass is code without a file."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        made = code.co_filename == "<string>" and code.co_name == "__init__"
        if not made and not code.co_filename.startswith(PACKAGE):
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


@dataclass(frozen=True)
class Step:
    """One bundle of a script; `user_line` is where the user wrote it."""

    user_line: str | None = field(default_factory=written_at, init=False, repr=False, compare=False)

    def refuse(self, what: str, next_step: str | None = None) -> InvalidInput:
        return InvalidInput(what, where=self.user_line, next_step=next_step)

    def _check_instant(self, time: object) -> None:
        name = type(self).__name__
        if not isinstance(time, datetime):
            raise self.refuse(f"{name} takes a datetime, not {time!r}", WITH_A_ZONE)
        if time.utcoffset() is None:
            raise self.refuse(f"{name} takes a time with a time zone, but {time} has none", WITH_A_ZONE)


@dataclass(frozen=True)
class Add(Step):
    """Rows arrive, in this order. `to` names the input if there are several; a weight of -1 retracts an equal row."""

    rows: Sequence[Mapping[str, Any]]
    to: str | None = None
    weights: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rows, Mapping | str | bytes) or not isinstance(self.rows, Sequence):
            raise self.refuse(f"Add takes a list of rows, not a {type(self.rows).__name__}", "write Add([{…}, {…}])")
        if self.weights is None:
            return
        if isinstance(self.weights, str | bytes) or not isinstance(self.weights, Sequence):
            raise self.refuse(f"weights must be a list, one for each row, not {self.weights!r}")
        if len(self.weights) != len(self.rows):
            raise self.refuse(f"there are {len(self.rows)} rows, but {len(self.weights)} weights", "give each row one")
        wrong = [weight for weight in self.weights if isinstance(weight, bool) or weight not in (1, -1)]
        if wrong:
            raise self.refuse(f"a weight must be 1 or -1, not {wrong[0]!r}")


@dataclass(frozen=True)
class Watermark(Step):
    """Sets the watermark; None is the end of time. Going back is ignored."""

    to: datetime | None

    def __post_init__(self) -> None:
        if self.to is not None:
            self._check_instant(self.to)


@dataclass(frozen=True)
class Clock(Step):
    """Sets the processing time; it starts at 1970. Going back is ignored."""

    to: datetime

    def __post_init__(self) -> None:
        self._check_instant(self.to)


@dataclass(frozen=True)
class Partition(Step):
    """A step of one source partition: the watermark is the minimum over all names in the script."""

    name: str
    step: Add | Watermark | Clock

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise self.refuse(f"a partition must have a name, not {self.name!r}", "write Partition('p0', Watermark(…))")
        if isinstance(self.step, Partition):
            raise self.refuse(
                f"partition '{self.name}' contains partition '{self.step.name}'", "partitions cannot be nested"
            )
        if not isinstance(self.step, Add | Watermark | Clock):
            raise self.refuse(
                f"partition '{self.name}' contains {self.step!r}", "it must contain an Add, Watermark or Clock"
            )


@dataclass(frozen=True)
class Batch(Step):
    """Several steps as one bundle, as in a batch of a job: rows arrive while the clock and the watermark move."""

    steps: Sequence[Add | Watermark | Clock | Partition]

    def __post_init__(self) -> None:
        if isinstance(self.steps, Step | str | bytes) or not isinstance(self.steps, Sequence):
            raise self.refuse(f"Batch takes a list of steps, not {self.steps!r}", "write Batch([Clock(…), Add([…])])")
        for step in self.steps:
            if not isinstance(step, Add | Watermark | Clock | Partition):
                raise self.refuse(f"a batch contains {step!r}", "it must contain Add, Watermark, Clock or Partition")
