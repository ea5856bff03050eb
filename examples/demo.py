"""A fleet of pumps, a flow on Spark, and a table that is corrected live. `make demo` runs this.

usage: demo.py [--seconds N] [--keep FOLDER]

Eight pumps report how many litres they moved: out of order, late and sometimes malformed (demo_fleet.py, a separate
process). The flow (demo_flow.py) adds them up by pump and ten seconds of event time. A result is emitted early, again
when the watermark passes the end of its window, and again when late readings arrive; each retracts the previous one,
and a table in SQLite follows. Readings that are too late or cannot be decoded are kept as well. In the end the sums
must agree. A link opens the console in a browser, on a dashboard of the pumps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded behind the first words on the screen
    import pyarrow as pa
    from rich.console import Console

    import millstream as ms
    from demo_board import Board

READINGS, LATE, DEAD = "readings", "readings.late", "readings.dead"
FLOW, DASHBOARD = Path(__file__).with_name("demo_flow.py"), "/dashboards/pumps"
PUMPS = [f"pump-{number}" for number in range(1, 9)]
LOOK_S = 0.1
LINE_S = 2.0
DRAIN_S_MAX = 30.0

Say = Callable[[str], None]


class Demo:
    """The two workers of the demo: the fleet, a process, and the job on Spark, in its own thread."""

    def __init__(self, folder: Path, board: Board) -> None:
        self.board = board
        self.log, self.database = folder / "log", folder / "pumped.db"
        self.job: Any = None
        self._console = contextlib.ExitStack()
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._fleet: subprocess.Popen[str] | None = None
        self._threads: dict[str, threading.Thread] = {}

    def begin(self) -> None:
        self._in_thread("job", self._work)

    def _in_thread(self, name: str, work: Callable[[], None]) -> None:
        self._threads[name] = threading.Thread(target=work, name=name, daemon=True)
        self._threads[name].start()

    def _work(self) -> None:
        """Runs the job. An error is stored for `look`."""
        try:
            self._start()
            while not self._stopping.wait(LOOK_S):
                if not self.job.is_running:
                    self.job.wait()  # raises what it failed with
            self.job.stop()
        except BaseException as error:
            self._failure = error

    def _start(self) -> None:
        self.board.phase("opening the log, starting the pumps")
        import millstream as ms
        from millstream.plan.parameters import set_parameters

        with ms.connect(self.log) as log:
            log.create_topic(READINGS, partitions=2)  # without a schema: pumps send JSON, good or bad
        command = [sys.executable, str(Path(__file__).with_name("demo_fleet.py")), str(self.log)]
        self._fleet = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._in_thread("fleet", self._listen)
        self.board.phase("starting Spark")
        from millstream.spark import session

        session(name="pumped")
        self.board.phase("starting the query")
        set_parameters({"database": str(self.database)})
        from demo_flow import flow

        self.job = flow.start(broker=self.log, on_batch=self._batch, tick_s=0.5)
        self.board.phase("reading the first batch, while Spark's Python workers start")
        self._open_console(flow.name)

    def _open_console(self, flow: str) -> None:
        """Shows the link to a console beside the job. The demo does not need it."""
        from millstream.errors import MillstreamError

        try:
            from millstream.web_console.beside import console_beside

            params = {"database": str(self.database)}
            door = self._console.enter_context(console_beside(FLOW, flow, self.log, params))
            self.board.console = door.link(DASHBOARD)
        except (ImportError, MillstreamError) as error:
            self.board.tell(f"no console: {error}")

    def _listen(self) -> None:
        """Reads the fleet's reports until it ends."""
        assert self._fleet is not None
        assert self._fleet.stdout is not None
        for line in self._fleet.stdout:
            self.board.fleet_said(json.loads(line))

    def _batch(self, number: int, tables: Mapping[str, pa.Table]) -> None:
        self.board.take(*(tables[name].to_pylist() for name in ("panes", "late", "dead")))

    def look(self) -> None:
        """Raises the job's error, or updates the board with its progress."""
        if self._failure is not None:
            raise self._failure
        if self.job is not None:
            progress = self.job.progress
            micros = min(progress.watermarks.values(), default=0)
            watermark = datetime.fromtimestamp(micros / 1e6, UTC) if micros > 0 else None
            self.board.progressed(progress.batch, progress.rows_read + progress.rows_dead, self.job.lag(), watermark)

    def end_fleet(self) -> None:
        """Lets the fleet send its remaining readings, and waits for its final report."""
        if self._fleet is not None and self._fleet.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._fleet.stdin.close()
            self._fleet.wait()
            self._threads["fleet"].join()

    def is_drained(self) -> bool:
        """Whether every reading is in the table, late or a dead letter."""
        board = self.board
        return board.readings + board.late + board.dead >= int(board.fleet["sent"])

    def stop(self) -> None:
        self.end_fleet()
        self._stopping.set()
        if self.job is not None:
            self._threads["job"].join()
        self._console.close()


def watch(demo: Demo, board: Board, seconds: float | None, asked: threading.Event, say: Say) -> None:
    """Until interrupted, or the seconds after the first pane are over; then until the last reading is counted."""
    demo.begin()
    first_pane_at: float | None = None
    said_at, phases, link = 0.0, 0, ""
    while not asked.wait(LOOK_S):
        demo.look()
        for phase in board.phases[phases:]:
            say(f"{phase.began_at - board.began_at:5.1f} s · {phase.text}")
        phases = len(board.phases)
        if board.console != link:
            link = board.console
            say(f"{time.monotonic() - board.began_at:5.1f} s · open the console: {link}")
        if board.cells and first_pane_at is None:
            first_pane_at = time.monotonic()
            say(f"{first_pane_at - board.began_at:5.1f} s · the first pane")
        if first_pane_at is not None and time.monotonic() - said_at >= LINE_S:
            said_at = time.monotonic()
            say(board.line())
        if seconds is not None and first_pane_at is not None and time.monotonic() - first_pane_at >= seconds:
            break
    if demo.job is None:
        return  # there is nothing to wait for yet
    board.ending = True
    say(f"{time.monotonic() - board.began_at:5.1f} s · ending: the last panes are on their way")
    demo.end_fleet()
    deadline = time.monotonic() + DRAIN_S_MAX
    while time.monotonic() < deadline and not demo.is_drained():
        time.sleep(LOOK_S)
        demo.look()


def summary(demo: Demo, board: Board, console: Console) -> bool:
    """Compares what the fleet sent with the table and the topics; returns whether they agree."""
    from rich.table import Table

    import millstream as ms

    with contextlib.closing(sqlite3.connect(demo.database)) as database:
        rows, readings, litres = database.execute(
            "SELECT count(*), coalesce(sum(readings), 0), coalesce(sum(litres), 0) FROM pumped"
        ).fetchone()
    with ms.connect(demo.log) as log:
        late = [record.value["litres"] for record in _records(log, LATE)]
        dead = sum(1 for _ in _records(log, DEAD))
    sent = board.fleet
    table = Table(title="what was sent, and where it is now", title_justify="left")
    table.add_column("")
    for heading in ("readings", "litres"):
        table.add_column(heading, justify="right")
    table.add_row("sent by the pumps", f"{sent['sent']:,}", f"{sent['litres']:,}", end_section=True)
    table.add_row(f"in the {rows:,} rows of SQLite", f"{readings:,}", f"{litres:,}")
    table.add_row(f"too late, in {LATE}", f"{len(late):,}", f"{sum(late):,}")
    table.add_row(f"broken, in {DEAD}", f"{dead:,}", "", end_section=True)
    counted, poured = readings + len(late) + dead, litres + sum(late)
    table.add_row("together", f"{counted:,}", f"{poured:,}")
    agree = (counted, poured, dead) == (sent["sent"], sent["litres"], sent["broken"])
    console.print(table)
    early, on_time, corrected = (board.panes[timing] for timing in ("early", "on_time", "late"))
    console.print(f"{early + on_time + corrected:,} panes: {early:,} early, {on_time:,} on time, {corrected:,} late")
    console.print("[green]The sums agree.[/]" if agree else "[red]The sums do not agree.[/]")
    return agree


def _records(log: ms.Broker, topic: str) -> Iterator[Any]:
    if topic in log.topics():
        with log.consumer(topic) as consumer:
            yield from consumer.until_caught_up()


def run(folder: Path, seconds: float | None, console: Console) -> int:
    from demo_board import Board

    board = Board(PUMPS)
    demo = Demo(folder, board)
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    try:
        if console.is_terminal:
            from rich.live import Live

            with Live(board, console=console, screen=True, refresh_per_second=8):
                watch(demo, board, seconds, asked, lambda line: None)
        else:
            watch(demo, board, seconds, asked, lambda line: print(line, flush=True))
    finally:
        demo.stop()
    if not board.cells:
        console.print("Ended before the first pane.")
        return 130
    return 0 if summary(demo, board, console) else 1


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seconds", type=float, help="end by itself so long after the first pane")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="keep log and table in a folder of your own")
    args = options.parse_args()
    if args.keep is not None and args.keep.exists() and any(args.keep.iterdir()):
        options.error(f"{args.keep} is not empty: name a new folder")
    print("Millstream demo: starting", flush=True)
    from rich.console import Console

    from millstream.errors import MillstreamError

    console = Console()
    with contextlib.ExitStack() as stack:
        folder = args.keep
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="millstream-demo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            code = run(folder, args.seconds, console)
        except MillstreamError as error:
            console.print(str(error), style="red", highlight=False)
            return 1
        if args.keep is not None:
            print(f"The log and the table are in {args.keep}")
        return code


if __name__ == "__main__":
    sys.exit(main())
