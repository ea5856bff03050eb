"""A job runs once at a time: a second run is refused, and the results of the first are exact."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.errors import JobRunning
from waiting import exit_code, until

from .killing import Killed

SECOND_RUNS = 3
RACES = 5
pytestmark = [pytest.mark.soak, pytest.mark.own_processes]


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    made = Killed(tmp_path, seed=2029)
    yield made
    made.close()


def refusals(killed: Killed) -> int:
    said = (killed.folder / "err").read_text()
    assert "Traceback" not in said
    return said.count("error: the job 'killed' is already running")


def test_a_second_run_is_refused_while_the_first_continues(killed: Killed, rounds: Callable[[int, int], int]) -> None:
    killed.feed(200)
    first = killed.start()
    try:
        for number in range(1, rounds(SECOND_RUNS, 1) + 1):
            before = killed.newest()
            until(lambda before=before: killed.newest() > before, "a batch of the first")
            assert exit_code(killed.start(), "the second run") == JobRunning.exit_code
            assert refusals(killed) == number
            killed.feed(50)
        before = killed.newest()
        until(lambda: killed.newest() > before, "the first to go on")
        assert first.poll() is None
    finally:
        first.kill()
        assert exit_code(first, "the first run, which was killed") == -signal.SIGKILL
    killed.catch_up()
    killed.check()


def test_one_of_two_runs_started_at_the_same_instant_is_refused(
    killed: Killed, rounds: Callable[[int, int], int]
) -> None:
    killed.feed(140)  # with two races more, enough for late rows
    for number in range(1, rounds(RACES, 2) + 1):
        killed.feed(60)
        both = [killed.start("--until", "caught up") for _ in range(2)]
        codes = sorted(exit_code(process, "both runs") for process in both)
        assert codes == [0, JobRunning.exit_code]
        assert refusals(killed) == number
    killed.catch_up()
    killed.check()
