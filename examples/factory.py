"""Machines of a factory: a job watches them and sends mails, its upgrade is rehearsed first, a report runs every night.

Everything is on this machine, also the mail server. The supervisor is `millstream up`, as it would run for years. The
link that it prints opens the factory's dashboard in its console.
"""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.errors import MillstreamError

SCHEMA = "machine string, status string, heat int"
WATCH = """
import millstream as ms

flow = ms.Flow("factory")
machines = flow.read("machines", name="machines")
urgent = machines.where("{condition}", name="urgent")
urgent.write("urgent", name="written")
mail = ms.email("ops@factory.example", host="127.0.0.1", port={port}, security="none")
ms.alert(urgent, to=mail, title="A machine needs you", by="machine", quiet="1 hour")
ms.dashboard(
    "factory",
    ms.panel("bar", "Newest heat of each machine", "machines", x="machine", y="heat"),
    ms.panel("table", "Machines that needed you", "urgent", columns=["machine", "status", "heat"]),
    ms.panel("search", "All readings", "machines"),
)
"""
REPORT = """
import millstream as ms

flow = ms.Flow("report")
machines = flow.read("machines")
machines.group_by("machine").agg(readings=ms.count(), hottest=ms.max("heat")).changes().write("report")
"""
FIRST = [("press", "running", 71), ("lathe", "running", 95)]
SECOND = [("press", "running", 84), ("drill", "stopped", 20), ("lathe", "running", 97)]
THIRD = [("oven", "stopped", 18)]
PATIENCE_S = 240.0


def main(folder: str) -> None:
    place = Path(folder)
    log_folder = place / "log"
    with ms.connect(log_folder) as log, mail_server() as (mails, port), supervising(log_folder, place) as jobs:
        log.create_topic("machines", schema=SCHEMA)
        old, new, report = place / "watch.py", place / "watch_v2.py", place / "report.py"
        old.write_text(WATCH.format(condition="heat > 90", port=port))
        new.write_text(WATCH.format(condition="heat > 80 OR status = 'stopped'", port=port))
        report.write_text(REPORT)

        send(log, FIRST)
        jobs.submit(old, name="factory")
        jobs.submit(report, name="report", options=["--batch"], schedule="0 3 * * *")
        night = datetime.fromtimestamp(jobs.show("report")["next_start"], UTC)
        print(f"the report runs every night, next at {night:%H:%M} UTC")
        print(f"its dashboard, until the example ends: {jobs.console_link('/dashboards/factory')}")
        until("the first mail", lambda: any("lathe" in mail for mail in mails))
        print("mail: the lathe is too hot")

        until("a batch to save", lambda: is_saved(jobs))
        send(log, SECOND)
        until("the second batch", lambda: len(rows(log, "urgent")) == 2)
        found = jobs.rehearse("factory", new, last="1 hour")
        counts = next(each["counts"] for each in found["outputs"] if each["output"] == "written")
        print(f"rehearsed: {counts['same']} row the same, {counts['only new']} more with the new condition")

        jobs.upgrade("factory", new)
        until("the upgrade", lambda: jobs.upgrades("factory")[0]["phase"] == "done")
        send(log, THIRD)
        until("the mail of the new flow", lambda: any("oven" in mail for mail in mails))
        print("upgraded; mail: the oven has stopped")

        jobs.start("report")  # not waiting for the night
        until("the report", lambda: len(rows(log, "report")) == 4)
        for row in sorted(rows(log, "report"), key=lambda row: str(row["machine"])):
            print(f"report: {row['machine']}, {row['readings']} readings, up to {row['hottest']} degrees")
        jobs.stop("factory", savepoint="after-the-shift")
        print("stopped, with a savepoint")


def send(log: ms.Broker, readings: Sequence[tuple[str, str, int]]) -> None:
    with log.producer() as producer:
        for machine, status, heat in readings:
            producer.send("machines", {"machine": machine, "status": status, "heat": heat}, key=machine)


def rows(log: ms.Broker, topic: str) -> list[dict[str, Any]]:
    if topic not in log.topics():
        return []
    with log.consumer(topic) as consumer:
        return [record.value for record in consumer.until_caught_up()]


def is_saved(jobs: Any) -> bool:
    try:
        jobs.savepoint("factory", "before-the-upgrade")
    except MillstreamError:  # its first batch is not complete yet
        return False
    return True


def until(what: str, is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {PATIENCE_S:g} seconds")
        time.sleep(0.1)


@contextmanager
def supervising(log: Path, place: Path) -> Iterator[Any]:
    """Runs `millstream up`, and stops its jobs in the end."""
    with (place / "up.log").open("wb") as output:
        command = [sys.executable, "-m", "millstream.cli", "up", "--log", str(log)]
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            until("the supervisor", lambda: is_up(log))
            jobs = ms.supervisor(log)
            try:
                yield jobs
            finally:  # they would go on without the supervisor
                for job in jobs.list():
                    jobs.stop(job["name"])
                    jobs.wait(job["name"], "stopped", "finished", "failed", "scheduled", timeout_s=PATIENCE_S)
        finally:
            process.terminate()
            process.wait(30)


def is_up(log: Path) -> bool:
    try:
        ms.supervisor(log).list()
    except MillstreamError:
        return False
    return True


# ------------------------------------------------------------ a mail server that only keeps what it gets


class _Mail(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._answer("220 ready")
        for line in self.rfile:
            verb = line[:4].upper().strip()
            if verb == b"DATA":
                self._answer("354 go on")
                content = b"".join(iter(self.rfile.readline, b".\r\n"))
                mail = message_from_bytes(content, policy=policy.default)
                body = mail.get_body(("plain",))
                self.server.mails.append(f"{mail['Subject']}\n{body.get_content() if body else ''}")  # type: ignore[attr-defined]
            elif verb == b"QUIT":
                self._answer("221 bye")
                return
            self._answer("250 ok")

    def _answer(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def mail_server() -> Iterator[tuple[list[str], int]]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mail) as server:
        server.mails = []  # type: ignore[attr-defined]
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.mails, server.server_address[1]  # type: ignore[attr-defined]
        server.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
