"""A trigger is a value that knows whether it can fire and finish; one that can never fire is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.time import triggers


def test_triggers_are_values() -> None:
    assert ms.after("1 minute") == ms.after("60 seconds")
    assert ms.first_of(ms.each(), ms.at_expiry()) != ms.all_of(ms.each())
    assert [str(part) for part in ms.after_watermark(ms.after("1 s"), ms.repeatedly(ms.after_count(2))).walk()] == [
        "after_watermark(early=after(1 second), late=repeatedly(after_count(2)))",
        "after(1 second)",
        "repeatedly(after_count(2))",
        "after_count(2)",
    ]


@pytest.mark.parametrize(
    ("trigger", "said"),
    [
        (ms.after_watermark(), "after_watermark()"),
        (ms.every("90 s"), "every(1 minute 30 seconds)"),
        (ms.in_order(ms.after_count(1), ms.each()), "in_order(after_count(1), each())"),
        (ms.first_of(ms.each(), ms.at_expiry()), "first_of(each(), at_expiry())"),
        (ms.all_of(ms.each(), ms.after_count(3)), "all_of(each(), after_count(3))"),
        (ms.each().until(ms.after_count(3)), "each().until(after_count(3))"),
    ],
)
def test_a_trigger_says_what_it_is(trigger: triggers.Trigger, said: str) -> None:
    assert str(trigger) == said


@pytest.mark.parametrize(
    ("trigger", "finishes"),
    [
        (ms.after_count(1), True),
        (ms.after("1 s"), True),
        (ms.each(), False),
        (ms.every("1 s"), False),
        (ms.at_expiry(), False),
        (ms.repeatedly(ms.after_count(1)), False),
        (ms.after_watermark(), True),
        (ms.after_watermark(early=ms.each()), True),
        (ms.after_watermark(late=ms.each()), False),
        (ms.first_of(ms.each(), ms.after_count(1)), True),
        (ms.all_of(ms.each(), ms.after_count(1)), False),
        (ms.in_order(ms.after_count(1), ms.each()), False),
        (ms.each().until(ms.after_count(1)), True),
    ],
    ids=str,
)
def test_which_triggers_can_finish(trigger: triggers.Trigger, finishes: bool) -> None:
    assert trigger.can_finish is finishes
    assert trigger.can_fire is (trigger != ms.at_expiry())


@pytest.mark.parametrize(
    ("mistake", "what", "next_step"),
    [
        (lambda: ms.every("0 s"), "interval must be longer than 0", "each()"),
        (lambda: ms.after("-1 s"), "negative", ""),
        (lambda: ms.every("score > 0"), "the interval 'score > 0' cannot be read", "bool_and(…)"),
        (lambda: ms.every(5), "the interval must be text or a timedelta, not int", "90 seconds"),
        (lambda: ms.after_count(0), "a count must be a positive integer, not 0", "after_count(100)"),
        (lambda: ms.after_count(True), "a count must be a positive integer", ""),
        (lambda: ms.after_count("3"), "a count must be a positive integer", ""),
        (lambda: ms.after_watermark(early="1 minute"), "early takes a trigger, not '1 minute'", "after_count"),
        (lambda: ms.after_watermark(late=ms.each), "late takes a trigger", "call it: each(…)"),
        (lambda: ms.first_of(), "first_of needs at least one trigger", "triggers: after_watermark"),
        (lambda: ms.all_of(3), "all_of takes a trigger, not 3", "triggers: "),
        (lambda: ms.each().until(3), "until takes a trigger, not 3", "triggers: "),
        (lambda: ms.repeatedly(None), "repeatedly takes a trigger, not None", "triggers: "),
        (lambda: ms.repeatedly(ms.at_expiry()), "at_expiry() can never fire, so it cannot repeat", "by itself"),
        (lambda: ms.all_of(ms.each(), ms.at_expiry()), "all_of(each(), at_expiry()) can never fire", "by itself"),
        (lambda: ms.first_of(ms.at_expiry(), ms.at_expiry()), "can never fire", ""),
        (lambda: ms.in_order(ms.each(), ms.after_count(1)), "each() never finishes", "put it last"),
        (lambda: ms.in_order(ms.at_expiry(), ms.each()), "at_expiry() never finishes", ""),
        (lambda: ms.in_order(ms.after_watermark(late=ms.each()), ms.each()), "never finishes", ".until("),
        (lambda: ms.at_expiry().until(ms.at_expiry()), "can never fire", ""),
    ],
)
def test_a_trigger_that_makes_no_sense_is_refused(mistake: Callable[[], Any], what: str, next_step: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        mistake()
    assert what in refused.value.what
    assert next_step in (refused.value.next_step or "")
    assert (refused.value.where or "").startswith(f"{__file__}:")
