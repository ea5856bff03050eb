"""Groups of visitors by what they click: clusters that follow the rows, and visits that fit none of them."""

from __future__ import annotations

import random
import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
VISITS = "visitor int, pages double, seconds double, at timestamp"
# What a visit is like, on average: pages, and seconds on each of them.
KINDS = {"readers": (4.0, 180.0), "browsers": (25.0, 20.0), "buyers": (12.0, 60.0)}
ODD = {1_000: (400.0, 0.5), 1_500: (380.0, 0.4)}  # too many pages, too fast: programs


def visits(count: int) -> list[dict[str, Any]]:
    draw = random.Random(5)
    made = []
    for number in range(count):
        pages, seconds = draw.choice(list(KINDS.values()))
        pages, seconds = ODD.get(number, (draw.gauss(pages, 1.5), draw.gauss(seconds, 8)))
        row = {"visitor": number, "pages": pages, "seconds": seconds}
        made.append({**row, "at": NOON + timedelta(seconds=number)})
    return made


def clusters() -> ms.Flow:
    flow = ms.Flow("clicks")
    read = flow.read("visits", VISITS, event_time="at")
    # Both columns count alike: a page is worth five seconds.
    scaled = read.with_column("reading", "seconds / 5")
    found = scaled.key_by().learn(ms.kmeans(3, ["pages", "reading"], decay=0.999))
    known = found.where("cluster is not null")
    ordinary = known.where("distance <= 30").group_by("cluster")
    ordinary.agg(visits=ms.count(), pages=ms.mean("pages"), seconds=ms.mean("seconds")).write("clusters")
    known.where("distance > 30").select("visitor", "pages", "seconds").write("odd")
    return flow


def rows_of(broker: str, topic: str) -> list[dict[str, Any]]:
    with ms.connect(broker) as log, log.consumer(topic) as consumer:
        return [record.value for record in consumer.until_caught_up()]


def main(broker: str) -> None:
    with ms.connect(broker) as log:
        log.create_topic("visits", schema=VISITS)
        with log.producer() as producer:
            for row in visits(2_000):
                producer.send("visits", row)
    clusters().run(batch=True, broker=broker, progress="none")
    groups = {row["cluster"]: row for row in rows_of(broker, "clusters")}  # the newest row of each
    table = Table("visits", "pages", "seconds per page", title="groups of visitors", title_justify="left")
    for row in sorted(groups.values(), key=lambda row: row["pages"]):
        table.add_row(f"{row['visits']}", f"{row['pages']:.1f}", f"{row['seconds']:.0f}")
    Console().print(table)
    for row in rows_of(broker, "odd"):
        Console().print(f"visitor {row['visitor']} is odd: {row['pages']:.0f} pages of {row['seconds']:.1f} seconds")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
