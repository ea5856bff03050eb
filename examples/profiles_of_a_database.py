"""Clicks with the plan of their user, from a database that an application changes: captured, not asked every time."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

import millstream as ms

CLICKS = "user string, page string, at timestamp"
A_MOMENT_S, A_WHILE_S = 0.05, 1.5


def change(database: Path, *statements: str) -> None:
    """What an application does. It knows nothing of flows."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
    time.sleep(A_MOMENT_S)


def click(broker: str, user: str, page: str, at: datetime | None = None) -> None:
    with ms.connect(broker) as log, log.producer() as producer:
        producer.send("clicks", {"user": user, "page": page, "at": at or datetime.now(UTC)}, key=user)
    time.sleep(A_MOMENT_S)


def enriched(database: Path) -> ms.Flow:
    flow = ms.Flow("profiles")
    profiles = flow.table(ms.sqlite_changes(database, tables=["profiles"]))
    clicks = flow.read("clicks", CLICKS, event_time="at", watermark=ms.bounded("1 second"))
    # As of its event time: a click that arrives late still gets the plan that its user had then. And as of now: the
    # plan that the user has when the click is processed.
    known = clicks.join(profiles.select("user", plan_now="plan"), on="user", how="left", as_of="now")
    known.join(profiles, on="user", how="left", as_of="event_time").write("enriched")
    return flow


def main(broker: str) -> None:
    database = Path(f"{broker}.db")
    change(
        database,
        "CREATE TABLE profiles (user TEXT PRIMARY KEY, plan TEXT)",
        "INSERT INTO profiles VALUES ('ann', 'free'), ('bob', 'free')",
    )
    with ms.connect(broker) as log:
        log.create_topic("clicks", schema=CLICKS)
    # The first run takes a snapshot of the table, and from here on triggers record its changes.
    enriched(database).run(until="caught up", broker=broker)
    click(broker, "ann", "/news")
    offline = datetime.now(UTC)
    time.sleep(A_MOMENT_S)
    change(database, "UPDATE profiles SET plan = 'paid' WHERE user = 'ann'")
    click(broker, "ann", "/films")
    click(broker, "ann", "/weather", at=offline)  # from before the change, but her phone was offline
    time.sleep(A_WHILE_S)
    change(database, "UPDATE profiles SET plan = 'trial' WHERE user = 'bob'")
    click(broker, "bob", "/end")
    # The job was not notified of the changes: it continues where it was, and finds them.
    enriched(database).run(until="caught up", broker=broker)

    with ms.connect(broker) as log, log.consumer("enriched") as consumer:
        rows = sorted((record.value for record in consumer.until_caught_up()), key=lambda row: row["at"])
    table = Table("user", "page", "plan then", "plan now")
    table.title, table.title_justify = "clicks with plans", "left"
    # Bob's last click is not among them: it waits, because an earlier change may still come.
    for row in rows:
        table.add_row(row["user"], row["page"], row["plan"], row["plan_now"])
    Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(f"{folder}/app")
