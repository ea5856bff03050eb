"""What an append to an event store costs, whatever the number of its streams, beside eventsourcing's SQLite recorder.

usage: events.py [--quick]

Every append has one event and an expected version, and is synced to disk before it returns. `append_each` and threads
share syncs; the recorder has one per call. The last line is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.events import EventStore

BATCH = 1000
FILL_BATCH = 20_000
THREADS = 50
TURNS = 10
GROWTH_BAR = 1.5
SPEED_BAR = 20_000


class Writer:
    """Appends to the streams of a store, with the version that each has."""

    def __init__(self, store: EventStore, streams: int) -> None:
        self._store = store
        self._versions = array("q", [0]) * streams  # a list of a million would cost time in each garbage collection
        self._chance = random.Random(streams)

    def append(self, streams: list[int]) -> None:
        appends = []
        for number in streams:
            appends.append(ms.Append(f"stream-{number}", [ms.Event("Happened", {"n": number})], self._versions[number]))
            self._versions[number] += 1
        for outcome in self._store.append_each(appends):
            if isinstance(outcome, Exception):
                raise outcome

    def fill(self) -> None:
        """One event for each stream. It is not measured, and a third faster without the garbage collector."""
        gc.disable()
        try:
            for start in range(0, len(self._versions), FILL_BATCH):
                self.append(list(range(start, min(start + FILL_BATCH, len(self._versions)))))
        finally:
            gc.enable()

    def seconds(self, appends: int) -> float:
        """The time of appends to random streams."""
        start = time.perf_counter()
        for _ in range(appends // BATCH):
            self.append([self._chance.randrange(len(self._versions)) for _ in range(BATCH)])
        return time.perf_counter() - start


def per_second(count: int, work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def one_by_one(store: EventStore, stream: str, count: int) -> None:
    for version in range(count):
        store.append(stream, ms.Event("Happened", {"n": version}), expected_version=version)


def from_threads(store: EventStore, count: int) -> None:
    threads = [
        threading.Thread(target=one_by_one, args=(store, f"thread-{number}", count // THREADS))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def peer(folder: Path, count: int) -> float:
    recorder = SQLiteApplicationRecorder(SQLiteDatastore(str(folder / "peer.sqlite")))
    recorder.create_table()
    stream = uuid4()

    def insert() -> None:
        for version in range(count):
            recorder.insert_events([StoredEvent(stream, version, "Happened", b'{"n": 1}')])

    return per_second(count, insert)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer appends")
    quick = options.parse_args().quick
    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
    try:
        figures = measure(folder, rounds=1 if quick else 7, singles=1000 if quick else 5000)
    finally:
        shutil.rmtree(folder)
    table = Table("figure", "value", title="Appends of one event with an expected version")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}")
    table.caption = f"bars: at least {SPEED_BAR:,} appends a second, at most {GROWTH_BAR} times as long with 1M streams"
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def measure(folder: Path, rounds: int, singles: int) -> dict[str, float]:
    with ms.event_store(folder / "log", "small") as small, ms.event_store(folder / "log", "large") as large:
        writers = [Writer(small, 1000), Writer(large, 1_000_000)]
        for writer in writers:
            writer.fill()
        times: list[list[float]] = [[], []]
        appends = 150_000  # enough for a flush of the index in each round
        for _ in range(rounds):
            # By turns: what else the machine does at a time then counts for both.
            pieces = [[writer.seconds(appends // TURNS) for writer in writers] for _ in range(TURNS)]
            for found, of_writer in zip(times, zip(*pieces, strict=True), strict=True):
                found.append(sum(of_writer))
        ratios = [many / few for few, many in zip(*times, strict=True)]
        single = per_second(singles, lambda: one_by_one(small, "single", singles))
        threaded = per_second(20 * singles, lambda: from_threads(small, 20 * singles))
    recorder = peer(folder, singles)
    return {
        "appends_per_s": appends / statistics.median(times[0]),
        "append_time_1m_streams_vs_1k": statistics.median(ratios),
        "appends_per_s_50_threads": threaded,
        "appends_per_s_one_by_one": single,
        "peer_appends_per_s": recorder,
        "one_by_one_vs_peer": single / recorder,
        "appends_vs_peer": appends / statistics.median(times[0]) / recorder,
    }


if __name__ == "__main__":
    main()
