"""When a scheduled job is due: cron expressions, in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millstream.errors import InvalidInput

EXAMPLE = '"0 3 * * *" is every day at 3:00'
LOOK_AHEAD = timedelta(days=366 * 5)


@dataclass(frozen=True)
class Schedule:
    expression: str
    time_zone: str = "UTC"

    def check(self) -> None:
        """Refuses an expression that is invalid, or that no time matches."""
        self.after(datetime.now(UTC))

    def after(self, moment: datetime) -> datetime:
        """The first time after a moment, in UTC."""
        start = moment.astimezone(self._zone())
        found: datetime | None = next(self._times(start), None)
        if found is None or found - start > LOOK_AHEAD:
            raise self._never()
        return found.astimezone(UTC)

    def missed(self, after: datetime, until: datetime, at_most: int) -> list[datetime]:
        """The times after one moment up to another."""
        made: list[datetime] = []
        moment = after
        while len(made) < at_most and (moment := self.after(moment)) <= until:
            made.append(moment)
        return made

    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidInput(
                f"there is no time zone '{self.time_zone}'", next_step="such as UTC or Europe/Berlin"
            ) from error

    def _times(self, start: datetime) -> Any:
        try:
            cronsim: Any = import_module("cronsim")
        except ImportError as error:
            raise InvalidInput(
                "schedules need the package cronsim", next_step="pip install 'millstream[jobs]'"
            ) from error
        try:
            return cronsim.CronSim(self.expression, start)
        except cronsim.CronSimError as error:
            if self._has_no_date(cronsim, start):
                raise self._never() from error
            raise InvalidInput(f"'{self.expression}' is not a cron expression: {error}", next_step=EXAMPLE) from error

    def _has_no_date(self, cronsim: Any, start: datetime) -> bool:
        """Whether only the day and the month together are wrong, as in February 30."""
        minute, hour, day, month, *rest = [*self.expression.split(), "", "", "", ""]
        try:
            for parts in ((minute, hour, day, "*", *rest), (minute, hour, "*", month, *rest)):
                cronsim.CronSim(" ".join(parts).strip(), start)
        except cronsim.CronSimError:
            return False
        return True

    def _never(self) -> InvalidInput:
        return InvalidInput(
            f"the schedule '{self.expression}' never comes: no date of the next five years has its day",
            next_step=EXAMPLE,
        )
