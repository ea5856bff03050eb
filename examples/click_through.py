"""How often a search leads to a click within the hour, word by word: two streams, joined by search and event time."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

CHANCES = {"red boots": 0.5, "rain boots": 0.3, "green tea": 0.2, "red lamp": 0.1, "lamp": 0.05}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SEARCHES, CLICKS = "search int, words string, at timestamp", "search int, place int, at timestamp"


def events() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Three hours of searches, some clicked once or more, up to 80 minutes later. Both arrive up to 5 minutes late."""
    chance = random.Random(1)
    searches: list[dict[str, Any]] = []
    clicks: list[dict[str, Any]] = []
    for number in range(600):
        words, at = chance.choice(list(CHANCES)), NOON + timedelta(seconds=18 * number)
        searches.append({"search": number, "words": words, "at": at})
        while chance.random() < CHANCES[words]:
            clicked_at = at + timedelta(minutes=chance.uniform(0, 80))
            clicks.append({"search": number, "place": chance.randint(1, 10), "at": clicked_at})
    for came in (searches, clicks):
        came.sort(key=lambda event: event["at"] + timedelta(minutes=chance.uniform(0, 5)))
    # With the first search and click of the next day it is known that nobody clicks on yesterday's any more.
    next_day = NOON + timedelta(days=1)
    searches.append({"search": 600, "words": "lamp", "at": next_day})
    clicks.append({"search": 600, "place": 1, "at": next_day})
    return searches, clicks


def by_word(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for word in row["words"].split():
        yield {"word": word, "clicked": int(row["place"] is not None)}


def rates() -> ms.Flow:
    flow = ms.Flow("click-through")
    searches = flow.read("searches", SEARCHES, event_time="at", watermark=ms.bounded("5 minutes"))
    clicks = flow.read("clicks", CLICKS, event_time="at", watermark=ms.bounded("5 minutes"))
    # The search's time minus the click's. A search with a click is sent when the second of the two comes, whichever
    # that is; one without when the watermark says that none can come: then `place` is null.
    joined = searches.join(clicks, on="search", how="left", within=("-1 hour", "0 seconds"))
    # A search with two clicks comes twice, and is counted once. Its rows are never as far apart as two hours.
    once = joined.distinct("search", within="2 hours")
    words = once.flat_map(by_word, "word string, clicked int")
    totals = words.group_by("word").agg(searches=ms.count(), clicked=ms.sum("clicked"))
    totals.select("word", "searches", "clicked", rate="clicked / searches").write("rates")
    return flow


def main(broker: str) -> None:
    with ms.connect(broker) as log:
        searches, clicks = events()
        for topic, schema, rows in (("searches", SEARCHES, searches), ("clicks", CLICKS, clicks)):
            log.create_topic(topic, schema=schema)
            with log.producer() as producer:
                for row in rows:
                    producer.send(topic, row, key=str(row["search"]))
        # A part at a time, as if they came live. Searches and clicks of one batch are not of the same minutes.
        rates().run(until="caught up", broker=broker, batch_rows=300)

        # The topic is a copy of the table: the newest record of a key is its row.
        newest = {record.key: record.value for record in log.consumer("rates").until_caught_up()}
    table = Table("word", "searches", "clicked", "rate", title="click-through rate", title_justify="left")
    for row in sorted(newest.values(), key=lambda row: (-row["rate"], row["word"])):
        table.add_row(row["word"], str(row["searches"]), str(row["clicked"]), f"{row['rate']:.1%}")
    Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
