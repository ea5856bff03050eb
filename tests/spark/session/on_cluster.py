"""What the tests on a cluster share: workers that know nothing of Millstream, a flow with its rows, and its answer."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs.support import START, row, t
from spark_cluster import SparkCluster
from waiting import exit_code, until

USERS = 6
ROWS = 600
BATCH_ROWS = 60
WINDOW_S = 10
NEAR_S = 2
SCHEMA = "user string, n int, at timestamp"
FLOW = f"""
import millstream as ms
import amounts

flow = ms.Flow("clustered")
named = {{"schema": "{SCHEMA}", "event_time": "at", "watermark": ms.bounded("5 seconds")}}
paid = flow.read("paid", **named).map(amounts.doubled)
seen = flow.read("seen", **named)
paid.key_by("user").window(ms.fixed("{WINDOW_S} seconds")).agg(total=ms.sum("n"), k=ms.count()).write("totals")
near = paid.join(seen.select("user", "at", m="n"), on="user", within=("0 seconds", "{NEAR_S} seconds"), how="inner")
near.select("user", "n", "m").write("pairs")
"""
# The function is sent; what it imports, at once and later, must come along.
AMOUNTS = """
import factors

def doubled(row):
    from further import nothing

    return {**row, "n": factors.TWO * row["n"] + nothing()}
"""


def write_flow(folder: Path) -> Path:
    (folder / "amounts.py").write_text(AMOUNTS)
    (folder / "factors.py").write_text("TWO = 2\n")
    (folder / "further.py").write_text("def nothing():\n    return 0\n")
    file = folder / "flow.py"
    file.write_text(FLOW)
    return file


def bare_python(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """A Python with the libraries of this one, but not Millstream, which is installed here, and not `without`."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    libraries = Path(sysconfig.get_paths()["purelib"])
    own = folder / libraries.relative_to(sys.prefix)
    if without:
        for entry in libraries.iterdir():
            if not entry.name.endswith(".pth") and not entry.name.startswith(without):
                (own / entry.name).symlink_to(entry)
    else:
        (own / "libraries.pth").write_text(str(libraries))  # a path in such a file is not looked through for others
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    asked = subprocess.run([python, "-c", "import numpy, millstream"], env=environ, cwd=folder, capture_output=True)
    assert b"No module named 'millstream'" in asked.stderr
    return python


# ---------------------------------------------------------------- rows, and what comes of them


def rows_of(topic: str) -> dict[int, list[dict[str, Any]]]:
    """By partition, rows in order of time, then one far behind, so that every window ends."""
    begin = 0 if topic == "paid" else 3
    rows: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for number in range(ROWS):
        rows[number % 2].append(row(f"user {(number * 7 + begin) % USERS}", number % 13, number / 5))
    for part in rows.values():
        part.append(row("nobody", 0, 10_000))
    return rows


def answer() -> tuple[Counter[Any], Counter[Any]]:
    """Sums of windows, and pairs, worked out by hand."""
    paid, seen = ([each for part in rows_of(topic).values() for each in part] for topic in ("paid", "seen"))
    sums: dict[Any, list[int]] = {}
    for each in paid:
        start = int((each["at"] - START).total_seconds()) // WINDOW_S * WINDOW_S
        if each["user"] != "nobody":  # its window has not ended
            held = sums.setdefault((each["user"], t(start)), [0, 0])
            held[0], held[1] = held[0] + 2 * each["n"], held[1] + 1
    pairs = Counter(
        (one["user"], 2 * one["n"], other["n"])
        for one in paid
        for other in seen
        if one["user"] == other["user"] and 0 <= (one["at"] - other["at"]).total_seconds() <= NEAR_S
    )
    return Counter((*place, *held) for place, held in sums.items()), pairs


def found(read: Callable[[str], list[dict[str, Any]]]) -> tuple[Counter[Any], Counter[Any]]:
    """The same from what the job wrote."""
    totals = Counter((each["user"], each["window"]["start"], each["total"], each["k"]) for each in read("totals"))
    return totals, Counter((each["user"], each["n"], each["m"]) for each in read("pairs"))


# ---------------------------------------------------------------- a job


class ClusterJob:
    """`millstream run` in a process of its own, on a cluster whose workers are to be lost meanwhile."""

    def __init__(
        self, cluster: SparkCluster, here: Path, file: Path, log: str, *more: str, python: Path, ends: bool = True
    ) -> None:
        self.folder = here / "job"
        self.err = here / "err"
        command = [sys.executable, "-m", "millstream.cli", "run", str(file), "--log", log, "--master", cluster.master]
        command += ["--folder", str(self.folder), "--batch-rows", str(BATCH_ROWS), *more]
        command += ["--until", "caught up"] if ends else []
        environ = {**os.environ, **cluster.environ, "PYSPARK_PYTHON": str(python)}
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(command, stderr=err, env=environ, cwd=here)

    def batches(self) -> int:
        """How many are complete."""
        commits = self.folder / "checkpoint" / "commits"
        return len(list(commits.glob("[0-9]*"))) if commits.exists() else 0

    def until_batch(self, number: int) -> None:
        try:
            until(lambda: self.process.poll() is not None or self.batches() >= number, f"{number} complete batches")
        except AssertionError as late:
            raise AssertionError(f"{late}; the job said:\n{self.err.read_text()}") from None
        assert self.process.poll() is None, f"it ended before batch {number}:\n{self.err.read_text()}"

    def ends(self, code: int = 0) -> str:
        """Waits for its end, which is to have this exit code; what it said."""
        try:
            ended = exit_code(self.process, "the job on the cluster")
        except AssertionError as late:
            raise AssertionError(f"{late}; the job said:\n{self.err.read_text()}") from None
        said = self.err.read_text()
        assert ended == code, said
        assert "Traceback" not in said
        assert "\tat " not in said  # as lines of a JVM's stack begin
        return said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
