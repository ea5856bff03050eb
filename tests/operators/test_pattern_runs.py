"""First rows that can go one way only are decided all at once, as the search would decide them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.operators.aggregates.accumulators import ROW
from millstream.operators.patterns import runs
from millstream.operators.patterns.beginnings import Masks
from millstream.operators.patterns.columns import Columns, RowColumns
from millstream.operators.patterns.preferred import PreferredMatcher
from millstream.operators.patterns.runs import FAILED, LEFT, OPEN, Moves, Runs
from millstream.plan.patterns.node import Match
from millstream.plan.time.bundles import END
from millstream.testing import Add, Watermark, play
from properties import examples
from times import t

SCHEMA = "name string, n int, at timestamp"


def stage(name: str) -> tuple[str, str]:
    return name, f"name = '{name}'"


A = ms.pattern(*stage("a"))
ABC = A.next(*stage("b")).next(*stage("c"))


def runs_over(pattern: ms.Pattern, names: str) -> Runs:
    """Over the rows of a key, one letter each and a second apart."""
    stream = ms.Flow("f").read("events", SCHEMA, "at", ms.ascending())
    node = stream.key_by("n").match(pattern, matches="preferred").node
    assert isinstance(node, Match)
    times = np.arange(len(names)) * 1_000_000
    content = pl.DataFrame({"name": list(names), "n": [1] * len(names), "at": times})
    content = content.with_columns(pl.col("n").cast(pl.Int32), pl.col("at").cast(pl.Datetime("us", "UTC")))
    given = RowColumns(node.inputs[0].schema, pl.DataFrame([content.to_struct(ROW)]), np.zeros(len(names), np.int64))
    columns = Columns(node.search, given)
    masks = Masks.of(columns.bits(slice(None)))
    matcher = PreferredMatcher(node.search, node.skip, columns, times.tolist(), 0)
    moves = Moves.of(node.search.automaton.states, masks.distinct, matcher.fitting)
    assert moves is not None
    return Runs(moves, masks, times, node.search.within)


def lasts(pattern: ms.Pattern, names: str, watermark: int = 0) -> list[int]:
    """By row, the last row of the match that begins with it."""
    count = len(names)
    return runs_over(pattern, names).lasts(np.arange(count), np.full(count, count), watermark).tolist()


def test_the_last_row_of_a_match_is_found_and_where_there_is_none() -> None:
    assert lasts(ABC, "abcabx") == [2, FAILED, FAILED, FAILED, FAILED, FAILED]


def test_rows_to_come_decide_unless_the_input_has_ended() -> None:
    assert lasts(ABC, "ab") == [OPEN, FAILED]
    assert lasts(ABC, "ab", watermark=END) == [LEFT, FAILED]


def test_rows_between_are_skipped() -> None:
    pattern = A.followed_by(*stage("b"))
    assert lasts(pattern, "axxb")[0] == 3
    found = runs_over(pattern, "axxb")
    found.add(0, 3)
    match = found.run(0)
    assert list(match) == [(0, "a", False), (3, "b", False)]
    assert (len(match), match[0], match[-1], match[:1]) == (2, (0, "a", False), (3, "b", False), ((0, "a", False),))


def test_a_row_that_must_not_follow_ends_a_run() -> None:
    assert lasts(A.not_followed_by(*stage("c")).followed_by(*stage("b")), "acbab") == [
        FAILED,
        FAILED,
        FAILED,
        4,
        FAILED,
    ]


def test_what_may_time_out_is_left_to_the_search() -> None:
    assert lasts(A.followed_by(*stage("b")).within("2 seconds"), "axxbaxb") == [
        LEFT,
        FAILED,
        FAILED,
        FAILED,
        6,
        *[FAILED] * 2,
    ]


def test_a_choice_is_left_to_the_search() -> None:
    either = ms.pattern("a", "name in ('a', 'b')").one_or_more().consecutive().next(*stage("b"))
    assert lasts(either, "aab")[:2] == [LEFT, LEFT]
    assert lasts(A.next("b", "n > a.n"), "ab")[0] == LEFT


def test_long_runs_are_left_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROWS_MAX", 4)
    pattern = A.followed_by(*stage("b"))
    assert lasts(pattern, "axxb")[0] == 3
    assert lasts(pattern, "axxxb")[0] == LEFT


SEARCHES = {
    "pattern (A X*? B) define A as name = 'a', X as name <> 'b', B as name = 'b'": "between",
    "pattern (A X*? B) within 4 seconds define A as name = 'a', X as name <> 'b', B as name = 'b'": "within",
    "pattern (A {- C+ -} B) within 6 seconds define A as name = 'a', C as name = 'c', B as name = 'b'": "excluded",
    "pattern (A B+ C) define A as name = 'a', B as name = 'b', C as name = 'c'": "repeated",
    "pattern (A B+) define A as name = 'a', B as name = 'b'": "at the end",
    "pattern (A C? B) within 3 seconds define A as name = 'a', B as name = 'b', C as name in ('b', 'c')": "choice",
}


@pytest.mark.parametrize("search", SEARCHES, ids=SEARCHES.values())
@examples(100)
@given(
    letters=st.text("abc", min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29), max_size=3),
    rows=st.sampled_from(["one row per match", "all rows per match"]),
)
def test_results_are_those_of_the_reference(search: str, letters: str, cuts: set[int], rows: str) -> None:
    measures = "measures match_number() as m, count(*) as size, last(B.n) as b, classifier() as plays, sum(n) as total"
    given: list[dict[str, Any]] = [{"name": name, "n": n, "at": t(n)} for n, name in enumerate(letters)]
    steps: list[Any] = []
    places = [0, *sorted(cut for cut in cuts if cut < len(given)), len(given)]
    for start, stop in pairwise(places):
        steps += [Add(given[start:stop]), Watermark(given[stop - 1]["at"])]

    def build(stream: Any) -> Any:
        found = stream.match_recognize(f"{measures} {rows} {search}")
        return {"found": found, "over": found.timed_out} if "within" in search else found

    local, reference = (
        play(build, [*steps, Watermark(None)], schema=SCHEMA, event_time="at", on=on) for on in ("local", "reference")
    )
    assert local == reference
