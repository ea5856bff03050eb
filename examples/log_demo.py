"""A producer and a group of consumers, each its own process; one consumer is killed; nothing is lost or duplicated.

usage: log_demo.py [--records N]

The producer sends readings to a topic. Three consumers share its partitions, check the readings and send them on, each
batch in one transaction with the offsets it came from. Halfway through, one consumer is killed with kill -9. In the end
every reading is in the output topic exactly once.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

import millstream as ms

READINGS, CHECKED, GROUP = "readings", "readings.checked", "checkers"
PARTITIONS = 6
NAMES = {"produce": "producer", "1": "consumer 1", "2": "consumer 2", "3": "consumer 3"}
COLOURS = {"1": "green", "2": "magenta", "3": "cyan"}


def produce(folder: str, records: int) -> None:
    """Sends numbered readings, about as fast as a few thousand devices would."""
    with ms.connect(folder) as log, log.producer(acks="all", linger="20 milliseconds") as producer:
        for number in range(records):
            producer.send(READINGS, {"device": number % 97, "number": number}, key=f"device-{number % 97}")
            if number % 100 == 99:
                time.sleep(0.01)


def consume(folder: str, name: str) -> None:
    """Checks readings forever: its output and its offsets are one transaction."""
    with (
        ms.connect(folder) as log,
        log.producer(name=f"checker-{name}", acks="all") as producer,
        log.consumer(READINGS, group=GROUP, delivery="exactly_once") as consumer,
    ):
        print(consumer.member, flush=True)
        while True:
            batches = consumer.poll_batches(timeout=0.5, max_records=300)
            if batches:
                with producer.transaction(consumer):
                    for batch in batches:
                        producer.send_batch(CHECKED, batch.values())


class Show:
    """What the terminal shows while the processes run."""

    def __init__(self, log: ms.Broker, records: int) -> None:
        self._log = log
        self._records = records
        self._began_at = time.monotonic()
        self.member_names: dict[str, str] = {}
        self._events: list[str] = []

    def tell(self, event: str) -> str:
        line = f"{time.monotonic() - self._began_at:5.1f} s  {event}"
        self._events.append(line)
        return line

    def checked(self) -> int:
        """How many readings the group has committed."""
        if GROUP not in self._log.groups():
            return 0
        return sum(partition.next_offset or 0 for partition in self._log.describe_group(GROUP).partitions)

    def owners(self) -> dict[int, str | None]:
        if GROUP not in self._log.groups():
            return {}
        partitions = self._log.describe_group(GROUP).partitions
        return {partition.partition: self.member_names.get(partition.owner or "") for partition in partitions}

    def render(self) -> RenderableType:
        stored = self._log.describe_topic(READINGS)
        checked = self.checked()
        group = self._log.describe_group(GROUP) if GROUP in self._log.groups() else None
        done = {partition.partition: partition.next_offset or 0 for partition in group.partitions} if group else {}
        owners = self.owners()
        table = Table("partition", "owner", "stored", "done", "", expand=True, title="topic 'readings'")
        for info in stored.partitions:
            owner = owners.get(info.number)
            colour = COLOURS.get(owner or "", "white")
            finished = done.get(info.number, 0)
            bar = ProgressBar(total=max(1, info.end_offset), completed=finished, complete_style=colour)
            label = NAMES[owner] if owner else "nobody"
            table.add_row(str(info.number), f"[{colour}]{label}[/]", f"{info.end_offset:,}", f"{finished:,}", bar)
        counts = f"sent {stored.records_max:,} of {self._records:,}    checked {checked:,}"
        return Group(Panel(counts), table, Panel("\n".join(self._events[-6:]), title="what happened"))


def start(role: str, folder: Path, records: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--records", str(records), "--role", role, "--folder", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run(folder: Path, records: int, console: Console) -> bool:
    """Runs the demo in a folder; returns whether every reading arrived exactly once."""
    with ms.connect(folder) as log:
        log.create_topic(READINGS, partitions=PARTITIONS, schema="device int, number long")
        log.create_topic(CHECKED, partitions=2, schema="device int, number long")
        show = Show(log, records)
        processes: dict[str, subprocess.Popen[str]] = {}
        killed_at: float | None = None
        victim = "2"
        live = Live(console=console, get_renderable=show.render, refresh_per_second=8, screen=False)
        try:
            with live if console.is_terminal else console.status("starting"):
                tell(console, show.tell("starting one producer and three consumers"))
                processes = {role: start(role, folder, records) for role in NAMES}
                for role in COLOURS:
                    member = (processes[role].stdout or sys.stdin).readline().strip()
                    show.member_names[member] = role
                while (checked := show.checked()) < records:
                    time.sleep(0.05)
                    owned = Counter(show.owners().values())
                    if killed_at is None and checked > records // 2 and owned[victim]:
                        processes[victim].send_signal(signal.SIGKILL)
                        killed_at = time.monotonic()
                        tell(console, show.tell(f"kill -9 of consumer {victim}, owner of {owned[victim]} partitions"))
                    elif killed_at is not None and victim in NAMES and owned["1"] + owned["3"] == PARTITIONS:
                        seconds = time.monotonic() - killed_at
                        tell(console, show.tell(f"its partitions went to consumers 1 and 3 after {seconds:.1f} s"))
                        victim = ""
                    if all(process.poll() is not None for role, process in processes.items() if role != "produce"):
                        raise RuntimeError("all consumers have ended")
                tell(console, show.tell("every reading was checked"))
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        return verdict(log, records, console)


def tell(console: Console, line: str) -> None:
    if not console.is_terminal:
        console.print(line, highlight=False)


def verdict(log: ms.Broker, records: int, console: Console) -> bool:
    with log.consumer(CHECKED) as consumer:
        seen = Counter(record.value["number"] for record in consumer.until_caught_up())
    lost, doubled = records - len(seen), sum(count > 1 for count in seen.values())
    console.print(f"{records:,} readings sent, {len(seen):,} received, {lost} lost, {doubled} doubled")
    return lost == 0 and doubled == 0


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--records", type=int, default=60_000)
    options.add_argument("--role", choices=list(NAMES), help=argparse.SUPPRESS)
    options.add_argument("--folder", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.role == "produce":
        produce(args.folder, args.records)
    elif args.role:
        consume(args.folder, args.role)
    else:
        with tempfile.TemporaryDirectory(prefix="millstream-demo-") as folder:
            sys.exit(0 if run(Path(folder) / "log", args.records, Console()) else 1)


if __name__ == "__main__":
    main()
