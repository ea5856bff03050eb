"""The console: the times to draw a time plane and to list topics and jobs, and what ten open pages cost a running job.

The plane has 100,000 rows in view and is drawn in Chromium, where it is zoomed and moved. The cost is the ratio of the
median batch times of a job on Spark with ten pages open, as their requests, and with none, in turns. The lists have
10,000 topics and 1,000 jobs, which run as far as their files and the supervisor say.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.jobs.measuring.job_progress import Progress, ProgressFile
from millstream.jobs.versions.plan_document import write_plan
from millstream.serving.access import Access, ListenAddress
from millstream.serving.http import server
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.supervision.specification import JobSpecification
from millstream.supervision.status import Status
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor
from millstream.web_console.front_door import FrontDoor
from millstream.web_console.routes import with_console

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from debian_servers import MISSING, program

TOKEN = "0123456789abcdef"
BATCHES, ROWS = 200, 500
PAGES = 10
TOPICS, JOBS = 10_000, 1_000
FLOW = """\
import millstream as ms

flow = ms.Flow("pumps")
readings = flow.read("readings", event_time="at", watermark=ms.bounded("1 second"))
panes = readings.key_by("pump").window(ms.fixed("5 seconds")).agg(litres=ms.sum("litres"))
panes.write(ms.discard())
"""


def flow() -> ms.Flow:
    found: dict[str, Any] = {}
    exec(FLOW.replace('"readings",', '"readings", "pump string, litres double, at timestamp",'), found)
    made: ms.Flow = found["flow"]
    return made


# ---------------------------------------------------------------- a frame


@contextmanager
def console(folder: Path, running: int = 0) -> Iterator[FrontDoor]:
    """A supervisor in this process, with a job that has stopped, and others that run as far as their files say."""
    supervisor = Supervisor(folder, str(folder / "log"), folder / "log" / "jobs")
    plan = PhysicalPlan(tuple(flow().check()), 4)
    for name in ("pumps", *(f"job-{number:04}" for number in range(running))):
        observed = Observed.STOPPED if name == "pumps" else Observed.RUNNING
        supervisor.store.add(JobSpecification(name, "/nowhere/flow.py", name), "ann", observed, None)
        (folder / "log" / "jobs" / name).mkdir(parents=True)
        write_plan(folder / "log" / "jobs" / name, name, plan)
        ProgressFile(folder / "log" / "jobs" / name).write(name, Progress(batch=7, rows_read=1000), 3)
    with socket.create_server(("127.0.0.1", 0)) as at:
        access = Access.at(ListenAddress.of("127.0.0.1", 0), token=TOKEN)
        url = f"http://127.0.0.1:{at.getsockname()[1]}"
        with with_console(
            supervisor, Status(supervisor), str(folder / "log"), access, access, TOKEN, url, "ann"
        ) as door:
            serving = server(door)
            door.ends = lambda: serving.should_exit
            thread = threading.Thread(target=serving.run, kwargs={"sockets": [at]}, daemon=True)
            thread.start()
            yield door
            serving.should_exit = True
            thread.join()


def plane_answer() -> str:
    """The batches of a plane with 100,000 rows, as the server sends them."""
    batches = []
    for number in range(BATCHES):
        at = 1_800_000_000_000 + number * 500
        rows = [[at - (row * 7919) % 9000, f"pump {row % 50}"] for row in range(ROWS)]
        panes = [[at - 10_000, at - 5_000, "on_time", 0, f"pump {key}", "12.5", {}] for key in range(0, 50, 10)]
        batches.append(
            {
                "batch": number,
                "at": at,
                "watermark": at - 8000,
                "before": at - 8500,
                "partitions": {"0": at - 8000},
                "rows": rows,
                "count": 50 * ROWS,
                "late": [],
                "late_count": 0,
                "panes": panes,
                "pane_count": len(panes),
            }
        )
    heading = {"step": "s", "what": "litres", "where": "", "when": "", "how": "", "keys": ["pump"], "note": None}
    # Without `retry` the browser asks again after some seconds, and on a slow machine gets all rows twice.
    document = json.dumps({"heading": heading, "batches": batches, "next": BATCHES})
    return f"retry: 3600000\nevent: answer\ndata: {document}\n\n"


def plane_frame_ms(frames: int) -> float:
    from playwright.sync_api import sync_playwright

    path = program("chromium")
    if path is None:
        raise SystemExit(MISSING.format("chromium"))
    with tempfile.TemporaryDirectory() as folder, console(Path(folder)) as door, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        headers = {"content-type": "text/event-stream"}
        answer = plane_answer()
        page.route("**/console/live?path=*plane*", lambda route: route.fulfill(body=answer, headers=headers))
        page.goto(door.link())
        page.get_by_role("heading", name="Jobs").wait_for()
        page.goto(f"{door.link().partition('#')[0]}#/jobs/pumps/plane")
        plane = page.locator(f"canvas.plane[data-points='{BATCHES * ROWS}']")
        plane.wait_for()
        page.get_by_label("Shows").select_option("everything")
        plane.focus()
        for number in range(frames):
            page.keyboard.press(("+", "ArrowLeft", "-", "ArrowRight")[number % 4])
        found = float(plane.get_attribute("data-frame-ms") or "nan")
        browser.close()
    return found


# ---------------------------------------------------------------- a long list


def topics_list_ms(count: int, asked: int) -> float:
    """The median time of the answer with the names of all topics."""
    with tempfile.TemporaryDirectory() as folder, console(Path(folder)) as door:
        with ms.connect(Path(folder) / "log") as log:
            log.create_topic("topic-00000", partitions=1)
        first = Path(folder) / "log" / "topics" / "topic-00000"
        for number in range(1, count):  # creating each would take minutes: it waits for the disk
            shutil.copytree(first, first.with_name(f"topic-{number:05}"), copy_function=os.link)
        return answer_ms(door, "/v1/topics", count, asked)


def jobs_list_ms(count: int, asked: int) -> float:
    """The median time of the answer with all jobs, their states and their progress."""
    with tempfile.TemporaryDirectory() as folder, console(Path(folder), running=count) as door:
        return answer_ms(door, "/v1/jobs", count + 1, asked)


LISTS = ((topics_list_ms, TOPICS), (jobs_list_ms, JOBS))


def answer_ms(door: FrontDoor, path: str, count: int, asked: int) -> float:
    """The median time of an answer, which is a list of so many."""
    client, times = FrontDoorClient(door.link()), []
    for _ in range(asked):
        started = time.perf_counter()
        found = json.loads(client.answer(path))
        times.append(1000 * (time.perf_counter() - started))
        assert len(found) == count
    return statistics.median(times)


# ---------------------------------------------------------------- a job with and without pages


@contextmanager
def running_job(folder: Path) -> Iterator[tuple[FrontDoorClient, Path]]:
    """A job of a supervisor on Spark, and rows that keep coming."""
    log = folder / "log"
    with ms.connect(log) as opened:
        opened.create_topic("readings", partitions=1, schema="pump string, litres double, at timestamp")
    (folder / "flow.py").write_text(FLOW)
    command = [sys.executable, "-m", "millstream.cli", "--log", str(log), "up"]
    up = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder)
    ends = threading.Event()
    feeding = threading.Thread(target=feed, args=(log, ends), daemon=True)
    feeding.start()
    jobs = None
    try:
        deadline = time.monotonic() + 60
        while jobs is None and time.monotonic() < deadline:
            with suppress(ms.MillstreamError):
                jobs = ms.supervisor(log)
                jobs.list()
            time.sleep(0.2)
        assert jobs is not None
        jobs.submit(folder / "flow.py", options=["--master", "local[1]"])
        commits = log / "jobs" / "pumps" / "checkpoint" / "commits"
        while not commits.is_dir() or len(list(commits.iterdir())) < 10:
            time.sleep(0.5)
        yield FrontDoorClient(jobs.console_link()), commits
    finally:
        ends.set()
        feeding.join()
        if jobs is not None:  # a supervisor that ends leaves its jobs running
            jobs.stop("pumps")
            jobs.wait("pumps", "stopped", timeout_s=60)
        up.send_signal(signal.SIGTERM)
        up.wait()


def feed(log: Path, ends: threading.Event) -> None:
    with ms.connect(log) as opened, opened.producer() as producer:
        while not ends.wait(0.05):
            now = datetime.now(UTC)
            for number in range(500):
                producer.send("readings", {"pump": f"pump {number % 50}", "litres": 1.0, "at": now})
            producer.flush()


class FrontDoorClient:
    """Requests of pages, with the session of a browser."""

    def __init__(self, link: str) -> None:
        address, _, code = link.partition("#code=")
        self._host = address.split("/")[2]
        connection = HTTPConnection(self._host)
        connection.request("POST", "/console/login", json.dumps({"code": code}))
        answer = connection.getresponse()
        answer.read()
        self._cookie = (answer.getheader("set-cookie") or "").partition(";")[0]

    def answer(self, path: str) -> bytes:
        connection = HTTPConnection(self._host)
        connection.request("GET", path, headers={"Cookie": self._cookie})
        found = connection.getresponse().read()
        connection.close()
        return found

    @contextmanager
    def pages(self, paths: list[str]) -> Iterator[None]:
        """Streams of events, as pages that are open read them."""
        opened = []
        for path in paths:
            connection = HTTPConnection(self._host)
            connection.request("GET", f"/console/live?path={path}", headers={"Cookie": self._cookie})
            answer = connection.getresponse()
            threading.Thread(target=read, args=(answer,), daemon=True).start()
            opened.append(connection)
        yield
        for connection in opened:
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()


def read(answer: Any) -> None:
    with suppress(OSError, ValueError, AttributeError):
        while answer.read1(65536):
            pass


def batch_seconds(commits: Path, seconds: float) -> list[float]:
    """The times between the ends of batches, for a while."""
    begun = time.time()
    time.sleep(seconds)
    ends = sorted(
        each.stat().st_mtime for each in commits.iterdir() if each.name.isdigit() and each.stat().st_mtime > begun
    )
    return [after - before for before, after in pairwise(ends)]


def console_overhead(rounds: int, seconds: float) -> float:
    paths = ["/v1/jobs", "/v1/jobs/pumps", "/v1/jobs/pumps/plane?offset=0", "/v1/topics/readings/records", "/v1/groups"]
    with_pages: list[float] = []
    without: list[float] = []
    with tempfile.TemporaryDirectory() as folder, running_job(Path(folder)) as (client, commits):
        for _ in range(rounds):
            without += batch_seconds(commits, seconds)
            with client.pages((paths * 2)[:PAGES]):
                with_pages += batch_seconds(commits, seconds)
    return statistics.median(with_pages) / statistics.median(without)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer frames and batches, within a minute")
    quick = options.parse_args().quick
    frame_ms = plane_frame_ms(60 if quick else 400)
    topics_ms, jobs_ms = (listed(count, 3 if quick else 20) for listed, count in LISTS)
    overhead = console_overhead(*((2, 6.0) if quick else (6, 30.0)))
    figures = {
        "plane_frame_ms_100k": round(frame_ms, 2),
        f"topics_list_ms_{TOPICS // 1000}k": round(topics_ms, 1),
        f"jobs_list_ms_{JOBS // 1000}k": round(jobs_ms, 1),
        "console_overhead": round(overhead, 3),
    }
    print(json.dumps({"benchmark": "console", "quick": quick, **figures}))


if __name__ == "__main__":
    main()
