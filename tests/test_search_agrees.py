"""Stored queries that change: the operator finds what the reference finds, and cuts into bundles make no difference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutting import cut
from millstream.testing import Add, Watermark, play
from properties import examples
from times import t

pytestmark = pytest.mark.timeout(900)
SCHEMAS = {
    "documents": "title string, price int, at timestamp",
    "queries": "id string, query string, condition string, since timestamp, at timestamp",
}
TIMES = {"documents": "at", "queries": "at"}
TEXTS = ["a", "b OR c", "+a -b", "a AND price:[1 TO 2]", "price:>1", '"a b"', "abc*", "a~1", "-a", "title:(a b)", "*:*"]
seconds = st.integers(0, 14)
optional_seconds = st.one_of(st.none(), seconds)


@st.composite
def puts(draw: Any) -> list[dict[str, Any]]:
    made = []
    for number in range(draw(st.integers(1, 5))):
        row = {"id": draw(st.sampled_from("qrs")), "at": t(draw(seconds))}
        since = draw(optional_seconds)
        content = {
            "query": draw(st.sampled_from(TEXTS)),
            "condition": draw(st.sampled_from([None, None, "price > 0", "1 / price > 0"])),
            "since": None if since is None else t(since),
        }
        is_gone = number > 0 and draw(st.integers(0, 3)) == 0
        made.append({**row, **(dict.fromkeys(content) if is_gone else content)})
    return made


@st.composite
def documents(draw: Any) -> list[dict[str, Any]]:
    made, at = [], 0
    for _ in range(draw(st.integers(1, 10))):
        at += draw(st.integers(0, 3))
        words = draw(st.lists(st.sampled_from(["a", "b", "c", "abc", "abd"]), max_size=4))
        made.append({"title": " ".join(words), "price": draw(st.integers(0, 3)), "at": t(at)})
    return made


def played(steps: list[Any], on: str, history: str | None) -> Any:
    def build(documents: Any, queries: Any) -> Any:
        return documents.match_queries(
            queries.to_table(key="id"), text="title", score=True, highlight=True, history=history
        )

    return play(build, steps, schema=SCHEMAS, event_time=TIMES, on=on)


def sent(out: Any) -> list[str]:
    return sorted(repr(row) for step in out for row in step)


histories = st.sampled_from([None, "3 seconds", "20 seconds", "log"])
cutting = st.lists(st.integers(0, 20), max_size=5)


@given(puts(), documents(), cutting, histories)
@examples(50)
def test_cuts_make_no_difference(
    queries: list[dict[str, Any]], made: list[dict[str, Any]], cuts: list[int], history: str | None
) -> None:
    known = [Add(queries, to="queries")]
    steps = [*known, *cut(made, cuts, "documents")]
    expected = played(steps, "reference", history)
    assert played(steps, "local", history) == expected
    whole = played([*known, Add(made, to="documents"), Watermark(None)], "local", history)
    assert sent(whole) == sent(expected)


@given(st.lists(st.tuples(st.booleans(), puts(), documents(), seconds), min_size=1, max_size=6), histories)
@examples(40)
def test_late_changes_are_the_same_for_reference_and_operator(steps: list[Any], history: str | None) -> None:
    """Method: queries and documents come in any order, also behind the watermark."""
    script: list[Any] = []
    for is_query, queries, made, at in steps:
        script.append(Add(queries, to="queries") if is_query else Add(made, to="documents"))
        script.append(Watermark(t(at)))
    script.append(Watermark(None))
    assert played(script, "local", history) == played(script, "reference", history)
