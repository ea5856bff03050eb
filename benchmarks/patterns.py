"""Patterns on columns, in one process: how many events a second, and what more keys and more rules cost.

usage: patterns.py [--quick]

Payments of cards: two or more small ones, then a large one within an hour. 1M events of 10k cards in bundles of 100k
rows, and the same number of events of 1M cards. Then as rules that may change: one, and 1,000 that each watch the large
payments at a shop of their own, half of them in one country only, and share conditions for the small ones. The last
line is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

import millstream as ms
from local_runs import timed_run
from millstream.operators.accumulators import TIME, WEIGHT

START = 1_700_000_000_000_000
BUNDLE = 100_000
BARS = {"time_1m_keys_vs_10k": 2.0, "time_1000_rules_vs_1": 50.0}
RULES, SHOPS, COUNTRIES = 1000, 1000, 20
PATTERN = (
    ms.pattern("small", "amount < 10").times(2).followed_by("large", "amount > 950").within("1 hour"),
    ms.pattern("small", "amount < 10")
    .times(2)
    .followed_by("large", "amount > 100 * sum(small.amount)")
    .within("1 hour"),
)
"""Of conditions on single rows, and with one that depends on the rows before."""


def events(rows: int, keys: int, first: int) -> pl.DataFrame:
    """Ten milliseconds apart, in order."""
    random = np.random.default_rng(first)
    times = START + (np.arange(rows) + first) * 10_000
    amounts = random.integers(0, 1000, rows).astype(np.float64)
    frame = pl.DataFrame({"card": random.integers(0, keys, rows), "amount": amounts, TIME: times})
    places = {"shop": random.integers(0, SHOPS, rows), "country": random.integers(0, COUNTRIES, rows)}
    return frame.with_columns(
        *(pl.Series(name, values) for name, values in places.items()),
        pl.col(TIME).cast(pl.Datetime("us", "UTC")).alias("at"),
        pl.lit(1, pl.Int32).alias(WEIGHT),
    )


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


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="smaller, done within a minute")
    quick = options.parse_args().quick
    count, rounds = (3, 1) if quick else (10, 3)
    few, many = ([events(BUNDLE, keys, number * BUNDLE) for number in range(count)] for keys in (10_000, 1_000_000))
    on_rows, on_path = PATTERN
    runs = {"few": [], "many": [], "path": [], "preferred": [], "one rule": [], "rules": []}  # type: dict[str, list[float]]
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
    figures = {
        "events_per_s": count * BUNDLE / times["few"],
        "events_per_s_by_path": count * BUNDLE / times["path"],
        "events_per_s_preferred": count * BUNDLE / times["preferred"],
        "matches": float(found),
        "time_1m_keys_vs_10k": times["many"] / times["few"],
        "events_per_s_1000_rules": count * BUNDLE / times["rules"],
        "matches_1000_rules": float(by_rules),
        "time_1000_rules_vs_1": times["rules"] / times["one rule"],
    }
    table = Table("figure", "value", "bar", title="patterns, one process")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}", f"<= {BARS[name]}" if name in BARS else "")
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
