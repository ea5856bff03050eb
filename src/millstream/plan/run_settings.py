"""Job settings: the keywords of `Flow.run`, `start` and `replay`, validated before anything starts.

A field added here is a keyword of those methods, both in their static types and in `inspect.signature`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import wraps
from os import PathLike
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, cast

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.plan.endpoints import LOST_CHOICES
from millstream.records import duration
from millstream.user_lines import AtUsersLine, users_line, what_exists

CAUGHT_UP = "caught up"
REAL_TIME = "real time"
BATCH_ROWS = 1_000_000
KEY_GROUPS_MAX = 512  # every key group reports its watermark to every key group of the next step
TICK_S = 1.0
GRACE_S = 30.0

OnBatch = Callable[[int, Mapping[str, pa.Table]], None]
ShowProgress = Literal["auto", "terminal", "lines", "json", "none"]

P = ParamSpec("P")
Owner = TypeVar("Owner")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of every job. The defaults suit one machine."""

    until: Literal["caught up"] | None = None
    """"caught up": stop once everything available at the start has been read; default: run until stopped."""
    batch: bool = False
    """Read everything available as one batch and close every window at the end."""
    into: str | None = None
    """A different topic for the results, next to the existing ones."""
    since: datetime | str | None = None
    """Read records from this time on: a datetime with a time zone, or ISO 8601 text; default: from the beginning."""
    master: str | None = None
    """The Spark master; default: MILLSTREAM_MASTER, else local[*]."""
    broker: str | PathLike[str] | None = None
    """The address of the log: a folder or kafka://host:9092; default: the flow's, else MILLSTREAM_BROKER."""
    folder: str | PathLike[str] | None = None
    """Where the job keeps its checkpoint and state; default: jobs/NAME in the log's folder."""
    batch_rows: int | None = BATCH_ROWS
    """The maximum number of rows a batch reads from each source; None: no limit."""
    key_groups: int | None = None
    """The number of parts that keys are divided into, 1 to 512; fixed by a job's first run."""
    every: str | timedelta | None = None
    """How often a batch starts, for example "10 seconds"; default: as soon as there are rows."""
    tick_s: float = TICK_S
    """How often an idle job checks the clock, in seconds."""
    on_batch: OnBatch | None = None
    """Called in the driver after each batch, with its number and its rows by output."""
    on_lost: Literal["error", "earliest", "latest"] | None = None
    """What to do if records of a topic were deleted before they were read; default: the choice made in `read`."""
    mode: Literal["real time"] | None = None
    """"real time": process records one at a time, from Kafka to Kafka; default: micro-batches."""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark settings for a session created for this job."""
    grace_s: float = GRACE_S
    """How many seconds Ctrl-C and SIGTERM wait for the running batch."""
    start_over: bool = False
    """Forget the job's progress and state, empty its outputs, and start at the beginning of the sources."""
    rebuild_output: str | Sequence[str] | None = None
    """Outputs that were removed: the job is replayed, and all of its outputs are written again."""
    archive: str | None = None
    """The workers' libraries, packed with `millstream pack`."""
    metrics: bool = True
    """Whether to keep metrics of every step, and their history."""
    provenance: bool = True
    """Whether to record what each batch read and wrote, in a topic of the job."""
    progress: ShowProgress | bool = "none"
    """How progress is shown on stderr; "auto" is a live line on a terminal and a line every ten seconds elsewhere.

    True means "auto", and False means "none".
    """
    show: bool | None = None
    """The same as `progress`, as True or False."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From the user's keywords."""
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                raise refused(f"there is no setting '{name}'", what_exists(name, known, kind="settings"))
        made = cls(**given).checked()
        return made if made.show is None else replace(made, progress=made.show)

    @property
    def rebuilt(self) -> tuple[str, ...]:
        """The outputs to rebuild."""
        given = self.rebuild_output
        return () if given is None else (given,) if isinstance(given, str) else tuple(given)

    def checked(self) -> Self:
        if not isinstance(self.start_over, bool):
            raise refused(f"start_over is True or False, not {self.start_over!r}", "flow.run(start_over=True)")
        for name in ("metrics", "provenance", *(() if self.show is None else ("show",))):
            if not isinstance(getattr(self, name), bool):
                raise refused(f"{name} is True or False, not {getattr(self, name)!r}", f"flow.run({name}=False)")
        if not isinstance(self.rebuild_output, str | list | tuple | None) or not all(
            isinstance(name, str) for name in self.rebuilt
        ):
            raise refused(
                f"rebuild_output is an output name or a list of them, not {self.rebuild_output!r}",
                "for example rebuild_output='write_totals'",
            )
        if self.until not in (None, CAUGHT_UP):
            raise refused(f"until={self.until!r} is unknown", f"until is {CAUGHT_UP!r}, or left out to run forever")
        if self.batch_rows is not None and (not isinstance(self.batch_rows, int) or self.batch_rows < 1):
            raise refused(f"batch_rows is a number of rows, not {self.batch_rows!r}", "default: 1,000,000")
        if self.key_groups is not None and (
            not isinstance(self.key_groups, int) or not 1 <= self.key_groups <= KEY_GROUPS_MAX
        ):
            raise refused(
                f"key_groups must be from 1 to {KEY_GROUPS_MAX}, not {self.key_groups!r}",
                "leave it out for the default",
            )
        if self.into is not None and (not isinstance(self.into, str) or not self.into):
            raise refused(f"into is a topic name, not {self.into!r}", "for example into='totals.v2'")
        if self.mode not in (None, REAL_TIME):
            raise refused(f"mode={self.mode!r} is unknown", f"mode is {REAL_TIME!r}, or left out for micro-batches")
        if self.on_lost is not None and self.on_lost not in LOST_CHOICES:
            raise refused(f"on_lost={self.on_lost!r} is unknown", f"on_lost is {', '.join(map(repr, LOST_CHOICES))}")
        if not isinstance(self.grace_s, int | float) or self.grace_s < 0:
            raise refused(f"grace_s is a number of seconds, not {self.grace_s!r}", "for example grace_s=30")
        if self.on_batch is not None and not callable(self.on_batch):
            raise refused(f"on_batch is a function, not {self.on_batch!r}", "on_batch=lambda number, tables: …")
        for key in self.conf:
            if not key.startswith("spark."):
                raise refused(f"'{key}' is not a Spark setting", "use its full name, for example spark.executor.memory")
        _instant(self.since)
        if self.interval is not None and (self.batch or self.until == CAUGHT_UP):
            raise refused("every is for a job that keeps running", "leave out every, or until and batch")
        return self

    @property
    def interval(self) -> timedelta | None:
        """How often a batch starts."""
        if self.every is None:
            return None
        with AtUsersLine():
            interval = duration(self.every, what="every")
        if interval < timedelta(milliseconds=1):
            raise refused("every must be at least a millisecond", "for example every='10 seconds'")
        return interval

    @property
    def since_instant(self) -> datetime | None:
        return _instant(self.since)


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """The settings of a job that is run until it ends."""

    progress: ShowProgress | bool = "auto"
    """How progress is shown on stderr; a job that is started shows none."""


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(RunSettings):
    """The settings of a replay."""

    into: str = field()
    """The topic that the replay writes to, next to the existing results."""
    follow: bool = False
    """Keep running after catching up."""


def takes(
    settings: Callable[P, Settings],
) -> Callable[[Callable[[Owner, dict[str, Any]], Result]], Callable[Concatenate[Owner, P], Result]]:
    """Gives a method the fields of a settings class as keywords. The method receives only those the caller passed."""

    def decorate(
        method: Callable[[Owner, dict[str, Any]], Result],
    ) -> Callable[Concatenate[Owner, P], Result]:
        @wraps(method)
        def keywords_only(self: Owner, **given: Any) -> Result:
            return method(self, given)

        owner, *_ = inspect.signature(method).parameters.values()
        keywords = inspect.signature(settings).parameters.values()
        returned = inspect.signature(method).return_annotation
        signature = inspect.Signature([owner, *keywords], return_annotation=returned)
        keywords_only.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Callable[Concatenate[Owner, P], Result], keywords_only)

    return decorate


def _instant(given: Any) -> datetime | None:
    """A datetime, or text in ISO 8601 format."""
    try:
        found = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        found = given
    if found is not None and not isinstance(found, datetime):
        raise refused(f"since={given!r} is not a time", "for example since='2026-01-01T00:00:00Z'")
    if found is not None and found.tzinfo is None:
        raise refused(f"since={given!s} has no time zone", "for example since='2026-01-01T00:00:00Z'")
    return found


def refused(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)
