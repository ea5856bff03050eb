"""User actions with the plan they were on: profiles change, and each row is joined with the one valid at its time."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.table import Table

import millstream as ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
PROFILES, ACTIVITY = "user string, plan string, at timestamp", "user string, page string, at timestamp"
# What comes, in two parts: minutes after noon, whose, and what. Neither topic is in order.
FIRST_PROFILES = [(0, "ann", "free"), (0, "bob", "free"), (10, "ann", "paid")]
FIRST_ACTIVITY = [(5, "bob", "/news"), (12, "ann", "/films"), (20, "bob", "/films"), (21, "cid", "/news")]
# That Bob has paid at 12:15 is known only now. Ann read the weather before she paid, but her phone was offline.
MORE_PROFILES = [(15, "bob", "paid"), (90, "dan", "free")]
MORE_ACTIVITY = [(8, "ann", "/weather"), (31, "ann", "/music"), (90, "dan", "/news")]


def send(broker: str, topic: str, schema: str, rows: list[tuple[int, str, str]]) -> None:
    names = [column.split()[0] for column in schema.split(", ")]
    with ms.connect(broker) as log, log.producer() as producer:
        if topic not in log.topics():
            log.create_topic(topic, schema=schema)
        for minute, user, what in rows:
            values = (user, what, NOON + timedelta(minutes=minute))
            producer.send(topic, dict(zip(names, values, strict=True)), key=user)


def enriched() -> ms.Flow:
    flow = ms.Flow("enrichment")
    half_an_hour = ms.bounded("30 minutes")
    profiles = flow.read("profiles", PROFILES, event_time="at", watermark=half_an_hour).to_table(key="user")
    activity = flow.read("activity", ACTIVITY, event_time="at", watermark=half_an_hour)
    # As of now: the plan that is known when the row comes. The answer is there at once, and depends on who comes first.
    known = activity.join(profiles.select("user", known="plan"), on="user", how="left", as_of="now")
    # As of its event time: the row waits until no profile of before its time can come, so the answer stays right.
    valid = known.join(profiles.select("user", "plan"), on="user", how="left", as_of="event_time")
    valid.write("enriched")
    return flow


def main(broker: str) -> None:
    parts = ((FIRST_PROFILES, FIRST_ACTIVITY), (MORE_PROFILES, MORE_ACTIVITY))
    for profiles, activity in parts:
        send(broker, "profiles", PROFILES, profiles)
        send(broker, "activity", ACTIVITY, activity)
        # The second time the job goes on: it has kept the table, and the rows that wait.
        enriched().run(until="caught up", broker=broker)

    with ms.connect(broker) as log, log.consumer("enriched") as consumer:
        rows = [record.value for record in consumer.until_caught_up()]
    table = Table("at (UTC)", "user", "page", "plan then", "plan known when it came", "")
    table.title, table.title_justify = "activity with plans", "left"
    # Dan's row of 13:30 is not among them: the watermark is at 13:00, so a profile from before it may still come.
    for row in sorted(rows, key=lambda row: row["at"]):
        differs = "" if row["plan"] == row["known"] else "differs"
        table.add_row(f"{row['at']:%H:%M}", row["user"], row["page"], row["plan"], row["known"], differs)
    Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
