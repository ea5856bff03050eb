"""Rows as an aligned table of text, for printing and for differences."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from millstream.terminal import escaped, is_terminal
from millstream.testing.times import ShortTimes, times_in

Fields = dict[str, Any]
MICROSECOND = timedelta(microseconds=1)


def print_panes(out: Sequence[Any]) -> None:
    """Prints the result of `play`, or one step of it, as a table: one line per row, steps numbered as in `out[i]`."""
    lines = [_with_short_pane(place, row) for place, row in _rows(out)]
    if all(_is_end_of_window(row) for _, row in _rows(out)):
        lines = [{name: value for name, value in line.items() if name != "event_time"} for line in lines]
    if all(line.get("weight") == 1 for line in lines):
        lines = [{name: value for name, value in line.items() if name != "weight"} for line in lines]
    print("\n".join(aligned(lines, escapes=is_terminal(sys.stdout))) if lines else "nothing was sent")


def _rows(out: Sequence[Any]) -> Iterable[tuple[Fields, Fields]]:
    """Each row and where it was found: its step, and its stream if several are observed."""
    if not all(isinstance(step, list) or _is_step_of_several(step) for step in out):
        yield from (({}, row) for row in out)
        return
    for number, step in enumerate(out):
        streams = {None: step} if isinstance(step, list) else step
        for stream, rows in streams.items():
            place = {"step": number} | ({} if stream is None else {"stream": stream})
            yield from ((place, row) for row in rows)


def _is_step_of_several(step: Any) -> bool:
    return isinstance(step, Mapping) and all(
        isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows) for rows in step.values()
    )


def _with_short_pane(place: Fields, row: Fields) -> Fields:
    """A pane is shown by its timing and index alone."""
    shown = dict(place)
    for name, value in row.items():
        shown[name] = f"{value['timing']} {value['index']}" if name == "pane" and is_pane(value) else value
    return shown


def _is_end_of_window(row: Fields) -> bool:
    """Whether the row's event time follows from its window."""
    window, time = row.get("window"), row.get("event_time")
    if window is None or not is_span(window) or "event_time" not in row:
        return False
    return time is None if window["end"] is None else time == window["end"] - MICROSECOND


# ---------------------------------------------------------------- lines of text


def aligned(rows: Sequence[Fields], *, times: ShortTimes | None = None, escapes: bool = True) -> list[str]:
    """A heading and a line for each row, in columns; a field that a row lacks is left empty.

    In a pipe, contents may be unchanged; `escapes` protects a terminal, and keeps each on one line.
    """
    times = times or ShortTimes(times_in(list(rows)))
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([written(row[name], times) if name in row else "" for name in names] for row in rows)]
    if escapes:
        lines = [list(map(escaped, line)) for line in lines]
    widths = [max(len(line[place]) for line in lines) for place in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def written(value: Any, times: ShortTimes) -> str:
    if isinstance(value, datetime):
        return times.show(value) if value.utcoffset() is not None else str(value)
    if is_span(value):
        return times.span(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {written(part, times)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(written(part, times) for part in value) + "]"
    return "null" if value is None else str(value)


def is_span(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"start", "end"}


def is_pane(value: Any) -> bool:
    return isinstance(value, Mapping) and {"timing", "index"} <= set(value)
