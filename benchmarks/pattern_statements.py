"""What both engines search for, in SQL's words, and where its events are. It needs nothing but Python, since Flink runs
in an environment of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORES = 2
MATCHES, TIMES = "matches", "times"
ANSWER = "answer: "
"""What a line with an answer starts with: engines write others, too."""
FIRST, ALL = "first", "all"
"""Folders of events: those of the first batch, and all of them."""
BATCHES, READERS = "batches", "readers"
"""In each of them: one file for a batch, and one for each of Flink's readers."""

COMMON = """
    partition by card
    order by paid_at
    measures S1.amount as first_amount, last(S2.amount) as second_amount, L.amount as amount
    one row per match
    after match skip past last row
"""
STRICT = "pattern (S1 S2+ L) within interval '1' hour "
RELAXED = "pattern (S1 X*? S2 Y*? L) within interval '1' hour "
SMALL = "define S1 as amount < 100, X as amount >= 100, S2 as amount < 100, "
STATEMENTS = {
    "strict": COMMON + STRICT + "define S1 as amount < 300, S2 as amount < 300, L as amount > 700",
    "relaxed": COMMON + RELAXED + SMALL + "Y as amount <= 900, L as amount > 900",
    "by_path": COMMON + RELAXED + SMALL + "L as amount > 10 * (S1.amount + S2.amount)",
}
"""Small payments and then a large one: right after one another; with others between; with a condition that depends
on the rows before. A row can play one variable only, or two of which the last ends the match: where rows could play
more, Flink found other matches, and which of the engines is right was not examined."""


def only_on_two_cores() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # and so for all that is started


def answer(run: Callable[[str, Path], Any], rows: Callable[[str, Path], list[Any]]) -> None:
    """Answers requests from stdin, one JSON line each: a statement, the folder of its events, and what is asked for.

    The matches are those of the first events. A time is that of a run over all events less that of one over the first:
    what the further events cost, whatever it takes to start.
    """
    for line in sys.stdin:
        request = json.loads(line)
        statement, folder = STATEMENTS[request["statement"]], Path(request["folder"])
        if request["asked"] == MATCHES:
            answered: Any = sorted(rows(statement, folder / FIRST))
        else:
            (elapsed_first, cpu_first), (elapsed_all, cpu_all) = (
                timed(run, statement, folder / events) for events in (FIRST, ALL)
            )
            answered = {"elapsed_s": elapsed_all - elapsed_first, "cpu_s": cpu_all - cpu_first}
        print(ANSWER + json.dumps(answered), flush=True)


def timed(run: Callable[[str, Path], Any], statement: str, folder: Path) -> tuple[float, float]:
    """Elapsed seconds, and those of processor time of this process and all that it started."""
    cpu, start = cpu_s(), time.perf_counter()
    run(statement, folder)
    return time.perf_counter() - start, cpu_s() - cpu


def cpu_s() -> float:
    """Of this process and its descendants; of those that have ended, as far as they were waited for."""
    own = os.getpid()
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total = 0
    for pid, used in ticks.items():
        above = pid
        while above not in (own, 0, 1):
            above = parents.get(above, 0)
        total += used if above == own else 0
    return total / os.sysconf("SC_CLK_TCK")
