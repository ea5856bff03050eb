"""What is folded before it comes to a step makes no difference to what the step sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.local import LocalState
from millstream.operators.aggregates import distinct_values
from millstream.operators.aggregates.accumulators import ORDER
from millstream.operators.clock import Clock
from millstream.operators.elementwise import frame_of
from millstream.operators.stateful import INPUTS, LATE, PARTIALS, SENT, stateful
from millstream.plan.time.bundles import END, moment
from properties import examples

SCHEMA = "k string, g int, n long, s string, x double, at timestamp"
SECOND = 1_000_000


def distinct(**more: Any) -> dict[str, Any]:
    """Counts of the same column under conditions, of another, and of another type."""
    return {
        "all": ms.distinct_count("n"),
        "few": ms.distinct_count("case when g > 1 then n end"),
        "others": ms.distinct_count("n % 3"),
        "texts": ms.distinct_count("s"),
        **more,
    }


NUMBERS = {"total": ms.sum("n"), "rows": ms.count(), "most": ms.max("x"), "mean": ms.mean("g"), "sd": ms.stddev("n")}
STEPS: dict[str, Callable[[Any], Any]] = {
    "groups": lambda rows: rows.group_by("k").agg(**NUMBERS),
    "all rows": lambda rows: rows.group_by().agg(**NUMBERS),
    "distinct": lambda rows: rows.group_by("k", "g").agg(**distinct(total=ms.sum("n"))),
    "distinct of all": lambda rows: rows.group_by().agg(**distinct()),
    "distinct and more": lambda rows: rows.group_by("k").agg(
        **distinct(best=ms.top("x", 2), odd=ms.distinct_count("x"))
    ),
    "top": lambda rows: rows.top(2, by=["n desc", "x"], per="k"),
    "first": lambda rows: rows.top(1, by="at", per=["k", "g"]),
    "places": lambda rows: rows.top(3, by="n % 4", per="k", rank="place"),
    "fixed": lambda rows: rows.key_by("k").window(ms.fixed("10 seconds")).agg(**NUMBERS),
    "sliding": lambda rows: rows.key_by("k").window(ms.sliding("10 seconds", every="2 seconds")).agg(**NUMBERS),
    "uneven": lambda rows: rows.window(ms.sliding("7 seconds", every="3 seconds", offset="1 second")).agg(**NUMBERS),
    "clock": lambda rows: rows.key_by("k").window(ms.fixed("3 seconds", time="processing")).agg(**NUMBERS),
    "sessions": lambda rows: rows.key_by("k").window(ms.sessions("3 seconds")).agg(**NUMBERS),
    "all sessions": lambda rows: rows.window(ms.sessions("2 seconds"), allowed_lateness="5 seconds").agg(**NUMBERS),
    "corrected sessions": lambda rows: (
        rows.key_by("k", "g")
        .window(ms.sessions("4 seconds"), allowed_lateness="9 seconds")
        .trigger(ms.after_watermark(early=ms.after_count(2), late=ms.after_count(1)))
        .retracting()
        .agg(**NUMBERS)
    ),
    "sliding clock": lambda rows: rows.window(ms.sliding("4 seconds", every="2 seconds", time="processing")).agg(
        **NUMBERS
    ),
}

rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from([None, "a", "b", "c"]),
            "g": st.integers(0, 3),
            "n": st.none() | st.integers(-5, 5),
            "s": st.sampled_from([None, "", "x", "y"]),
            "x": st.none() | st.sampled_from([-1.5, 0.0, 2.25]),
            "at": st.none() | st.integers(-20, 60),
        }
    ),
    max_size=12,
)
script_of = st.lists(st.tuples(rows_of, rows_of, st.integers(0, 12)), min_size=1, max_size=5)


def sent_by(state: LocalState) -> Counter[str]:
    frame = state.sent[SENT]
    exact = [pl.col(name).round(9) for name, kind in frame.schema.items() if kind == pl.Float64]
    return Counter(map(repr, frame.with_columns(exact).rows()))


@pytest.mark.property
@pytest.mark.parametrize("name", STEPS)
def test_pre_aggregated_or_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distinct_values, "SAMPLE_ROWS", 4)
    stream = ms.Flow("folding").read("rows", SCHEMA, "at")
    node = STEPS[name](stream).node

    @examples(25)
    @given(script_of)
    def check(script: list[Any]) -> None:
        step = stateful(node, whole_rows=False)
        assert step is not None
        plain, folded, loose = (LocalState(step, passes_on=False) for _ in range(3))
        watermark = now = count = 0
        for one, other, move in script:
            clock = Clock(watermark, watermark := watermark + move * SECOND, now, now := now + SECOND)
            fed, partials = [], []
            for part in (one, other):
                rows = [{**row, "at": row["at"] if row["at"] is None else moment(row["at"] * SECOND)} for row in part]
                hidden = [
                    {**row, "__time": None if was["at"] is None else was["at"] * SECOND, "__weight": 1}
                    for row, was in zip(rows, part, strict=True)
                ]
                frame = frame_of(hidden, stream.node)
                early, rest = step.folded(frame, count, clock.watermark_before)
                partials += [] if early is None else [early]
                fed.append((step.fed(frame, count), rest))
                count += len(frame)
            nothing = dict(step.nothing)
            plain.take({**nothing, INPUTS[0]: pl.concat([whole for whole, _ in fed])}, clock)
            given_ = {**nothing, INPUTS[0]: pl.concat([rest for _, rest in fed])}
            if partials:
                given_[PARTIALS] = step.joined(partials)
            folded.take(given_, clock)
            assert sent_by(plain) == sent_by(folded)
            if partials:  # as they arrive if a task has sent several parts
                given_[PARTIALS] = pl.concat(partials)
            loose.take(given_, clock)
            assert sent_by(plain) == sent_by(loose)

    check()


def test_several_parts_of_a_window_are_one_window_also_in_the_first_bundle() -> None:
    stream = ms.Flow("folding").read("rows", SCHEMA, "at")
    step = stateful(stream.key_by("k").window(ms.fixed("1 minute")).agg(n=ms.count()).node, whole_rows=False)
    assert step is not None
    partials = []
    for second in (1, 2):
        row = {"k": "a", "g": 0, "n": 1, "s": None, "x": None, "at": moment(second * SECOND)}
        frame = frame_of([{**row, "__time": second * SECOND, "__weight": 1}], stream.node)
        early, _ = step.folded(frame, 0, 0)
        assert early is not None
        partials.append(early)
    state = LocalState(step, passes_on=False)
    state.take({**step.nothing, PARTIALS: pl.concat(partials)}, Clock(0, 3600 * SECOND, 0, 0))
    assert state.sent[SENT]["n"].to_list() == [2]


def test_rows_after_the_end_of_time_are_late_in_processing_time_too() -> None:
    """Folded, they could only be counted."""
    stream = ms.Flow("folding").read("rows", SCHEMA, "at")
    step = stateful(stream.key_by("k").window(ms.fixed("3 seconds", time="processing")).agg(n=ms.count()).node)
    assert step is not None
    row = {"k": "a", "g": 0, "n": 1, "s": None, "x": None, "at": moment(SECOND), "__time": SECOND, "__weight": 1}
    for watermark, late in ((0, []), (END, ["a"])):
        early, rest = step.folded(frame_of([row], stream.node), 0, watermark)
        state = LocalState(step, passes_on=False)
        given_ = {**step.nothing, INPUTS[0]: rest} | ({} if early is None else {PARTIALS: early})
        state.take(given_, Clock(watermark, watermark, 0, SECOND))
        assert state.sent[LATE]["k"].to_list() == late


def test_values_that_repeat_travel_once_and_others_as_rows() -> None:
    stream = ms.Flow("folding").read("rows", SCHEMA, "at")
    step = stateful(stream.group_by("k").agg(kinds=ms.distinct_count("n")).node)
    assert step is not None

    def folded(values: list[int]) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        rows = [
            {"k": "a", "g": 0, "n": n, "s": None, "x": None, "at": None, "__time": None, "__weight": 1} for n in values
        ]
        return step.folded(frame_of(rows, stream.node), 0, 0)

    early, rest = folded([1, 2] * 50)
    assert early is not None
    assert len(early) == 3
    assert rest.is_empty()
    assert ORDER in rest.columns
    early, rest = folded(list(range(100)))
    assert early is None
    assert len(rest) == 100


def test_rows_that_cannot_be_in_the_top_are_not_sent() -> None:
    stream = ms.Flow("folding").read("rows", SCHEMA, "at")
    step = stateful(stream.top(2, by="n desc", per="k").node)
    assert step is not None
    rows = [
        {"k": k, "g": 0, "n": n, "s": None, "x": None, "at": None, "__time": n, "__weight": 1}
        for k, count in (("a", 20), ("b", 1))
        for n in range(count)
    ]
    _, fed = step.folded(frame_of(rows, stream.node), 0, 0)
    assert sorted(fed.select("key.k", "row.n").rows()) == [("a", 18), ("a", 19), ("b", 0)]
    assert set(fed.filter(pl.col("key.k") == "a")["__time"]) == {19}  # the table changes at the newest
