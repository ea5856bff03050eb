"""Rows of a user's generator: read again as they were, resumed after the last one, and made no faster than needed."""

import threading

import pytest

import millstream as ms
from millstream.connectors import generated
from millstream.errors import InvalidInput
from waiting import until

from .reading import rows


def received(source, count):
    until(lambda: source.latest()["0"] >= count, "the rows are spooled")
    return rows(source, {"0": 0}, {"0": count})


def counting(position):
    """Three rows a time."""
    first = 0 if position is None else position["n"] + 1
    for n in range(first, first + 3):
        yield {"n": n}, {"n": n}


def test_rows_are_the_same_after_a_restart(open_):
    source = open_(ms.generate(counting), "n int")
    assert received(source, 3) == [{"n": 0}, {"n": 1}, {"n": 2}]
    source.close()
    again = open_(ms.generate(counting), "n int")
    assert received(again, 6) == [{"n": n} for n in range(6)]
    again.close()


def test_a_function_that_fails_is_called_again(open_, monkeypatch):
    monkeypatch.setattr(generated, "RETRY_SECONDS", 0.01)
    calls = []

    def failing(position):
        calls.append(position)
        yield len(calls), {"n": len(calls)}
        if len(calls) < 3:
            raise OSError("the device is away")

    source = open_(ms.generate(failing), "n int")
    assert received(source, 3) == [{"n": 1}, {"n": 2}, {"n": 3}]
    source.close()
    assert calls == [None, 1, 2]


def test_a_fast_generator_waits_for_the_job(open_, monkeypatch):
    monkeypatch.setattr(generated, "AHEAD_MAX", 10)
    made = []

    def endless(position):
        n = 0
        while True:
            made.append(n)
            yield n, {"n": n}
            n += 1

    source = open_(ms.generate(endless), "n int")
    received(source, 10)
    assert len(made) == 10
    source.limited({"0": 5}, None)
    received(source, 15)
    assert len(made) == 15
    source.close()


def test_a_row_that_does_not_fit_ends_it(open_, caplog):
    def wrong(position):
        yield 1, {"n": 1}
        yield 2, {"n": "two"}

    source = open_(ms.generate(wrong), "n int")
    assert received(source, 1) == [{"n": 1}]
    until(lambda: not any(each.name == "millstream-generate" for each in threading.enumerate()), "it has ended")
    source.close()


def test_what_is_not_a_function(open_):
    with pytest.raises(InvalidInput, match="takes a function"):
        ms.generate([1, 2])
