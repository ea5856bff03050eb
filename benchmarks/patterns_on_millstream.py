"""`match_recognize` on a local Spark, over Parquet files. When time counts, rows are counted and dropped."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.plan.stream import Stream
from millstream.spark.session.start import session
from pattern_statements import BATCHES, CORES, answer, only_on_two_cores

SCHEMA = "card long, amount double, paid_at timestamp"
LOGS = Path(tempfile.mkdtemp(prefix="millstream-patterns-"))


def stream_of(statement: str, folder: Path) -> Stream:
    files = ms.files(folder / BATCHES, files_per_batch=1)
    events = ms.Flow("patterns").read(files, SCHEMA, event_time="paid_at", watermark=ms.bounded("1 second"))
    return events.match_recognize(statement)


def run(statement: str, folder: Path) -> None:
    found = stream_of(statement, folder)
    found.write(ms.discard())
    found.flow.run(broker=LOGS / str(time.time_ns()), until="caught up", progress="none")


def rows(statement: str, folder: Path) -> list[Any]:
    found, kept = stream_of(statement, folder), ms.memory("found")
    found.write(kept)
    found.flow.run(broker=LOGS / str(time.time_ns()), batch=True, progress="none")
    made = [[row["card"], row["first_amount"], row["second_amount"], row["amount"]] for row in kept.rows()]
    kept.clear()
    return made


if __name__ == "__main__":
    only_on_two_cores()
    session(master=f"local[{CORES}]", partitions=CORES, settings={"spark.driver.memory": "4g"})
    answer(run, rows)
