"""Batches printed for people. What was printed cannot be taken back: a batch may be printed twice after a kill."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
from rich.console import Console as Screen
from rich.table import Table as Grid
from rich.text import Text

from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.refusals import AS_TEXT, Refuse, refusals_of, stop, unfit, without
from millstream.connectors.weights import WEIGHT, one_batch, with_weights
from millstream.plan.endpoints import Console
from millstream.records import batch_to_rows
from millstream.terminal import escaped, is_terminal

PLAIN_WIDTH = 200  # where there is no screen whose width counts


class ConsoleSink:
    def __init__(self, place: Console, *, step: str, ledger: FileLedger) -> None:
        self._rows_max = place.rows
        self._step = step
        self._ledger = ledger

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if self._ledger.has(batch):
            return
        refused = unfit(rows, AS_TEXT)
        refuse(refusals_of(refused))
        shown = without(with_weights(rows, weights), refused)
        if shown.num_rows:
            self._show(batch, shown)
        self._ledger.record(batch)

    def close(self) -> None:
        """Nothing is held open."""

    def _show(self, batch: int, rows: pa.Table) -> None:
        screen = Screen(highlight=False, soft_wrap=False)  # made now: who has redirected the output meanwhile is heard
        if not screen.is_terminal:
            screen.width = PLAIN_WIDTH
        escapes = screen.is_terminal or is_terminal(screen.file)  # of which the first can be set by the environment

        def content(text: str, style: str = "") -> Text:
            return Text(escaped(text) if escapes else text, style=style)

        count = f"{rows.num_rows} row{'' if rows.num_rows == 1 else 's'}"
        screen.print(content(f"{self._step}, batch {batch}, {count}", "bold"))
        shown = [_for_people(row) for row in batch_to_rows(one_batch(rows.slice(0, self._rows_max)))]
        if all(row.get(WEIGHT) == "1" for row in shown):
            shown = [{name: text for name, text in row.items() if name != WEIGHT} for row in shown]
        grid = Grid(box=None, pad_edge=False, header_style="dim")
        for name in shown[0]:
            grid.add_column(content(name))
        for row in shown:
            taken_back = row.get(WEIGHT, "1").startswith("-")
            grid.add_row(*map(content, row.values()), style="red" if taken_back else "")
        screen.print(grid)
        if rows.num_rows > self._rows_max:
            screen.print(Text(f"… and {rows.num_rows - self._rows_max} more", style="dim"))


def _for_people(row: dict[str, Any]) -> dict[str, str]:
    """A pane told by its timing and index alone."""
    return {
        name: f"{value['timing']} {value['index']}"
        if name == "pane" and isinstance(value, dict) and {"timing", "index"} <= value.keys()
        else _written(value)
        for name, value in row.items()
    }


def _written(value: Any) -> str:
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, dict) and set(value) == {"start", "end"}:
        return f"{_written(value['start'])} to {_written(value['end'])}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_written(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return "null" if value is None else str(value)
