"""Why a pane is what it is: its rows, the trigger that fired, and the pane that it replaced."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from millstream.errors import InvalidInput, NotFound
from millstream.plan.nodes import Mode, WindowedAggregate
from millstream.plan.time.bundles import BEGINNING, END, moment
from millstream.provenance.history import History
from millstream.provenance.replaying import Replay
from millstream.provenance.watermark_moves import moves_over
from millstream.provenance.windows import Arrived, KeyHistory, SentPane
from millstream.user_lines import what_exists

WINDOW, INDEX, KEY = "window", "index", "key"
SHOWN_WINDOWS = 5


class PaneQuestion:
    """A pane by key, start of its window, and perhaps its index; by default the newest of the window."""

    def __init__(self, step: WindowedAggregate, asked: Mapping[str, Any]) -> None:
        rest = dict(asked)
        if WINDOW not in rest and step.window.has_end and str(step.window) != "everything()":
            raise InvalidInput("a pane has a window", next_step="window=START, such as window=2026-01-31T12:00:00Z")
        self.start, self.end = _span(rest.pop(WINDOW, None))
        self.index = _index(rest.pop(INDEX, None))
        if len(step.keys) == 1 and KEY in rest and KEY not in step.keys:
            rest = {step.keys[0]: rest.pop(KEY), **rest}
        for name in rest:
            if name not in step.keys:
                raise InvalidInput(
                    f"'{name}' is not a key of '{step.name}'", next_step=what_exists(name, list(step.keys), kind="keys")
                )
        missing = [name for name in step.keys if name not in rest]
        if missing:
            raise InvalidInput(f"the pane has no '{missing[0]}'", next_step=f"give each key: {', '.join(step.keys)}")
        self.key = {name: _key_value(step, name, rest[name]) for name in step.keys}

    def chosen(self, panes: list[SentPane]) -> SentPane | None:
        """The pane that is meant: the newest that fits."""
        return next((pane for pane in reversed(panes) if self.fits(pane)), None)

    def fits(self, pane: SentPane) -> bool:
        window = pane.values[WINDOW]
        if self.start is not None and window["start"] != self.start:
            return False
        if self.end is not None and window["end"] != self.end:
            return False
        return self.index is None or pane.values["pane"]["index"] == self.index


def why_pane(history: History, asked: Mapping[str, Any], step: str | None = None) -> dict[str, Any]:
    """The rows that made a pane, the trigger that fired and why, and the pane it replaced."""
    node = history.windowed_step(step)
    question = PaneQuestion(node, asked)
    replay, found, pane = answered_pane(history, node, question)
    before = replaced(node, found, pane)
    fired = pane.fired
    answer: dict[str, Any] = {
        "job": history.job,
        "step": node.name,
        "key": question.key,
        "window": pane.values[WINDOW],
        "pane": pane.values,
        "batch": pane.moment.batch.number,
        "clock": moment(pane.moment.clock),
        "watermark": {"before": _time(fired.instant.watermark_before), "after": _time(fired.instant.watermark)},
        "trigger": str(node.trigger),
        "fired": [reason.document() for reason in fired.reasons],
        "moved_by": _moved_by(node, pane, replay),
        "rows": [_row(found.arrived[number], is_new=number in fired.new) for number in fired.rows],
        "replaced": None if before is None else _replaced(before, pane),
        "notes": history.notes(replay, node),
    }
    return answer


def answered_pane(
    history: History, node: WindowedAggregate, question: PaneQuestion
) -> tuple[Replay, KeyHistory, SentPane]:
    replay = history.replay([node.inputs[0]])
    found = KeyHistory(node, question.key, replay)
    pane = question.chosen(found.panes)
    if pane is None:
        raise _not_found(history, found, question)
    return replay, found, pane


def replaced(node: WindowedAggregate, found: KeyHistory, pane: SentPane) -> SentPane | None:
    """The newest pane before it with one of its rows: of the same window, or of a session that became part of it."""
    if node.mode is Mode.DISCARDING:
        return None
    earlier = found.panes[: found.panes.index(pane)]
    same = [each for each in earlier if each.values[WINDOW] == pane.values[WINDOW]]
    if same or not node.window.merges:
        return same[-1] if same else None
    own = set(pane.fired.rows)
    return next((each for each in reversed(earlier) if own.intersection(each.fired.rows)), None)


def _replaced(before: SentPane, pane: SentPane) -> dict[str, Any]:
    changed = {
        name: {"before": before.values[name], "after": value}
        for name, value in pane.values.items()
        if before.values[name] != value
    }
    return {"pane": before.values, "batch": before.moment.batch.number, "changed": changed}


def _row(row: Arrived, *, is_new: bool) -> dict[str, Any]:
    """A row with its origin; without one, it is a result of an earlier step."""
    origin = {} if row.origin is None else row.origin.document()
    weight = {} if row.weight == 1 else {"weight": row.weight}
    return {**origin, **weight, "batch": row.batch, "new": is_new, "row": row.values}


def _moved_by(node: WindowedAggregate, pane: SentPane, replay: Replay) -> dict[str, Any] | None:
    """What brought the watermark over the end of the window, if that was in the batch of the pane."""
    instant = pane.fired.instant
    end = instant.window_end
    in_processing_time = getattr(node.window, "time", "event") == "processing"
    if end is None or in_processing_time or not instant.watermark_before < end <= instant.watermark:
        return None
    return moves_over(end, pane.moment, replay)


def _not_found(history: History, found: KeyHistory, question: PaneQuestion) -> NotFound:
    key = ", ".join(f"{name}={value!r}" for name, value in question.key.items()) or "this flow"
    if not found.arrived:
        return NotFound(
            f"no row with {key} reached '{found.step.name}' in the recorded batches",
            next_step="check the key; rows may also be filtered out by a step before",
        )
    known = list(dict.fromkeys(str(pane.values[WINDOW]["start"]) for pane in found.panes))
    late = f"; {len(found.late)} of its rows were late" if found.late else ""
    if not known:
        return NotFound(
            f"{len(found.arrived)} rows with {key} reached '{found.step.name}', but no pane was sent yet{late}",
            next_step="the watermark may not have reached the end of the window: see millstream jobs list",
        )
    return NotFound(
        f"'{found.step.name}' sent no such pane for {key} in batches {history.batches[0].number} to "
        f"{history.batches[-1].number}{late}",
        next_step=f"windows with panes start at {', '.join(known[-SHOWN_WINDOWS:])}",
    )


# ---------------------------------------------------------------- the question


def _span(given: Any) -> tuple[datetime | None, datetime | None]:
    if given is None:
        return None, None
    if isinstance(given, str):
        start, _, end = given.partition("/")
        return _instant(start), _instant(end) if end else None
    if isinstance(given, Mapping):
        return given.get("start"), given.get("end")
    return (given[0], given[1]) if isinstance(given, tuple | list) else (_instant(given), None)


def _instant(given: Any) -> datetime:
    try:
        found = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise InvalidInput(f"{given!r} is not a time", next_step="such as 2026-01-31T12:00:00Z") from None
    if found.utcoffset() is None:
        raise InvalidInput(f"the time {given} has no time zone", next_step=f"such as {found.isoformat()}Z")
    return found


def _index(given: Any) -> int | None:
    if given is None:
        return None
    try:
        return int(given)
    except (TypeError, ValueError):
        raise InvalidInput(f"{given!r} is not the index of a pane", next_step="a number from 0") from None


def _key_value(step: WindowedAggregate, name: str, given: Any) -> Any:
    """A value of a key; a text is read as the type of the column."""
    kind = step.inputs[0].schema.field(name).type
    if not isinstance(given, str) or pa.types.is_string(kind):
        return given
    try:
        return pa.scalar(given).cast(kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInput(f"{given!r} is not a {kind}, which '{name}' is", next_step="give another value") from None


def _time(micros: int) -> datetime | None:
    """A watermark; None: the beginning, or the end, of time."""
    return None if micros in (BEGINNING, END) else moment(micros)
