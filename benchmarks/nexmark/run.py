"""Nexmark: every query on Millstream, on plain Spark Structured Streaming and on Flink SQL, over the same events.

First each engine answers every query over some events, and its rows are compared with those of DuckDB. Then each
query runs on each engine over all events, in a fresh process on two cores; the first batch is for warming up. Speed is
events a second, of all kinds, whether a query looks at them or not. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import event_files
import flink_home
from checks import Answers
from children import Engine, asked
from engine import Task
from expected import STATEMENTS
from report import OURS, PEERS, Results
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from millstream.errors import InvalidInput, MillstreamError

QUERIES = tuple(sorted(STATEMENTS, key=lambda name: int(name[1:])))
# Queries, events when time counts, events when rows are compared, and peers: in full, and quick.
USUAL = {
    False: (QUERIES, 10_000_000, 10_000, PEERS),
    True: (("q1", "q17"), 400_000, 2_000, ("spark",)),
}
BATCH_EVENTS = 2_000_000
BATCHES_MIN = 4
CHECK_BATCHES_QUICK = 2
LIMIT_S = 900.0
OUT = Path("build/nexmark")
SIZES = {"": 1, "k": 1000, "m": 1_000_000, "b": 1_000_000_000}


@dataclass(frozen=True)
class Options:
    queries: tuple[str, ...]
    events: int
    check_events: int
    peers: tuple[str, ...]
    quick: bool
    json: bool
    out: Path
    flink: Path
    limit_s: float

    @property
    def batch_events(self) -> int:
        return min(BATCH_EVENTS, max(self.events // BATCHES_MIN, 1))

    @property
    def check_batch_events(self) -> int:
        """The last events are one more batch. Every batch takes its time, so there are few if it has to be quick."""
        return max(self.check_events // (CHECK_BATCHES_QUICK if self.quick else BATCHES_MIN), 1)


def read_count(text: str) -> int:
    """As in 500000, 500k, 10m."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmb]?)", text.strip().lower().replace("_", "").replace(",", ""))
    count = round(float(found[1]) * SIZES[found[2]]) if found else 0
    if count < 1:
        raise InvalidInput(f"'{text}' is no number of events", where="--events", next_step="as in 500k, or 10m")
    return count


def read_names(text: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    names = tuple(name for each in text.split(",") if (name := each.strip().lower()))
    for name in names:
        if name not in known:
            raise InvalidInput(f"there is no '{name}' here", where=option, next_step=f"choose of {', '.join(known)}")
    return tuple(name for name in known if name in names)


def read_options(said: Sequence[str]) -> Options:
    options = argparse.ArgumentParser(
        prog="nexmark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--query", metavar="q4,q7", help="only these; default: all")
    options.add_argument("--events", metavar="10m", help="how many, when time counts; default: 10m")
    options.add_argument("--check-events", metavar="10k", help="how many, when rows are compared; default: 10k")
    options.add_argument("--peer", metavar="spark,flink", help="beside whom: spark, flink or none; default: both")
    options.add_argument("--quick", action="store_true", help="few queries, few events, beside Spark: within a minute")
    options.add_argument("--json", action="store_true", help="nothing but the JSON document on standard output")
    options.add_argument("--out", type=Path, default=OUT, help="where chart and figures go")
    options.add_argument("--flink", type=Path, default=flink_home.HOME, help="where Flink is, or is installed to")
    options.add_argument("--limit", type=float, default=LIMIT_S, help="seconds a query may take")
    given = options.parse_args(said)
    quick = given.quick
    queries, events, check_events, peers = USUAL[quick]
    if given.peer is not None:
        peers = () if given.peer == "none" else read_names(given.peer, PEERS, "--peer")
    return Options(
        queries=read_names(given.query, QUERIES, "--query") if given.query else queries,
        events=read_count(given.events) if given.events else events,
        check_events=read_count(given.check_events) if given.check_events else check_events,
        peers=peers,
        quick=quick,
        json=given.json,
        out=given.out,
        flink=given.flink,
        limit_s=given.limit,
    )


class Run:
    """One run: files, then rows, then times."""

    def __init__(self, options: Options, scratch: Path, progress: Progress) -> None:
        self._options = options
        self._scratch = scratch
        self._progress = progress
        self._engines = [Engine.of(OURS)]
        for peer in options.peers:
            self._engines.append(self._flink() if peer == "flink" else Engine.of(peer))
        self.results = Results([engine.name for engine in self._engines], options.queries)

    def _flink(self) -> Engine:
        """Installs it on first use, and shows what is being done; later this says nothing."""
        shown: list[TaskID] = []

        def tell(line: str) -> None:
            if not shown:
                where = f"into {self._options.flink} (once, some minutes)"
                self._progress.console.print(
                    f"Installing Flink {flink_home.VERSION} {where}", markup=False, soft_wrap=True
                )
                shown.append(self._progress.add_task(line, total=None))
            self._progress.update(shown[0], description=line)

        try:
            return flink_home.engine(self._options.flink, tell)
        finally:
            for line in shown:
                self._progress.remove_task(line)

    def run(self) -> Results:
        options = self._options
        steps = len(self._engines) * len(options.queries)
        bar = self._progress.add_task("events", total=2 * steps)
        check, timing = self._scratch / "check", self._scratch / "timing"
        event_files.make(check, options.check_events, options.check_batch_events, event_files.SLOW, closing=True)
        event_files.make(timing, options.events, options.batch_events)
        self._answers = Answers(check)
        queries = options.queries
        checks = [self._task(engine, check, options.check_events, queries, rows=True) for engine in self._engines]
        if options.quick:  # to start an engine takes longer than to ask it
            for engine, task in zip(self._engines, checks, strict=True):
                self._ask(engine, [task, self._task(engine, timing, options.events, queries)], bar)
            return self.results
        for engine, task in zip(self._engines, checks, strict=True):
            self._ask(engine, [task], bar)
        for name in queries:
            for engine in self._engines:
                if self.results.by_query[name][engine.name].refused is None:
                    self._ask(engine, [self._task(engine, timing, options.events, (name,))], bar)
                else:
                    self._progress.advance(bar)
        return self.results

    def _task(self, engine: Engine, folder: Path, events: int, queries: tuple[str, ...], *, rows: bool = False) -> Task:
        scratch = Path(tempfile.mkdtemp(prefix=f"{engine.name}-", dir=self._scratch))
        return Task(folder, scratch, queries, events, self._options.batch_events, self._rows(engine) if rows else None)

    def _ask(self, engine: Engine, tasks: Sequence[Task], bar: TaskID) -> None:
        """One process of an engine, and what becomes of its answers."""
        self._progress.update(bar, description=f"{engine.name} {tasks[0].queries[0]}")
        for task, answer in asked(engine, tasks, self._options.limit_s):
            outcome = self.results.by_query[answer.query][engine.name]
            if task.rows is None:
                outcome.timed(answer)
            else:
                file = task.rows / f"{answer.query}.pickle"
                wrong = self._answers.difference(answer.query, file, engine.name) if file.exists() else None
                outcome.checked(answer, wrong)
            what = "time of" if task.rows is None else "rows of"
            self._progress.update(bar, description=f"{what} {engine.name} {answer.query}", advance=1)
        for task in tasks:
            shutil.rmtree(task.scratch, ignore_errors=True)

    def _rows(self, engine: Engine) -> Path:
        return self._scratch / f"rows-{engine.name}"


def main(said: Sequence[str]) -> int:
    options = read_options(said)
    description = TextColumn("{task.description}", markup=False)  # pip and Maven put words into brackets
    columns = (description, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="millstream-nexmark-", ignore_cleanup_errors=True) as scratch,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        results = Run(options, Path(scratch), progress).run()
    print_report(results, options, Console(stderr=options.json))
    figures = {"benchmark": "nexmark", "quick": options.quick, "events": options.events, **results.figures()}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "nexmark.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures))
    return 0 if figures["queries_right"] == figures["queries"] else 1


def print_report(results: Results, options: Options, console: Console) -> None:
    title = f"Nexmark, {options.events:,} events, 2 cores: events a second and peak memory"
    console.print(results.table(title))
    for name, outcomes in results.by_query.items():
        for engine, outcome in outcomes.items():
            if reason := outcome.refused or outcome.failed or outcome.wrong:
                console.print(f"{name} on {engine}: {outcome.said}: {reason[:400]}", markup=False, soft_wrap=True)
    options.out.mkdir(parents=True, exist_ok=True)
    chart = options.out / "nexmark.svg"
    chart.write_text(results.chart(f"Nexmark, {options.events:,} events on 2 cores"))
    console.print(f"chart: {chart}", soft_wrap=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that engines are ended too
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except MillstreamError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
