"""Upcasters turn the data of events recorded by older versions of the application into the current format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from millstream.errors import InvalidInput, UpcastFailed
from millstream.events.layout import Row

Change = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Upcaster:
    """Turns the data of one type of event from a format into the next."""

    type: str
    from_format: int
    change: Change


def upcaster(type: str, from_format: int = 1) -> Callable[[Change], Upcaster]:
    """Makes a function of an event's data an upcaster: from a format to the next, the first of which is 1.

    New events of this type are recorded in the format after the last upcaster's.
    """

    def mark(change: Change) -> Upcaster:
        return Upcaster(type, from_format, change)

    return mark


class Upcasters:
    """All upcasters of a store, by type; the formats of each type are consecutive."""

    def __init__(self, given: Iterable[Upcaster]) -> None:
        self._steps: dict[str, dict[int, Change]] = {}
        for each in given:
            if not isinstance(each, Upcaster):
                raise InvalidInput(
                    f"{each!r} is not an upcaster", next_step='mark the function: @ms.upcaster("ItemAdded")'
                )
            steps = self._steps.setdefault(each.type, {})
            if each.from_format in steps:
                raise InvalidInput(f"two upcasters of '{each.type}' begin with format {each.from_format}")
            steps[each.from_format] = each.change
        for name, steps in self._steps.items():
            if set(steps) != set(range(1, len(steps) + 1)):
                raise InvalidInput(
                    f"the upcasters of '{name}' begin with the formats {sorted(steps)}",
                    next_step="formats count from 1, without gaps: keep the upcasters of all older formats",
                )

    def current_format(self, type: str) -> int:
        return 1 + len(self._steps.get(type, ()))

    def apply(self, row: Row, position: int, data: dict[str, Any]) -> dict[str, Any]:
        steps = self._steps.get(row.type)
        if steps is None:
            return data
        for number in range(row.format, len(steps) + 1):
            where = f"stream '{row.stream}', version {row.version}, position {position}"
            try:
                data = steps[number](data)
            except Exception as error:
                raise UpcastFailed(
                    f"the upcaster of '{row.type}' from format {number} failed: {error!r}",
                    where=where,
                    next_step="fix the upcaster: the event is stored unchanged",
                ) from error
            if not isinstance(data, dict):
                raise UpcastFailed(
                    f"the upcaster of '{row.type}' from format {number} returned {data!r:.100}, not a dict",
                    where=where,
                    next_step="return the data in the next format",
                )
        return data
