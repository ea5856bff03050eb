"""An intruder tracked across three logs: passwords guessed, a network scanned, data sent out."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

NIGHT = datetime(2026, 1, 31, 2, tzinfo=UTC)
SCHEMAS = {
    "logins": "address string, user string, succeeded boolean, at timestamp",
    "scans": "address string, port int, at timestamp",
    "transfers": "address string, megabytes int, at timestamp",
}
# By log: the address, what it did, and in which minute of the night.
LOGINS: list[tuple[str, str, bool, int]] = [
    *(("10.0.0.7", "root", False, 0), ("10.0.0.7", "root", False, 1), ("10.0.0.9", "ann", False, 2)),
    *(("10.0.0.7", "root", False, 3), ("10.0.0.9", "ann", True, 4), ("10.0.0.7", "root", True, 5)),
    *(("10.0.0.8", "bob", False, 6), ("10.0.0.8", "bob", False, 7), ("10.0.0.8", "bob", False, 8)),
    *(("10.0.0.8", "bob", True, 9), ("10.0.0.6", "cid", True, 10)),
]
SCANS: list[tuple[str, int, int]] = [
    *(("10.0.0.7", 22, 12), ("10.0.0.7", 80, 13), ("10.0.0.7", 443, 14), ("10.0.0.9", 22, 15)),
    *(("10.0.0.8", 22, 20), ("10.0.0.8", 5432, 21), ("10.0.0.6", 22, 22), ("10.0.0.6", 80, 23)),
]
TRANSFERS: list[tuple[str, int, int]] = [
    *(("10.0.0.7", 2, 16), ("10.0.0.9", 900, 30), ("10.0.0.7", 700, 40), ("10.0.0.6", 800, 41)),
    *(("10.0.0.8", 1, 50), ("10.0.0.8", 600, 120)),
]
# Three wrong passwords and the right one for the same user, then a look at several ports, then a lot of data.
INTRUSION = (
    ms.pattern("guess", "log = 'logins' and not succeeded")
    .times_or_more(3)
    .greedy()
    .followed_by("entry", "log = 'logins' and succeeded and user = last(guess.user)")
    .followed_by("probe", "log = 'scans'")
    .times_or_more(2)
    .greedy()
    .followed_by("leak", "log = 'transfers' and megabytes > 100")
    .within("1 hour")
)


def send(broker: str) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "logins": [
            {"address": address, "user": user, "succeeded": succeeded, "at": minute}
            for address, user, succeeded, minute in LOGINS
        ],
        "scans": [{"address": address, "port": port, "at": minute} for address, port, minute in SCANS],
        "transfers": [{"address": address, "megabytes": size, "at": minute} for address, size, minute in TRANSFERS],
    }
    with ms.connect(broker) as log, log.producer() as producer:
        for topic, schema in SCHEMAS.items():
            log.create_topic(topic, schema=schema)
            for row in rows[topic]:
                at = NIGHT + timedelta(minutes=row["at"])
                producer.send(topic, {**row, "at": at}, key=row["address"])


def alarms() -> ms.Flow:
    flow = ms.Flow("intruder")
    logs = [
        flow.read(topic, schema, event_time="at", watermark=ms.bounded("10 minutes")).with_columns(log=f"'{topic}'")
        for topic, schema in SCHEMAS.items()
    ]
    # One stream of all that an address does; each row has the columns of its own log.
    activities = logs[0].union(*logs[1:], missing=True)
    found = activities.key_by("address").match(INTRUSION)
    found.select(
        "address", "entry.user", "leak.megabytes", guesses="count(guess)", ports="count(probe)", at="match_end"
    ).write("alarms")
    # Who came as far as the scan, and no further within the hour, is not forgotten either.
    suspects = found.timed_out.where("size(probe) >= 2").distinct("address", within="1 day")
    suspects.select("address", user="entry[0].user", since="match_start").write("suspects")
    return flow


def show(name: str, rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0], title=name, title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:%H:%M}" if isinstance(value, datetime) else str(value) for value in row.values()))
    Console().print(table)


def main(broker: str) -> None:
    send(broker)
    alarms().run(batch=True, broker=broker)
    with ms.connect(broker) as log:
        for name in ("alarms", "suspects"):
            with log.consumer(name) as consumer:
                show(name, [record.value for record in consumer.until_caught_up()])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
