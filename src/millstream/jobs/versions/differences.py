"""Compares the results of two runs row by row: same, changed, only old, only new."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SAME, CHANGED, ONLY_OLD, ONLY_NEW = "same", "changed", "only old", "only new"
KINDS = (SAME, CHANGED, ONLY_OLD, ONLY_NEW)
ROWS_SHOWN = 1000
WINDOW = "window"
Row = dict[str, Any]


@dataclass
class Difference:
    """The rows of one output in both runs."""

    output: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    rows: list[Row] = field(default_factory=list)
    """Those that differ, up to a limit: what, key, old and new."""
    added_columns: tuple[str, ...] = ()
    removed_columns: tuple[str, ...] = ()

    def add(self, kind: str, key: Row, old: Row | None, new: Row | None) -> None:
        self.counts[kind] += 1
        if kind != SAME and len(self.rows) < ROWS_SHOWN:
            self.rows.append({"what": kind, "key": key, "old": old, "new": new})


def difference(output: str, old: Sequence[Row], new: Sequence[Row], keys: Sequence[str]) -> Difference:
    """Compares rows by the columns that both have. Rows of a key that differ are paired in their order.

    `keys` are the key columns of the output; without any, a row is the same, or only in one run.
    """
    columns = [set().union(*rows) if rows else None for rows in (old, new)]
    then, now = (columns[0] or columns[1] or set()), (columns[1] or columns[0] or set())
    made = Difference(output, added_columns=tuple(sorted(now - then)), removed_columns=tuple(sorted(then - now)))
    common = then & now
    keys = [*(key for key in keys if key in common), *([WINDOW] if WINDOW in common else [])]
    by_key: dict[str, tuple[list[Row], list[Row]]] = {}
    for side, rows in enumerate((old, new)):
        for row in rows:
            by_key.setdefault(_text(row, keys), ([], []))[side].append(row)
    for rows_then, rows_now in by_key.values():
        _compare(made, rows_then, rows_now, keys, sorted(common))
    return made


def _compare(made: Difference, then: list[Row], now: list[Row], keys: Sequence[str], common: Sequence[str]) -> None:
    same = Counter(_text(row, common) for row in then) & Counter(_text(row, common) for row in now)
    left_then, left_now = _without(then, same, common), _without(now, same, common)
    key = {name: (then or now)[0][name] for name in keys}
    for _ in range(same.total()):
        made.add(SAME, key, None, None)
    paired = min(len(left_then), len(left_now)) if keys else 0
    for old, new in zip(left_then[:paired], left_now[:paired], strict=True):
        made.add(CHANGED, key, old, new)
    for row in left_then[paired:]:
        made.add(ONLY_OLD, key, row, None)
    for row in left_now[paired:]:
        made.add(ONLY_NEW, key, None, row)


def _without(rows: Iterable[Row], same: Counter[str], common: Sequence[str]) -> list[Row]:
    left, rest = Counter(same), []
    for row in rows:
        text = _text(row, common)
        if left[text] > 0:
            left[text] -= 1
        else:
            rest.append(row)
    return rest


def _text(row: Row, columns: Sequence[str]) -> str:
    return json.dumps([row.get(column) for column in columns], default=str, sort_keys=True)
