"""The errors of a web server: lines of its access log are parsed and filtered; malformed lines become dead letters."""

from __future__ import annotations

import re
import tempfile
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

LINES = """\
192.0.2.7 - - [31/Jan/2026:12:00:01 +0000] "GET / HTTP/1.1" 200 5120
192.0.2.9 - ann [31/Jan/2026:12:00:02 +0000] "GET /orders/17 HTTP/1.1" 500 312
192.0.2.7 - - [31/Jan/2026:12:00:02 +0000] "GET /favicon.ico HTTP/1.1" 404 153
2026-01-31 12:00:03 worker 4 restarted
198.51.100.4 - - [31/Jan/2026:12:00:05 +0000] "POST /orders HTTP/1.1" 201 88
192.0.2.9 - ann [31/Jan/2026:14:00:06 +0200] "GET /orders/17 HTTP/1.1" 503 -
198.51.100.4 - - [32/Jan/2026:12:00:07 +0000] "GET /orders HTTP/1.1" 500 97
192.0.2.7 - - [31/Jan/2026:12:00:08 +0000] "GET /about HTTP/1.1" 304 0
""".splitlines()
LINE = re.compile(r'(?P<ip>\S+) \S+ (?P<user>\S+) \[(?P<at>[^]]+)] "\S+ (?P<path>\S+) [^"]*" (?P<status>\d+) ')


def parsed(row: dict[str, Any]) -> dict[str, Any]:
    """A line as columns. If it raises, the line becomes a dead letter with the reason; the others continue."""
    found = LINE.match(row["line"])
    if found is None:
        raise ValueError("not a line of an access log")
    user = None if found["user"] == "-" else found["user"]
    request = {"ip": found["ip"], "user": user, "path": found["path"], "status": int(found["status"])}
    return request | {"at": datetime.strptime(found["at"], "%d/%b/%Y:%H:%M:%S %z")}


def errors() -> ms.Flow:
    flow = ms.Flow("web-log-filter")
    lines = flow.read("access", "line string")
    requests = lines.map(parsed, "ip string, user string, path string, status int, at timestamp")
    # Conditions are Spark SQL. There is no window and no key, hence no state: each line is handled as it comes.
    failed = requests.where("status >= 500 or (status >= 400 and not endswith(path, '.ico'))")
    failed.write("access.errors")
    requests.dead.write("access.dead")
    return flow


def main(broker: str) -> None:
    with ms.connect(broker) as log:
        log.create_topic("access", schema="line string")
        with log.producer() as producer:
            for line in LINES:
                producer.send("access", {"line": line})
        errors().run(until="caught up", broker=broker)

        table = Table("at (UTC)", "ip", "user", "path", "status", title="errors", title_justify="left")
        for record in log.consumer("access.errors").until_caught_up():
            row = record.value
            table.add_row(f"{row['at']:%H:%M:%S}", row["ip"], row["user"] or "", row["path"], str(row["status"]))
        dead = Table("offset", "reason", title="dead letters", title_justify="left")
        for record in log.consumer("access.dead").until_caught_up():
            dead.add_row(str(record.value["offset"]), record.value["reason"])
        Console().print(table, dead)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
