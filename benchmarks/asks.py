"""How long a caller waits for the answer of a running flow, while events go on arriving.

usage: asks.py [--quick]

Three questions, each to a job of its own: `echo` needs only the row of the request, `total` looks a key up in a table
that the events change, and `reach` is that of `examples/reach.py`, with two joins and two groupings. Four callers ask
one question after the other, pausing for up to half a second, while another process appends 100 events a second to the
tables. At the end, 1,000 requests are in flight at the same time. The last line is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import json
import random
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.calling import Client

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
POSTS, FOLLOWS = "author string, url string", "author string, follower string"
AUTHORS, LINKS = 1_000, 500
EVENTS_PER_S, PAUSE_S_MAX, BURST_S = 100, 0.5, 0.05
EVENTS_BEFORE = 200
CALLERS, WARM_CALLS, CALLS, QUICK_CALLS, IN_FLIGHT = 4, 15, 200, 40, 1_000
PATIENCE = "5 minutes"
BARS = {"call_p99_ms": "<= 600"}


def echo() -> ms.Flow:
    flow = ms.Flow("echo")
    flow.ask("echo", "n int", lambda requests: requests.select("request", twice="2 * n"))
    return flow


def total() -> ms.Flow:
    flow = ms.Flow("total")
    posted = flow.read("posts", POSTS).group_by("url").agg(posts=ms.count())
    flow.ask("total", "url string", lambda requests: requests.join(posted, on="url", how="left", as_of="now"))
    return flow


def reach() -> ms.Flow:
    made: ms.Flow = runpy.run_path(str(EXAMPLES / "reach.py"))["links"]()
    return made


QUESTIONS: dict[str, Callable[[], ms.Flow]] = {"echo": echo, "total": total, "reach": reach}


def append(broker: str, events: int, per_s: float | None = None) -> None:
    """Appends posts and followers, at a steady rate or at once."""
    draw = random.Random(7)
    begun, done = time.monotonic(), 0
    with ms.connect(broker) as log, log.producer() as producer:
        while done < events:
            due = events if per_s is None else min(events, int((time.monotonic() - begun) * per_s))
            for _ in range(due - done):
                author = f"author {draw.randrange(AUTHORS)}"
                if done % 2:
                    producer.send("posts", {"author": author, "url": f"/{draw.randrange(LINKS)}"}, key=author)
                else:
                    producer.send("follows", {"author": author, "follower": f"user {done}"}, key=author)
                done += 1
            producer.flush()
            time.sleep(BURST_S)


def arguments(question: str, draw: random.Random) -> dict[str, object]:
    return {"n": draw.randrange(100)} if question == "echo" else {"url": f"/{draw.randrange(LINKS)}"}


def asked(client: Client, question: str, calls: int, pause_s_max: float, seed: int = 0) -> list[float]:
    """How long each call takes, in seconds."""
    draw, found = random.Random(seed), []
    for _ in range(calls):
        time.sleep(draw.uniform(0, pause_s_max))
        began = time.perf_counter()
        client.call(question, PATIENCE, **arguments(question, draw))
        found.append(time.perf_counter() - began)
    return found


def asked_by_all(client: Client, question: str, calls: int) -> list[float]:
    """The same for several callers, whose pauses differ: the calls come at any moment of a batch."""
    with ThreadPoolExecutor(CALLERS) as callers:
        each = [callers.submit(asked, client, question, calls // CALLERS, PAUSE_S_MAX, seed) for seed in range(CALLERS)]
        return [wait for waits in each for wait in waits.result()]


def at_the_same_time(client: Client, question: str) -> float:
    """The seconds until the last of many requests is answered."""
    draw, began = random.Random(1), time.perf_counter()
    calls = [client.submit(question, PATIENCE, **arguments(question, draw)) for _ in range(IN_FLIGHT)]
    for call in calls:
        call.result()
    return time.perf_counter() - began


def measured(question: str, calls: int, key_groups: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        broker = str(Path(folder) / "log")
        with ms.connect(broker) as log:
            log.create_topic("posts", schema=POSTS)
            log.create_topic("follows", schema=FOLLOWS)
        append(broker, EVENTS_BEFORE)
        flow = QUESTIONS[question]()
        job = flow.start(broker=broker, key_groups=key_groups)
        events = subprocess.Popen([sys.executable, __file__, "--append", broker])
        try:
            with ms.client(flow.name, broker=broker) as client:
                asked(client, question, WARM_CALLS, 0.0)
                batches, began = job.progress.batch, time.perf_counter()
                waits = asked_by_all(client, question, calls)
                batch_s = (time.perf_counter() - began) / max(1, job.progress.batch - batches)
                together_s = at_the_same_time(client, question)
        finally:
            events.terminate()
            events.wait()
            job.stop()
    return {
        "p50_ms": 1e3 * float(np.percentile(waits, 50)),
        "p99_ms": 1e3 * float(np.percentile(waits, 99)),
        "batch_ms": 1e3 * batch_s,
        "1000_at_once_s": together_s,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="fewer calls, done within a minute")
    options.add_argument("--only", choices=QUESTIONS, help="one question")
    options.add_argument("--key-groups", type=int, help="those of the jobs; default: one, for short batches")
    options.add_argument("--append", metavar="BROKER", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.append:
        append(given.append, 3600 * EVENTS_PER_S, EVENTS_PER_S)
        return
    table = Table("question", "p50", "p99", "a batch", f"{IN_FLIGHT:,} at once")
    figures = {}
    for question in [given.only] if given.only else QUESTIONS:
        found = figures[question] = measured(question, QUICK_CALLS if given.quick else CALLS, given.key_groups or 1)
        shown = [f"{found[name]:,.0f} ms" for name in ("p50_ms", "p99_ms", "batch_ms")]
        table.add_row(question, *shown, f"{found['1000_at_once_s']:.1f} s")
    console = Console(width=100)
    console.print(table)
    worst = max(found["p99_ms"] for found in figures.values())
    print(json.dumps({"call_p99_ms": round(worst), "bars": BARS, "questions": figures}))


if __name__ == "__main__":
    main()
