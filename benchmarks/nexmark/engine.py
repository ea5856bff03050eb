"""What the scripts of all engines have in common: they are asked for queries, and answer with one JSON line for each.

It needs nothing but Python, since Flink runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


def arguments(task: Task) -> list[str]:
    said = [str(task.folder), str(task.scratch), ",".join(task.queries), str(task.events), str(task.first)]
    return [*said, *([] if task.rows is None else [str(task.rows)])]


def read_arguments(said: Sequence[str]) -> Task:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("scratch", type=Path)
    options.add_argument("queries", type=lambda text: tuple(text.split(",")))
    options.add_argument("events", type=int)
    options.add_argument("first", type=int)
    options.add_argument("rows", type=Path, nargs="?")
    return Task(**vars(options.parse_args(said)))


def serve(task: Task, timed: Callable[[Task, str], Timed], rows: Callable[[Task, str], list[Row]]) -> None:
    """Answers every query: how fast it was, or, if asked for, where its `rows` are."""
    for name in task.queries:
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


def main(run: Callable[[Task], None]) -> None:
    task = read_arguments(sys.argv[1:])
    settled(task)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # and so for all it starts
    run(task)
