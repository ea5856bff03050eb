"""User sessions: clicks of a user form a session until 15 minutes pass without one."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

import millstream as ms

SCHEMA = "user string, page string, at timestamp"
MORNING = datetime(2026, 1, 31, 9, tzinfo=UTC)
# Minutes after nine, in the order of arrival. Ann's phone was offline: her click of 9:14 comes last, and turns out to
# join what looked like two visits. Bob is away for exactly 15 minutes, and sessions that touch are one.
CLICKS = [
    (0, "ann", "/"),
    (2, "bob", "/"),
    (5, "ann", "/boots"),
    (9, "bob", "/tea"),
    (24, "bob", "/tea/green"),
    (26, "ann", "/cart"),
    (27, "ann", "/paid"),
    (61, "bob", "/"),
    (14, "ann", "/boots/red"),
]


def sessions(database: Path) -> ms.Flow:
    flow = ms.Flow("user-sessions")
    clicks = flow.read("clicks", SCHEMA, event_time="at", watermark=ms.bounded("5 minutes"))
    # A session is sent when it is over, and again, corrected, if a late click belongs to it. `retracting` takes back
    # what was sent before: also the sessions that a late click has joined, which no longer exist.
    visits = (
        clicks.key_by("user")
        .window(ms.sessions("15 minutes"), allowed_lateness="2 hours")
        .trigger(ms.after_watermark(late=ms.after_count(1)))
        .retracting()
        .agg(clicks=ms.count(), entered=ms.first("page"), left=ms.last("page"))
    )
    visits.write(ms.sqlite(database, "sessions", key=["user", "window"]))
    return flow


def main(broker: str) -> None:
    with ms.connect(broker) as log:
        log.create_topic("clicks", schema=SCHEMA)
        with log.producer() as producer:
            for minute, user, page in CLICKS:
                click = {"user": user, "page": page, "at": MORNING + timedelta(minutes=minute)}
                producer.send("clicks", click, key=user)
    database = Path(broker, "sessions.db")
    # One row at a time, so that the late click is late: in one batch all of them would be there at once.
    sessions(database).run(until="caught up", broker=broker, batch_rows=1)

    table = Table("user", "from", "to", "clicks", "entered", "left", title="sessions", title_justify="left")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        query = "SELECT user, window_start, window_end, clicks, entered, left FROM sessions ORDER BY user, window_start"
        for user, start, end, clicks, entered, left in connection.execute(query):
            # The window of a session ends a gap after its last click.
            until = datetime.fromisoformat(end) - timedelta(minutes=15)
            table.add_row(user, f"{datetime.fromisoformat(start):%H:%M}", f"{until:%H:%M}", str(clicks), entered, left)
    Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
