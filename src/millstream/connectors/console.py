"""Prints batches. Printing cannot be undone: after a crash, a batch may be printed twice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa
from rich.console import Console as Screen
from rich.table import Table as Grid
from rich.text import Text

from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.refusals import AS_TEXT, Refuse, refusals_of, stop, unfit, without
from millstream.connectors.sink import Sink
from millstream.connectors.weights import WEIGHT, one_batch, with_weights
from millstream.records import batch_to_rows
from millstream.terminal import escaped, is_terminal

PLAIN_WIDTH = 200  # without a terminal


@dataclass(frozen=True, eq=False)
class Console(Connector):
    """Two consoles are never the same sink: several streams may be printed."""

    rows: int
    can_write: ClassVar[bool] = True
    leaves_no_trace: ClassVar[bool] = True

    def open_sink(self, writing: Writing) -> Sink:
        return ConsoleSink(self.rows, step=writing.step, ledger=writing.ledger)

    def __str__(self) -> str:
        return "console()"


def console(rows: int = 20) -> Console:
    """A sink that prints every batch, up to `rows` rows of it."""
    return Console(arguments.whole_number(rows, "rows", "for example console(rows=50)"))


class ConsoleSink(Sink):
    def __init__(self, rows_max: int, *, step: str, ledger: FileLedger) -> None:
        self._rows_max = rows_max
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

    def _show(self, batch: int, rows: pa.Table) -> None:
        screen = Screen(
            highlight=False, soft_wrap=False
        )  # created per batch: the output may have been redirected since
        if not screen.is_terminal:
            screen.width = PLAIN_WIDTH
        escapes = screen.is_terminal or is_terminal(screen.file)  # the environment can set the first

        def content(text: str, style: str = "") -> Text:
            return Text(escaped(text) if escapes else text, style=style)

        count = f"{rows.num_rows} row{'' if rows.num_rows == 1 else 's'}"
        screen.print(content(f"{self._step}, batch {batch}, {count}", "bold"))
        shown = [_readable(row) for row in batch_to_rows(one_batch(rows.slice(0, self._rows_max)))]
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


def _readable(row: dict[str, Any]) -> dict[str, str]:
    """A pane, shown by its timing and index only."""
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
