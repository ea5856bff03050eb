"""An aggregate is two classes: its meaning in plan/aggregates, and its columns in operators/aggregates."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import millstream as ms
from millstream.operators.aggregates import approximate, on_columns, sampling
from millstream.operators.aggregates.accumulators import Accumulator, OverRows, Stretches
from millstream.plan.aggregates import basic as plan
from millstream.plan.aggregates import conditions, picks, statistics
from millstream.testing import Add, Watermark, play
from times import START

SCHEMA = "k string, v long, at timestamp"
COMBINED = ms.combine(int, lambda state, v: state + (v or 0), int.__add__, str, input="v", result="string")
EVERY: dict[str, Any] = {
    **{kind: getattr(ms, kind)("v") for kind in ("sum", "min", "max", "mean", "stddev", "first", "last")},
    **{kind: getattr(ms, kind)("v") for kind in ("collect", "distinct_count")},
    **{kind: getattr(ms, kind)("v") for kind in ("variance", "var_pop", "stddev_pop", "mode", "collect_set")},
    **{kind: getattr(ms, kind)("v > 2") for kind in ("count_if", "any", "all")},
    "max_by": ms.max_by("k", "v"),
    "min_by": ms.min_by("k", "v"),
    "percentile": ms.percentile("v", 0.9),
    "count": ms.count(),
    "top": ms.top("v", 2),
    "combine": COMBINED,
}


def add(*values: int | None) -> Add:
    rows = [{"k": "a", "v": v, "at": START + timedelta(seconds=place)} for place, v in enumerate(values)]
    return Add(rows)


def test_every_aggregate_has_its_columns() -> None:
    """Goal: what can be planned can be run, and is covered here. Method: compare the classes of both modules."""
    planned = {
        made
        for module in (plan, conditions, picks, statistics)
        for _, made in inspect.getmembers(module, inspect.isclass)
        if issubclass(made, plan.Aggregate) and hasattr(made, "kind")
    }
    elsewhere = {*approximate.COLUMNS, *sampling.COLUMNS}  # in test_approximate_semantics and test_sampling
    assert set(on_columns.COLUMNS) - elsewhere == planned
    assert {made.kind for made in planned} == set(EVERY)
    assert {type(made) for made in EVERY.values()} == planned


@pytest.mark.parametrize("kind", EVERY)
def test_a_pane_that_no_row_came_for(kind: str) -> None:
    """Goal: over no rows an aggregate is null, except a count and a list. Method: a pane that is sent at the end of its
    window, after an early one took the only row."""

    def build(rows: Any) -> Any:
        early = ms.after_watermark(early=ms.repeatedly(ms.after_count(1)))
        return rows.key_by("k").window(ms.fixed("1 minute")).trigger(early).discarding().agg(made=EVERY[kind])

    steps = [add(4), Watermark(START + timedelta(minutes=1))]
    expected = {"count": 0, "count_if": 0, "collect": [], "collect_set": []}.get(kind)
    for runner in ("reference", "local"):
        (first,), (second,) = play(build, steps, schema=SCHEMA, event_time="at", on=runner)
        assert (first["pane"]["timing"], second["pane"]["timing"]) == ("early", "on_time")
        assert second["made"] == expected


# ---------------------------------------------------------------- a new one


@dataclass(frozen=True)
class Product(plan.OfInput):
    kind = "product"

    def over(self, rows: Sequence[plan.Fed]) -> int | None:
        values = [row.values["input"] for row in rows if row.values["input"] is not None]
        return math.prod(values) if values else None


class ProductColumns(Accumulator[Product], OverRows[Product]):
    parts = ("product",)

    def _from_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"product": _product(self.value)}

    def _of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"product": self.value}

    def _running(self, over: Stretches, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        so_far = self.kept("product").fill_null(1).cum_prod()
        is_known = self.kept("product").is_not_null().cum_sum() > 0
        return {"product": over.each(pl.when(is_known).then(so_far))}

    def _merged(self, parts: pl.DataFrame) -> dict[str, pl.Expr]:
        return {"product": _product(self.kept("product"))}

    def result(self) -> pl.Expr:
        return self.kept("product")

    def _computed(self) -> pl.Expr:
        return _product(self.value)


def _product(value: pl.Expr) -> pl.Expr:
    return pl.when(value.count() > 0).then(value.product())


@pytest.mark.parametrize("mode", ["discarding", "accumulating", "retracting"])
@pytest.mark.parametrize("trigger", [ms.each(), ms.repeatedly(ms.after_count(2))], ids=str)
def test_a_new_aggregate_needs_nothing_but_its_two_classes(
    monkeypatch: pytest.MonkeyPatch, mode: str, trigger: Any
) -> None:
    """Goal: no other place knows the aggregates. Method: a product, in windows, over their retractions, as a table."""
    monkeypatch.setattr(on_columns, "COLUMNS", {**on_columns.COLUMNS, Product: ProductColumns})

    def build(rows: Any) -> Any:
        windowed = rows.key_by("k").window(ms.fixed("1 minute")).trigger(trigger)
        panes = getattr(windowed, mode)().agg(made=Product("v"))
        over = panes.window(ms.fixed("1 minute")).trigger(ms.repeatedly(ms.after_count(1)))
        return {
            "panes": panes,
            "over them": over.agg(made=Product("made")),
            "table": rows.group_by("k").agg(made=Product("v")),
        }

    steps = [add(2, None, 3), add(None), add(5, 7), Watermark(START + timedelta(minutes=1))]
    expected, found = (play(build, steps, schema=SCHEMA, event_time="at", on=on) for on in ("reference", "local"))
    assert found == expected
    assert [row["made"] for row in expected[2]["table"]][-1] == 2 * 3 * 5 * 7
    assert Product("v").result_type(pa.int64()) == pa.int64()
