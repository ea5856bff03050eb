"""The log beside what bounds it on this machine: plain Arrow IPC files, and a loop that only appends to a list.

usage: log.py [--quick]

Each figure is a ratio of medians taken in turn in the same run, so that a busy machine slows both sides. The last line
is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from millstream.log import EmbeddedLog
from millstream.log.storage.reader import PartitionReader

SCHEMA = "user string, team string, score long, weight double"
TOPIC = "scores"
PLAIN_FRAME_ROWS = 20_000


def events(rows: int) -> pa.RecordBatch:
    random = np.random.default_rng(7)
    users = pa.array([f"user-{n}" for n in range(1000)]).take(pa.array(random.integers(0, 1000, rows)))
    teams = pa.array([f"team-{n}" for n in range(50)]).take(pa.array(random.integers(0, 50, rows)))
    columns = [users, teams, pa.array(random.integers(0, 100, rows)), pa.array(random.random(rows))]
    return pa.RecordBatch.from_arrays(columns, names=["user", "team", "score", "weight"])


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def in_turn(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """The median time of each action, all measured once per round."""
    times = [[seconds(action) for action in actions] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


class Files:
    """The same events as a topic of the log and as a plain IPC file."""

    def __init__(self, folder: Path, batches: int, rows: int) -> None:
        self.folder = folder
        self.batches = batches
        self.batch = events(rows)
        # A record also has a timestamp; the plain file gets the same column.
        now = pa.array(np.full(rows, time.time_ns() // 1000), pa.timestamp("us", tz="UTC"))
        self.plain_batch = self.batch.append_column("timestamp", now)
        self.rows = batches * rows
        self.log = EmbeddedLog(folder / "log", upkeep=False)

    def append_to_log(self) -> None:
        if TOPIC in self.log.topics():
            self.log.delete_topic(TOPIC)
        self.log.create_topic(TOPIC, schema=SCHEMA)
        with self.log.producer(acks=1, buffer_bytes="1 GiB") as producer:
            for _ in range(self.batches):
                producer.send_batch(TOPIC, self.batch)

    def append_plain(self) -> None:
        path = self.folder / "plain.arrow"
        path.unlink(missing_ok=True)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, self.plain_batch.schema) as writer:
            for _ in range(self.batches):
                for start in range(0, self.plain_batch.num_rows, PLAIN_FRAME_ROWS):
                    writer.write_batch(self.plain_batch.slice(start, PLAIN_FRAME_ROWS))

    def read_log(self) -> float:
        total = 0.0
        reader = PartitionReader(self.log.find_partition(TOPIC, 0), 0, committed=True)
        for fetch in reader.stream():
            value = fetch.stored.column("value")
            columns = [value.field(n) for n in range(value.type.num_fields)]
            total += look_at([*columns, fetch.stored.column("timestamp")])
        return total

    def read_plain(self) -> float:
        with pa.ipc.open_file(pa.memory_map(str(self.folder / "plain.arrow"))) as file:
            return sum(look_at(file.get_batch(n).columns) for n in range(file.num_record_batches))


def look_at(columns: list[pa.Array]) -> float:
    """What the least consumer does: it touches every value of every column once."""
    total = 0.0
    for column in columns:
        if pa.types.is_string(column.type):
            total += float(pc.sum(pc.binary_length(column)).as_py())
        elif pa.types.is_timestamp(column.type):
            pc.max(column)
        else:
            total += float(pc.sum(column).as_py())
    return total


def measure_batches(folder: Path, quick: bool, figures: dict[str, float]) -> None:
    files = Files(folder / "batches", batches=4 if quick else 20, rows=500_000)
    rounds = 3 if quick else 7
    files.append_to_log()
    files.append_plain()
    append_log, append_plain = in_turn(rounds, files.append_to_log, files.append_plain)
    assert abs(files.read_log() - files.read_plain()) < 1
    read_log, read_plain = in_turn(2 * rounds, files.read_log, files.read_plain)
    figures["append_rows_per_s"] = files.rows / append_log
    figures["plain_append_rows_per_s"] = files.rows / append_plain
    figures["append_speed_vs_ipc"] = append_plain / append_log
    figures["read_rows_per_s"] = files.rows / read_log
    figures["plain_read_rows_per_s"] = files.rows / read_plain
    figures["read_speed_vs_ipc"] = read_plain / read_log


def measure_sends(folder: Path, quick: bool, figures: dict[str, float]) -> None:
    count = 300_000 if quick else 1_000_000
    log = EmbeddedLog(folder / "sends", upkeep=False)
    log.create_topic("single", partitions=4)

    def send() -> None:
        with log.producer(acks=1) as producer:
            for number in range(count):
                producer.send("single", b"twenty bytes of value", b"key-%d" % (number & 1023))

    def append() -> None:
        kept = []
        for number in range(count):
            kept.append((b"twenty bytes of value", b"key-%d" % (number & 1023)))

    send()
    sending, appending = in_turn(3 if quick else 5, send, append)
    figures["sends_per_s"] = count / sending
    figures["list_appends_per_s"] = count / appending
    figures["send_time_vs_list"] = sending / appending


def measure_size(folder: Path, quick: bool, figures: dict[str, float]) -> None:
    """Opening, and reading one record at a random offset, in a small and in a large partition."""
    path = folder / "sizes"
    log = EmbeddedLog(path, upkeep=False)
    sizes = {"100k": 100_000, "10m": 10_000_000}
    batch = events(100_000)
    for name, rows in sizes.items():
        log.create_topic(name, schema=SCHEMA)
        with log.producer(acks=1) as producer:
            for _ in range(rows // batch.num_rows):
                producer.send_batch(name, batch)
    random = np.random.default_rng(11)
    targets = {name: random.integers(0, rows, 200).tolist() for name, rows in sizes.items()}

    def opening(name: str) -> Callable[[], None]:
        def run() -> None:
            for _ in range(20):
                assert EmbeddedLog(path, upkeep=False).find_partition(name, 0).end_offset() == sizes[name]

        return run

    def seeking(name: str) -> Callable[[], None]:
        partition = log.find_partition(name, 0)

        def run() -> None:
            for target in targets[name]:
                reader = PartitionReader(partition, target, committed=True)
                assert reader.read(max_bytes=1)[0].offsets[0] == target

        return run

    actions = [opening("100k"), opening("10m"), seeking("100k"), seeking("10m")]
    for action in actions:
        action()
    open_small, open_large, seek_small, seek_large = in_turn(5 if quick else 15, *actions)
    figures["open_ms_10m"] = open_large / 20 * 1000
    figures["open_time_10m_vs_100k"] = open_large / open_small
    figures["seek_ms_10m"] = seek_large / 200 * 1000
    figures["seek_time_10m_vs_100k"] = seek_large / seek_small


BARS = {
    "append_speed_vs_ipc": (">=", 0.5),
    "read_speed_vs_ipc": (">=", 0.7),
    "sends_per_s": (">=", 300_000),
    "open_time_10m_vs_100k": ("<=", 1.5),
    "seek_time_10m_vs_100k": ("<=", 1.5),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="smaller, done within a minute")
    options.add_argument("--folder", type=Path, help="where to write; a temporary folder otherwise")
    args = options.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="millstream-bench-"))
    figures: dict[str, float] = {}
    console = Console()
    steps = [measure_batches, measure_sends, measure_size]
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for step in progress.track(steps, description="measuring"):
                step(folder, args.quick, figures)
    finally:
        if args.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    table = Table("figure", "value", "bar", title="The log, 2 cores" if not args.quick else "The log, quick")
    for name, value in figures.items():
        sign, bar = BARS.get(name, ("", 0.0))
        table.add_row(name, f"{value:,.2f}", f"{sign} {bar:,}" if sign else "")
    console.print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
