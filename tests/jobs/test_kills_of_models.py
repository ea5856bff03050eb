"""Models and stored queries that change while the driver is killed: every row is scored once, and no match is lost."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

import millstream as ms
from times import t
from waiting import until

from .killing import USERS, Killed
from .support import read

KILLS_OF_A_SOAK = 4
AHEAD_S, ROUND_ROWS, JUMP_S = 50, 400, 1_000
pytestmark = [pytest.mark.soak, pytest.mark.own_processes]
FLOW = """
from pathlib import Path
import millstream as ms

log = str(Path(__file__).parent / "log")
flow = ms.Flow("killed")
scores = flow.read("{scores}", "{scores_schema}", event_time="at", watermark=ms.bounded("5 seconds"))
with ms.models("models", log=log) as models, ms.queries(log, "alerts") as alerts:
    scores.predict(models, "n", into="score").write("{scored}", partitions=1)
    found = scores.match_queries(alerts, text="user", history="log")
found.select("query", "user", "n", "at").write("{found}")
found.late.select("user", "n", "at").write("{late}")
"""


class KilledModels(Killed):
    flow = FLOW
    outputs: ClassVar[tuple[str, ...]] = ("scored", "found", "late")


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledModels]:
    made = KilledModels(tmp_path, seed=2030, batch_rows=200)
    yield made
    made.close()


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["user"], row["n"], row["at"]


@pytest.mark.timeout(3600)
def test_models_and_queries_under_kills(killed: KilledModels, rounds: Callable[[int, int], int]) -> None:
    log, in_force = killed.log, {}
    with ms.models("models", log=log) as models, ms.queries(log, "alerts") as alerts:
        for number in range(rounds(KILLS_OF_A_SOAK, 2)):
            models.put({"coefficients": [number + 1]})
            at, user = t(killed._second + AHEAD_S), USERS[number % len(USERS)]
            alerts.put(f"q{number}", user, at=at)
            alerts.put(f"all{number}", user, at=at, since=t(0))  # reads the log when it takes effect
            in_force[f"q{number}"] = (user, at)
            killed.feed(ROUND_ROWS)
            assert killed.run_and_kill() == -signal.SIGKILL
        last = t(killed._second)
        killed._second += JUMP_S
        killed.feed(100)
        killed.start()
        rows = read(log, killed.topics["scores"])
        until(lambda: len(read(log, killed.topics["scored"])) >= len(rows), "all rows", 2.0)
        scored = read(log, killed.topics["scored"])
        assert Counter(map(key, scored)) == Counter(map(key, rows))
        used = [row["score"] / row["n"] for row in scored if row["n"]]
        assert all(before <= after for before, after in pairwise(used))  # never an older model again
        assert used[-1] == len(in_force)

        def expected() -> Counter[Any]:
            in_time = Counter(map(key, rows)) - Counter(map(key, read(log, killed.topics["late"])))
            return Counter(
                (query, *row)
                for row in in_time.elements()
                for query, (user, at) in in_force.items()
                if row[0] == user and at <= row[2] <= last
            )

        def found() -> Counter[Any]:
            matches = read(log, killed.topics["found"])
            return Counter((row["query"], *key(row)) for row in matches if row["at"] <= last)

        def found_live() -> Counter[Any]:
            return Counter({match: count for match, count in found().items() if match[0] in in_force})

        until(lambda: found_live() and found_live() == expected(), "all matches", 2.0)
        given, late = Counter(map(key, rows)), Counter(map(key, read(log, killed.topics["late"])))
        matches = found()
        for number, (user, _) in enumerate(in_force.values()):
            of_user = {row: count for row, count in given.items() if row[0] == user and row[2] <= last}
            for row, count in of_user.items():  # a late row is found if the log had it when the query took effect
                assert count - late[row] <= matches[(f"all{number}", *row)] <= count, (number, row)
