"""Joins with a condition that compares both sides, as small transcripts, each played on every runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream import testing
from millstream.errors import InvalidExpression, InvalidPlan, NeedsSpark
from millstream.testing import Add, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = {
    "bids": "id int, item string, price int, at timestamp",
    "asks": "seller string, item string, price int, at timestamp",
}
WITHIN = ("-1 minute", "1 minute")
ENOUGH = "price >= price_right"
Build = Callable[[ms.Stream, ms.Stream], ms.Stream]


def bids(*rows: tuple[int, str | None, int | None], at: float = 1) -> Add:
    return Add([{"id": i, "item": item, "price": price, "at": t(at)} for i, item, price in rows], to="bids")


def asks(*rows: tuple[str, str | None, int | None], at: float = 1) -> Add:
    return Add([{"seller": s, "item": item, "price": price, "at": t(at)} for s, item, price in rows], to="asks")


BIDS = bids((1, "tea", 10), (2, "tea", 5), (3, "tea", None), (4, None, 9))
ASKS = asks(("ann", "tea", 7), ("bob", "tea", 9), ("eve", "tea", 20), ("joe", None, 1))


Pairs = list[tuple[Any, ...]]


def pairs_of(rows: list[dict[str, Any]]) -> Pairs:
    """The bid and the seller of each row, and a weight that is not 1."""
    names = ("id", "seller", "weight")
    return sorted((tuple(row[name] for name in names if name in row) for row in rows), key=str)


def said(build: Build, *steps: Any) -> list[Pairs]:
    """The pairs of each step."""
    out = play(build, list(steps), schema=SCHEMA, event_time={"bids": "at", "asks": "at"})
    return [pairs_of(step) for step in out]


def said_by_each(builds: dict[str, Build], *steps: Any) -> dict[str, list[Pairs]]:
    """The same of several joins of one flow, by name: on Spark they are one query."""

    def build(bids: ms.Stream, asks: ms.Stream) -> dict[str, ms.Stream]:
        return {name: each(bids, asks) for name, each in builds.items()}

    out = play(build, list(steps), schema=SCHEMA, event_time={"bids": "at", "asks": "at"})
    return {name: [pairs_of(step[name]) for step in out] for name in builds}


def near(how: Any, condition: str = ENOUGH) -> Build:
    return lambda bids, asks: bids.join(asks, on="item", how=how, within=WITHIN, condition=condition)


def in_windows(how: Any, condition: str = ENOUGH) -> Build:
    return lambda bids, asks: bids.window(ms.fixed("1 minute")).join(asks, on="item", how=how, condition=condition)


def tables(how: Any, condition: str = ENOUGH) -> Build:
    def build(bids: ms.Stream, asks: ms.Stream) -> ms.Stream:
        return bids.to_table("id").join(asks.to_table("seller"), on="item", how=how, condition=condition)

    return build


def lookup(how: Any, as_of: Any, condition: str = ENOUGH) -> Build:
    def build(bids: ms.Stream, asks: ms.Stream) -> ms.Stream:
        return bids.join(asks.to_table("seller"), on="item", how=how, as_of=as_of, condition=condition)

    return build


def of_tables(how: Any, condition: str = ENOUGH) -> Build:
    """A join of streams whose rows may be retracted."""

    def build(bids: ms.Stream, asks: ms.Stream) -> ms.Stream:
        totals = [
            side.key_by(key, "item", "price")
            .window(ms.fixed("1 minute"))
            .trigger(ms.each())
            .retracting()
            .agg(n=ms.count())
            for side, key in ((bids, "id"), (asks, "seller"))
        ]
        return totals[0].join(totals[1], on="item", how=how, within=WITHIN, condition=condition)

    return build


def static(how: Any, condition: str = ENOUGH) -> Build:
    def build(bids: ms.Stream, asks: ms.Stream) -> ms.Stream:
        side = bids.flow.table(
            [{"seller": s, "item": i, "price": p} for s, i, p in (("ann", "tea", 7), ("bob", "tea", 9))],
            "seller string, item string, price int",
        )
        return bids.join(side, on="item", how=how, condition=condition)

    return build


PAIRS = [(1, "ann"), (1, "bob")]
ALONE = [(2, None), (3, None), (4, None)]
LONELY = [(None, "eve"), (None, "joe")]
EXPECTED: dict[str, list[Any]] = {
    "inner": PAIRS,
    "left": PAIRS + ALONE,
    "right": PAIRS + LONELY,
    "full": PAIRS + ALONE + LONELY,
    "semi": [(1,)],
    "anti": [(2,), (3,), (4,)],
}


@pytest.mark.on_spark("more")
@pytest.mark.parametrize("kind", [near, in_windows, tables], ids=lambda kind: kind.__name__)
def test_only_pairs_that_satisfy_the_condition_match(kind: Callable[..., Build]) -> None:
    found = said_by_each({how: kind(how) for how in EXPECTED}, ASKS, BIDS, Watermark(None))
    for how, steps in found.items():
        total: dict[Any, int] = {}
        for row in (row for step in steps for row in step):  # a table sends a row alone until its match comes
            values, weight = (row[:-1], -1) if row[-1] == -1 else (row, 1)
            total[values] = total.get(values, 0) + weight
        assert sorted((row for row, count in total.items() if count), key=str) == sorted(EXPECTED[how], key=str), how
        assert set(total.values()) <= {0, 1}, how


ONE_SIDED = ["inner", "left", "semi", "anti"]


@pytest.mark.on_spark("more")
@pytest.mark.parametrize("as_of", ["now", "event_time"])
def test_a_stream_and_a_table(as_of: str) -> None:
    found = said_by_each({how: lookup(how, as_of) for how in ONE_SIDED}, ASKS, BIDS, Watermark(None))
    for how, steps in found.items():
        assert steps[1 if as_of == "now" else 2] == sorted(EXPECTED[how], key=str), how


@pytest.mark.on_spark("more")
def test_a_lookup_table() -> None:
    found = said_by_each({how: static(how) for how in ONE_SIDED}, BIDS)
    assert found == {how: [sorted(EXPECTED[how], key=str)] for how in ONE_SIDED}


@pytest.mark.on_spark
def test_a_row_that_meets_only_unsuitable_rows_is_emitted_alone() -> None:
    """The first ask is too expensive for both bids, the second suits one of them."""
    out = said(
        near("left"),
        bids((1, "tea", 10), (2, "tea", 5)),
        asks(("eve", "tea", 20)),
        asks(("ann", "tea", 7), at=2),
        Watermark(t(62)),
    )
    assert out == [[], [], [(1, "ann")], [(2, None)]]


@pytest.mark.on_spark
def test_tables_retract_a_row_alone_when_its_first_match_comes() -> None:
    """Each bid has partners of its own: an ask that becomes cheaper suits the second bid too, then goes."""
    out = said(
        tables("full"),
        bids((1, "tea", 10), (2, "tea", 5)),
        asks(("ann", "tea", 20)),
        asks(("ann", "tea", 7), at=2),
        asks(("bob", "tea", 4), at=3),
        asks(("ann", "tea", 11), at=4),
        asks(("bob", None, None), at=5),
    )
    assert out == [
        [(1, None), (2, None)],
        [(None, "ann")],
        [(1, "ann"), (1, None, -1), (None, "ann", -1)],
        [(1, "bob"), (2, "bob"), (2, None, -1)],
        [(1, "ann", -1), (None, "ann")],
        [(1, "bob", -1), (1, None), (2, "bob", -1), (2, None)],
    ]


def test_a_condition_may_concern_one_side_or_none_of_the_keys() -> None:
    assert said(near("left", "seller <> 'ann' and price > 5"), ASKS, BIDS)[1] == [(1, "bob"), (1, "eve")]
    assert said(near("anti", "length(seller) < id"), ASKS, BIDS, Watermark(None))[2] == [(1,), (2,), (3,), (4,)]


def test_the_plan_shows_the_condition() -> None:
    flow = ms.Flow("shown")
    bids, asks = (flow.read(name, SCHEMA[name], event_time="at") for name in SCHEMA)
    assert "left join on item and (price >= price_right) within" in near("left")(bids, asks).explain()
    assert "full join on item and (price >= price_right) in" in in_windows("full")(bids, asks).explain()


@pytest.mark.on_spark("more")
@pytest.mark.parametrize("kind", [near, in_windows], ids=lambda kind: kind.__name__)
def test_late_rows_are_those_of_the_join(kind: Callable[..., Build]) -> None:
    def build(bids: ms.Stream, asks: ms.Stream) -> Any:
        return kind("left")(bids, asks).late

    late = play(build, [Watermark(t(300)), BIDS], schema=SCHEMA, event_time={"bids": "at", "asks": "at"})[1]
    assert {(row["id"], row["side"], row["reason"]) for row in late} == {
        (number, "left", "expired") for number in (1, 2, 3, 4)
    }


@pytest.mark.transcripts("spark")
@pytest.mark.on_spark("more")
def test_in_an_inner_join_spark_may_evaluate_it() -> None:
    def build(bids: ms.Stream, asks: ms.Stream) -> Any:
        joined = near("inner", f"{ENOUGH} and conv(hex(seller), 16, 10) = conv(hex('ann'), 16, 10)")(bids, asks)
        return {"pairs": joined, "late": joined.late}

    given = [ASKS, BIDS, Watermark(t(300)), BIDS]
    out = play(build, given, schema=SCHEMA, event_time={"bids": "at", "asks": "at"})
    assert [(row["id"], row["seller"]) for row in out[1]["pairs"]] == [(1, "ann")]
    assert len(out[3]["late"]) == 4


@pytest.mark.transcripts("spark")
@pytest.mark.on_spark("more")
@pytest.mark.parametrize("kind", [near, tables, static], ids=lambda kind: kind.__name__)
def test_what_concerns_one_side_may_need_spark(kind: Callable[..., Build]) -> None:
    """`conv` runs on Spark alone: of each side it becomes a hidden column before the join."""
    needs_spark = "cast(conv(price, 10, 10) as int) >= cast(conv(price_right, 10, 10) as int)"

    def build(bids: ms.Stream, asks: ms.Stream) -> ms.Stream:
        return kind("left", needs_spark)(bids, asks)

    rows = [row for step in said(build, ASKS, BIDS, Watermark(None)) for row in step if row[-1] != -1]
    assert set(rows) == set(EXPECTED["left"])
    if kind is not static:  # static rows were computed when the flow was built
        with pytest.raises(NeedsSpark, match="conv"):
            testing.play(build, [ASKS], schema=SCHEMA, event_time={"bids": "at", "asks": "at"}, on="local")


BY_SPARK = "conv(cast(price >= price_right as int), 10, 10) = '1'"
"""The same as ENOUGH, but `conv` runs on Spark alone, and here it needs both sides."""
KINDS: dict[str, Callable[[Any, str], Build]] = {
    "near": near,
    "windows": in_windows,
    "tables": tables,
    "as of event time": lambda how, condition: lookup(how, "event_time", condition),
    "as of now": lambda how, condition: lookup(how, "now", condition),
    "static": static,
    "retracted": of_tables,
}


def all_kinds(condition: Any) -> Build:
    """Every kind of join that is not inner, in one flow."""

    def build(bids: ms.Stream, asks: ms.Stream) -> Any:
        found: dict[str, Any] = {}
        for kind, join in KINDS.items():
            for how in ("left", "anti") if kind in ("as of event time", "as of now", "static") else ("full", "semi"):
                found[f"{kind} {how}"] = made = join(how, condition)(bids, asks)
                if kind in ("near", "windows"):
                    found[f"{kind} {how} late"] = made.late
        return found

    return build


@pytest.mark.transcripts("spark")
@pytest.mark.on_spark("more")
@pytest.mark.parametrize("condition", [BY_SPARK, "enough"])
def test_spark_may_evaluate_it_over_both_sides_in_any_join(condition: Any, spark: Any) -> None:
    """What is emitted, step by step, is what the reference emits for the same condition without Spark."""
    if condition == "enough":
        spark.udf.register("enough", lambda one, other: None if None in (one, other) else one >= other, "boolean")
        condition = "enough(price, price_right)"
    steps = [
        bids((1, "tea", 10), (2, "tea", 5), (3, "tea", None), (4, None, 9)),
        asks(("eve", "tea", 20), ("joe", None, 1)),
        asks(("ann", "tea", 7), ("bob", "tea", 9), at=2),
        asks(("eve", "tea", 4), at=3),
        Watermark(t(50)),
        bids((2, "tea", 30), at=55),
        asks(("ann", "tea", 40), at=56),
        bids((5, "tea", 100), at=10),
        Watermark(t(130)),
        asks(("bob", "tea", 1), at=20),
        Watermark(None),
    ]
    given: Any = {"schema": SCHEMA, "event_time": {"bids": "at", "asks": "at"}}
    out = play(all_kinds(condition), steps, **given)
    expected = testing.play(all_kinds(ENOUGH), steps, on="reference", **given)
    for number, (step, other) in enumerate(zip(out, expected, strict=True)):
        for name, rows in other.items():
            assert sorted(map(repr, step[name])) == sorted(map(repr, rows)), f"{name} in step {number}"


@pytest.mark.transcripts("local", "reference")
def test_without_spark_it_is_refused_where_it_is_played() -> None:
    with pytest.raises(NeedsSpark, match="the function conv has no translation"):
        play(near("left", BY_SPARK), [ASKS], schema=SCHEMA, event_time={"bids": "at", "asks": "at"})


@pytest.mark.transcripts("spark")
@pytest.mark.on_spark("more")
def test_a_column_of_pyspark() -> None:
    from pyspark.sql import functions as sf

    one, other = sf.col("price"), sf.col("price_right")
    in_python = sf.udf(lambda one, other: None if None in (one, other) else one >= other, "boolean")
    conditions: dict[str, Any] = {"column": one >= other, "function": in_python(one, other)}
    builds = {name: near("full", condition) for name, condition in conditions.items()}
    for rows in said_by_each(builds, ASKS, BIDS, Watermark(None)).values():
        assert sorted(rows[1] + rows[2], key=str) == sorted(EXPECTED["full"], key=str)


@pytest.mark.parametrize(
    ("condition", "how", "error", "what", "next_step"),
    [
        (
            "price > prise_right",
            "left",
            InvalidExpression,
            "no column 'prise_right'",
            "names in the result of the join",
        ),
        ("bids.price > 1", "left", InvalidExpression, "no column 'bids'", "id, item, price, at, seller, price_right"),
        ("price + price_right", "left", InvalidExpression, "a condition must be true or false", "compare it"),
        ("1 = 1", "left", InvalidPlan, "uses no column", "leave it out"),
        ("current_timestamp() > greatest(at, at_right)", "left", InvalidPlan, "uses the clock", "before the join"),
        ("explode(array(price > 1))", "left", InvalidPlan, "several rows of one", "select"),
    ],
)
def test_mistakes_name_the_users_line(
    condition: str, how: str, error: type[Exception], what: str, next_step: str
) -> None:
    flow = ms.Flow("wrong")
    bids, asks = (flow.read(name, SCHEMA[name], event_time="at") for name in SCHEMA)
    with pytest.raises(error) as refused:
        near(how, condition)(bids, asks)
    assert what in refused.value.what  # type: ignore[attr-defined]
    assert next_step in refused.value.next_step  # type: ignore[attr-defined]
    assert __file__ in refused.value.where  # type: ignore[attr-defined]
