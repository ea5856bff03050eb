"""How a job is run, as its user says it: checked before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.plan.endpoints import LOST_CHOICES
from millstream.user_lines import users_line, what_exists

CAUGHT_UP = "caught up"
REAL_TIME = "real time"
BATCH_ROWS = 1_000_000
KEY_GROUPS_MAX = 512  # every key group of a step reports its watermark to every one of the next
TICK_S = 1.0
GRACE_S = 30.0

OnBatch = Callable[[int, Mapping[str, pa.Table]], None]


@dataclass(frozen=True)
class Settings:
    """How a job is run. The defaults fit one machine."""

    until: str | None = None
    batch: bool = False
    into: str | None = None
    since: Any = None
    master: str | None = None
    broker: str | None = None
    folder: Path | None = None
    batch_rows: int | None = BATCH_ROWS
    key_groups: int | None = None
    tick_s: float = TICK_S
    on_batch: OnBatch | None = None
    on_lost: str | None = None
    """What to do when records of a topic were deleted before they were read; default: as its reader says."""
    mode: str | None = None
    """"real time": each record by itself, from Kafka to Kafka; default: in micro-batches."""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of Spark, for a session that is made for the job."""
    grace_s: float = GRACE_S
    """How long Ctrl-C and SIGTERM wait for the running batch."""
    start_over: bool = False
    """The job forgets its progress and state, and its outputs are written from the start."""
    rebuild_output: str | Sequence[str] | None = None
    """Outputs that were removed: the job is replayed, and all of its outputs are written again."""
    archive: str | None = None
    """The libraries of workers, made by `millstream pack`."""

    @classmethod
    def of(cls, said: dict[str, Any]) -> Settings:
        """From what a user said."""
        known = [each.name for each in fields(cls)]
        for name in said:
            if name not in known:
                raise refused(f"there is no setting '{name}'", what_exists(name, [*known, "progress"], kind="settings"))
        return cls(**said).checked()

    @property
    def rebuilt(self) -> tuple[str, ...]:
        """The outputs to rebuild."""
        given = self.rebuild_output
        return () if given is None else (given,) if isinstance(given, str) else tuple(given)

    def checked(self) -> Settings:
        if not isinstance(self.start_over, bool):
            raise refused(f"start_over is True or False, not {self.start_over!r}", "flow.run(start_over=True)")
        if not isinstance(self.rebuild_output, str | list | tuple | None) or not all(
            isinstance(name, str) for name in self.rebuilt
        ):
            raise refused(
                f"rebuild_output is the name of an output or a list of them, not {self.rebuild_output!r}",
                "for example rebuild_output='write_totals'",
            )
        if self.until not in (None, CAUGHT_UP):
            raise refused(f"until={self.until!r} is unknown", f"until is {CAUGHT_UP!r}, or left out to run forever")
        if self.batch_rows is not None and (not isinstance(self.batch_rows, int) or self.batch_rows < 1):
            raise refused(f"batch_rows is a number of rows, not {self.batch_rows!r}", "leave it out: 1,000,000")
        if self.key_groups is not None and (
            not isinstance(self.key_groups, int) or not 1 <= self.key_groups <= KEY_GROUPS_MAX
        ):
            raise refused(f"key_groups is from 1 to {KEY_GROUPS_MAX}, not {self.key_groups!r}", "leave it out")
        if self.into is not None and (not isinstance(self.into, str) or not self.into):
            raise refused(f"into is the name of a topic, not {self.into!r}", "for example into='totals.v2'")
        if self.mode not in (None, REAL_TIME):
            raise refused(f"mode={self.mode!r} is unknown", f"mode is {REAL_TIME!r}, or left out: in micro-batches")
        if self.on_lost is not None and self.on_lost not in LOST_CHOICES:
            raise refused(f"on_lost={self.on_lost!r} is unknown", f"on_lost is {', '.join(map(repr, LOST_CHOICES))}")
        if not isinstance(self.grace_s, int | float) or self.grace_s < 0:
            raise refused(f"grace_s is a number of seconds, not {self.grace_s!r}", "for example grace_s=30")
        if self.on_batch is not None and not callable(self.on_batch):
            raise refused(f"on_batch is a function, not {self.on_batch!r}", "on_batch=lambda number, tables: …")
        for key in self.conf:
            if not key.startswith("spark."):
                raise refused(f"'{key}' is no setting of Spark", "name it in full, as in spark.executor.memory")
        return replace(self, since=instant_of(self.since))


def instant_of(said: Any) -> datetime | None:
    """A time as the user may say it: a datetime, or text in the form of ISO 8601."""
    try:
        found = datetime.fromisoformat(said) if isinstance(said, str) else said
    except ValueError:
        found = said
    if found is not None and not isinstance(found, datetime):
        raise refused(f"since={said!r} is not a time", "for example since='2026-01-01T00:00:00Z'")
    if found is not None and found.tzinfo is None:
        raise refused(f"since={said!s} has no time zone", "for example since='2026-01-01T00:00:00Z'")
    return found


def refused(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)
