"""The queues of an embedded log, as the coordinator stores them.

Each partition has a cursor: records before it have been delivered at least once. A delivery stands for a record that is
in flight or waits to be redelivered. A record before the cursor without a delivery is done.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import DamagedLog, InvalidInput, MillstreamError
from millstream.log.agreement.coordinator import Coordinator
from millstream.log.agreement.liveness import is_alive
from millstream.log.queues import QueueInfo, QueueSettings, already_exists, in_use, prepared, unknown
from millstream.log.topics import checked_name

if TYPE_CHECKING:
    from millstream.log.embedded.log import EmbeddedLog
    from millstream.log.embedded.topic import Topic


def names(coordinator: Coordinator) -> list[str]:
    with coordinator.look() as db:
        return [name for (name,) in db.execute("SELECT name FROM queues ORDER BY name")]


def create(log: EmbeddedLog, name: str, topic: Topic, settings: QueueSettings) -> None:
    settings = prepared(log, name, names(log.coordinator), settings)
    is_early = settings.start == "earliest"
    cursors = [
        (name, partition.number, partition.start_offset() if is_early else partition.stable_offset())
        for partition in topic.partitions()
    ]
    with log.coordinator.change() as db:
        made = db.execute("INSERT OR IGNORE INTO queues VALUES (?, ?, ?)", (name, topic.name, settings.to_json()))
        if made.rowcount == 0:
            raise already_exists(name)
        db.executemany("INSERT INTO queue_cursors (queue, partition, next_offset) VALUES (?, ?, ?)", cursors)


def load(coordinator: Coordinator, name: str) -> tuple[str, QueueSettings]:
    with coordinator.look() as db:
        row = db.execute("SELECT topic, settings FROM queues WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise unknown(name, names(coordinator))
    return row["topic"], settings_of(coordinator, row)


def settings_of(coordinator: Coordinator, queue: sqlite3.Row) -> QueueSettings:
    try:
        settings = QueueSettings.of(**coordinator.document(queue["settings"], dict))
        checked_name(settings.dead_letters, "topic")
    except (MillstreamError, TypeError, ValueError, ArithmeticError) as error:
        why = error.what if isinstance(error, MillstreamError) else repr(error)
        raise DamagedLog(
            f"the settings of a queue cannot be read: {why[:500]}",
            where=str(coordinator.path),
            next_step="restore the coordinator's file from a copy",
        ) from error
    return settings


def describe(coordinator: Coordinator, participants: Path, name: str, find: Callable[[str], Topic]) -> QueueInfo:
    topic, settings = load(coordinator, name)
    with coordinator.look() as db:
        cursors = db.execute("SELECT * FROM queue_cursors WHERE queue = ?", (name,)).fetchall()
        out = db.execute("SELECT owner, due_at FROM deliveries WHERE queue = ?", (name,)).fetchall()
    alive = {owner for owner in {row["owner"] for row in out} if owner and is_alive(participants, owner)}
    now = time.time()
    in_flight = sum(1 for row in out if row["owner"] in alive and row["due_at"] > now)
    position = {row["partition"]: row["next_offset"] for row in cursors}
    ahead = sum(p.stable_offset() - position.get(p.number, p.start_offset()) for p in find(topic).partitions())
    totals = {column: sum(row[column] for row in cursors) for column in ("acknowledged", "dead", "lost")}
    return QueueInfo(name, topic, settings, ahead + len(out) - in_flight, in_flight, consumers=len(alive), **totals)


def delete(coordinator: Coordinator, participants: Path, name: str) -> None:
    load(coordinator, name)
    with coordinator.change() as db:
        owners = {
            owner for (owner,) in db.execute("SELECT DISTINCT owner FROM deliveries WHERE queue = ?", (name,)) if owner
        }
        if busy := [owner for owner in owners if is_alive(participants, owner)]:
            raise InvalidInput(
                f"queue '{name}' has {len(busy)} active consumers", next_step="stop them first, then try again"
            )
        for table in ("deliveries", "queue_cursors"):
            db.execute(f"DELETE FROM {table} WHERE queue = ?", (name,))
        db.execute("DELETE FROM queues WHERE name = ?", (name,))


def check_unused(coordinator: Coordinator, topic: str) -> None:
    with coordinator.look() as db:
        rows = db.execute("SELECT name, topic, settings FROM queues ORDER BY name").fetchall()
    dead_letters = {row["name"]: settings_of(coordinator, row).dead_letters for row in rows}
    if used := [row["name"] for row in rows if topic in (row["topic"], dead_letters[row["name"]])]:
        raise in_use(topic, used)
