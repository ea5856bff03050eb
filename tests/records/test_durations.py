"""Goal: every duration is exact to the microsecond, and what cannot be one is refused with the way to write it."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidDuration
from millstream.records import duration, format_duration
from properties import examples


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90 seconds", timedelta(seconds=90)),
        ("1.5 minutes", timedelta(seconds=90)),
        ("250 milliseconds", timedelta(milliseconds=250)),
        ("1 hour 30 minutes", timedelta(minutes=90)),
        ("2 days", timedelta(days=2)),
        ("1 week", timedelta(days=7)),
        ("interval 5 minutes", timedelta(minutes=5)),
        ("INTERVAL 1 HOUR", timedelta(hours=1)),
        ("  10   Seconds ", timedelta(seconds=10)),
        ("10s", timedelta(seconds=10)),
        ("5m", timedelta(minutes=5)),
        ("250ms", timedelta(milliseconds=250)),
        ("7d", timedelta(days=7)),
        ("1h30m", timedelta(minutes=90)),
        ("3us", timedelta(microseconds=3)),
        ("0.000001 seconds", timedelta(microseconds=1)),
        ("0.1 seconds", timedelta(milliseconds=100)),
        (".5 s", timedelta(milliseconds=500)),
        ("0 seconds", timedelta(0)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_texts_that_are_durations(text, expected):
    assert duration(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        ("interval", "empty"),
        ("-5 seconds", "negative"),
        ("1 hour -5 minutes", "negative"),
        (timedelta(seconds=-1), "negative"),
        ("5", "a number and a unit"),
        ("seconds", "a number and a unit"),
        ("5 parsecs", "unknown unit 'parsecs'"),
        ("5 parsecs", "milliseconds"),
        ("3 months", "no fixed length"),
        ("1 year", "no fixed length"),
        ("0.1 microseconds", "finer than a microsecond"),
        ("1 nanosecond", "unknown unit"),
        ("999999999999 days", "too long"),
        ("9" * 100 + " days", "digits"),
        (5, "not int"),
    ],
)
def test_invalid_durations_are_refused(text, expected):
    with pytest.raises(InvalidDuration) as refusal:
        duration(text, what="allowed lateness")
    assert expected in str(refusal.value)
    assert "allowed lateness" in str(refusal.value)


@examples(100)
@given(st.timedeltas(timedelta(0)))
def test_the_canonical_text_parses_back(value):
    assert duration(format_duration(value)) == value


def test_the_canonical_text_reads_well():
    assert format_duration(timedelta(minutes=90)) == "1 hour 30 minutes"
    assert format_duration(timedelta(0)) == "0 seconds"
    assert format_duration(timedelta(days=7, microseconds=1)) == "7 days 1 microsecond"
    with pytest.raises(InvalidDuration):
        format_duration(timedelta(-1))
