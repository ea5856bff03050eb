"""Patterns: how many events a second, what more keys and rules cost, and how that compares with Flink SQL.

usage: patterns.py [--quick] [--peer flink|none] [--flink FOLDER]

In one process: payments of cards, two small ones, then a large one within an hour. 1M events of 10k cards in bundles of
100k rows, and the same number of events of 1M cards. Then as rules that may change: one, and 1,000 that each watch the
large payments at a shop of their own, half of them in one country only, and share conditions for the small ones. Beside
Flink: the same MATCH_RECOGNIZE statements over the same Parquet files, Millstream on Spark, each engine in a process of
its own on two cores; both must find the same matches. The engines take turns: a round of each that does not count, to
warm up, and then three whose median counts. `speed_vs_flink` is that of the statement with the smallest ratio; with
--quick there is only one: the one that had it whenever several were compared. The last line is one JSON document with
the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

import millstream as ms
from local_runs import timed_run
from millstream.errors import MillstreamError
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.plan.run_settings import BATCH_ROWS
from pattern_statements import ALL, ANSWER, BATCHES, CORES, FIRST, MATCHES, READERS, TIMES

HERE = Path(__file__).resolve().parent
START = 1_700_000_000_000_000
KEYS, KEYS_MANY = 10_000, 1_000_000
APART_MS = 7
"""No two events are exactly an hour apart, which is within the limit here and beyond it in Flink."""
BARS = {"time_1m_keys_vs_10k": ("<=", 2.0), "time_1000_rules_vs_1": ("<=", 50.0), "speed_vs_flink": (">=", 2.0)}
RULES, SHOPS, COUNTRIES = 1000, 1000, 20
PATTERN = (
    ms.pattern("small", "amount < 10").times(2).followed_by("large", "amount > 950").within("1 hour"),
    ms.pattern("small", "amount < 10")
    .times(2)
    .followed_by("large", "amount > 100 * sum(small.amount)")
    .within("1 hour"),
)
"""Of conditions on single rows, and with one that depends on the rows before."""
LIMIT_S = 900
ROUNDS = 3
ROW_GROUP = 100_000
"""Rows in a row group of a Parquet file: what a task reads at least."""


@dataclass(frozen=True)
class Sizes:
    """How many events: those that warm up, and then in batches those that count."""

    first: int
    batches: int
    batch: int


QUICK = {"strict": Sizes(50_000, 1, BATCH_ROWS)}
FULL = {"strict": Sizes(500_000, 3, BATCH_ROWS), **dict.fromkeys(("relaxed", "by_path"), Sizes(500_000, 2, BATCH_ROWS))}
"""A batch has as many rows as a job reads at most by default."""


def events(rows: int, keys: int, first: int) -> pl.DataFrame:
    """A few milliseconds apart, in order."""
    random = np.random.default_rng(first)
    times = START + (np.arange(rows) + first) * APART_MS * 1000
    amounts = random.integers(0, 1000, rows).astype(np.float64)
    frame = pl.DataFrame({"card": random.integers(0, keys, rows), "amount": amounts, "at": times})
    places = {"shop": random.integers(0, SHOPS, rows), "country": random.integers(0, COUNTRIES, rows)}
    return frame.with_columns(
        *(pl.Series(name, values) for name, values in places.items()), pl.col("at").cast(pl.Datetime("us", "UTC"))
    )


# ---------------------------------------------------------------- one process


def run(bundles: list[pl.DataFrame], pattern: ms.Pattern, matches: str = "every") -> tuple[float, int]:
    """The seconds of processor time it takes, and the matches it finds."""
    stream = ms.Flow("bench").read("events", "card long, amount double, at timestamp", "at", ms.ascending())
    made = stream.key_by("card").match(pattern, matches=matches)  # type: ignore[call-overload]
    return timed_run(stream, made, bundles, 0)


def rules(count: int) -> pl.DataFrame:
    made = []
    for number in range(count):
        text = f"""pattern (SMALL X*? LARGE) within 1 hour
                   define SMALL as amount < {5 + number % 10}, LARGE as amount > 950 and shop = {number % SHOPS}"""
        where = f"country = {number % COUNTRIES}" if number % 2 else None
        made.append({"id": number, "version": 1, "filter": where, "pattern": text})
    types = {"id": pl.Int64, "version": pl.Int64, "filter": pl.String, "pattern": pl.String}
    hidden = [pl.lit(None, pl.Int64).alias(TIME), pl.lit(1, pl.Int32).alias(WEIGHT)]
    return pl.DataFrame(made, schema=types).with_columns(hidden)


def run_rules(bundles: list[pl.DataFrame], count: int) -> tuple[float, int]:
    """The same with rules that may change; the time to read them is not counted."""
    flow = ms.Flow("bench")
    stream = flow.read(
        "events", "card long, amount double, shop long, country long, at timestamp", "at", ms.ascending()
    )
    table = flow.read("rules", "id long, version long, filter string, pattern string")
    made = stream.key_by("card").match(rules=table.to_table(key="id"))
    return timed_run(stream, made, bundles, 0, (table, rules(count)))


def in_one_process(count: int, bundle: int, rounds: int) -> dict[str, float]:
    few, many = (
        [
            events(bundle, keys, number * bundle).with_columns(
                pl.col("at").to_physical().alias(TIME), pl.lit(1, pl.Int32).alias(WEIGHT)
            )
            for number in range(count)
        ]
        for keys in (KEYS, KEYS_MANY)
    )
    on_rows, on_path = PATTERN
    runs: dict[str, list[float]] = {"few": [], "many": [], "path": [], "preferred": [], "one rule": [], "rules": []}
    for _ in range(rounds):
        seconds, found = run(few, on_rows)
        assert found == run([pl.concat(few)], on_rows)[1], "the results depend on the bundles"
        runs["few"].append(seconds)
        runs["many"].append(run(many, on_rows)[0])
        runs["path"].append(run(few, on_path)[0])
        runs["preferred"].append(run(few, on_rows, "preferred")[0])
        runs["one rule"].append(run_rules(few, 1)[0])
        seconds, by_rules = run_rules(few, RULES)
        runs["rules"].append(seconds)
    times = {name: statistics.median(each) for name, each in runs.items()}
    return {
        "events_per_s": count * bundle / times["few"],
        "events_per_s_by_path": count * bundle / times["path"],
        "events_per_s_preferred": count * bundle / times["preferred"],
        "matches": float(found),
        "time_1m_keys_vs_10k": times["many"] / times["few"],
        "events_per_s_1000_rules": count * bundle / times["rules"],
        "matches_1000_rules": float(by_rules),
        "time_1000_rules_vs_1": times["rules"] / times["one rule"],
    }


# ---------------------------------------------------------------- beside Flink


def make_files(folder: Path, sizes: Sizes) -> None:
    """One file for each batch. Flink promises no order among files: it gets one for each of its readers."""
    counts = [sizes.first, *[sizes.batch] * sizes.batches]
    parts = [events(count, KEYS, sum(counts[:number])) for number, count in enumerate(counts)]
    for name, given in ((FIRST, parts[:1]), (ALL, parts)):
        for number, part in enumerate(given):
            path = folder / name / BATCHES / f"{number:04}.parquet"
            write_file(path, part)
            os.utime(path, (START // 1_000_000 + number,) * 2)  # files are read in the order of their times
        for reader in range(CORES):
            write_file(folder / name / READERS / f"{reader}.parquet", pl.concat(given).gather_every(CORES, reader))


def write_file(path: Path, rows: pl.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.select("card", "amount", paid_at="at").write_parquet(
        path, compression="snappy", use_pyarrow=True, row_group_size=ROW_GROUP
    )


@dataclass
class Engine:
    """A process that answers one request after the other, until it is closed."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    _process: subprocess.Popen[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        with self.log.open("w") as errors:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *given: object) -> None:
        """Its input ends, and so does the process."""
        try:
            self._process.communicate(timeout=60)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()

    def ask(self, statement: str, folder: Path, asked: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(LIMIT_S, self._process.kill)
        limit.start()
        try:
            request = {"statement": statement, "folder": str(folder), "asked": asked}
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answers = (line for line in self._process.stdout if line.startswith(ANSWER))
            return json.loads(next(answers).removeprefix(ANSWER))
        except (StopIteration, BrokenPipeError):
            raise SystemExit(f"{' '.join(self.command)} failed:\n{self.log.read_text()[-3000:]}") from None
        finally:
            limit.cancel()


def beside_flink(flink: Path | None, sizes: Mapping[str, Sizes]) -> dict[str, float]:
    sys.path.insert(0, str(HERE / "nexmark"))
    import flink_home

    peer = flink_home.engine(flink or flink_home.HOME, lambda line: print(line, file=sys.stderr))
    figures: dict[str, float] = {}
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millstream-patterns-")))
        for name, size in sizes.items():
            make_files(folder / name, size)
        commands = [
            ([sys.executable, str(HERE / "patterns_on_millstream.py")], {}),
            ([peer.command[0], str(HERE / "patterns_on_flink.py")], peer.environment),
        ]
        engines = [
            opened.enter_context(Engine(command, environment, folder / f"{number}.log"))
            for number, (command, environment) in enumerate(commands)
        ]
        for name, size in sizes.items():
            figures |= _figures(name, size, engines, folder / name)
    return figures | {"speed_vs_flink": min(figures[f"speed_vs_flink_{name}"] for name in sizes)}


def _figures(name: str, size: Sizes, engines: Sequence[Engine], folder: Path) -> dict[str, float]:
    """Of one statement, here and in Flink."""
    ours, theirs = (engine.ask(name, folder, MATCHES) for engine in engines)
    assert ours, "there are no matches to compare"
    _compare(name, ours, theirs)
    rounds = [[engine.ask(name, folder, TIMES) for engine in engines] for _ in range(1 + ROUNDS)][1:]
    (elapsed_s, cpu_s), (flink_elapsed_s, flink_cpu_s) = (
        [statistics.median(each[figure] for each in times) for figure in ("elapsed_s", "cpu_s")]
        for times in zip(*rounds, strict=True)
    )
    more_events = size.batches * size.batch
    return {
        f"on_spark_events_per_s_{name}": more_events / elapsed_s,
        f"flink_events_per_s_{name}": more_events / flink_elapsed_s,
        f"speed_vs_flink_{name}": flink_elapsed_s / elapsed_s,
        f"cpu_of_flink_vs_ours_{name}": flink_cpu_s / cpu_s,
    }


def _compare(name: str, ours: list[list[float]], theirs: list[list[float]]) -> None:
    if ours != theirs:
        here, there = ({*map(tuple, found)} for found in (ours, theirs))
        apart = [sorted(found)[:5] for found in (here - there, there - here)]
        counts = f"{len(ours)} here, {len(theirs)} in Flink"
        raise SystemExit(f"'{name}' finds different matches: {counts}; only here {apart[0]}, only in Flink {apart[1]}")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="smaller, within a minute on two free cores")
    options.add_argument("--peer", choices=["flink", "none"], default="flink", help="beside whom")
    options.add_argument("--flink", type=Path, help="where Flink is, or is installed to")
    given = options.parse_args()
    figures = in_one_process(*((2, 50_000, 3) if given.quick else (10, 100_000, 3)))
    if given.peer == "flink":
        try:
            figures |= beside_flink(given.flink, QUICK if given.quick else FULL)
        except MillstreamError as error:  # there is no Flink here, and it cannot be installed
            raise SystemExit(str(error)) from None
    table = Table("figure", "value", "bar", title="patterns")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}", "{} {}".format(*BARS[name]) if name in BARS else "")
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
