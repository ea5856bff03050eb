"""The average of a topic, by room and over all: a result that is kept up to date instead of recomputed."""

from __future__ import annotations

import random
import tempfile
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.connectors.memory import Memory

ROOMS = {"cellar": 12.0, "kitchen": 21.5, "study": 19.0}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "room string, celsius double, at timestamp"


def send_readings(broker: str, count: int, since: datetime) -> None:
    """A thermometer in each room, one reading a second."""
    chance = random.Random(count)
    with ms.connect(broker) as log, log.producer() as producer:
        if "temperatures" not in log.topics():
            log.create_topic("temperatures", schema=SCHEMA)
        for number in range(count):
            room = chance.choice(list(ROOMS))
            reading = {"room": room, "celsius": round(chance.gauss(ROOMS[room], 1), 2)}
            producer.send("temperatures", reading | {"at": since + timedelta(seconds=number)}, key=room)


def averages() -> tuple[ms.Flow, Memory]:
    flow = ms.Flow("average-of-topic")
    readings = flow.read("temperatures", SCHEMA, event_time="at")
    # One window that never ends, so a trigger decides when it emits: here, whenever there is something new.
    always = ms.repeatedly(ms.after_count(1))
    by_room = readings.key_by("room").window(ms.everything()).trigger(always)
    over_all = readings.window(ms.everything()).trigger(always)
    rooms = by_room.agg(average=ms.mean("celsius"), readings=ms.count())
    house = over_all.agg(average=ms.mean("celsius"), readings=ms.count())
    columns = {"average": "average", "readings": "readings"}
    kept = ms.memory("averages")
    rooms.select(place="room", **columns).union(house.select(place="'the house'", **columns)).write(kept)
    return flow, kept


def show(title: str, kept: Memory) -> None:
    newest = {row["place"]: row for row in kept.rows()}  # a pane holds all rows so far: the last one counts
    table = Table("place", "average", "readings", title=title, title_justify="left")
    for place in [*ROOMS, "the house"]:
        table.add_row(place, f"{newest[place]['average']:.3f} °C", f"{newest[place]['readings']:,}")
    Console().print(table)


def main(broker: str) -> None:
    send_readings(broker, 1000, NOON)
    flow, kept = averages()
    job = flow.run(until="caught up", broker=broker)
    show(f"after {job.progress.rows_read:,} readings", kept)

    # The job remembers how far it was, and what it has summed up. It reads the ten new readings and no others.
    send_readings(broker, 10, NOON + timedelta(hours=1))
    job = flow.run(until="caught up", broker=broker)
    show(f"after {job.progress.rows_read:,} more", kept)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
