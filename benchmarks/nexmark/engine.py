"""What the scripts of all engines have in common: they are asked for queries, and answer with one JSON line for each.

It needs nothing but Python, since Flink runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Timed = tuple[int, float]  # events, and the seconds they took
CORES = 2


class Refused(Exception):
    """The engine cannot express the query, in its own words."""


@dataclass(frozen=True)
class Task:
    folder: Path  # with the files of events
    scratch: Path
    queries: tuple[str, ...]
    events: int
    first: int  # how many of the events are in the first batch
    rows: Path | None  # where to put the rows of a query; None: only the time counts

    @property
    def steady(self) -> int:
        """The events behind the first batch, which is for warming up."""
        return max(self.events - self.first, 1)


def arguments(tasks: Sequence[Task]) -> list[str]:
    return [json.dumps(asdict(task), default=str) for task in tasks]


def read_arguments(said: Sequence[str]) -> list[Task]:
    return [_read(json.loads(each)) for each in said]


def _read(task: dict[str, Any]) -> Task:
    rows = task["rows"]
    return Task(
        Path(task["folder"]),
        Path(task["scratch"]),
        tuple(task["queries"]),
        task["events"],
        task["first"],
        None if rows is None else Path(rows),
    )


def serve(tasks: Sequence[Task], timed: Callable[[Task, str], Timed], rows: Callable[[Task, str], list[Row]]) -> None:
    """Answers every query: how fast it was, or, if asked for, where its `rows` are."""
    for task, name in [(each, name) for each in tasks for name in each.queries]:
        say(begin=name)
        try:
            if task.rows is None:
                events, took = timed(task, name)
                say(query=name, seconds=round(took, 3), events_per_s=round(events / took))
            else:
                started = time.perf_counter()
                given = rows(task, name)
                with (task.rows / f"{name}.pickle").open("wb") as file:
                    pickle.dump(given, file)
                say(query=name, seconds=round(time.perf_counter() - started, 3))
        except Refused as reason:
            say(query=name, refused=str(reason))
        except Exception as error:
            say(query=name, failed=f"{type(error).__name__}: {error}"[:2000])


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def settled(task: Task) -> None:
    """Makes the folders a task names."""
    task.scratch.mkdir(parents=True, exist_ok=True)
    if task.rows is not None:
        task.rows.mkdir(parents=True, exist_ok=True)


def main(run: Callable[[Sequence[Task]], None]) -> None:
    tasks = read_arguments(sys.argv[1:])
    for task in tasks:
        settled(task)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # and so for all it starts
    run(tasks)
