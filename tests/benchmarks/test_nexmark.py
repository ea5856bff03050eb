"""Every query of Nexmark gives what DuckDB gives over the same events, however they come.

The events are played in one bundle or in many, in order or shuffled; what a query sent, added up by weight, is its
result. Rows that come late would be lost, so shuffled ones come within the delay that the watermark leaves them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import generator
import polars as pl
import pyarrow as pa
import pytest
import queries
from expected import STATEMENTS, bag, expected
from playing import Engine, came, played, reads_of, steps

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.local import Local
from millstream.log import EmbeddedLog
from millstream.reference import Reference

EVENTS, FEW = 3000, 400
SLOW = 100  # events a second of event time: half a minute of them
FAST = 10_000  # many events at the same millisecond
SHUFFLED = 200
SIDE_KEYS = 1015  # of the auctions, which count from 1000, some have no value
EVERY = sorted(queries.QUERIES, key=lambda name: int(name[1:]))
SETTINGS: dict[str, dict[str, Any]] = {"q2": {"chosen": "auction % 23 = 0"}, "q105": {"count": 10}}


class Input:
    """Events in so many bundles; the watermark stays behind as far as rows may."""

    def __init__(self, count: int, bundles: int, rate: int, shuffled: int) -> None:
        made = generator.batches(count, rate, out_of_order=shuffled, batch_events=-(-count // bundles))
        self.bundles = [{topic: pa.Table.from_batches([each[topic]]) for topic in generator.SCHEMAS} for each in made]
        self.delay = timedelta(seconds=shuffled / rate, milliseconds=1)

    def expected(self, name: str, **settings: Any) -> Counter[Any]:
        events = {topic: pa.concat_tables(each[topic] for each in self.bundles) for topic in generator.SCHEMAS}
        clock = [came(number) for number, each in enumerate(self.bundles) for _ in range(each["bids"].num_rows)]
        events["arrivals"] = events["bids"].append_column("came", pa.array(clock, pa.timestamp("us", tz="UTC")))
        return bag(expected(name, events, **settings))


made_input = lru_cache(Input)


def check(name: str, given: Input, folder: Path, engine: Engine = Local) -> None:
    settings = dict(SETTINGS.get(name, {}))
    if name == "q13":
        settings["side"] = folder / "side.csv"
        queries.write_side(settings["side"], SIDE_KEYS)
    wanted = given.expected(name, **settings)
    assert wanted, "a query without rows shows nothing"
    query = queries.build(name, ms.Flow(name), **settings)
    assert played(query, given.bundles, delay=given.delay, engine=engine) == wanted


def test_there_is_an_answer_to_every_query() -> None:
    assert set(EVERY) == set(STATEMENTS) == {f"q{number}" for number in (*range(23), *range(101, 107))}


@pytest.mark.more
@pytest.mark.parametrize("shuffled", [pytest.param(1, marks=pytest.mark.soak), SHUFFLED], ids=["in_order", "shuffled"])
@pytest.mark.parametrize("bundles", [pytest.param(1, marks=pytest.mark.soak), 12], ids=["one_bundle", "many_bundles"])
@pytest.mark.parametrize("name", EVERY)
def test_a_query_equals_duckdb(name: str, bundles: int, shuffled: int, tmp_path: Path) -> None:
    check(name, made_input(EVENTS, bundles, SLOW, shuffled), tmp_path)


@pytest.mark.parametrize("name", ["q4", "q6", "q7", "q9", "q106"])
def test_bids_right_when_an_auction_begins_or_ends_count(name: str, tmp_path: Path) -> None:
    check(name, made_input(EVENTS, 12, FAST, SHUFFLED), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", EVERY)
def test_the_reference_agrees(name: str, tmp_path: Path) -> None:
    check(name, made_input(FEW, 4, SLOW, SHUFFLED), tmp_path, Reference)


def test_rows_that_differ_are_seen_to_differ() -> None:
    row = {"auction": 1, "price": 2.5}
    assert bag([row]) == bag([{"price": 2.5 + 1e-14, "auction": 1}])
    assert bag([row]) != bag([row, row])
    assert bag([row]) != bag([{**row, "price": 2.5001}])
    assert bag([row, {**row, "weight": -1}], weight="weight") == Counter()


# ---------------------------------------------------------------- the generator


def of_kind(topic: str, **how: Any) -> pa.Table:
    return pa.Table.from_batches([each[topic] for each in generator.batches(20_000, **how)])


@pytest.mark.parametrize("topic", generator.SCHEMAS)
def test_an_event_is_the_same_in_whatever_batch_it_is_made(topic: str) -> None:
    assert of_kind(topic, batch_events=777).to_pylist() == of_kind(topic).to_pylist()
    assert of_kind(topic, seed=2).to_pylist() != of_kind(topic).to_pylist()


@pytest.mark.parametrize("topic", generator.SCHEMAS)
def test_shuffled_events_are_the_same_events_a_bounded_time_late(topic: str) -> None:
    plain, shuffled = of_kind(topic, rate=1000), of_kind(topic, rate=1000, out_of_order=500)
    assert bag(plain.to_pylist()) == bag(shuffled.to_pylist())
    at = pl.Series(shuffled["dateTime"])
    late = at.cum_max() - at
    assert timedelta(0) < max(late) <= timedelta(seconds=0.5)


def test_proportions_and_hot_keys() -> None:
    persons, auctions, bids = (of_kind(topic) for topic in generator.SCHEMAS)
    assert [len(persons), len(auctions), len(bids)] == [400, 1200, 18_400]
    assert persons["id"].to_pylist() == list(range(1000, 1400))
    assert auctions["id"].to_pylist() == list(range(1000, 2200))
    frame = pl.DataFrame(bids)
    hot = {
        "auction": frame["auction"] % 100 == 0,
        "bidder": frame["bidder"] % 100 == 1,
        "channel": ~frame["channel"].str.starts_with("channel-"),
    }
    shares = {name: round(float(found.mean()), 1) for name, found in hot.items()}  # type: ignore[arg-type]
    assert shares == {"auction": 0.5, "bidder": 0.8, "channel": 0.5}
    assert 100 <= frame["price"].min() < 200  # type: ignore[operator]
    assert 50_000_000 < frame["price"].max() <= 100_000_000  # type: ignore[operator]


def test_a_shuffle_that_would_repeat_events_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple of 953"):
        generator.events(0, 10, out_of_order=953)


def test_topics_hold_the_events(tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        generator.fill(log, EVENTS, partitions=3, batch_events=500)
        for topic, batches in made_by_topic().items():
            with log.consumer(topic) as consumer:
                found = [record.value for record in consumer.until_caught_up()]
            assert bag(found) == bag(batches)
            assert len({partition.number for partition in log.topic(topic).partitions()}) == 3


def made_by_topic() -> dict[str, list[dict[str, Any]]]:
    made = generator.events(0, EVENTS)
    return {topic: made[topic].to_pylist() for topic in generator.SCHEMAS}


# ---------------------------------------------------------------- q10 is about its files


def test_q10_into_files(tmp_path: Path) -> None:
    given = made_input(EVENTS, 12, SLOW, SHUFFLED)
    query = queries.build("q10", ms.Flow("q10"))
    place = ms.files(tmp_path / "filed", "parquet")
    sink = open_sink(place, query.schema, job="q10", step="write", broker=tmp_path / "log", folder=tmp_path / "job")
    running = Local([query.node])
    for batch, step in enumerate(steps(reads_of(query.node), given.bundles, given.delay)):
        rows = [row.values for row in running.step(step)[query.node].rows]
        sink.write(batch, pa.Table.from_pylist(rows, schema=query.schema.arrow), None)
    sink.close()
    found = pl.read_parquet(tmp_path / "filed" / "*.parquet").to_dicts()
    assert bag(found) == given.expected("q10")
