"""Requests to a job whose driver is killed: each is answered once, or its caller gets an error."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest

import millstream as ms
from millstream.errors import AskTimedOut

from .killing import Killed
from .support import read

KILLS_OF_A_SOAK = 4
REQUESTS = 40
pytestmark = [pytest.mark.soak, pytest.mark.own_processes]
FLOW = """
import millstream as ms

flow = ms.Flow("killed")
scores = flow.read("{scores}", "{scores_schema}", event_time="at", watermark=ms.bounded("5 seconds"))
totals = scores.group_by("user").agg(total=ms.sum("n"))
totals.write("{totals}")
flow.ask("total", "user string", lambda requests: requests.join(totals, on="user", how="left", as_of="now"))
"""


class KilledCalls(Killed):
    flow = FLOW
    outputs: ClassVar[tuple[str, ...]] = ("totals",)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledCalls]:
    made = KilledCalls(tmp_path, seed=2029)
    yield made
    made.close()


@pytest.mark.timeout(3600)
def test_requests_under_kills(killed: KilledCalls, rounds: Callable[[int, int], int]) -> None:
    """Method: half of the callers wait for as long as it takes, the others have given up before the job is back."""
    killed.feed(30)
    assert killed.run_and_kill() == -signal.SIGKILL  # it has made its topics
    patient: list[Future[Any]] = []
    hasty: list[Future[Any]] = []
    with ms.client("killed", broker=killed.log) as client:
        for _ in range(rounds(KILLS_OF_A_SOAK, 2)):
            patient += [client.submit("total", "1 hour", user="ann") for _ in range(REQUESTS)]
            hasty += [client.submit("total", "1 second", user="ann") for _ in range(REQUESTS)]
            assert killed.run_and_kill() == -signal.SIGKILL
        killed.start()
        for call in patient:
            ((row,),) = (call.result(),)
            assert row["user"] == "ann"
        late = Counter(type(call.exception()) for call in hasty)
        assert set(late) <= {AskTimedOut, type(None)}
    answers = Counter(row["request"] for row in read(killed.log, "killed.total.answers"))
    assert set(answers.values()) == {1}
    assert len(patient) <= len(answers) <= len(patient) + len(hasty)
