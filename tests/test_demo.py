"""The demo, as `make demo` runs it."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from example_files import EXAMPLES, cells, load, rows_of


def test_the_pumps_are_as_unreliable_as_the_demo_needs_them() -> None:
    """Two minutes of them, on a clock of our own: readings out of order, late, too late and broken, all counted."""
    module = load("demo_fleet")
    arrived: list[tuple[float, dict[str, Any] | None]] = []
    now = began_at = 1_800_000_000.0

    class Sent:
        def send(self, topic: str, value: bytes, key: str) -> None:
            try:
                reading = json.loads(value)
            except ValueError:
                reading = None
            arrived.append((now, reading if reading and isinstance(reading["litres"], int) else None))

    fleet, silent = module.Fleet(random.Random(3), began_at), set()
    while now < began_at + 120:
        now += 0.05
        fleet.measure(now, 0.05)
        fleet.send(Sent(), now)
        silent |= set(fleet.silent(now))
    good = [(at, reading) for at, reading in arrived if reading is not None]
    assert len(arrived) == fleet.sent
    assert len(arrived) - len(good) == fleet.broken > 0
    assert sum(reading["litres"] for _, reading in good) == fleet.litres
    assert 3 <= len(silent) <= len(module.PUMPS)
    delays = [at - datetime.fromisoformat(reading["at"]).timestamp() for at, reading in good]
    in_order = sum(delay <= 2.1 for delay in delays)
    too_late = sum(delay > 28 for delay in delays)  # 3 s of the watermark, 10 s of window, 15 s of allowed lateness
    assert in_order > 0.6 * len(delays)
    assert 0 < too_late < 0.1 * len(delays)
    assert len(delays) - in_order - too_late > 0


def agreed(printed: str) -> int:
    """How many readings a demo counted, after a look at whether its closing words are right."""
    assert "the first pane" in printed
    assert "The sums agree." in printed
    table = {row[0]: row[1:] for row in cells(printed) if len(row) == 3}
    assert table["sent by the pumps"] == table["together"]
    panes = re.search(r"([\d,]+) panes: ([\d,]+) early, ([\d,]+) on time, ([\d,]+) late", printed)
    assert panes is not None
    total, *parts = (int(number.replace(",", "")) for number in panes.groups())
    assert total == sum(parts) > 0
    return int(table["together"][0].replace(",", ""))


@pytest.mark.own_processes
def test_the_demo_ends_by_itself_and_its_sums_agree(tmp_path: Path) -> None:
    """Without a terminal: plain lines. Every reading is in the table, too late or dead, and counted once."""
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--seconds", "6", "--keep", str(tmp_path / "kept")]
    printed, page = "", ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            printed += line
            if found := re.search(r"open the console: (http://\S+)#code=\S+/dashboards/pumps", line):
                with urlopen(found[1]) as answer:
                    page = answer.read().decode()
    assert demo.returncode == 0, printed
    assert agreed(printed) == len(rows_of(tmp_path / "kept" / "log", "readings"))
    assert "Log in · Millstream" in page


@pytest.mark.more
@pytest.mark.own_processes
def test_ctrl_c_ends_the_demo_with_its_last_panes() -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        printed = ""
        for line in demo.stdout:
            printed += line
            if "the first pane" in line:
                demo.send_signal(signal.SIGINT)
        assert demo.wait() == 0, printed
    assert agreed(printed) > 0
