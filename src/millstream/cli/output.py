"""Output is a table on a terminal, aligned plain text in a pipe, or one JSON document.

Names and values come from logs, jobs and brokers: they are escaped on a terminal, and unchanged in a pipe.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from millstream.cli.session import Session
from millstream.errors import InvalidInput
from millstream.terminal import escaped, is_terminal, shown, shown_lines, write_line

Cell = str | int | None


def show_table(
    session: Session, titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, document: Any, empty: str
) -> None:
    if session.json:
        show_document(document)
    elif not rows:
        show_note(empty)
    elif is_terminal(sys.stdout):
        _rich_table(titles, rows)
    else:
        _plain(
            [[title.upper().replace(" ", "_") for title in titles], *[[_text(cell) for cell in row] for row in rows]]
        )


def show_details(session: Session, details: Mapping[str, Cell], *, document: Any) -> None:
    """One thing, one line per property; `document` is what --json prints."""
    if session.json:
        show_document(document)
        return
    width = max(map(len, details)) + 2
    for name, value in details.items():
        text = _text(value, thousands=is_terminal(sys.stdout))
        write_line(f"{name + ':':<{width}}{shown(text, sys.stdout)}")


def show_document(document: Any) -> None:
    indent = 2 if is_terminal(sys.stdout) else None
    text = json.dumps(document, ensure_ascii=False, indent=indent, default=str)
    write_line(shown_lines(text, sys.stdout))


def show_done(session: Session, *lines: str, document: Any) -> None:
    """Reports success on stderr, so that stdout has only data."""
    if session.json:
        show_document(document)
    else:
        for line in lines:
            show_note(line)


def show_text(text: str) -> None:
    """A text of several lines."""
    write_line(shown_lines(text.removesuffix("\n"), sys.stdout))


def show_note(text: str) -> None:
    """A line for a human reader, on stderr."""
    write_line(shown(text, sys.stderr), err=True)


def ask(question: str, *, yes: bool) -> None:
    """Continues only after a yes; without a terminal, only with --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"there is no terminal to ask: {question}", next_step="add --yes to confirm")
    if not typer.confirm(escaped(question), err=True):
        raise typer.Abort


def size_text(size_bytes: int | None) -> str | None:
    from rich.filesize import decimal

    return None if size_bytes is None else decimal(size_bytes)


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _text(cell: Cell, *, thousands: bool = False) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if thousands and isinstance(cell, int) else str(cell)


def _plain(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for title, column in zip(titles, zip(*rows, strict=True), strict=True):
        numbers = all(isinstance(cell, int | None) for cell in column)
        table.add_column(title, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(escaped(_text(cell, thousands=True))) for cell in row])
    Console().print(table)
