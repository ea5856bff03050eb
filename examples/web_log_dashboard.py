"""A web log in the console: lines are parsed, counted by minute, searched and drawn, as they come.

usage: web_log_dashboard.py [--seconds N]

A web server writes a line for each request (here, a thread makes them up). The flow parses them: requests go to one
topic, which the dashboard searches, and counts of every ten seconds to two others, which it draws. Lines that are no
requests become dead letters. The link that it prints opens the dashboard in a browser; Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import millstream as ms

PATHS = ["/", "/about", "/orders", "/orders/17", "/search?q=pumps", "/favicon.ico"]
STATUSES = [200] * 20 + [304] * 4 + [404] * 2 + [500]
LINES_PER_SECOND = 40
LINE = re.compile(r'(\S+) \S+ (\S+) \[([^]]+)\] "(\S+) (\S+) [^"]*" (\d+) (\d+)')


def request(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a line. One that is no request raises an error, and becomes a dead letter."""
    found = LINE.fullmatch(row["line"])
    if found is None:
        raise ValueError("not a request")
    ip, user, at, method, path, status, size = found.groups()
    columns = {"ip": ip, "user": user, "method": method, "path": path, "status": int(status), "bytes": int(size)}
    return columns | {"at": datetime.strptime(at, "%d/%b/%Y:%H:%M:%S %z")}


flow = ms.Flow("web-log-dashboard")
lines = flow.read("access", "line string")
parsed = lines.map(request, "ip string, user string, at timestamp, method string, path string, status int, bytes int")
parsed.write("requests")
parsed.dead.write("access.dead")
requests = parsed.with_event_time("at", watermark=ms.bounded("2 seconds"))
for column in ("status", "path"):
    windows = requests.key_by(column).window(ms.fixed("10 seconds"))
    windows.agg(requests=ms.count(), name=f"by_{column}").write(f"requests_by_{column}")

ms.dashboard(
    "web-log",
    ms.panel("line", "Requests in ten seconds", "requests_by_status", x="window.start", y="requests", by="status"),
    ms.panel("heat", "By path", "requests_by_path", x="window.start", y="requests", by="path"),
    ms.panel("search", "Requests", "requests", columns=["at", "ip", "user", "path", "status"]),
    ms.panel("table", "Lines that are no requests", "access.dead", columns=["reason", "value"], rows=10),
)


def line(chance: random.Random, now: datetime) -> str:
    if chance.random() < 0.002:
        return f"{now:%H:%M:%S} worker {chance.randrange(8)} restarted"
    ip, path, status = f"192.0.2.{chance.randrange(1, 9)}", chance.choice(PATHS), chance.choice(STATUSES)
    user = "ann" if path.startswith("/orders") else "-"
    return f'{ip} - {user} [{now:%d/%b/%Y:%H:%M:%S} +0000] "GET {path} HTTP/1.1" {status} {chance.randrange(9000)}'


def serve(log: ms.Broker, ended: threading.Event) -> None:
    """The web server."""
    chance = random.Random(2026)
    with log.producer() as producer:
        while not ended.wait(0.25):
            for _ in range(LINES_PER_SECOND // 4):
                producer.send("access", {"line": line(chance, datetime.now(UTC))})
            producer.flush()


def main(broker: str, seconds: float | None = None) -> None:
    from millstream.web_console.beside import console_beside

    ended = threading.Event()
    with ms.connect(broker) as log:
        log.create_topic("access", schema="line string")
        server = threading.Thread(target=serve, args=(log, ended), daemon=True)
        server.start()
        job = flow.start(broker=broker)
        try:
            with console_beside(Path(__file__), flow.name, broker) as door, suppress(KeyboardInterrupt):
                print(f"Open the dashboard in a browser, until Ctrl-C: {door.link('/dashboards/web-log')}", flush=True)
                threading.Event().wait(seconds)
        finally:
            ended.set()
            server.join()
            job.stop()
        print(f"{job.progress.rows_read:,} lines read, {job.progress.rows_dead:,} of them no requests")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seconds", type=float, help="end by itself after so long")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder, arguments.seconds)
