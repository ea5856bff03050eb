"""The operator behind patterns: what it costs, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.local import Local
from millstream.plan.time.bundles import BEGINNING, END, Bundle, Row, micros
from millstream.testing import Add, Watermark, play
from times import t

SCHEMA = "key string, name string, n int, at timestamp"


def rows(names: str, since: int = 0) -> list[dict[str, Any]]:
    return [{"key": "k", "name": name, "n": n, "at": t(since + n)} for n, name in enumerate(names)]


def optional_parts(count: int) -> ms.Pattern:
    pattern = ms.pattern("p0", "name = 'a'").optional()
    for number in range(1, count):
        pattern = pattern.next(f"p{number}", "name = 'a'").optional()
    return pattern.next("b", "name = 'b'")


@pytest.mark.parametrize("matches", ["preferred", "every"])
def test_many_optional_parts_end_in_time(matches: Any) -> None:
    """Goal: thirty optional parts cost no more than their number times that of the rows, not all combinations."""
    steps = [Add(rows("a" * 40 + "c")), Watermark(None)]
    out = play(
        lambda stream: stream.key_by("key").match(optional_parts(30), matches=matches, rows="all"),
        steps,
        schema=SCHEMA,
        event_time="at",
        on="local",
    )
    assert out == [[], []]


def test_more_combinations_than_can_be_emitted_are_an_error() -> None:
    pattern = ms.pattern("a", "name = 'a'").one_or_more().combinations().followed_by("b", "name = 'b'")
    with pytest.raises(InvalidInput, match="more than 100,000 matches end with one row"):
        play(
            lambda stream: stream.key_by("key").match(pattern, skip="none"),
            [Add(rows("a" * 30 + "b")), Watermark(None)],
            schema=SCHEMA,
            event_time="at",
            on="local",
        )


@pytest.mark.parametrize("matches", ["preferred", "every"])
def test_a_missing_row_to_skip_to_is_noted(matches: Any) -> None:
    """Goal: the search goes on at the next row, and the owner of the job learns why."""
    stream = ms.Flow("test").read("rows", SCHEMA, event_time="at")
    pattern = ms.pattern("a", "name = 'a'").next("b", "name = 'b'").optional()
    made = stream.key_by("key").match(pattern, skip="to last b", matches=matches, name="pairs")
    notes = []
    for names in ("ab", "ac"):
        local = Local([made.node])
        came = [Row(row, micros(row["at"])) for row in rows(names)]
        local.step({stream.node: Bundle(came, BEGINNING, END, 0, 0)})
        notes.append(local._states[made.node].sent["notes"]["note"].to_list())
    if matches == "every":  # there, 'a' alone is a match as well
        assert len(notes[0]) == 1
    else:
        assert notes[0] == []
    (note,) = notes[1]
    assert "'pairs' have no row of 'b' to skip to" in note


def held(pattern: ms.Pattern, *steps: tuple[list[dict[str, Any]], Any], **options: Any) -> list[int]:
    """How many rows of state there are after each step, given rows and a watermark."""
    stream = ms.Flow("test").read("rows", SCHEMA, event_time="at")
    made = stream.key_by("key").match(pattern, **options)
    local, watermark, found = Local([made.node]), BEGINNING, []
    for given, time in steps:
        after = END if time is None else micros(time)
        came = [Row(row, micros(row["at"])) for row in given]
        local.step({stream.node: Bundle(came, watermark, after, 0, 0)})
        watermark = after
        found.append(local._states[made.node].tables["rows"].rows)
    return found


def test_state_is_dropped_as_partial_matches_end() -> None:
    pattern = ms.pattern("a", "name = 'a'").followed_by("b", "name = 'b'").within("10 seconds")
    assert held(pattern, (rows("xxxx"), t(4)), (rows("xa", 5), t(6)), ([], t(30))) == [0, 1, 0]
    assert held(pattern, (rows("xaxx"), t(1)), ([], t(4))) == [3, 3]
    # one row counts the matches of the key
    assert held(pattern, (rows("axb"), t(4)), (rows("x", 5), t(6))) == [1, 1]


def test_rows_to_look_back_at_are_kept() -> None:
    pattern = ms.pattern("a", "n > prev(n)")
    out = play(
        lambda stream: stream.key_by("key").match(pattern).select("a.n"),
        [Add(rows("x")), Watermark(t(0)), Add([{"key": "k", "name": "x", "n": 5, "at": t(1)}]), Watermark(None)],
        schema=SCHEMA,
        event_time="at",
        on="local",
    )
    assert out == [[], [], [], [{"n": 5}]]


@pytest.mark.parametrize("matches", ["preferred", "every"])
def test_a_changed_pattern_finds_the_rows_that_are_held(matches: Any) -> None:
    """The first pattern waits for 'b' behind 'a'; the rows that it holds begin a match of the second."""
    before = ms.pattern("a", "name = 'a'").followed_by("b", "name = 'b'").within("1 minute")
    after = ms.pattern("a", "name = 'a'").followed_by("c", "name = 'c'").followed_by("d", "name = 'd'")
    stream = ms.Flow("test").read("rows", SCHEMA, event_time="at")
    first, second = (stream.key_by("key").match(each, matches=matches) for each in (before, after))
    old, new = Local([first.node]), Local([second.node])
    old.step({stream.node: Bundle([Row(row, micros(row["at"])) for row in rows("xac")], BEGINNING, micros(t(2)), 0, 0)})
    new._states[second.node]._tables = old._states[first.node]._tables
    came = [Row(row, micros(row["at"])) for row in rows("xd", 3)]
    (found,) = new.step({stream.node: Bundle(came, micros(t(2)), END, 0, 0)})[second.node].rows
    assert [found.values[name][0]["name"] for name in "acd"] == ["a", "c", "d"]
