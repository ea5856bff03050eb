"""An aggregate as columns: what it keeps per window, how rows and kept values fold into that, and the result.

Most fold: a few numbers stand for all rows. Those that cannot (collect, top …, and every one that may have to take a
row back but cannot subtract) are computed from the rows themselves, which are then kept as a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import polars as pl

from millstream.operators.sums import ExactSum, exact
from millstream.plan.aggregates import Aggregate

TIME, WEIGHT, ORDER = "__time", "__weight", "__order"
ROW, NUMBER = "__row", "number"
"""The whole row as it came, and the number of a window that rows open and close."""
ELEMENTS = "elements"
NEEDS_ELEMENTS = {"collect", "top", "distinct_count", "combine"}
CANNOT_SUBTRACT = {"min", "max", "first", "last", "mean", "stddev"}
PARTS: Mapping[str, tuple[str, ...]] = {
    "count": ("count",),
    **dict.fromkeys(("sum", "mean"), ("sum", "known")),
    **dict.fromkeys(("min", "max"), ("value",)),
    "stddev": ("mean", "squares", "known"),
    **dict.fromkeys(("first", "last"), ("value", "time", "order")),
}
"""By kind of aggregate, the columns that are kept; a sum that is exact has its carry beside it."""


class Stretches:
    """Rows that stand one stretch after the other, in a frame that has the number of each row's stretch and the place
    of its first row."""

    NUMBER, FIRST = "__stretch", "__first"

    def sum(self, value: pl.Expr, *, exact: bool = True) -> pl.Expr:
        """The sum so far; one that is exact can be had by subtracting, which takes a fraction of the time."""
        if not exact:
            return self.each(value.cum_sum())
        so_far = value.cum_sum()
        return so_far - (so_far - value).gather(pl.col(self.FIRST))

    def each(self, value: pl.Expr) -> pl.Expr:
        return value.over(self.NUMBER)


class Accumulator:
    """Folds; `name` sets its columns apart."""

    counts_back = False
    """Whether a value that was retracted counts as if it had never come."""

    def __init__(self, name: str, aggregate: Aggregate, given: pl.Schema, *, changing: bool) -> None:
        self.changing = changing
        self.name = name
        self.aggregate = aggregate
        self.kind = aggregate.kind
        self.input = f"{name}.input"
        self.value = pl.col(self.input)
        self.exact: ExactSum | None = None
        if self.kind == "sum" or (self.kind == "mean" and changing):
            numbers = exact(given[self.input])
            if numbers is not None:
                weight = WEIGHT if changing else None
                self.exact = ExactSum(numbers, self.column("sum"), self.column("carry"), weight)
            else:
                self.value = self.value.cast(pl.Float64)

    def kept(self, part: str) -> pl.Expr:
        return pl.col(self.column(part))

    def column(self, part: str) -> str:
        return f"fold.{self.name}.{part}"

    @property
    def columns(self) -> list[str]:
        return [self.column(part) for part in self._parts()]

    def _parts(self) -> tuple[str, ...]:
        if self.exact is not None:
            return ("sum", "carry", "known")
        return PARTS[self.kind]

    def _named(self, made: dict[str, pl.Expr]) -> list[pl.Expr]:
        return [made[part].alias(self.column(part)) for part in self._parts()]

    def from_rows(self, rows: pl.DataFrame) -> list[pl.Expr]:
        """Aggregates over rows, of which there are these."""
        value, weight = self.value, pl.col(WEIGHT)
        known = value.is_not_null()
        made: dict[str, pl.Expr]
        if self.kind == "count":
            made = {"count": weight.cast(pl.Int64).sum() if self.changing else pl.len().cast(pl.Int64)}
        elif self.exact is not None:
            total, carry = self.exact.from_rows(self.input, rows, pl.Expr.sum)
            made = {"sum": total, "carry": carry, "known": self._known()}
        elif self.kind == "sum":
            made = {"sum": value.sum(), "known": self._known()}
        elif self.kind in ("min", "max"):
            made = {"value": getattr(value, self.kind)()}
        elif self.kind == "mean":
            made = {"sum": value.cast(pl.Float64).sum(), "known": known.cast(pl.Int64).sum()}
        elif self.kind == "stddev":
            number = value.cast(pl.Float64)
            made = {
                "mean": number.mean(),
                "squares": number.var() * (known.cast(pl.Int64).sum() - 1),
                "known": known.cast(pl.Int64).sum(),
            }
        else:  # first, last
            at = [pl.col(TIME).filter(known), pl.col(ORDER).filter(known)]
            pick = value.filter(known).sort_by(at)
            end = "first" if self.kind == "first" else "last"
            made = {
                "value": getattr(pick, end)(),
                "time": getattr(pl.col(TIME).filter(known).sort_by(at), end)(),
                "order": getattr(pl.col(ORDER).filter(known).sort_by(at), end)(),
            }
        return self._named(made)

    def _known(self) -> pl.Expr:
        if self.changing and self.counts_back:
            return pl.when(self.value.is_not_null()).then(pl.col(WEIGHT)).otherwise(0).cast(pl.Int64).sum()
        return self.value.count().cast(pl.Int64)

    def of_rows(self, rows: pl.DataFrame) -> list[pl.Expr]:
        """What would be kept of each row, if it were alone."""
        value, weight = self.value, pl.col(WEIGHT)
        known = value.is_not_null().cast(pl.Int64)
        made: dict[str, pl.Expr]
        if self.kind == "count":
            made = {"count": weight.cast(pl.Int64) if self.changing else pl.repeat(1, pl.len(), dtype=pl.Int64)}
        elif self.exact is not None:
            total, carry = self.exact.from_rows(self.input, rows, lambda number: number.fill_null(0))
            made = {"sum": total, "carry": carry, "known": known}
        elif self.kind == "sum":
            made = {"sum": value.fill_null(0.0), "known": known}
        elif self.kind in ("min", "max"):
            made = {"value": value}
        elif self.kind == "mean":
            made = {"sum": value.cast(pl.Float64).fill_null(0.0), "known": known}
        elif self.kind == "stddev":
            spread = pl.when(value.is_not_null()).then(0.0)
            made = {"mean": value.cast(pl.Float64), "squares": spread, "known": known}
        else:  # first, last
            is_known = value.is_not_null()
            times = {"time": pl.col(TIME), "order": pl.col(ORDER)}
            made = {"value": value, **{part: pl.when(is_known).then(made_) for part, made_ in times.items()}}
        return self._named(made)

    def running(self, over: Stretches, parts: pl.DataFrame) -> list[pl.Expr]:
        """What was kept of all rows of a stretch so far, of what would be kept of each."""
        made: dict[str, pl.Expr]
        if self.kind == "count":
            made = {"count": over.sum(self.kept("count"))}
        elif self.exact is not None:
            total, carry = self.exact.merged(parts, over.sum)
            made = {"sum": total, "carry": carry, "known": over.sum(self.kept("known"))}
        elif self.kind in ("sum", "mean"):
            made = {"sum": over.sum(self.kept("sum"), exact=False), "known": over.sum(self.kept("known"))}
        elif self.kind in ("min", "max"):
            so_far = self.kept("value").cum_min() if self.kind == "min" else self.kept("value").cum_max()
            made = {"value": over.each(so_far.forward_fill())}
        elif self.kind == "stddev":
            # Welford's way: no term is negative, so nothing is lost by subtracting.
            count, mean = self.kept("known"), self.kept("mean").fill_null(0.0)
            whole = pl.when(count.cum_sum() > 0).then((count * mean).cum_sum() / count.cum_sum())
            before = whole.shift(1).fill_null(0.0)
            grown = count * (mean - before) * (mean - whole.fill_null(0.0))
            is_first = count.cum_sum() == count
            squares = (self.kept("squares").fill_null(0.0) + pl.when(is_first).then(0.0).otherwise(grown)).cum_sum()
            made = {
                "mean": over.each(whole),
                "squares": over.each(squares),
                "known": over.sum(count),
            }
        else:  # the newest row is the last of all that came, so it stands behind those of its own time
            time = self.kept("time")
            best = (time.cum_min() if self.kind == "first" else time.cum_max()).forward_fill().shift(1)
            better = time < best if self.kind == "first" else time >= best
            is_best = time.is_not_null() & (best.is_null() | better)
            bests = {part: pl.when(is_best).then(self.kept(part)) for part in ("value", "time", "order")}
            made = {part: over.each(value.forward_fill()) for part, value in bests.items()}
        return self._named(made)

    def merged(self, parts: pl.DataFrame) -> list[pl.Expr]:
        """Aggregates over what was kept of several parts, which are these."""
        made: dict[str, pl.Expr]
        if self.kind == "count":
            made = {"count": self.kept("count").sum()}
        elif self.exact is not None:
            total, carry = self.exact.merged(parts, pl.Expr.sum)
            made = {"sum": total, "carry": carry, "known": self.kept("known").sum()}
        elif self.kind in ("sum", "mean"):
            made = {"sum": self.kept("sum").sum(), "known": self.kept("known").sum()}
        elif self.kind in ("min", "max"):
            made = {"value": getattr(self.kept("value"), self.kind)()}
        elif self.kind == "stddev":
            count, mean = self.kept("known"), self.kept("mean")
            whole = pl.when(count.sum() > 0).then((count * mean).sum() / count.sum())
            spread = self.kept("squares").fill_null(0.0).sum() + (count * (mean - whole) ** 2).sum()
            made = {"mean": whole, "squares": spread, "known": count.sum()}
        else:
            known = self.kept("time").is_not_null()
            at = [self.kept("time").filter(known), self.kept("order").filter(known)]
            end = "first" if self.kind == "first" else "last"
            made = {
                part: getattr(self.kept(part).filter(known).sort_by(at), end)() for part in ("value", "time", "order")
            }
        return self._named(made)

    def result(self) -> pl.Expr:
        if self.kind == "count":
            return self.kept("count")
        if self.kind == "sum":
            return pl.when(self.kept("known") > 0).then(self.kept("sum"))
        if self.kind == "mean":
            total = self.kept("sum").cast(pl.Float64)
            if self.exact is not None:
                total += self.kept("carry") * 2.0**64
            return pl.when(self.kept("known") > 0).then(total / self.kept("known"))
        if self.kind == "stddev":
            count = self.kept("known")
            return pl.when(count > 1).then((self.kept("squares") / (count - 1)).sqrt())
        return self.kept("value")

    def too_large(self, state: pl.DataFrame) -> tuple[dict[str, Any], int | Decimal] | None:
        """Of rows with what was kept, the first whose sum its type cannot hold, and that sum."""
        if self.exact is None or self.kind != "sum":
            return None
        where = self.exact.too_large(state)
        if where is None:
            return None
        found = state.filter(where & (state[self.column("known")] > 0)).head(1)
        return (found.row(0, named=True), self.exact.value(found)) if len(found) else None


def folds(name: str, aggregate: Aggregate, given: pl.Schema, *, changing: bool) -> bool:
    if changing and aggregate.kind == "sum":  # a float that was added cannot always be subtracted: NaN stays
        return exact(given[f"{name}.input"]) is not None
    return aggregate.kind not in NEEDS_ELEMENTS and not (changing and aggregate.kind in CANNOT_SUBTRACT)


def elements_of(arguments: Sequence[str]) -> pl.Expr:
    """The rows themselves, as a list."""
    return pl.struct([pl.col(name) for name in arguments] + [TIME, WEIGHT, ORDER]).alias(ELEMENTS)


def from_elements(
    panes: pl.DataFrame, aggregates: Sequence[tuple[str, Aggregate]], arguments: Sequence[str]
) -> dict[str, pl.Series]:
    """Aggregates computed from kept rows: one value per pane, in the order of the panes."""
    rows = panes.select(pl.int_range(pl.len()).alias("pane"), ELEMENTS).explode(ELEMENTS).drop_nulls(ELEMENTS)
    rows = rows.unnest(ELEMENTS).sort("pane", ORDER)
    left = _remaining(rows, arguments)
    found: dict[str, pl.Series] = {}
    frame = panes.select(pl.int_range(pl.len()).alias("pane"), (pl.col(ELEMENTS).list.len() == 0).alias("empty"))
    for name, aggregate in aggregates:
        made = _added(rows, name) if aggregate.kind == "sum" else _computed(left, name, aggregate)
        joined = frame.join(made, on="pane", how="left", maintain_order="left")
        value = joined["value"]
        if aggregate.kind in ("collect", "top"):
            nothing = pl.Series("value", [[]] * len(joined), dtype=value.dtype)
            missing = value.is_null() & (
                ~joined["empty"] if aggregate.kind == "top" else pl.Series([True] * len(joined))
            )
            value = nothing.zip_with(missing, value)
        elif aggregate.kind == "distinct_count":
            value = value.fill_null(0).zip_with(
                ~joined["empty"], pl.Series([None], dtype=pl.Int64).new_from_index(0, len(joined))
            )
        elif aggregate.kind == "combine":
            value = _combined(left, joined, name, aggregate)
        found[name] = value.alias(name)
    return found


def computed_from_rows(rows: pl.DataFrame, panes: pl.Series, name: str, aggregate: Aggregate) -> pl.Series:
    """An aggregate over rows, none of which is taken back: a value for each pane, in the order of `panes`."""
    made = _computed(rows, name, aggregate)
    frame = panes.to_frame("pane").join(made, on="pane", how="left", maintain_order="left")
    value = frame["value"]
    if aggregate.kind == "combine":
        return _combined(rows, frame.with_columns(pl.lit(False).alias("empty")), name, aggregate)
    if aggregate.kind in ("collect", "top"):
        return pl.Series("value", [[]] * len(frame), dtype=value.dtype).zip_with(value.is_null(), value)
    return value.fill_null(0) if aggregate.kind == "distinct_count" else value


def _remaining(rows: pl.DataFrame, arguments: Sequence[str]) -> pl.DataFrame:
    """Rows that were not taken back; of equal ones the earliest are taken back first."""
    if (rows[WEIGHT] > 0).all():
        return rows
    same = ["pane", TIME, *arguments]
    counted = rows.with_columns(
        pl.when(pl.col(WEIGHT) > 0).then(1).otherwise(0).cum_sum().over(same, order_by=ORDER).alias("__rank"),
        (pl.col(WEIGHT) < 0).sum().over(same).alias("__taken_back"),
    )
    kept = counted.filter((pl.col(WEIGHT) > 0) & (pl.col("__rank") > pl.col("__taken_back")))
    return kept.drop("__rank", "__taken_back").sort("pane", ORDER)


def _added(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Sums of floats: equal ones that came and went are left out, so that no NaN, infinity or rounding stays behind.

    A retraction without its row counts as it is: a pane that has nothing else is the change since the last one.
    """
    value = pl.col(f"{name}.input").cast(pl.Float64).alias("value")
    known = rows.select("pane", value, pl.col(WEIGHT).cast(pl.Int64)).drop_nulls("value")
    counted = known.group_by("pane", "value", maintain_order=True).agg(pl.col(WEIGHT).sum())
    left = pl.when(pl.col(WEIGHT) != 0).then(pl.col("value") * pl.col(WEIGHT)).otherwise(0.0)
    return counted.group_by("pane", maintain_order=True).agg(left.sum().alias("value"))


def _computed(rows: pl.DataFrame, name: str, aggregate: Aggregate) -> pl.DataFrame:
    value = pl.col(f"{name}.input")
    known = rows.filter(value.is_not_null())
    if aggregate.kind == "collect":
        made = value
    elif aggregate.kind == "distinct_count":
        made = value.n_unique().cast(pl.Int64)
    elif aggregate.kind == "top":
        by = pl.col(f"{name}.by" if aggregate.by else f"{name}.input")
        known = known.filter(by.is_not_null())
        made = value.sort_by(by, descending=True, maintain_order=True).head(aggregate.count or 0)
    elif aggregate.kind in ("min", "max"):
        made = getattr(value, aggregate.kind)()
    elif aggregate.kind == "sum":  # of fractions, which cannot be taken back exactly
        made = value.cast(pl.Float64).sum()
    elif aggregate.kind == "mean":
        made = value.cast(pl.Float64).mean()
    elif aggregate.kind == "stddev":
        made = value.cast(pl.Float64).std()
    elif aggregate.kind in ("first", "last"):
        made = getattr(value.sort_by(TIME, ORDER), aggregate.kind)()
    else:  # combine is folded by the user's own functions
        made = pl.len()
    return known.group_by("pane", maintain_order=True).agg(made.alias("value"))


def _combined(rows: pl.DataFrame, panes: pl.DataFrame, name: str, aggregate: Aggregate) -> pl.Series:
    functions = aggregate.functions
    assert functions is not None
    states: dict[int, Any] = {}
    for pane, value in rows.select("pane", f"{name}.input").iter_rows():
        states[pane] = functions.add(states[pane] if pane in states else functions.zero(), value)
    results = []
    for pane, empty in panes.select("pane", "empty").iter_rows():
        state = states[pane] if pane in states else functions.zero()
        results.append(None if empty else functions.extract(state))
    return pl.Series("value", results)
