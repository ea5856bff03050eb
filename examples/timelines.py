"""The newest posts of the users one follows: two changing tables, joined, and the top three per reader."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

import millstream as ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
POSTS = "post int, author string, text string, at timestamp"
FOLLOWS = "follower string, followee string, is_following boolean, at timestamp"
LENGTH = 3
# Minutes after noon, the post's number, its author and text. Without a text the post is deleted.
FIRST_POSTS: list[tuple[int, int, str, str | None]] = [
    (1, 1, "ada", "Good morning"),
    (2, 2, "bob", "It rains in Bergen"),
    (4, 3, "ada", "The engine weaves"),
    (6, 4, "cid", "My tea is cold"),
    (7, 5, "bob", "It still rains"),
    (9, 6, "cid", "My tea is clod"),
]
FIRST_FOLLOWS = [(0, "eve", "ada", True), (0, "eve", "bob", True), (3, "eve", "cid", True), (5, "dan", "bob", True)]
# Eve has had enough of the rain, and Cid takes a post back. Dan finds Ada, and with her all that she has written.
MORE_POSTS: list[tuple[int, int, str, str | None]] = [(11, 6, "cid", None), (13, 7, "ada", "Patterns of algebra")]
MORE_FOLLOWS = [(10, "eve", "bob", False), (12, "dan", "ada", True)]


def send(broker: str, topic: str, schema: str, rows: Sequence[tuple[object, ...]]) -> None:
    """The first value of a row is the minute, the second the record's key."""
    names = [column.split()[0] for column in schema.split(", ")]
    with ms.connect(broker) as log, log.producer() as producer:
        if topic not in log.topics():
            log.create_topic(topic, schema=schema)
        for minute, *values in rows:
            assert isinstance(minute, int)
            at = NOON + timedelta(minutes=minute)
            producer.send(topic, dict(zip(names, [*values, at], strict=True)), key=str(values[0]))


def timelines(database: Path) -> ms.Flow:
    flow = ms.Flow("timelines")
    posts = flow.read("posts", POSTS, event_time="at").to_table(key="post", deleted="text is null")
    follows = flow.read("follows", FOLLOWS, event_time="at")
    pairs = follows.to_table(key=("follower", "followee"), deleted="not is_following").select("follower", "followee")
    # Every post, once for each follower of its author. It is a table too: a post that is deleted leaves all timelines,
    # and who follows an author gets all posts of before, or loses them with the end of it.
    seen = pairs.join(posts, on={"followee": "author"}).select("follower", "post", "text", "at", author="followee")
    seen.top(LENGTH, by="at desc", per="follower", rank="place").write(ms.sqlite(database, "timelines"))
    return flow


def show(title: str, database: Path) -> None:
    table = Table("reader", "place", "at (UTC)", "author", "text", title=title, title_justify="left")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        query = "SELECT follower, place, at, author, text FROM timelines ORDER BY follower, place"
        for follower, place, at, author, text in connection.execute(query):
            table.add_row(follower, str(place), f"{datetime.fromisoformat(at):%H:%M}", author, text)
    Console().print(table)


def main(broker: str) -> None:
    database = Path(broker, "timelines.db")
    for title, posts, follows in (
        ("timelines at 12:09", FIRST_POSTS, FIRST_FOLLOWS),
        ("timelines at 12:13", MORE_POSTS, MORE_FOLLOWS),
    ):
        send(broker, "posts", POSTS, posts)
        send(broker, "follows", FOLLOWS, follows)
        timelines(database).run(until="caught up", broker=broker)
        show(title, database)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
