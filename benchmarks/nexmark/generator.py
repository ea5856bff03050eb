"""The events of Nexmark as Arrow batches: of 50 in a row the first is a person, three are auctions, 46 are bids.

Event number n is the same whatever batch it is made in: everything random about it follows from the seed and n.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.log import EmbeddedLog
from millstream.records import Schema

PERSONS = (
    "id long, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime timestamp, extra string"
)
AUCTIONS = (
    "id long, itemName string, description string, initialBid long, reserve long, dateTime timestamp, "
    "expires timestamp, seller long, category long, extra string"
)
BIDS = "auction long, bidder long, price long, channel string, url string, dateTime timestamp, extra string"
SCHEMAS = {"persons": PERSONS, "auctions": AUCTIONS, "bids": BIDS}

START_MS = 1_436_918_400_000  # 2015-07-15, as in the first implementations
ROUND, PERSONS_OF_ROUND, AUCTIONS_OF_ROUND = 50, 1, 3
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
IN_FLIGHT_AUCTIONS, ACTIVE_PEOPLE, LEAD = 100, 1000, 10
HOT_EVERY = 100  # one in this many people or auctions is hot
CHANNELS, CHANNELS_WITHOUT_ID = 10_000, 10  # of 10 channels one has no id in its url
SHUFFLE = 953  # prime: steps of this size visit every member of a group
BATCH_EVENTS = 50_000

STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]

Numbers = npt.NDArray[np.int64]
Unsigned = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Events:
    """One stretch of events, by kind, in the order they come."""

    persons: pa.RecordBatch
    auctions: pa.RecordBatch
    bids: pa.RecordBatch

    def __getitem__(self, kind: str) -> pa.RecordBatch:
        batch: pa.RecordBatch = getattr(self, kind)
        return batch


def events(first: int, count: int, rate: int = 10_000, *, out_of_order: int = 1, seed: int = 1) -> Events:
    """The events that come at places `first` and on, `rate` of them in a second of event time.

    With `out_of_order=n` the events of each n in a row are shuffled, so an event comes at most n / rate late.
    """
    if out_of_order < 1 or gcd(SHUFFLE, out_of_order) != 1:
        raise ValueError(f"out_of_order is a whole number from 1 on and no multiple of {SHUFFLE}, not {out_of_order}")
    places = np.arange(first, first + count, dtype=np.int64)
    numbers = places // out_of_order * out_of_order + places * SHUFFLE % out_of_order if out_of_order > 1 else places
    offset = numbers % ROUND
    bounds = (PERSONS_OF_ROUND, PERSONS_OF_ROUND + AUCTIONS_OF_ROUND)
    persons = numbers[offset < bounds[0]]
    auctions = numbers[(offset >= bounds[0]) & (offset < bounds[1])]
    bids = numbers[offset >= bounds[1]]
    return Events(_persons(persons, rate, seed), _auctions(auctions, rate, seed), _bids(bids, rate, seed))


def batches(
    count: int, rate: int = 10_000, *, out_of_order: int = 1, seed: int = 1, batch_events: int = BATCH_EVENTS
) -> Iterator[Events]:
    """The first `count` events, so many at a time."""
    for first in range(0, count, batch_events):
        yield events(first, min(batch_events, count - first), rate, out_of_order=out_of_order, seed=seed)


def fill(
    log: EmbeddedLog,
    count: int,
    rate: int = 10_000,
    *,
    partitions: int = 1,
    out_of_order: int = 1,
    seed: int = 1,
    batch_events: int = BATCH_EVENTS,
) -> None:
    """Makes the topics persons, auctions and bids, and writes the first `count` events to them.

    Each batch is shared out evenly, so that the partitions of a topic stay abreast in event time.
    """
    for topic, schema in SCHEMAS.items():
        log.create_topic(topic, schema=schema, partitions=partitions)
    with log.producer(buffer_bytes="256 MiB") as producer:
        for made in batches(count, rate, out_of_order=out_of_order, seed=seed, batch_events=batch_events):
            for topic in SCHEMAS:
                rows = made[topic]
                edges = np.linspace(0, rows.num_rows, partitions + 1).astype(int).tolist()
                for partition in range(partitions):
                    part = rows.slice(edges[partition], edges[partition + 1] - edges[partition])
                    if part.num_rows:
                        producer.send_batch(topic, part, partition=partition)


# ---------------------------------------------------------------- what is random


class Draws:
    """Random numbers that follow from seed, event number and how many were drawn before (splitmix64)."""

    def __init__(self, numbers: Numbers, seed: int) -> None:
        self._at = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._stream = seed * 1_000_003 + 1

    def _bits(self) -> Unsigned:
        self._stream += 1
        bits = self._at + np.uint64(self._stream * 0xD1B54A32D192ED03 % (1 << 64))
        bits ^= bits >> np.uint64(30)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(27)
        bits *= np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
        return bits

    def below(self, bound: int | Numbers) -> Numbers:
        """From 0 up to a bound below 2**32."""
        limit = np.uint64(bound) if isinstance(bound, int) else bound.astype(np.uint64)
        return ((self._bits() >> np.uint64(32)) * limit >> np.uint64(32)).astype(np.int64)

    def price(self) -> Numbers:
        """From 100 to 100,000,000; each power of ten is as likely as the next."""
        unit = (self._bits() >> np.uint64(11)).astype(np.float64) * 2.0**-53
        made: Numbers = np.round(np.exp(unit * (6 * np.log(10))) * 100).astype(np.int64)
        return made


def _at_ms(numbers: Numbers, rate: int) -> Numbers:
    return START_MS + (numbers * (1e6 / rate)).astype(np.int64) // 1000


def _last_person(numbers: Numbers) -> Numbers:
    """How many people there were before the newest one, when an event happens."""
    return numbers // ROUND + np.minimum(numbers % ROUND, PERSONS_OF_ROUND - 1)


def _last_auction(numbers: Numbers) -> Numbers:
    place, offset = numbers // ROUND, numbers % ROUND
    before = offset < PERSONS_OF_ROUND
    newest = np.clip(offset - PERSONS_OF_ROUND, 0, AUCTIONS_OF_ROUND - 1)
    return np.where(before, place * AUCTIONS_OF_ROUND - 1, place * AUCTIONS_OF_ROUND + newest)


def _some_person(draws: Draws, last: Numbers) -> Numbers:
    """One of the newest people, or one of those to come."""
    active = np.minimum(last + 1, ACTIVE_PEOPLE)
    return last + 1 - active + draws.below(active + LEAD)


def _some_auction(draws: Draws, last: Numbers) -> Numbers:
    """One of the newest auctions, or one of those to come."""
    low = np.maximum(last - IN_FLIGHT_AUCTIONS, 0)
    return low + draws.below(np.maximum(last, 0) - low + 1 + LEAD)


# ---------------------------------------------------------------- the three kinds


def _persons(numbers: Numbers, rate: int, seed: int) -> pa.RecordBatch:
    draws, words = Draws(numbers, seed), _words(seed)
    return _batch(
        PERSONS,
        _last_person(numbers) + FIRST_ID,
        words.names.take(draws.below(len(words.names))),
        words.emails.take(draws.below(len(words.emails))),
        words.cards.take(draws.below(len(words.cards))),
        words.cities.take(draws.below(len(words.cities))),
        words.states.take(draws.below(len(words.states))),
        _at_ms(numbers, rate) * 1000,
        words.of_persons.take(draws.below(len(words.of_persons))),
    )


def _auctions(numbers: Numbers, rate: int, seed: int) -> pa.RecordBatch:
    draws, words = Draws(numbers, seed), _words(seed)
    last = _last_person(numbers)
    hot = draws.below(4) > 0
    seller = np.where(hot, last // HOT_EVERY * HOT_EVERY, _some_person(draws, last)) + FIRST_ID
    at_ms = _at_ms(numbers, rate)
    horizon_ms = _at_ms(numbers + IN_FLIGHT_AUCTIONS * ROUND // AUCTIONS_OF_ROUND, rate) - at_ms
    length_ms = 1 + draws.below(np.maximum(2 * horizon_ms, 1))
    initial = draws.price()
    return _batch(
        AUCTIONS,
        _last_auction(numbers) + FIRST_ID,
        words.items.take(draws.below(len(words.items))),
        words.descriptions.take(draws.below(len(words.descriptions))),
        initial,
        initial + draws.price(),
        at_ms * 1000,
        (at_ms + length_ms) * 1000,
        seller,
        FIRST_CATEGORY + draws.below(CATEGORIES),
        words.of_auctions.take(draws.below(len(words.of_auctions))),
    )


def _bids(numbers: Numbers, rate: int, seed: int) -> pa.RecordBatch:
    draws, words = Draws(numbers, seed), _words(seed)
    auctions, people = _last_auction(numbers), _last_person(numbers)
    hot_auction = draws.below(2) > 0
    auction = np.where(hot_auction, auctions // HOT_EVERY * HOT_EVERY, _some_auction(draws, auctions))
    hot_bidder = draws.below(4) > 0
    bidder = np.where(hot_bidder, people // HOT_EVERY * HOT_EVERY + 1, _some_person(draws, people))
    hot_channel = draws.below(2) > 0
    channel = np.where(hot_channel, draws.below(len(HOT_CHANNELS)), len(HOT_CHANNELS) + draws.below(CHANNELS))
    return _batch(
        BIDS,
        auction + FIRST_ID,
        bidder + FIRST_ID,
        draws.price(),
        words.channels.take(channel),
        words.urls.take(channel),
        _at_ms(numbers, rate) * 1000,
        words.of_bids.take(draws.below(len(words.of_bids))),
    )


@lru_cache
def _arrow(schema: str) -> pa.Schema:
    return Schema.of(schema).arrow


def _batch(schema: str, *columns: Numbers | pa.Array) -> pa.RecordBatch:
    fields = _arrow(schema)
    return pa.RecordBatch.from_arrays(
        [column if isinstance(column, pa.Array) else pa.array(column).cast(field.type)
         for column, field in zip(columns, fields, strict=True)],
        schema=fields,
    )  # fmt: skip


# ---------------------------------------------------------------- texts


@dataclass(frozen=True)
class Words:
    """The texts of events, drawn from pools made in advance: making each one would cost more than all the rest."""

    names: pa.Array
    emails: pa.Array
    cards: pa.Array
    cities: pa.Array
    states: pa.Array
    items: pa.Array
    descriptions: pa.Array
    channels: pa.Array
    urls: pa.Array
    of_persons: pa.Array
    of_auctions: pa.Array
    of_bids: pa.Array


@lru_cache(maxsize=4)
def _words(seed: int) -> Words:
    random = np.random.default_rng(seed)

    def letters(count: int, low: int, high: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> list[str]:
        sizes = random.integers(low, high + 1, count)
        text = np.array(list(alphabet))[random.integers(0, len(alphabet), int(sizes.sum()))]
        whole, ends = "".join(text.tolist()), np.cumsum(sizes).tolist()
        return [whole[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]

    spaced = "abcdefghijklmnopqrstuvwxyz "
    parts = iter(letters(3 * (CHANNELS + len(HOT_CHANNELS)), 3, 5, "abcdefghijklmnopqrstuvwxyz_"))
    urls = [f"https://www.nexmark.com/{next(parts)}/{next(parts)}/{next(parts)}/item.htm?query=1"
            for _ in range(CHANNELS + len(HOT_CHANNELS))]  # fmt: skip
    for number in range(CHANNELS):
        if random.integers(CHANNELS_WITHOUT_ID):
            urls[len(HOT_CHANNELS) + number] += f"&channel_id={_reversed_bits(number)}"
    digits = random.integers(0, 10_000, (1000, 4)).tolist()
    return Words(
        names=pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]),
        emails=pa.array([f"{a}@{b}.com" for a, b in zip(letters(1000, 3, 7), letters(1000, 3, 5), strict=True)]),
        cards=pa.array([" ".join(f"{part:04}" for part in card) for card in digits]),
        cities=pa.array(CITIES),
        states=pa.array(STATES),
        items=pa.array(letters(5000, 3, 20, spaced)),
        descriptions=pa.array(letters(5000, 3, 100, spaced)),
        channels=pa.array(HOT_CHANNELS + [f"channel-{number}" for number in range(CHANNELS)]),
        urls=pa.array(urls),
        of_persons=pa.array(letters(2000, 100, 150)),
        of_auctions=pa.array(letters(2000, 320, 480)),
        of_bids=pa.array(letters(20_000, 54, 81)),
    )


def _reversed_bits(number: int) -> int:
    """The number with its 32 bits in the other order, as one with a sign, without that."""
    turned = int(f"{number:032b}"[::-1], 2)
    return abs(turned - (1 << 32) if turned >> 31 else turned)


def main() -> None:
    options = argparse.ArgumentParser(description="Writes events to topics of a new log and says how fast.")
    options.add_argument("--events", type=int, default=10_000_000)
    options.add_argument("--partitions", type=int, default=1)
    options.add_argument("--out-of-order", type=int, default=1)
    given = options.parse_args()
    _words(1)
    started = time.perf_counter()
    for _ in batches(given.events, out_of_order=given.out_of_order):
        pass
    made = time.perf_counter() - started
    folder = Path(tempfile.mkdtemp(prefix="millstream-nexmark-"))
    try:
        with EmbeddedLog(folder, upkeep=False) as log:
            started = time.perf_counter()
            fill(log, given.events, partitions=given.partitions, out_of_order=given.out_of_order)
            both = time.perf_counter() - started
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"made {given.events / made:,.0f} events a second, made and written {given.events / both:,.0f}")


if __name__ == "__main__":
    main()
