"""Capture of Postgres, on a server of its own, which is started for it.

- snapshot_speed_vs_copy: rows a second of a snapshot into a topic, against `COPY … TO` of the same table into a file,
  in turns; a figure is the median of the ratios
- lag_s: the longest time from a commit until the log has its changes, while a writer makes 5,000 changes a second
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from millstream.capture.capturing import Capture
from millstream.capture.postgres.database import PostgresDatabase
from millstream.log import EmbeddedLog

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from postgres_server import Server

CHANGES_PER_S = 5000
BATCH = 50
"""Changes of a transaction."""
COPY_BAR, LAG_BAR_S = 0.5, 2.0


def opened(dsn: str, name: str) -> PostgresDatabase:
    return PostgresDatabase(dsn, {"events": "events"}, name)


def main() -> None:
    quick = "--quick" in sys.argv
    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
    server = Server(wal_level="logical")
    try:
        dsn = server.new_database()
        with psycopg.connect(dsn, autocommit=True) as db:
            figures = snapshots(db, dsn, folder, rows=300_000 if quick else 3_000_000, rounds=3)
            figures |= streaming(db, dsn, folder, seconds=10 if quick else 60)
    finally:
        server.close()
        shutil.rmtree(folder)
    table = Table("figure", "value", title="Capture of Postgres")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}")
    table.caption = (
        f"bars: at least {COPY_BAR} of COPY, a lag below {LAG_BAR_S:g} s at {CHANGES_PER_S:,} changes a second"
    )
    Console().print(table)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def snapshots(db: psycopg.Connection[Any], dsn: str, folder: Path, rows: int, rounds: int) -> dict[str, float]:
    db.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, who text, amount numeric(12, 2), at timestamptz, note text)"
    )
    db.execute(
        "INSERT INTO events SELECT n, 'user ' || n %% 1000, n / 7.0, now() + n * interval '1 ms', "
        "repeat('x', n::int %% 40) FROM generate_series(1, %s) n",
        (rows,),
    )
    ratios, speeds = [], []
    for number in range(rounds):
        begun = time.perf_counter()
        with (folder / "copy").open("wb") as file, db.cursor().copy("COPY events TO STDOUT") as copy:
            for block in copy:
                file.write(block)
        copied = time.perf_counter() - begun
        with (
            EmbeddedLog(folder / f"log{number}") as log,
            Capture(log, f"copy{number}", partial(opened, dsn)) as capture,
        ):
            begun = time.perf_counter()
            capture.step()
            captured = time.perf_counter() - begun
            assert capture.changes == rows
        ratios.append(copied / captured)
        speeds.append(rows / captured)
    return {"snapshot_speed_vs_copy": statistics.median(ratios), "snapshot_rows_per_s": statistics.median(speeds)}


def streaming(db: psycopg.Connection[Any], dsn: str, folder: Path, seconds: int) -> dict[str, float]:
    """The writer notes the time of each commit; the capture, that of each step."""
    db.execute("TRUNCATE events")
    stop = threading.Event()
    stored: list[tuple[int, float]] = []
    with EmbeddedLog(folder / "stream") as log, Capture(log, "stream", partial(opened, dsn)) as capture:
        capture.catch_up()
        before = capture.changes
        watch = partial(_noted, stored, capture)
        thread = threading.Thread(target=capture.run, args=(stop, watch))
        thread.start()
        committed = written(db, seconds)
        deadline = time.monotonic() + 60
        while capture.changes - before < committed[-1][0] and time.monotonic() < deadline:
            time.sleep(0.05)
        stop.set()
        thread.join()
    lags, at = [], 0
    for count, when in committed:
        while at < len(stored) - 1 and stored[at][0] - before < count:
            at += 1
        lags.append(stored[at][1] - when)
    assert stored[-1][0] - before == committed[-1][0]
    made = committed[-1][0] / (committed[-1][1] - committed[0][1])
    return {"lag_s": max(lags), "lag_s_median": statistics.median(lags), "changes_per_s": made}


def _noted(stored: list[tuple[int, float]], capture: Capture) -> None:
    stored.append((capture.changes, time.perf_counter()))


def written(db: psycopg.Connection[Any], seconds: int) -> list[tuple[int, float]]:
    """How many changes there were, and when, after each commit."""
    committed, count, begun = [], 0, time.perf_counter()
    while (now := time.perf_counter()) - begun < seconds:
        due = count / CHANGES_PER_S - (now - begun)
        if due > 0:
            time.sleep(due)
        db.execute(
            "INSERT INTO events SELECT n, 'user', n / 7.0, now(), 'note' FROM generate_series(%s::bigint, %s) n",
            (count, count + BATCH - 1),
        )
        count += BATCH
        committed.append((count, time.perf_counter()))
    return committed


if __name__ == "__main__":
    main()
