"""Processing time of a job under a machine's clock that is set ahead and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.spark.query.job_clock import HOLD_US, STEP_US, JobClock

SECOND, HOUR = 1_000_000, 3_600_000_000
NOON = 1_800_000_000 * SECOND


class Machine:
    """A machine whose clock can be set; real time passes all the same."""

    def __init__(self) -> None:
        self.passed = 0
        self.shift = 0

    def clock(self) -> JobClock:
        return JobClock(lambda: NOON + self.passed + self.shift, lambda: self.passed)


def read_for(machine: Machine, clock: JobClock, seconds: float, last: int) -> tuple[int, list[str]]:
    """A reading every tenth of a second; the last one, and what was reported."""
    reports = []
    for _ in range(int(seconds * 10)):
        machine.passed += SECOND // 10
        now = clock.read(last)
        assert now > last
        last = now
        reports += [clock.report] if clock.report else []
    return last, reports


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_it_is_the_machines_clock(machine: Machine) -> None:
    last, reports = read_for(machine, machine.clock(), 5, 0)
    assert last == NOON + machine.passed
    assert reports == []


def test_an_hour_ahead_for_half_a_minute_leaves_no_trace_but_a_report(machine: Machine) -> None:
    clock = machine.clock()
    last, _ = read_for(machine, clock, 5, 0)
    machine.shift = HOUR
    last, ahead = read_for(machine, clock, 30, last)
    machine.shift = 0
    last, after = read_for(machine, clock, 5, last)
    assert last == NOON + machine.passed
    assert len(ahead) == 1
    assert "3,600.0 s" in ahead[0]
    assert after == []


def test_an_hour_ahead_for_good_is_followed_after_a_minute(machine: Machine) -> None:
    clock = machine.clock()
    last, _ = read_for(machine, clock, 5, 0)
    machine.shift = HOUR
    last, reports = read_for(machine, clock, 61, last)
    assert last == NOON + machine.passed + HOUR
    assert ["follows if it stays" in reports[0], "the job's clock follows it" in reports[1]] == [True, True]


def test_a_clock_that_was_set_back_advances_at_half_speed_until_it_catches_up(machine: Machine) -> None:
    clock = machine.clock()
    before, _ = read_for(machine, clock, 5, 0)
    machine.shift = -30 * SECOND
    last, reports = read_for(machine, clock, 10, before)
    assert last - before == 5 * SECOND
    assert len(reports) == 1
    assert "30.0 s behind" in reports[0]
    last, more = read_for(machine, clock, 51, last)
    assert last == NOON + machine.passed - 30 * SECOND
    assert more == []


def test_a_run_that_starts_behind_the_last_one_still_advances(machine: Machine) -> None:
    """As after a run whose machine was an hour ahead: timers that wait for seconds fire in seconds."""
    last = NOON + HOUR
    now, reports = read_for(machine, machine.clock(), 20, last)
    assert 9 * SECOND < now - last <= 10 * SECOND
    assert len(reports) == 1


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(-2, 2).map(lambda n: n * HOUR)), max_size=12))
def test_whatever_the_machine_does_it_never_goes_back_and_never_stands_still(steps: list[tuple[int, int]]) -> None:
    machine = Machine()
    clock, last = machine.clock(), 0
    for seconds, shift in steps:
        machine.shift = shift
        before, passed = last, machine.passed
        last, _ = read_for(machine, clock, seconds, last)
        assert last - before >= (machine.passed - passed) // 2 - STEP_US
    machine.passed += HOLD_US
    assert clock.read(last) > last
