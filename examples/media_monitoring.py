"""People's saved searches over a stream of news: searches are added, changed and removed while the job runs.

With `--smtp HOST:PORT` everybody also gets their news by mail, through this server.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NEWS = "source string, title string, body string, readers int, at timestamp"
PEOPLE = ("ann", "bob", "cyd")
# Who searches, for what, and from which minute on.
FIRST_SEARCHES = [
    ("energy", "ann", '"solar power" OR title:(wind turbine)', 0),
    ("rivals", "bob", "acme AND (lawsuit~1 OR recall) -cartoon", 0),
]
FIRST_NEWS = [
    ("Daily", "Solar power is cheaper than ever", "Panels cost a tenth of what they did.", 9_000, 1),
    ("Herald", "Acme recalls its anvils", "Customers had reported falls from a height.", 20_000, 2),
    ("Herald", "Acme cartoon returns", "The recall of a classic.", 4_000, 3),
]
MORE_NEWS = [
    ("Daily", "Lawsuits against Acme", "Three coyotes go to court.", 30_000, 11),
    ("Local", "New turbines at sea", "Wind farms grow.", 500, 12),
    ("Daily", "Strong wind, strong turbine", "A record year.", 12_000, 13),
]


def monitoring(stored: Any, smtp: str | None = None) -> ms.Flow:
    flow = ms.Flow("media_monitoring")
    news = flow.read("news", NEWS, event_time="at", watermark=ms.ascending())
    found = news.match_queries(
        stored, text=["title", "body"], analysers="english", score=True, highlight=True, history="1 hour"
    )
    found.dead.select("reason").write("wrong_searches")
    shown = "coalesce(try_element_at(fragments, 1).fragment, title)"
    mail = found.select("query", "owner", "source", "at", "score", fragment=shown)
    mail.write("mail")
    if smtp is not None:
        host, _, port = smtp.rpartition(":")
        for owner in PEOPLE:
            own = ms.email(f"{owner}@example.org", host=host, port=int(port), security="none")
            news = mail.where(f"owner = '{owner}'").select("query", "source", "fragment")
            ms.alert(news, to=[own], title="News for your searches")
    return flow


def send_news(broker: str, news: list[tuple[str, str, str, int, int]]) -> None:
    with ms.connect(broker) as log, log.producer() as producer:
        for source, title, body, readers, minute in news:
            row = {"source": source, "title": title, "body": body, "readers": readers, "at": at(minute)}
            producer.send("news", row)


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def rows_of(broker: str, topic: str, job: ms.Job | None = None, count: int = 0) -> list[dict[str, Any]]:
    """The rows of a topic; with a job, once it has written this many."""
    rows: list[dict[str, Any]] = []
    with ms.connect(broker) as log:
        while True:
            if topic in log.topics():
                with log.consumer(topic) as consumer:
                    rows = [record.value for record in consumer.until_caught_up()]
            if job is None or len(rows) >= count:
                return rows
            if not job.is_running:
                job.wait()  # raises what has ended it
                raise SystemExit(f"the job has ended before {topic} had {count} rows")
            time.sleep(0.1)


def show(broker: str) -> None:
    mail = Table("to", "search", "at (UTC)", "source", "fragment", title="mail", title_justify="left")
    for row in sorted(rows_of(broker, "mail"), key=lambda row: (row["at"], row["query"])):
        mail.add_row(row["owner"], row["query"], f"{row['at']:%H:%M}", row["source"], row["fragment"])
    Console(width=110).print(mail)
    for row in rows_of(broker, "wrong_searches"):
        Console(width=110).print("wrong search:", row["reason"], markup=False)


def main(broker: str, smtp: str | None = None) -> None:
    with ms.connect(broker) as log:
        log.create_topic("news", schema=NEWS)
    with ms.queries(broker, "searches") as stored:
        for name, owner, query, minute in FIRST_SEARCHES:
            stored.put(name, query, owner=owner, at=at(minute))
        send_news(broker, FIRST_NEWS)
        job = monitoring(stored, smtp).start(broker=broker)
        try:
            rows_of(broker, "mail", job, 2)
            # A search of a later hour also finds what has come before it, one has a mistake, and one is given up.
            stored.put("big news", "*:*", where="readers > 10000", owner="cyd", since=NOON, at=at(10))
            stored.put("typo", "titel:acme", owner="dan", at=at(10))
            stored.remove("energy", at=at(10))
            rows_of(broker, "wrong_searches", job, 1)
            send_news(broker, [*MORE_NEWS, ("Daily", "Good night", "", 0, 60)])
            rows_of(broker, "mail", job, 6)
        finally:
            job.stop()
    show(broker)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--smtp", metavar="HOST:PORT", help="a mail server, such as 127.0.0.1:25")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder, given.smtp)
