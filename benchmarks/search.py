"""Stored queries: documents matched with 100 and with 100,000 queries, and with an index and without; one process.

usage: search.py [--quick]

Documents of 60 words of a vocabulary of 50,000, whose frequencies follow Zipf's law, in bundles of 1,000. Queries ask
for two or three of these words, the 100 most frequent ones aside: all of them, one of them, a phrase, one without
another, or with a range. The last line is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.local import Flowing, Local
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock
from millstream.plan.search.matching import QueryMatches
from millstream.plan.time.bundles import BEGINNING
from millstream.records import Schema
from millstream.search.checked import condition_of
from millstream.search.fields import Searched, documents, field_of

START = 1_700_000_000_000_000
VOCABULARY, WORDS, BUNDLE, FREQUENT = 50_000, 60, 1_000, 100
MANY, FEW, NAIVE_DOCUMENTS = 100_000, 100, 10
DOCUMENTS = "title string, body string, price int, at timestamp"
QUERIES = "id string, query string, at timestamp"
BARS = {"time_100k_vs_100_queries": "<= 20", "speed_vs_naive": ">= 50"}
FORMS = ("{} AND {}", "{} AND {} AND {}", "{} OR {}", '"{} {}"', "{} AND {} -{}", "body:{} AND price:[10 TO 50]")


def texts(random: np.random.Generator, rows: int, words: int) -> list[str]:
    weights = 1 / np.arange(1, VOCABULARY + 1)
    ranks = random.choice(VOCABULARY, (rows, words), p=weights / weights.sum())
    return [" ".join(f"word{rank}" for rank in row) for row in ranks.tolist()]


def timed(frame: pl.DataFrame, moment: int) -> pl.DataFrame:
    at = pl.lit(moment, pl.Int64).cast(pl.Datetime("us", "UTC")).alias("at")
    return frame.with_columns(at, pl.lit(moment, pl.Int64).alias(TIME), pl.lit(1, pl.Int32).alias(WEIGHT))


def bundle(number: int) -> pl.DataFrame:
    random = np.random.default_rng(number)
    columns = {"title": texts(random, BUNDLE, 6), "body": texts(random, BUNDLE, WORDS - 6)}
    prices = pl.Series("price", random.integers(0, 100, BUNDLE), pl.Int32)
    return timed(pl.DataFrame(columns).with_columns(prices), START + number + 1)


def queries(count: int) -> list[str]:
    random = np.random.default_rng(7)
    ranks = random.integers(FREQUENT, VOCABULARY, (count, 3)).tolist()
    return [FORMS[number % len(FORMS)].format(*(f"word{rank}" for rank in row)) for number, row in enumerate(ranks)]


class Matching:
    """A flow that matches queries with bundles of documents."""

    def __init__(self, stored: list[str]) -> None:
        flow = ms.Flow("bench")
        self._documents = flow.read("documents", DOCUMENTS, "at")
        self._queries = flow.read("queries", QUERIES, "at")
        made = self._documents.match_queries(self._queries.to_table(key="id"), text=["title", "body"])
        assert isinstance(made, QueryMatches)
        self._node = made.node
        self._runner = Local([made.node])
        self._watermark = BEGINNING
        self._empty = bundle(0).clear()
        frame = pl.DataFrame({"id": [f"q{number}" for number in range(len(stored))], "query": stored})
        self.run(self._empty, timed(frame, START), START)

    def run(self, rows: pl.DataFrame, changes: pl.DataFrame, watermark: int) -> int:
        clock = Clock(self._watermark, watermark, 0, 0)
        given = {self._documents.node: Flowing(rows, clock), self._queries.node: Flowing(changes, clock)}
        self._watermark = watermark
        return len(self._runner.run(given)[self._node].rows)

    def seconds(self, bundles: list[pl.DataFrame]) -> Iterator[tuple[float, int]]:
        """For each bundle, the processor time and the number of matches."""
        nothing = timed(pl.DataFrame(schema={"id": pl.String, "query": pl.String}), START)
        for rows in bundles:
            start = time.process_time()  # other work on the machine must not count
            found = self.run(rows, nothing, int(rows[TIME][0]) + 1)
            yield time.process_time() - start, found


def naive_seconds(stored: list[str], rows: pl.DataFrame) -> float:
    """The time for one document if every query is tried."""
    searched = Searched(Schema.of(DOCUMENTS), ("title", "body"))
    conditions = [condition_of(text, searched) for text in stored]
    start = time.process_time()
    for document in documents(rows.to_dicts(), [field_of(searched, name) for name in searched.text]):
        for condition in conditions:
            condition.matches(document)
    return (time.process_time() - start) / len(rows)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer documents, done within a minute")
    count = 5 if options.parse_args().quick else 30
    bundles = [bundle(number) for number in range(count + 1)]
    figures: dict[str, float] = {}
    for name, size in (("100", FEW), ("100k", MANY)):
        start = time.process_time()
        matching = Matching(queries(size))
        figures[f"seconds_to_index_{name}"] = time.process_time() - start
        _, *measured = matching.seconds(bundles)  # the first bundle warms up
        figures[f"documents_per_s_{name}"] = BUNDLE / statistics.median(seconds for seconds, _ in measured)
        figures[f"matches_per_document_{name}"] = statistics.mean(found for _, found in measured) / BUNDLE
    figures["time_100k_vs_100_queries"] = figures["documents_per_s_100"] / figures["documents_per_s_100k"]
    naive = naive_seconds(queries(MANY), bundles[0].head(NAIVE_DOCUMENTS))
    figures["speed_vs_naive"] = naive * figures["documents_per_s_100k"]
    table = Table("figure", "value", "bar", title="stored queries, one process")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}", BARS.get(name, ""))
    Console().print(table)
    print(json.dumps({name: round(value, 5) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
