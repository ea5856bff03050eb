"""HTML for notebooks: contents are escaped, nothing is loaded or run, and colours fit light and dark pages."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from millstream.records import Schema
from millstream.records.ddl import format_type
from millstream.terminal import escaped

ROWS_SHOWN = 10
CELL_LENGTH_MAX = 80
LINE = "1px solid rgba(128, 128, 128, 0.35)"
# In the elements themselves: notebooks drop style sheets of pages that they do not trust.
CELL = f"text-align: left; vertical-align: top; padding: 2px 12px 2px 0; border: 0; border-bottom: {LINE}"
FAINT = "opacity: 0.7"


def page(title: str, parts: Iterable[str]) -> str:
    """A block with a title."""
    head = f'<div style="font-weight: 600; margin-bottom: 6px">{text(title)}</div>'
    return f'<div style="font-size: 13px; line-height: 1.5">{head}{"".join(parts)}</div>'


def text(content: str) -> str:
    return escape(escaped(content))


def drawing(svg: str) -> str:
    """A picture as an image: its styles stay inside it, and it has a background of its own."""
    packed = base64.b64encode(svg.encode()).decode()
    style = "max-width: 100%; max-height: 640px; border-radius: 6px"
    return f'<div><img alt="the plan" style="{style}" src="data:image/svg+xml;base64,{packed}"/></div>'


def folded(title: str, content: str, *, is_open: bool = False) -> str:
    """Content that a click shows."""
    opened = " open" if is_open else ""
    return f'<details{opened}><summary style="cursor: pointer">{text(title)}</summary>{content}</details>'


def note(content: str) -> str:
    return f'<div style="{FAINT}">{text(content)}</div>'


def schema_table(schema: Schema, title: str = "columns") -> str:
    rows = [{"column": field.name, "type": format_type(field.type)} for field in schema.arrow]
    return folded(f"{title}: {', '.join(schema.names)}", _table(["column", "type"], rows))


def rows_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """The last rows, with their number if there are more."""
    last = rows[-ROWS_SHOWN:]
    of = f", the last {len(last)} of {len(rows):,}" if len(last) < len(rows) else ""
    if not rows:
        return note(f"{title}: none")
    return f'<div style="margin-top: 6px; {FAINT}">{text(title + of)}</div>{_table(columns, last)}'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, side by side."""
    cells = [
        f'<span style="display: inline-block; margin-right: 24px"><span style="{FAINT}">{text(name)}</span> '
        f"<b>{text(value)}</b></span>"
        for name, value in pairs
    ]
    return f"<div>{''.join(cells)}</div>"


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    head = "".join(f'<th style="{CELL}; font-weight: 600">{text(str(column))}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{text(shown(row.get(column)))}</td>' for column in columns) + "</tr>"
        for row in rows
    )
    table = f'<table style="border-collapse: collapse; margin: 4px 0"><tr>{head}</tr>{body}</table>'
    return f'<div style="overflow-x: auto">{table}</div>'


def shown(value: Any) -> str:
    """A value in a cell: short, windows and panes as people write them."""
    found = _shown(value)
    return found if len(found) <= CELL_LENGTH_MAX else found[: CELL_LENGTH_MAX - 1] + "…"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)).isoformat(" ")
    if isinstance(value, Mapping):
        if value.keys() == {"start", "end"}:
            return f"{_shown(value['start'])} to {_shown(value['end'])}"
        if {"timing", "index"} <= value.keys():
            return f"{str(value['timing']).replace('_', ' ')}, {value['index']}"
        return ", ".join(f"{name}: {_shown(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value[:CELL_LENGTH_MAX]))}]"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
