"""What the tests of running jobs share: rows, topics, and what the reference sends for the batches a job made."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.log import EmbeddedLog
from millstream.operators.elementwise import frame_of
from millstream.operators.source_watermarks import SourceWatermark
from millstream.plan.nodes import Read
from millstream.plan.time.bundles import BEGINNING, END, Bundle, Row, micros
from millstream.reference import Reference
from millstream.testing.script import _with_times
from times import START, t

SCHEMA = "user string, n int, at timestamp"
CAUGHT_UP = "caught up"

Triple = tuple[str, int, float | None]


def row(user: str, n: int, second: float | None) -> dict[str, Any]:
    return {"user": user, "n": n, "at": None if second is None else t(second)}


def put(log: EmbeddedLog, topic: str, rows: Iterable[Triple], *, partition: int = 0) -> None:
    """Appends rows given as (user, n, second)."""
    with log.producer() as producer:
        for each in rows:
            producer.send(topic, row(*each), partition=partition)


def read(log: EmbeddedLog, topic: str) -> list[Any]:
    """All rows of a topic, none if it is not there yet."""
    if topic not in log.topics():
        return []
    with log.consumer(topic) as consumer:
        return [record.value for record in consumer.until_caught_up()]


def scores(flow: ms.Flow, topic: str = "scores", **options: Any) -> Any:
    options = {"watermark": ms.bounded("5 seconds"), **options}
    return flow.read(topic, SCHEMA, event_time="at", **options)


def per_user(stream: Any, window: Any = None, trigger: Any = None, mode: str = "accumulating", **options: Any) -> Any:
    """Sum and count per user, in windows of ten seconds."""
    windowed = stream.key_by("user").window(window or ms.fixed("10 seconds"), **options)
    windowed = windowed if trigger is None else windowed.trigger(trigger)
    return getattr(windowed, mode)().agg(total=ms.sum("n"), k=ms.count())


# ---------------------------------------------------------------- tables


def frozen(value: Any) -> Any:
    """A row as something that can be counted."""
    if isinstance(value, dict):
        return tuple((name, frozen(part)) for name, part in sorted(value.items()))
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def counted(rows: Iterable[Any]) -> Counter[Any]:
    return Counter(map(frozen, rows))


def unweighted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a stream that only adds, however its sink says so."""
    assert all(each.get("weight", 1) == 1 for each in rows)
    return [{name: value for name, value in each.items() if name != "weight"} for each in rows]


def table(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[int, int]]:
    """What panes add up to: by user and start of the window, total and count."""
    sums: Counter[Any] = Counter()
    for each in rows:
        sums[each["user"], each["window"]["start"], each["total"], each["k"]] += each["weight"]
    assert all(count in (0, 1) for count in sums.values()), {key: n for key, n in sums.items() if n not in (0, 1)}
    return {key[:2]: key[2:] for key, count in sums.items() if count}


def last_panes(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Of each user and window the newest pane."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in rows:
        place = (each["user"], each["window"]["start"], each["window"]["end"])
        if each["weight"] > 0 and (place not in found or each["pane"]["index"] >= found[place]["pane"]["index"]):
            found[place] = each
    return {place: (each["total"], each["k"]) for place, each in found.items()}


def seconds(panes: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Panes as (user, start of the window in seconds, total), in order."""
    return sorted((p["user"], (p["window"]["start"] - START).total_seconds(), p["total"]) for p in panes)


# ---------------------------------------------------------------- what should have come


def offsets_of(job: Path) -> dict[int, dict[str, Any]]:
    """How far each batch of a job goes, as Spark has noted it."""
    found = {}
    for path in (job / "checkpoint" / "offsets").glob("[0-9]*"):
        lines = path.read_text().splitlines()
        if len(lines) >= 3:  # else it is just being written
            found[int(path.name)] = json.loads(lines[2])
    return found


def expected(
    flow: ms.Flow, batches: Sequence[dict[str, Any]], rows: dict[str, list[dict[str, Any]]]
) -> list[dict[str, list[dict[str, Any]]]]:
    """What the reference sends to each output in each batch of a job that reads one topic; `rows` are by partition."""
    outputs = flow.check()
    reference = Reference(outputs)
    source = next(node for node in reference.order if isinstance(node, Read))
    watermarks = SourceWatermark(source, (), 0)
    reached, clock = BEGINNING, 0
    begun = dict.fromkeys(rows, 0)
    sent = []
    for batch in batches:
        ends, now = batch["sources"][source.name], batch["clock"]
        new: list[Row] = []
        for partition, end in sorted(ends.items()):
            slab = rows[partition][begun[partition] : end]
            part = [Row(each, None if each["at"] is None else micros(each["at"]), 1) for each in slab]
            watermarks.observe(partition, frame_of(_with_times(part), source), now)
            new += part
        before, reached = reached, END if batch["ended"] else max(reached, watermarks.now(now))
        made = reference.step({source: Bundle(new, before, reached, clock, now)})
        sent.append({str(output.sink): [each.values for each in made[output].rows] for output in outputs})
        begun, clock = dict(ends), now
    return sent


def sqlite_rows(path: Path, columns: str, table_name: str = "totals") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.execute(f"select {columns} from {table_name}"))
