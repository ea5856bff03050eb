"""How many people see a link: a question to a running flow, over tables that are kept up to date."""

from __future__ import annotations

import tempfile

from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.calling import Client

POSTS, FOLLOWS = "author string, url string", "author string, follower string"
PATIENCE = "2 minutes"  # the first batch of a job takes longest
FOLLOWERS = {"ann": ["bob", "cid", "dee"], "bob": ["cid", "eve"], "eve": ["fay"]}
POSTED = [("ann", "/tea"), ("bob", "/tea"), ("bob", "/cake"), ("ann", "/tea")]


def links() -> ms.Flow:
    flow = ms.Flow("links")
    posts = flow.read("posts", POSTS).to_table()
    follows = flow.read("follows", FOLLOWS).to_table()

    def reach(requests: ms.Stream) -> ms.Stream:
        authors = requests.join(posts, on="url", as_of="now").distinct("request", "author")
        readers = authors.join(follows, on="author", as_of="now")
        return readers.group_by("request").agg(people=ms.count_distinct("follower"))

    flow.ask("reach", "url string", reach)
    return flow


def send(broker: str, topic: str, schema: str, rows: list[tuple[str, str]]) -> None:
    names = [column.split()[0] for column in schema.split(", ")]
    with ms.connect(broker) as log, log.producer() as producer:
        if topic not in log.topics():
            log.create_topic(topic, schema=schema)
        for row in rows:
            producer.send(topic, dict(zip(names, row, strict=True)), key=row[0])


def people(client: Client, url: str) -> int:
    """Nobody sees a link that nobody has posted: then the answer has no row."""
    return sum(row["people"] for row in client.call("reach", PATIENCE, url=url))


def main(broker: str) -> None:
    send(broker, "follows", FOLLOWS, [(author, who) for author, everyone in FOLLOWERS.items() for who in everyone])
    send(broker, "posts", POSTS, POSTED)
    table = Table("link", "people", title="reach", title_justify="left")
    job = links().start(broker=broker, key_groups=1)  # few rows: short batches matter more than cores
    try:
        with ms.client("links", broker=broker) as client:
            for url in ("/tea", "/cake", "/soup"):
                table.add_row(url, str(people(client, url)))
            send(broker, "posts", POSTS, [("eve", "/cake")])  # seen by one more, as soon as the job has read it
            while people(client, "/cake") < 3:
                pass
            table.add_row("/cake, later", "3")
    finally:
        job.stop()
    Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
