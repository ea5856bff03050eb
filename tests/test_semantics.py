"""The rules of time as small transcripts, each played on every runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.testing import Add, Clock, Watermark
from times import START, t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = "key string, n int, at timestamp"


def add(*rows: tuple[Any, ...]) -> Add:
    """Rows as (n, seconds) of key "a", or (key, n, seconds)."""
    full = [row if len(row) == 3 else ("a", *row) for row in rows]
    return Add([{"key": k, "n": n, "at": None if s is None else t(s)} for k, n, s in full])


def run(build: Callable[[Any], Any], *steps: Any) -> list[Any]:
    return play(build, list(steps), schema=SCHEMA, event_time="at")


def collected(window: Any, trigger: Any = None, **options: Any) -> Callable[[Any], Any]:
    def build(rows: Any) -> Any:
        windowed = rows.key_by("key").window(window, **options)
        return (windowed.trigger(trigger) if trigger else windowed).agg(ns=ms.collect("n"))

    return build


def ns(steps: Sequence[Any]) -> list[list[Any]]:
    """Of each step, what its panes collected."""
    return [[row["ns"] for row in step] for step in steps]


def span(row: dict[str, Any]) -> tuple[float, float]:
    """A window, in seconds since START."""
    window = row["window"]
    return (window["start"] - START).total_seconds(), (window["end"] - START).total_seconds()


# ---------------------------------------------------------------- windows that rows open and close


@pytest.mark.on_spark("more")
def test_rows_one_after_the_other() -> None:
    out = run(collected(ms.rows(2)), add((1, 0)), add((2, 5), (3, 6)), add((4, 3)), add((5, 9)), Watermark(None))
    assert ns(out) == [[], [[1, 2]], [[3, 4]], [], [[5]]]
    assert [span(row) for step in out for row in step] == [(0, 5), (6, 3), (9, 9)]
    assert {row["pane"]["timing"] for step in out for row in step} == {"unknown"}
    assert all(row["pane"]["last"] and row["pane"]["index"] == 0 for step in out for row in step)


def test_rows_are_counted_per_key() -> None:
    out = run(collected(ms.rows(2)), add(("b", 1, 0), ("a", 2, 0), ("b", 3, 1)))
    assert [(row["key"], row["ns"]) for row in out[0]] == [("b", [1, 3])]


def test_rows_overlap_if_every_is_smaller() -> None:
    out = run(collected(ms.rows(3, every=1)), add((1, 0), (2, 1), (3, 2)), add((4, 3)), Watermark(None))
    assert ns(out) == [[[1, 2, 3]], [[2, 3, 4]], [[3, 4], [4]]]


def test_rows_sample_if_every_is_larger() -> None:
    out = run(collected(ms.rows(2, every=3)), add(*((n, n) for n in range(1, 8))), Watermark(None))
    assert ns(out) == [[[1, 2], [4, 5]], [[7]]]


def test_rows_with_an_early_trigger() -> None:
    out = run(collected(ms.rows(3), ms.repeatedly(ms.after_count(2))), add((1, 0), (2, 1)), add((3, 2)))
    assert ns(out) == [[[1, 2]], [[1, 2, 3]]]
    assert [row["pane"]["last"] for step in out for row in step] == [False, True]


def test_delta_starts_a_new_window_when_the_value_has_moved() -> None:
    out = run(
        collected(ms.delta_window("n", 10)), add((100, 0), (105, 1), (91, 2)), add((110, 3)), add((None, 4), (99, 5))
    )
    assert ns(out) == [[], [[100, 105, 91]], [[110]]]
    assert span(out[2][0]) == (3, 4)


@pytest.mark.parametrize(("kind", "base"), [("decimal(9,2)", Decimal("0.10")), ("long", 2**60 + 1)])
def test_delta_remembers_the_first_value_exactly(kind: str, base: Any) -> None:
    """Goal: the value that opened a window is not blurred between two bundles. Method: a step of just the threshold."""
    steps = [Add([{"key": "a", "n": base + more, "at": t(more)}]) for more in (0, 1, 2)]
    schema = f"key string, n {kind}, at timestamp"
    out = play(collected(ms.delta_window("n", 2)), steps, schema=schema, event_time="at")
    assert ns(out) == [[], [], [[base, base + 1]]]


@pytest.mark.on_spark("more")
def test_delta_slides_and_evicts_older_rows() -> None:
    """Goal: each row has the rows before it, back to the last that differs too much. Method: two keys, three bundles,
    and a null, which differs from nothing."""
    out = run(
        collected(ms.delta_window("n", 10, slides=True)),
        add((100, 0), ("b", 1, 0), (105, 1)),
        add((111, 2), (None, 3), (112, 4)),
        add((100, 5), ("b", 2, 6)),
    )
    assert [[(row["key"], row["ns"]) for row in step] for step in out] == [
        [("a", [100]), ("a", [100, 105]), ("b", [1])],
        [("a", [105, 111]), ("a", [105, 111]), ("a", [105, 111, 112])],
        [("a", [100]), ("b", [1, 2])],
    ]
    assert [span(row) for row in out[1]] == [(1, 2), (1, 3), (1, 4)]
    assert all(row["pane"]["last"] and row["pane"]["index"] == 0 for step in out for row in step)


def test_closed_by_a_row() -> None:
    out = run(collected(ms.closed_by("n < 0")), add((1, 0), (2, 1)), add((-1, 2), (3, 3)), add((-2, 4), (-3, 5)))
    assert ns(out) == [[], [[1, 2, -1]], [[3, -2], [-3]]]
    assert [span(row) for step in out for row in step] == [(0, 2), (3, 4), (5, 5)]


# ---------------------------------------------------------------- windows of fixed place


def test_a_window_in_processing_time_follows_the_clock() -> None:
    minute = timedelta(minutes=1)
    first = datetime(1970, 1, 1, tzinfo=UTC)
    out = play(
        lambda rows: rows.window(ms.fixed("1 minute", time="processing")).agg(ns=ms.collect("n")),
        [Add([{"n": 1}]), Clock(first + minute / 2), Add([{"n": 2}]), Clock(first + minute), Add([{"n": 3}])],
        schema="n int",
    )
    assert ns(out) == [[], [], [], [[1, 2]], []]
    assert out[3][0]["window"] == {"start": first, "end": first + minute}
    assert out[3][0]["pane"]["timing"] == "on_time"


@pytest.mark.on_spark("more")
def test_sessions_in_processing_time() -> None:
    first = datetime(1970, 1, 1, tzinfo=UTC)
    steps = [
        Add([{"n": 1}]),
        Clock(first + timedelta(seconds=5)),
        Add([{"n": 2}]),
        Clock(first + timedelta(seconds=15)),
    ]
    out = play(
        lambda rows: rows.window(ms.sessions("10 seconds", time="processing")).agg(ns=ms.collect("n")),
        steps,
        schema="n int",
    )
    assert ns(out) == [[], [], [], [[1, 2]]]


def test_sliding_with_gaps_leaves_rows_out() -> None:
    out = run(
        collected(ms.sliding("2 seconds", "5 seconds")), add((1, 0), (2, 1), (3, 2), (4, 4), (5, 6)), Watermark(None)
    )
    assert ns(out) == [[], [[1, 2], [5]]]


def test_sliding_windows_of_a_row_are_sent_in_order() -> None:
    out = run(collected(ms.sliding("4 seconds", "2 seconds")), add((1, 3)), Watermark(None))
    assert [span(row) for row in out[1]] == [(0, 4), (2, 6)]


@pytest.mark.parametrize(
    ("unit", "zone", "moment", "start", "end"),
    [
        ("day", "UTC", "2026-03-29T12:00", "2026-03-29T00:00", "2026-03-30T00:00"),
        ("day", "Europe/Berlin", "2026-03-29T12:00", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("day", "Europe/Berlin", "2026-10-25T12:00", "2026-10-24T22:00", "2026-10-25T23:00"),
        ("day", "Europe/Berlin", "2026-10-25T23:00", "2026-10-25T23:00", "2026-10-26T23:00"),
        ("day", "America/Sao_Paulo", "2018-11-04T12:00", "2018-11-04T03:00", "2018-11-05T02:00"),
        ("day", "America/Havana", "2026-11-01T04:30", "2026-11-01T04:00", "2026-11-02T05:00"),
        ("day", "America/St_Johns", "2010-11-07T02:45", "2010-11-07T02:30", "2010-11-08T03:30"),
        ("day", "Pacific/Apia", "2011-12-30T10:00", "2011-12-30T10:00", "2011-12-31T10:00"),
        ("day", "America/Toronto", "1919-03-31T04:30", "1919-03-31T04:30", "1919-04-01T04:00"),
        ("day", "UTC", "1969-12-31T23:59", "1969-12-31T00:00", "1970-01-01T00:00"),
        ("week", "UTC", "2026-01-04T23:59", "2025-12-29T00:00", "2026-01-05T00:00"),
        ("week", "Europe/Berlin", "2026-03-29T12:00", "2026-03-22T23:00", "2026-03-29T22:00"),
        ("month", "UTC", "2024-02-29T00:00", "2024-02-01T00:00", "2024-03-01T00:00"),
        ("month", "Asia/Tokyo", "2026-01-31T15:00", "2026-01-31T15:00", "2026-02-28T15:00"),
        ("quarter", "UTC", "2026-12-31T00:00", "2026-10-01T00:00", "2027-01-01T00:00"),
        ("quarter", "Europe/Berlin", "2026-02-01T00:00", "2025-12-31T23:00", "2026-03-31T22:00"),
        ("year", "UTC", "2024-12-31T00:00", "2024-01-01T00:00", "2025-01-01T00:00"),
    ],
)
def test_calendar_windows_start_with_local_time(unit: str, zone: str, moment: str, start: str, end: str) -> None:
    steps = [Add([{"n": 1, "at": datetime.fromisoformat(moment + "+00:00")}]), Watermark(None)]
    out = play(
        lambda rows: rows.window(ms.calendar(unit, tz=zone)).agg(n=ms.count()),
        steps,
        schema="n int, at timestamp",
        event_time="at",
    )
    window = out[1][0]["window"]
    assert [window["start"], window["end"]] == [datetime.fromisoformat(text + "+00:00") for text in (start, end)]


# ---------------------------------------------------------------- weights


PLUS = ms.combine(
    lambda: 0,
    lambda state, n: state + n,
    lambda one, other: one + other,
    lambda state: state,
    input="total",
    result="int",
)
WEIGHTED: list[tuple[Any, list[Any]]] = [
    (ms.count(), [1, 1, 2]),
    (ms.sum("total"), [5, 3, 13]),
    (ms.min("total"), [5, 3, 3]),
    (ms.max("total"), [5, 3, 10]),
    (ms.first("total"), [5, 3, 3]),
    (ms.last("total"), [5, 3, 10]),
    (ms.collect("total"), [[5], [3], [3, 10]]),
    (ms.top("total", 1), [[5], [3], [10]]),
    (ms.distinct_count("total"), [1, 1, 2]),
    (ms.mean("total"), [5.0, 3.0, 6.5]),
    (ms.stddev("total"), [None, None, pytest.approx(4.9497474683)]),
    (PLUS, [5, 3, 13]),
]


@pytest.mark.parametrize(("aggregate", "expected"), WEIGHTED, ids=[str(made) for made, _ in WEIGHTED])
def test_a_retraction_removes_the_earlier_result(aggregate: Any, expected: list[Any]) -> None:
    """Goal: a second aggregation over a retracting one never counts a key twice.

    Method: key a sends 5, corrects it to 3; key b sends 10; after each, the whole is asked for.
    """

    def build(rows: Any) -> Any:
        totals = (
            rows.key_by("key").window(ms.fixed("1 minute")).trigger(ms.repeatedly(ms.after_count(1))).retracting()
        ).agg(total=ms.sum("n"))
        whole = totals.window(ms.fixed("1 minute")).trigger(ms.repeatedly(ms.after_count(1)))
        return whole.agg(made=aggregate)

    out = run(build, add((5, 1)), add((-2, 2)), add(("b", 10, 3)))
    assert [step[-1]["made"] for step in out] == expected


def test_a_retraction_repeats_the_row_it_retracts() -> None:
    build = lambda rows: (  # noqa: E731
        rows.key_by("key").window(ms.fixed("1 minute")).trigger(ms.each()).retracting().agg(total=ms.sum("n"))
    )
    first, second = run(build, add((5, 1)), add((1, 2)))
    assert [(row["weight"], row["total"]) for row in second] == [(-1, 5), (1, 6)]
    assert second[0] == {**first[0], "weight": -1}


@pytest.mark.on_spark("more")
def test_a_filter_between_lets_retractions_pass() -> None:
    def build(rows: Any) -> Any:
        totals = rows.key_by("key").window(ms.fixed("1 m")).trigger(ms.each()).retracting().agg(total=ms.sum("n"))
        return totals.where("total >= 5").window(ms.fixed("1 m")).trigger(ms.each()).agg(n=ms.count())

    out = run(build, add((5, 1)), add((-1, 2)))
    assert [[row["n"] for row in step] for step in out] == [[1], [0]]


# ---------------------------------------------------------------- watermarks that flow on


def chained(timestamp: str) -> Callable[[Any], Any]:
    def build(rows: Any) -> Any:
        inner = rows.key_by("key").window(ms.fixed("10 seconds"), timestamp=timestamp).agg(n=ms.sum("n"))
        return {"inner": inner, "outer": inner.window(ms.fixed("20 seconds")).agg(ns=ms.collect("n"))}

    return build


@pytest.mark.on_spark("more")
def test_a_chained_window_ends_after_the_panes_it_waits_for() -> None:
    out = run(chained("end_of_window"), add((1, 1), (2, 12)), Watermark(t(10)), Watermark(t(20)))
    assert [[row["n"] for row in step["inner"]] for step in out] == [[], [1], [2]]
    assert [ns([step["outer"]])[0] for step in out] == [[], [], [[1, 2]]]


def test_waiting_rows_hold_the_watermark_at_their_panes_time() -> None:
    """A session that waits with a row of second 1 holds everything behind it back, until its pane is sent."""

    def build(rows: Any) -> Any:
        inner = rows.key_by("key").window(ms.sessions("30 seconds"), timestamp="earliest").agg(n=ms.sum("n"))
        return inner.window(ms.fixed("10 seconds")).agg(ns=ms.collect("n"))

    out = run(build, add((1, 1)), Watermark(t(25)), Watermark(t(31)))
    assert ns(out) == [[], [], [[1]]]
    assert span(out[2][0]) == (0, 10)
    assert out[2][0]["pane"]["timing"] == "on_time"


@pytest.mark.on_spark("more")
def test_a_union_has_the_smallest_watermark() -> None:
    def build(left: Any, right: Any) -> Any:
        slow = right.window(ms.sessions("30 seconds"), timestamp="earliest").agg(n=ms.sum("n")).select("n")
        return left.select(n="cast(n as bigint)").union(slow).window(ms.fixed("10 seconds")).agg(ns=ms.collect("n"))

    out = play(
        build,
        [
            Add([{"n": 1, "at": t(1)}], to="left"),
            Add([{"n": 2, "at": t(2)}], to="right"),
            Watermark(t(20)),
            Watermark(t(40)),
        ],
        schema={"left": "n int, at timestamp", "right": "n int, at timestamp"},
        event_time={"left": "at", "right": "at"},
    )
    assert ns(out) == [[], [], [], [[1, 2]]]


# ---------------------------------------------------------------- row by row


def test_split_routes_each_row_once_and_null_to_the_rest() -> None:
    out = run(
        lambda rows: rows.split({"big": "n > 10", "even": "n % 2 = 0"}, rest="rest"),
        add((12, 0), (4, 0), (3, 0), (None, 0)),
    )
    assert {branch: [row["n"] for row in rows] for branch, rows in out[0].items()} == {
        "big": [12],
        "even": [4],
        "rest": [3, None],
    }


@pytest.mark.parametrize(("match", "even"), [("first", [4]), ("all", [12, 4])])
def test_route_sends_each_row_to_one_branch_or_to_all(match: Any, even: list[int]) -> None:
    out = run(
        lambda rows: rows.route(big="n > 10", even="n % 2 = 0", rest="rest", match=match),
        add((12, 0), (4, 0), (3, 0), (None, 0)),
    )
    assert {branch: [row["n"] for row in rows] for branch, rows in out[0].items()} == {
        "big": [12],
        "even": even,
        "rest": [3, None],
    }


@pytest.mark.on_spark
def test_a_row_that_a_function_fails_on_is_a_dead_letter() -> None:
    def build(rows: Any) -> Any:
        mapped = rows.map(lambda row: {"n": 10 // row["n"]}, "n int", name="divide")
        return {"good": mapped, "dead": mapped.dead}

    out = run(build, add((5, 0), (0, 0), (2, 0)))
    assert out[0]["good"] == [{"n": 2}, {"n": 5}]
    (dead,) = out[0]["dead"]
    assert dead["reason"].startswith("divide: ZeroDivisionError")
    assert b"'n': 0" in dead["value"]


def test_what_a_function_gives_must_fit_its_schema() -> None:
    mapped = lambda rows: rows.map(lambda row: {"n": "text"}, "n int").dead  # noqa: E731
    assert "expected int" in run(mapped, add((1, 0)))[0][0]["reason"]


def test_map_leaves_rows_out_and_flat_map_makes_more() -> None:
    def build(rows: Any) -> Any:
        few = rows.map(lambda row: row if row["n"] > 1 else None)
        return few.flat_map(lambda row: [{"n": n} for n in range(row["n"])], "n int")

    assert run(build, add((1, 0), (2, 0)))[0] == [{"n": 0}, {"n": 1}]


def double(table: pa.Table) -> pa.Table:
    return pa.table({"n": pa.array([2 * n for n in table.column("n").to_pylist()], pa.int32())})


@pytest.mark.parametrize("build", [
    lambda rows: rows.map(lambda frame: frame.select(n=frame["n"] * 2), "n int", batch=True),
    lambda rows: rows.map(double, "n int", batch="arrow"),
])  # fmt: skip
def test_a_function_of_batches(build: Callable[[Any], Any]) -> None:
    assert run(build, add((1, 0), (2, 0)))[0] == [{"n": 2}, {"n": 4}]


def test_select_and_with_column_keep_the_event_time() -> None:
    build = lambda rows: rows.select(m="n + 1").with_column("m", "m * 2").window(ms.fixed("1 m")).agg(x=ms.sum("m"))  # noqa: E731
    assert run(build, add((1, 0)), Watermark(None))[1][0]["x"] == 4


@pytest.mark.on_spark("more")
def test_rows_without_event_time_are_late() -> None:
    def build(rows: Any) -> Any:
        panes = rows.key_by("key").window(ms.fixed("1 m")).agg(ns=ms.collect("n"))
        return {"panes": panes, "late": panes.late}

    out = run(build, add((1, None), (2, 1)), Watermark(None))
    assert out[0]["late"] == [{"key": "a", "n": 1, "at": None, "window": None, "reason": "no event time"}]
    assert ns([out[1]["panes"]]) == [[[2]]]


def test_an_empty_window_sends_nothing_and_nulls_are_left_out() -> None:
    build = lambda rows: rows.window(ms.fixed("1 m")).agg(  # noqa: E731
        n=ms.count(), total=ms.sum("n"), least=ms.min("n"), all=ms.collect("n"), best=ms.top("n", 2)
    )
    row = run(build, add((None, 0)), Watermark(None))[1][0]
    assert (row["n"], row["total"], row["least"], row["all"], row["best"]) == (1, None, None, [], [])


def test_keys_are_sent_in_order_nulls_first() -> None:
    build = lambda rows: rows.key_by("n").window(ms.everything()).trigger(ms.each()).agg(c=ms.count())  # noqa: E731
    assert [row["n"] for row in run(build, add((10, 0), (9, 0), (None, 0), (-1, 0)))[0]] == [None, -1, 9, 10]


# ---------------------------------------------------------------- panes until their window expires


@pytest.mark.on_spark("more")
def test_a_window_that_expires_retracts_its_last_pane() -> None:
    def build(rows: Any) -> Any:
        windowed = rows.key_by("key").window(ms.fixed("10 seconds"), allowed_lateness="10 seconds")
        early = ms.after_watermark(early=ms.repeatedly(ms.after_count(1)), late=ms.each())
        panes = windowed.trigger(early).retracting(until_expiry=True).agg(total=ms.sum("n"))
        live = panes.to_table().group_by().agg(windows=ms.count(), total=ms.sum("total")).changes()
        return {"panes": panes, "live": live}

    end, later = Watermark(t(10)), Watermark(t(20))
    out = run(build, add((1, 0)), add((2, 5), (3, 12)), end, add((4, 3)), later, Watermark(None))
    assert [[(row["total"], row["weight"]) for row in step["panes"]] for step in out] == [
        [(1, 1)],
        [(1, -1), (3, 1), (3, 1)],
        [(3, -1), (3, 1)],
        [(3, -1), (7, 1)],
        [(7, -1), (3, -1), (3, 1)],
        [(3, -1)],
    ]
    live = [[(row["windows"], row["total"]) for row in step["live"] if row["weight"] > 0] for step in out]
    assert [step[-1:] for step in live] == [[(1, 1)], [(2, 6)], [], [(2, 10)], [(1, 3)], []]


def test_a_pane_at_expiry_is_emitted_and_retracted() -> None:
    def build(rows: Any) -> Any:
        return rows.key_by("key").window(ms.fixed("10 seconds")).retracting(until_expiry=True).agg(total=ms.sum("n"))

    out = run(build, add((1, 0)), Watermark(t(10)))
    assert [(row["total"], row["weight"]) for row in out[1]] == [(1, 1), (1, -1)]


@pytest.mark.on_spark("more")
def test_a_closed_session_is_retracted_at_expiry_though_more_rows_came() -> None:
    def build(rows: Any) -> Any:
        windowed = rows.key_by("key").window(ms.sessions("10 seconds")).trigger(ms.after_count(1))
        return windowed.retracting(until_expiry=True).agg(total=ms.sum("n"))

    out = run(build, add((1, 0)), add((2, 5)), Watermark(t(20)))
    assert [[(row["total"], row["weight"]) for row in step] for step in out] == [[(1, 1)], [], [(1, -1)]]


# ---------------------------------------------------------------- once per bundle


@pytest.mark.on_spark("more")
def test_after_no_time_fires_once_with_every_bundle() -> None:
    trigger = ms.repeatedly(ms.after("0 seconds"))
    out = run(collected(ms.fixed("1 minute"), trigger), add((1, 0), (2, 1)), add((3, 2)), Clock(t(5)), add((4, 3)))
    assert ns(out) == [[[1, 2]], [[1, 2, 3]], [], [[1, 2, 3, 4]]]
