"""Tables of one stream: values of every kind, late rows, and what is held."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local
from millstream.plan.time.bundles import BEGINNING, Bundle, Row
from millstream.reference import Reference

from .table_scripts import FEWER, counted

# ---------------------------------------------------------------- values of every kind

KINDS: dict[str, tuple[str, list[Any]]] = {
    "double": ("double", [1.5, -2.0, float("nan"), float("inf"), None]),
    "decimal": ("decimal(9,2)", [Decimal("1.10"), Decimal("-3.00"), None]),
    "text": ("string", ["", "a", "ä", "\U0001f600", "\uffee", None]),
    "binary": ("binary", [b"", b"a", b"\xff", None]),
    "struct": (
        "struct<x: int, y: array<double>>",
        [{"x": None, "y": [1.0]}, {"x": 1, "y": None}, {"x": 1, "y": []}, None],
    ),
    "list": ("array<int>", [[1, None], [1], [None], [], [1, 2], None]),
    "map": ("map<string, int>", [{"a": 1}, {"b": None}, {"a": 1, "b": 2}, {}, None]),
}
OVER_KINDS: dict[str, Callable[[Any], Any]] = {
    "latest": lambda s: s.to_table(key="k"),
    "distinct": lambda s: s.distinct("k"),
    "top": lambda s: s.top(2, by="k", rank="place"),
    "ties": lambda s: s.top(2, by="k", rank="place", ties=True),
}


@FEWER
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(OVER_KINDS)), st.data())
def test_rows_with_values_of_every_kind(kind: str, operator: str, data: st.DataObject) -> None:
    """Rows are compared and ordered by columns of any type alike in both runners."""
    text, choices = KINDS[kind]
    changes = operator != "latest"
    stream = ms.Flow("kinds").read("rows", f"k int, value {text}, at timestamp", "at", changes=changes)
    made = OVER_KINDS[operator](stream)
    local, reference = Local([made.node]), Reference([made.node])
    present: list[dict[str, Any]] = []
    for _ in range(3):
        rows = []
        for value in data.draw(st.lists(st.sampled_from(choices), max_size=4)):
            present.append({"k": data.draw(st.integers(1, 2)), "value": value, "at": None})
            rows.append(Row(present[-1], len(present)))
        goes: bool = data.draw(st.booleans())
        if changes and present and goes:
            rows.append(Row(present.pop(0), 0, -1))
        bundle = Bundle(rows, BEGINNING, BEGINNING, 0, 0)
        here, there = local.step({stream.node: bundle}), reference.step({stream.node: bundle})
        assert counted(here[made.node].rows) == counted(there[made.node].rows)


# ---------------------------------------------------------------- late rows of columns that are called like ours

SPAN = ("0 seconds", "1 hour")
LATE_OF: dict[str, Callable[[Any, Any, Any], Any]] = {
    "latest": lambda one, two, on: one.to_table(key=on),
    "distinct": lambda one, two, on: one.distinct(*on, within="1 day"),
    "lookup": lambda one, two, on: one.join(two.to_table(key=on), on=on, how="left", as_of="event_time"),
    "semi": lambda one, two, on: one.join(two.to_table(key=on), on=on, how="semi", as_of="event_time"),
    "interval": lambda one, two, on: one.join(two, on=on, within=SPAN),
    "window": lambda one, two, on: one.window(ms.fixed("1 second")).join(two, on=on),
}


@pytest.mark.parametrize("on", [("k",), ("side",), ("reason",), ("side", "reason")])
@pytest.mark.parametrize("kind", LATE_OF)
def test_fields_of_a_late_row_replace_columns_of_the_same_name(kind: str, on: tuple[str, ...]) -> None:
    reason, given = ("string", "mine") if "reason" in on else ("array<int>", [1])
    flow = ms.Flow("late")
    one, two = (flow.read(name, f"side string, k int, reason {reason}, at timestamp", "at") for name in ("one", "two"))
    made = LATE_OF[kind](one, two, on)
    late = made.late.node
    both = [] if kind in ("latest", "distinct") else [name for name in one.schema.names if name not in on]
    said = {"latest": [], "distinct": [], "window": ["side", "window"]}.get(kind, ["side"])
    own = [name for name in one.schema.names if name not in (*said, "reason")]
    names = [*own, *(f"{name}_right" for name in both), *said, "reason"]
    assert list(late.schema.names) == names
    came = [Row({"side": "mine", "k": 1, "reason": given, "at": None}, time) for time in (9, None, 1)]
    runners = Local([late]), Reference([late])
    for number, (rows, before, after) in enumerate([(came[:1], 0, 5_000_000), (came[1:], 5_000_000, 5_000_000)]):
        bundle = Bundle(rows, before, after, 0, 0)
        here, there = (runner.step({one.node: bundle, two.node: bundle})[late].rows for runner in runners)
        assert counted(here) == counted(there)
        ours = [row.values for row in here if row.values.get("side") != "right"]
        assert sorted(row["reason"] for row in ours) == (["expired", "no event time"] if number else [])
        assert all(row["k"] == 1 for row in ours)
        assert all(row["side"] == ("left" if "side" in said else "mine") for row in ours)


@pytest.mark.parametrize("kinds", [("latest", "distinct"), ("lookup", "semi"), ("lookup", "interval")])
def test_late_rows_of_several_steps_as_one_stream(kinds: tuple[str, str]) -> None:
    """Each step gives the columns in the same order, whatever those of the user are called."""
    flow = ms.Flow("late")
    one, two = (flow.read(name, "reason array<int>, side string, k int, at timestamp", "at") for name in ("one", "two"))
    first, second = (LATE_OF[kind](one, two, ("k",)).late for kind in kinds)
    node = first.union(second).node
    rows = [Row({"reason": [1], "side": "mine", "k": 1, "at": None}, None)]
    bundle = Bundle(rows, 0, 0, 0, 0)
    for runner in (Local([node]), Reference([node])):
        sent = runner.step({one.node: bundle, two.node: bundle})[node].rows
        late = 3 if "interval" in kinds else 2  # there the other side's row is late too
        assert [row.values["reason"] for row in sent] == ["no event time"] * late
