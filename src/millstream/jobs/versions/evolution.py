"""What may change in a step without losing its state: added aggregates and columns, and wider types.

State is stored with the columns it had then. Columns that were added since get a default when it is read: null, or what
an aggregate starts with. Key columns never change: rows are found by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from millstream.operators.stateful import stateful
from millstream.plan.nodes import Node, WindowedAggregate
from millstream.plan.table_nodes import Grouped

FOLD, INPUT = "fold.", ".input"
TABLE = "table "
DECIMAL = re.compile(r"Decimal\(precision=(\d+), scale=(\d+)\)")
WIDER = {
    "Int8": ("Int16", "Int32", "Int64", "Float64"),
    "Int16": ("Int32", "Int64", "Float64"),
    "Int32": ("Int64", "Float64"),
    "UInt8": ("UInt16", "UInt32", "UInt64"),
    "UInt16": ("UInt32", "UInt64"),
    "UInt32": ("UInt64",),
    "Float32": ("Float64",),
}


class Unfit(Exception):
    """A change that the state of a step does not survive; its text says which."""


def changes_of(
    node: Node, then: Mapping[str, str], now: Mapping[str, str], *, does: str, feeds_steps: bool
) -> tuple[list[str], list[str]]:
    """What is added to or widened in the state of a step, and what is dropped from it.

    `does` names the part of the description that has the step's label. `feeds_steps`: other steps with state read this
    one. Raises Unfit.
    """
    added: list[str] = []
    dropped: list[str] = []
    if does in then and then[does] != now[does]:
        added, dropped = _aggregates(node, then[does], now[does], feeds_steps=feeds_steps)
    for part in dict.fromkeys([*then, *now]):
        if part == does or then.get(part) == now.get(part):
            continue
        if not part.startswith(TABLE) or part not in then or part not in now:
            raise Unfit(f"{part} was {then.get(part, 'none')} and is {now.get(part, 'none')}")
        more, less = _columns(node, part.removeprefix(TABLE), columns_in(then[part]), columns_in(now[part]))
        added += more
        if less and not dropped:
            raise Unfit(f"its state would no longer have {', '.join(less)}")
    return added, dropped


def _aggregates(node: Node, then: str, now: str, *, feeds_steps: bool) -> tuple[list[str], list[str]]:
    """The aggregates that were added, and those that were removed."""
    redefined = Unfit(f"it was {then} and is {now}")
    if not isinstance(node, WindowedAggregate | Grouped):
        raise redefined
    given = {name: f"{name}={made}" for name, made in node.aggregates}
    rest = now.removeprefix(", ".join(given.values()))
    if not then.endswith(rest):
        raise redefined
    before = {text.partition("=")[0]: text for text in _split(then.removesuffix(rest))}
    for name in before.keys() & given.keys():
        if before[name] != given[name]:
            raise Unfit(f"the aggregate {before[name]} is {given[name]} now: give its result another name")
    if node.is_changing and feeds_steps:
        raise Unfit("its rows have other columns, and later steps keep rows of it that it may retract")
    return (
        [f"aggregate {given[name]} starts empty" for name in given if name not in before],
        [f"aggregate {before[name]}" for name in before if name not in given],
    )


def _columns(node: Node, table: str, then: Mapping[str, str], now: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The columns of a table that are new or wider, and those that are gone."""
    keys = _keys(node, table)
    is_aggregate = isinstance(node, WindowedAggregate | Grouped)
    found = []
    for column, kind in now.items():
        if column not in then:
            if is_aggregate and not column.startswith(FOLD) and not column.endswith(INPUT):
                raise Unfit(f"its state needs '{column}' of the rows so far, which it has not kept")
            if column in keys or any(given.is_changing for given in node.inputs):
                raise Unfit(f"its rows would have another column, '{column}', than those it may retract")
            if not is_aggregate:
                found.append(f"column {column} is null in earlier rows")
        elif kind != then[column]:
            if column in keys or not is_wider(then[column], kind):
                raise Unfit(f"the column '{column}' of its state was {then[column]} and is {kind}")
            found.append(f"column {column} is widened from {then[column]} to {kind}")
    gone = [column for column in then if column not in now]
    if gone and not is_aggregate:
        raise Unfit(f"its state would no longer have the column '{gone[0]}'")
    return found, gone


def _keys(node: Node, table: str) -> Sequence[str]:
    step = stateful(node, whole_rows=True)
    assert step is not None
    return [*step.keys, *step.own_keys.get(table, [])]


def is_wider(then: str, now: str) -> bool:
    """Whether every value of one type is a value of another."""
    before, after = DECIMAL.fullmatch(then), DECIMAL.fullmatch(now)
    if before and after:
        digits, scale = (int(after[part]) - int(before[part]) for part in (1, 2))
        return scale >= 0 and digits >= scale
    return now in WIDER.get(then, ())


def columns_in(text: str) -> dict[str, str]:
    """The columns of a table and their types, from their description."""
    found = {}
    for part in _split(text):
        column, _, kind = part.partition(" ")
        found[column] = kind
    return found


def _split(text: str) -> list[str]:
    """Parts between commas that are not within brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()] if text.strip() else parts
