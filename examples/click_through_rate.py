"""How often an ad that was seen is clicked, minute by minute: two topics, combined by ad and event time."""

from __future__ import annotations

import random
import tempfile
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.table import Table

import millstream as ms

CHANCES = {"boots": 0.08, "lamps": 0.03, "tea": 0.15}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "ad string, at timestamp"


def send_events(broker: str) -> None:
    """Three minutes of views; a click comes up to 20 seconds after its view."""
    chance = random.Random(1)
    views = [(chance.choice(list(CHANCES)), NOON + timedelta(seconds=number / 10)) for number in range(1800)]
    clicks = [(ad, at + timedelta(seconds=chance.uniform(1, 20))) for ad, at in views if chance.random() < CHANCES[ad]]
    with ms.connect(broker) as log, log.producer() as producer:
        for topic, events in {"views": views, "clicks": clicks}.items():
            log.create_topic(topic, partitions=2, schema=SCHEMA)
            for ad, at in events:
                producer.send(topic, {"ad": ad, "at": at}, key=ad)


def rates() -> ms.Flow:
    flow = ms.Flow("click-through-rate")
    # Clicks are out of order by as long as users hesitate. The watermark of a union is that of its slower input.
    views = flow.read("views", SCHEMA, event_time="at").select("ad", view="1", click="0")
    clicks = flow.read("clicks", SCHEMA, event_time="at", watermark=ms.bounded("20 seconds"))
    events = views.union(clicks.select("ad", view="0", click="1"))
    minutes = events.key_by("ad").window(ms.fixed("1 minute")).agg(views=ms.sum("view"), clicks=ms.sum("click"))
    # A minute with clicks alone has no rate: the views were in the minute before. So it is null.
    minutes.select("ad", "window", "views", "clicks", rate="clicks / nullif(views, 0)").write("rates")
    return flow


def main(broker: str) -> None:
    send_events(broker)
    # As one batch: reads all there is now and closes every window, as a nightly run over the same topics would.
    # `until="caught up"` would leave the last minute open, since more of it might come.
    rates().run(batch=True, broker=broker)

    with ms.connect(broker) as log, log.consumer("rates") as consumer:
        rows = [record.value for record in consumer.until_caught_up()]
    table = Table("minute", "ad", "views", "clicks", "rate", title="click-through rate", title_justify="left")
    for row in sorted(rows, key=lambda row: (row["window"]["start"], row["ad"])):
        rate = "" if row["rate"] is None else f"{row['rate']:.1%}"
        table.add_row(f"{row['window']['start']:%H:%M}", row["ad"], str(row["views"]), str(row["clicks"]), rate)
    Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
