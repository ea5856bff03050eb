"""How large a sum may grow, as small transcripts, each played on every runner."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Any

import pytest

import millstream as ms
from millstream.errors import StepFailed
from millstream.testing import Add, Watermark
from times import START
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
MOST = 2**63 - 1
DIGITS = Decimal("9" * 38)


def add(*values: Any, weights: list[int] | None = None) -> Add:
    return Add([{"key": "a", "n": value, "at": START} for value in values], weights=weights)


def run(build: Callable[[Any], Any], *steps: Any, kind: str = "long") -> list[list[Any]]:
    """Of each step, the results and their weights."""
    schema = f"key string, n {kind}, at timestamp"
    out = play(build, [*steps, Watermark(None)], schema=schema, event_time="at")
    return [[row["made"] if row.get("weight", 1) > 0 else (-1, row["made"]) for row in step] for step in out]


def windowed(made: Any, trigger: Any = None, window: Any = None) -> Callable[[Any], Any]:
    def build(rows: Any) -> Any:
        placed = rows.key_by("key").window(window or ms.fixed("1 minute"))
        return (placed.trigger(trigger) if trigger else placed).agg(made=made)

    return build


def grouped(made: Any) -> Callable[[Any], Any]:
    return lambda rows: rows.group_by("key").agg(made=made)


def flat(out: Sequence[Sequence[Any]]) -> list[Any]:
    return [value for step in out for value in step]


# ---------------------------------------------------------------- whole numbers


@pytest.mark.on_spark("more")
def test_a_window_does_not_send_a_sum_beyond_its_type() -> None:
    with pytest.raises(StepFailed) as failed:
        run(windowed(ms.sum("n")), add(MOST), add(5))
    assert re.match(r"the step '\S*agg\S*' cannot emit made = sum\(n\) for key='a'", failed.value.what)
    assert "from 2026-01-01 00:00:00+00:00 to 2026-01-01 00:01:00+00:00" in failed.value.what
    assert f"{MOST + 5} does not fit into bigint" in failed.value.what
    assert "sum('cast(n as decimal(38,0))')" in (failed.value.next_step or "")


def test_a_group_does_not_send_a_sum_beyond_its_type() -> None:
    with pytest.raises(StepFailed) as failed:
        run(grouped(ms.sum("n")), add(-MOST), add(-5))
    assert re.match(r"the step '\S*group_by\S*' cannot emit made = sum\(n\) for key='a'", failed.value.what)
    assert f"{-MOST - 5} does not fit into bigint" in failed.value.what


def test_a_pane_for_each_row_is_checked_row_by_row() -> None:
    build = windowed(ms.sum("n"), ms.each())
    assert flat(run(build, add(MOST, -2), add(1, 1, -MOST))) == [MOST, MOST - 2, MOST - 1, MOST, 0]
    with pytest.raises(StepFailed, match=f"{MOST + 1} does not fit"):
        run(build, add(MOST, -2), add(1, 2, -MOST))


@pytest.mark.parametrize(
    "window", [ms.fixed("1 minute"), ms.sliding("1 minute", every="30 seconds"), ms.sessions("1 minute"), ms.rows(5)]
)
def test_a_sum_may_leave_its_range_on_the_way(window: Any) -> None:
    out = flat(run(windowed(ms.sum("n"), window=window), add(MOST, MOST), add(5), add(-MOST, -10)))
    assert set(out) == {MOST - 5}


def test_a_retraction_brings_the_sum_of_a_window_back() -> None:
    out = run(windowed(ms.sum("n")), add(MOST, 5), add(-MOST - 1), add(5, -MOST - 1, weights=[-1, -1]))
    assert flat(out) == [MOST]


@pytest.mark.on_spark("more")
def test_a_group_gives_the_right_sum_after_retractions() -> None:
    out = run(
        grouped(ms.sum("n")),
        add(MOST, 5, 5, weights=[1, 1, -1]),
        add(-MOST - 1),
        add(MOST, MOST, -MOST, -MOST, 5),
        add(MOST, -MOST, 5, weights=[-1, -1, -1]),
    )
    assert out == [[MOST], [(-1, MOST), -1], [(-1, -1), 4], [(-1, 4), -1], []]


@pytest.mark.parametrize(("kind", "most"), [("tinyint", 127), ("smallint", 2**15 - 1), ("int", 2**31 - 1)])
def test_sums_of_narrow_numbers_are_long(kind: str, most: int) -> None:
    for build in (windowed(ms.sum("n")), windowed(ms.sum("n"), ms.each()), grouped(ms.sum("n"))):
        assert flat(run(build, add(most, most), add(most), kind=kind))[-1] == 3 * most


def test_what_the_error_advises_works() -> None:
    for build in (windowed(ms.sum("cast(n as decimal(38,0))")), grouped(ms.sum("cast(n as decimal(38,0))"))):
        assert flat(run(build, add(MOST, 5)))[-1] == Decimal(MOST + 5)


def test_a_mean_is_right_though_its_sum_would_not_fit() -> None:
    for build in (windowed(ms.mean("n")), windowed(ms.mean("n"), ms.each()), grouped(ms.mean("n"))):
        assert flat(run(build, add(MOST, MOST - 2)))[-1] == pytest.approx(2.0**63)
        assert flat(run(build, add(MOST, MOST, 7, weights=[1, 1, 1]), add(7, weights=[-1])))[-1] == pytest.approx(
            2.0**63
        )


# ---------------------------------------------------------------- decimals


@pytest.mark.parametrize("build", [windowed(ms.sum("n")), windowed(ms.sum("n"), ms.each()), grouped(ms.sum("n"))])
def test_a_decimal_has_38_digits(build: Any) -> None:
    with pytest.raises(StepFailed) as failed:
        run(build, add(DIGITS, Decimal(1)), kind="decimal(38,0)")
    assert f"{10**38} does not fit into decimal(38,0)" in failed.value.what
    assert "sum('cast(n as double)')" in (failed.value.next_step or "")


@pytest.mark.parametrize("sign", [1, -1])
def test_decimals_may_leave_their_range_on_the_way(sign: int) -> None:
    most, cent = Decimal("9" * 36 + ".99").copy_sign(sign), Decimal("0.01") * sign
    back = [value.copy_negate() for value in (most, most, cent)]
    out = run(windowed(ms.sum("n")), add(most, most), add(most, cent), add(*back), kind="decimal(38,2)")
    assert flat(out) == [most]
    out = run(grouped(ms.sum("n")), add(most, most, most, weights=[1, 1, -1]), add(-cent), kind="decimal(38,2)")
    with localcontext(prec=40):
        assert flat(out)[-1] == most - cent


def test_decimals_get_ten_more_digits() -> None:
    most = Decimal("99.99")
    for build in (windowed(ms.sum("n")), windowed(ms.sum("n"), ms.each()), grouped(ms.sum("n"))):
        assert flat(run(build, add(most, most, None), add(most), kind="decimal(4,2)"))[-1] == 3 * most


# ---------------------------------------------------------------- floats


def test_infinity_and_nan_stay_as_long_as_their_rows_do() -> None:
    for build in (windowed(ms.sum("n")), grouped(ms.sum("n"))):
        assert flat(run(build, add(1.0, math.inf), kind="double"))[-1] == math.inf
        assert math.isnan(flat(run(build, add(1.0, math.inf, -math.inf), kind="double"))[-1])
        assert math.isnan(flat(run(build, add(1.0, math.nan), kind="double"))[-1])


@pytest.mark.parametrize("values", [(math.inf, -math.inf), (math.nan, 1.0), (2.0, math.nan)])
def test_nan_and_opposite_infinities_show_in_means_and_deviations(values: tuple[float, float]) -> None:
    for made in (ms.mean("n"), ms.stddev("n")):
        for build in (windowed(made), windowed(made, ms.each()), grouped(made)):
            for steps in ([add(*values)], [add(values[0]), add(values[1])]):
                assert math.isnan(flat(run(build, *steps, kind="double"))[-1])


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e300])
def test_a_float_that_is_retracted_leaves_no_trace(odd: float) -> None:
    for build in (windowed(ms.sum("n")), grouped(ms.sum("n"))):
        out = run(build, add(1.5, odd), add(0.25, odd, weights=[1, -1]), kind="double")
        assert flat(out)[-1] == 1.75


def test_a_pane_of_nothing_but_a_retraction_is_the_change() -> None:
    def build(rows: Any) -> Any:
        panes = rows.key_by("key").window(ms.fixed("1 minute")).trigger(ms.repeatedly(ms.after_count(1)))
        return panes.discarding().agg(made=ms.sum("n"))

    for kind, value in (("double", 2.5), ("long", 2)):
        out = run(build, add(value, value), add(value, weights=[-1]), add(value, value, weights=[-1, 1]), kind=kind)
        assert flat(out) == [2 * value, -value, 0]
