"""Assertions name what matters, and a failure tells missing, surplus and other rows apart."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidInput
from millstream.testing import Watermark, assert_panes, assert_steps, print_panes

from .scores import at, played, scored, totals


def pane(team: str, minute: int, total: int | None, timing: str = "on_time", index: int = 0) -> dict[str, Any]:
    window = {"start": at(minute), "end": at(minute + 1)}
    return {"team": team, "window": window, "pane": {"timing": timing, "index": index}, "weight": 1, "total": total}


SENT = [pane("blue", 0, 3), pane("red", 0, 5), pane("red", 1, 7, "early")]


def failure(sent: list[Any], expected: list[Any], **options: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        assert_panes(sent, expected, **options)
    return str(raised.value)


def test_only_the_fields_that_are_named_count() -> None:
    assert_panes(SENT, [{"total": 3}, {"pane": {"timing": "on_time"}}, {"window": {"start": at(1)}, "total": 7}])
    assert_panes(SENT, [{}, {}, {}])
    assert_panes([], [])


def test_order_counts_by_default() -> None:
    swapped = [{"total": 5}, {"total": 3}, {"total": 7}]
    assert failure(SENT, swapped).startswith("the expected rows were sent in another order")
    assert_panes(SENT, swapped, ordered=False)


def test_in_any_order_a_vague_row_leaves_a_sharp_one_its_match() -> None:
    """Goal: the pairs are found together. Method: the first expectation fits both rows, the second only one."""
    assert_panes([pane("red", 0, 5), pane("red", 1, 7)], [{"team": "red"}, {"total": 5}], ordered=False)


def test_a_field_that_differs_is_marked_and_the_others_are_dots() -> None:
    assert failure(SENT[:2], [pane("blue", 0, 3), pane("red", 0, 9)]).splitlines() == [
        "expected 2, sent 2: 1 other (times of 2026-01-31, UTC)",
        "",
        "            team  window          pane.timing  pane.index  weight  total",
        "            blue  12:00 to 12:01  on_time      0           1       3",
        "  expected  red   12:00 to 12:01  on_time      0           1       9",
        "  sent      ·     ·               ·            ·           ·       5",
    ]


def test_missing_and_extra_rows_are_reported() -> None:
    said = failure(SENT, [{"team": "blue", "total": 3}, {"team": "red", "total": 5}, {"team": "red", "total": 1}])
    assert "1 other" in said
    assert "missing" in failure(SENT[:1], [{"team": "blue"}, {"team": "green"}])
    said = failure(SENT, [{"team": "blue", "total": 3}, {"team": "red", "total": 5}])
    assert said.splitlines()[-1] == "  surplus  red   12:01 to 12:02  early        0           7"


def test_an_extra_row_is_reported_even_if_none_was_expected() -> None:
    lines = failure(SENT[:1], []).splitlines()
    assert lines[0].startswith("expected 0, sent 1: 1 surplus")
    assert lines[-1].split() == ["surplus", "blue", "12:00", "to", "12:01", "on_time", "0", "3"]


def test_a_field_that_no_row_has_is_named() -> None:
    assert "no such field" in failure(SENT[:1], [{"totl": 3, "team": "blue"}])


def test_one_end_of_a_window_is_compared_alone() -> None:
    said = failure(SENT[:1], [{"team": "blue", "window": {"start": at(5)}}])
    assert "window.start" in said
    assert "12:05" in said
    assert "12:00" in said


def test_times_of_several_days_are_written_with_the_day() -> None:
    later = pane("blue", 0, 3) | {"window": {"start": at(0).replace(day=1), "end": at(1)}}
    assert "2026-01-01 12:00 to 2026-01-31 12:01" in failure([later], [])


def test_steps_are_compared_by_number_and_the_others_sent_nothing() -> None:
    out = played(totals, [scored(5, 0), Watermark(at(1)), scored(4, 1), Watermark(None)])
    assert_steps(out, {1: [{"total": 5}], 3: [{"total": 4}]})
    with pytest.raises(AssertionError) as raised:
        assert_steps(out, {0: [{"total": 5}], 3: [{"total": 4}]})
    assert "step 0: expected 1, sent 0: 1 missing" in str(raised.value)
    assert "step 1: expected 0, sent 1: 1 surplus" in str(raised.value)


def test_steps_of_several_streams_are_compared_by_name() -> None:
    out: list[Any] = [{"a": [{"n": 1}], "b": []}, {"a": [], "b": [{"n": 2}]}]
    assert_steps(out, {0: {"a": [{"n": 1}]}, 1: {"b": [{"n": 2}]}})
    with pytest.raises(AssertionError, match="step 1, stream 'b'"):
        assert_steps(out, {0: {"a": [{"n": 1}]}})


@pytest.mark.parametrize(
    "call",
    [
        lambda: assert_panes([[{"n": 1}]], []),  # type: ignore[list-item]
        lambda: assert_panes([], {"n": 1}),  # type: ignore[arg-type]
        lambda: assert_steps([[]], {4: []}),
        lambda: assert_steps([[]], [[]]),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_compared_is_refused(call: Any) -> None:
    with pytest.raises(InvalidInput):
        call()


# ---------------------------------------------------------------- printing


def test_panes_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_panes(played(totals, [scored(5, 0), Watermark(at(1))]))
    assert capsys.readouterr().out.splitlines() == [
        "step  team  window          pane       total",
        "1     red   12:00 to 12:01  on_time 0  5",
    ]


def test_streams_are_printed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_panes([{"a": [{"n": 1}], "b": []}, {"a": [], "b": [{"n": None}]}])
    assert capsys.readouterr().out.splitlines() == ["step  stream  n", "0     a       1", "1     b       null"]


def test_no_rows_print_that_nothing_was_sent(capsys: pytest.CaptureFixture[str]) -> None:
    print_panes([[], []])
    assert capsys.readouterr().out == "nothing was sent\n"
