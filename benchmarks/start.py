"""From the command to the first pane, against the start of a plain Spark session, each in a process of its own.

The disk is warm: each is run once before it counts. The figure is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import millstream as ms

PLAIN = "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate()\nprint('READY', flush=True)\n"
FLOW = """\
import os
import millstream as ms

def first(rows, batch):
    if len(rows):
        print("READY", flush=True)

flow = ms.Flow("first-pane")
scores = flow.read("scores", "team string, score int, at timestamp", event_time="at", watermark=ms.bounded("1 second"))
totals = scores.key_by("team").window(ms.fixed("1 minute")).agg(total=ms.sum("score"))
totals.write(ms.foreach_batch(first))
flow.run()
"""


def seconds_to_ready(command: list[str], environment: dict[str, str]) -> float:
    """Until the process says so; then it is ended."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert process.stdout is not None
    if not any(line.startswith("READY") for line in process.stdout):
        raise RuntimeError(f"{' '.join(command)} ended before it was ready")
    taken = time.perf_counter() - begun
    process.terminate()
    process.wait(60)
    return taken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="each once, within a minute")
    quick = options.parse_args().quick
    scratch = Path(tempfile.mkdtemp(prefix="millstream-start-"))
    try:
        plain, flow = scratch / "plain.py", scratch / "flow.py"
        plain.write_text(PLAIN)
        flow.write_text(FLOW)
        rounds: dict[str, list[float]] = {"session": [], "first_pane": []}
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
        for turn in range(1 if quick else 4):
            broker = scratch / f"log-{turn}"
            with ms.connect(broker) as log:
                log.create_topic("scores", schema="team string, score int, at timestamp")
                at = datetime(2026, 1, 1, tzinfo=UTC)
                with log.producer() as producer:
                    for second in range(200):
                        row = {"team": f"t{second % 5}", "score": 1, "at": at + timedelta(seconds=second)}
                        producer.send("scores", row)
            commands = {
                "session": [sys.executable, str(plain)],
                "first_pane": [sys.executable, "-m", "millstream.cli", "--log", str(broker), "run", str(flow)],
            }
            for name, command in commands.items():
                taken = seconds_to_ready(command, environment)
                counts = quick or turn > 0
                rounds[name] += [taken] if counts else []
                print(f"{name:<12} {taken:6.1f} s{'' if counts else '  (warming up)'}", flush=True)
        medians = {f"{name}_s": round(statistics.median(values), 2) for name, values in rounds.items()}
        ratio = round(medians["first_pane_s"] / medians["session_s"], 3)
        print(json.dumps({"benchmark": "start", "quick": quick, "first_pane_vs_session": ratio, **medians}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
