"""The rules of joins with tables as small transcripts, each played on every runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Add, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMAS = {
    "orders": "id int, user string, item string, at timestamp",
    "users": "user string, city string, at timestamp",
}


def order(*rows: tuple[int, str | None, float | None]) -> Add:
    """Orders as (id, user, second)."""
    made = [{"id": i, "user": u, "item": "tea", "at": None if s is None else t(s)} for i, u, s in rows]
    return Add(made, to="orders")


def user(*rows: tuple[str | None, str | None, float]) -> Add:
    """Users as (user, city, second); without a city they are gone."""
    return Add([{"user": u, "city": c, "at": t(s)} for u, c, s in rows], to="users")


def run(build: Callable[..., Any], *steps: Any) -> list[Any]:
    times = dict.fromkeys(SCHEMAS, "at")
    return play(build, list(steps), schema=SCHEMAS, event_time=times)


def said(rows: list[dict[str, Any]], *columns: str) -> list[Any]:
    """The rows in any order: their values, with a sign in front of those that are taken back."""
    found = [(*(row[column] for column in columns), *([row["weight"]] if "weight" in row else [])) for row in rows]
    return sorted(found, key=str)


def tables(how: Any, **options: Any) -> Callable[..., Any]:
    def build(orders: Any, users: Any) -> Any:
        placed = orders.to_table("id").select("id", "user")
        cities = users.to_table("user").select("user", "city")
        return placed.join(cities, on="user", how=how, **options)

    return build


def lookup(how: Any, as_of: Any) -> Callable[..., Any]:
    def build(orders: Any, users: Any) -> Any:
        joined = orders.join(users.to_table("user").select("user", "city"), on="user", how=how, as_of=as_of)
        return {"sent": joined, "late": joined.late} if as_of == "event_time" else {"sent": joined}

    return build


# ---------------------------------------------------------------- two tables


def test_an_inner_join_of_tables_retracts_outdated_rows() -> None:
    out = run(
        tables("inner"),
        order((1, "ann", 0), (2, "bob", 0)),
        user(("ann", "Rome", 1)),
        user(("ann", "Oslo", 2)),
        user(("ann", None, 3)),
    )
    columns = ("id", "user", "city")
    assert [said(step, *columns) for step in out] == [
        [],
        [(1, "ann", "Rome")],
        [(1, "ann", "Oslo"), (1, "ann", "Rome", -1)],
        [(1, "ann", "Oslo", -1)],
    ]


@pytest.mark.on_spark("more")
def test_a_left_join_of_tables_is_kept_up_to_date() -> None:
    out = run(tables("left"), order((1, "ann", 0), (2, None, 0)), user(("ann", "Rome", 1)), order((1, "bob", 2)))
    columns = ("id", "user", "city")
    assert [said(step, *columns) for step in out] == [
        [(1, "ann", None), (2, None, None)],
        [(1, "ann", "Rome"), (1, "ann", None, -1)],
        [(1, "ann", "Rome", -1), (1, "bob", None)],
    ]


def test_a_full_join_of_tables_has_the_key_of_either_side() -> None:
    out = run(tables("full"), user(("ann", "Rome", 0)), order((1, "ann", 1)), order((1, "bob", 2)))
    columns = ("id", "user", "city")
    assert [said(step, *columns) for step in out] == [
        [(None, "ann", "Rome")],
        [(1, "ann", "Rome"), (None, "ann", "Rome", -1)],
        [(1, "ann", "Rome", -1), (1, "bob", None), (None, "ann", "Rome")],
    ]


def test_a_right_join_of_tables() -> None:
    out = run(tables("right"), user(("ann", "Rome", 0), (None, "Bern", 0)), order((1, "ann", 1), (2, "ann", 1)))
    columns = ("id", "user", "city")
    assert [said(step, *columns) for step in out] == [
        [(None, "ann", "Rome"), (None, None, "Bern")],
        [(1, "ann", "Rome"), (2, "ann", "Rome"), (None, "ann", "Rome", -1)],
    ]


@pytest.mark.parametrize(("how", "first", "second"), [("semi", [], [(1,)]), ("anti", [(1,), (2,)], [(1, -1)])])
def test_rows_that_have_a_partner_and_rows_that_have_none(how: str, first: Any, second: Any) -> None:
    out = run(tables(how), order((1, "ann", 0), (2, "bob", 0)), user(("ann", "Rome", 1)), user(("ann", "Oslo", 2)))
    assert [said(step, "id") for step in out] == [first, second, []]
    assert {name for step in out for row in step for name in row} <= {"id", "user", "weight"}


def test_a_join_on_a_foreign_key_with_columns_of_the_same_name() -> None:
    def build(orders: Any, users: Any) -> Any:
        people = users.to_table("user").select("city", "user")
        return orders.to_table("id").select("id", "user").join(people, on={"user": "city"}, how="left", suffix="_2")

    out = run(build, order((1, "Rome", 0)), user(("ann", "Rome", 1), ("bob", "Rome", 1)))
    assert said(out[0], "id", "city", "user_2") == [(1, None, None)]
    assert said(out[1], "id", "city", "user_2") == [(1, "Rome", "ann"), (1, "Rome", "bob"), (1, None, None, -1)]


def test_a_change_of_a_join_holds_from_the_later_of_both_times() -> None:
    def build(orders: Any, users: Any) -> Any:
        return tables("left")(orders, users).changes()

    out = run(build, order((1, "ann", 5)), user(("ann", "Rome", 3)), user(("ann", "Oslo", 9)))
    assert [sorted((row["city"] or "", row["weight"], row["event_time"]) for row in step) for step in out] == [
        [("", 1, t(5))],
        [("", -1, t(5)), ("Rome", 1, t(5))],
        [("Oslo", 1, t(9)), ("Rome", -1, t(9))],
    ]


ALONE, BOTH = (1, "ann", None), (1, "ann", "Rome")


@pytest.mark.parametrize(
    ("how", "first", "last"),
    [
        ("inner", [], [BOTH]),
        ("left", [ALONE], [BOTH, (*ALONE, -1)]),
        ("right", [], [BOTH]),
        ("full", [ALONE], [BOTH, (*ALONE, -1)]),
        ("semi", [], [(1, "ann")]),
        ("anti", [(1, "ann")], [(1, "ann", -1)]),
    ],
)
def test_a_join_of_tables_as_of_a_time_knows_rows_that_are_already_gone(how: str, first: Any, last: Any) -> None:
    """Order 1 was ann's at 5, though nobody knew yet that she was in Rome when order 2 took its place."""
    columns = ("id", "user") if how in ("semi", "anti") else ("id", "user", "city")

    def build(orders: Any, users: Any) -> Any:
        newest = orders.to_table("user").select("id", "user")
        return newest.join(users.to_table("user").select("user", "city"), on="user", how=how).as_of(t(7))

    out = run(build, order((1, "ann", 1)), order((2, "ann", 10)), user(("ann", "Rome", 5)))
    assert [said(step, *columns) for step in out] == [first, [], sorted(last, key=str)]


@pytest.mark.parametrize("places", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("how", ["left", "right"])
def test_a_row_is_joined_with_joined_tables_as_of_its_time_in_any_order_of_arrival(
    how: Any, places: tuple[int, ...]
) -> None:
    def build(orders: Any, users: Any, asking: Any) -> Any:
        newest = orders.to_table("user").select("id", "user")
        table = newest.join(users.to_table("user").select("user", "city"), on="user", how=how)
        return asking.join(table, on="user", how="left", as_of="event_time")

    asked = Add([{"user": "ann", "n": n, "at": t(n)} for n in (0, 3, 7, 12)], to="asking")
    came = [order((1, "ann", 1)), user(("ann", "Rome", 5)), order((2, "ann", 10))]
    schemas = {**SCHEMAS, "asking": "user string, n int, at timestamp"}
    steps = [asked, *(came[place] for place in places), Watermark(None)]
    out = play(build, steps, schema=schemas, event_time=dict.fromkeys(schemas, "at"))
    alone = (3, 1 if how == "left" else None, None)
    assert said(out[-1], "n", "id", "city") == [(0, None, None), (12, 2, "Rome"), alone, (7, 1, "Rome")]


# ---------------------------------------------------------------- a stream and a table


@pytest.mark.on_spark("more")
def test_a_row_is_joined_with_the_table_as_of_its_time() -> None:
    out = run(
        lookup("left", "event_time"),
        user(("ann", "Rome", 2), ("ann", "Oslo", 6)),
        order((1, "ann", 1), (2, "ann", 2), (3, "ann", 5)),
        order((4, "ann", 6), (5, "bob", 3), (6, None, 3)),
        Watermark(t(6)),
        Watermark(t(7)),
    )
    columns = ("id", "city")
    assert [said(step["sent"], *columns) for step in out] == [
        [],
        [],
        [],
        [(1, None), (2, "Rome"), (3, "Rome"), (5, None), (6, None)],
        [(4, "Oslo")],
    ]
    assert not any(step["late"] for step in out)


def test_a_row_waits_for_changes_of_the_table_before_its_time() -> None:
    out = run(
        lookup("inner", "event_time"), order((1, "ann", 5)), Watermark(t(5)), user(("ann", "Rome", 5)), Watermark(None)
    )
    assert [said(step["sent"], "id", "city") for step in out] == [[], [], [], [(1, "Rome")]]


def test_a_row_behind_the_watermark_is_late_and_a_change_is_not() -> None:
    out = run(
        lookup("inner", "event_time"),
        Watermark(t(10)),
        order((1, "ann", 9), (2, "ann", None), (3, "ann", 10)),
        user(("ann", "Rome", 3)),
        Watermark(t(11)),
    )
    late = sorted(out[1]["late"], key=lambda row: row["id"])
    assert [(row["id"], row["city"], row["side"], row["reason"]) for row in late] == [
        (1, None, "left", "expired"),
        (2, None, "left", "no event time"),
    ]
    assert [said(step["sent"], "id", "city") for step in out] == [[], [], [], [(3, "Rome")]]


def test_rows_that_wait_hold_back_the_windows_after_them() -> None:
    def build(orders: Any, users: Any) -> Any:
        joined = orders.join(users.to_table("user").select("user", "city"), on="user", as_of="event_time")
        return joined.key_by("city").window(ms.fixed("10 seconds")).agg(n=ms.count())

    out = run(build, user(("ann", "Rome", 0)), order((1, "ann", 3), (2, "ann", 9)), Watermark(t(9)), Watermark(t(10)))
    assert [[(row["city"], row["n"]) for row in step] for step in out] == [[], [], [], [("Rome", 2)]]


def test_a_row_is_joined_with_the_table_as_of_now() -> None:
    out = run(
        lookup("left", "now"),
        order((1, "ann", 9)),
        user(("ann", "Rome", 20)),
        order((2, "ann", 1), (3, "ann", None)),
        user(("ann", None, 30)),
        order((4, "ann", 50)),
    )
    assert [said(step["sent"], "id", "city") for step in out] == [
        [(1, None)],
        [],
        [(2, "Rome"), (3, "Rome")],
        [],
        [(4, None)],
    ]


@pytest.mark.parametrize(("how", "sent"), [("semi", [(1,)]), ("anti", [(2,), (3,)])])
@pytest.mark.parametrize("as_of", ["now", "event_time"])
def test_rows_that_a_table_knows_and_rows_that_it_does_not(how: str, sent: Any, as_of: str) -> None:
    rows = order((1, "ann", 5), (2, "bob", 5), (3, None, 5))
    out = run(lookup(how, as_of), user(("ann", "Rome", 1)), rows, Watermark(None))
    assert [row for step in out for row in said(step["sent"], "id")] == sent


# ---------------------------------------------------------------- a stream and static rows


@pytest.mark.on_spark("more")
def test_static_rows() -> None:
    def build(orders: Any, users: Any) -> Any:
        cities = [{"name": "ann", "city": "Rome"}, {"name": "ann", "city": "Oslo"}, {"name": None, "city": "Bern"}]
        known = orders.flow.table(cities, "name string, city string")
        return {how: orders.join(known, on={"user": "name"}, how=how) for how in ("inner", "left", "semi", "anti")}

    out = run(build, order((1, "ann", 0), (2, "bob", 1), (3, None, 2)))[0]
    both = [(1, "ann", "Oslo"), (1, "ann", "Rome")]
    assert said(out["inner"], "id", "name", "city") == both
    assert said(out["left"], "id", "name", "city") == [*both, (2, None, None), (3, None, None)]
    assert said(out["semi"], "id") == [(1,)]
    assert said(out["anti"], "id") == [(2,), (3,)]
