"""What metrics and the events of batches cost, what many flows in one app cost, and how long a change of them takes.

The same flow runs over the same topic in three ways: as it is, without metrics, and without events. A round runs all of
them one after the other, in changing order. What is compared is the CPU time of all processes of the job: driver, JVM,
workers. It does not contain what other work on the machine takes. The figures are medians over all rounds of the ratio
within a round; the smallest and the largest ratio are printed, too.

That ratio varies by a tenth where other work runs. So the CPU time of what only metrics need, and only events, is also
measured in the driver, thread by thread, and compared with that of the whole run. Counting the rows of each step in the
tasks, an addition per step and frame, is not part of it.

An app of 50 small flows over one topic is compared with an app of one. They run in turns, first and last the one,
so that other work meets both: the ratio is that of their median batch times; beside it is that of their CPU times.

In a running app a flow is removed and added again while rows come. The pause is the longest time between two results of
another flow around such a change; beside it is the longest one without a change. --quick leaves this out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import millstream as ms
from millstream.jobs.measuring.batch_events import BatchEvents
from millstream.jobs.measuring.job_metrics import JobMetrics
from millstream.jobs.measuring.sampling import Sampler
from millstream.spark.session.start import session

SCHEMA = "key long, value long, at timestamp"
KEYS = 1_000
START_US = 1_767_225_600_000_000
BAR = 0.98
FLOWS = 50
FLOWS_BAR = 10
PAUSES = ("pause_of_other_flows_s", "longest_wait_without_a_change_s")


def fill(broker: Path, rows: int) -> None:
    """Appends rows that are a millisecond apart."""
    random = np.random.default_rng(7)
    with ms.connect(broker) as log:
        log.create_topic("events", schema=SCHEMA, partitions=2)
        with log.producer() as producer:
            for first in range(0, rows, 100_000):
                count = min(100_000, rows - first)
                times = pa.array(START_US + 1000 * np.arange(first, first + count)).cast(pa.timestamp("us", "UTC"))
                columns = [pa.array(random.integers(0, KEYS, count)), pa.array(random.integers(0, 100, count)), times]
                producer.send_batch("events", pa.RecordBatch.from_arrays(columns, ["key", "value", "at"]))


def cpu_s() -> float:
    """The CPU time of this process and of all below it, ended ones included."""
    own = psutil.Process()
    times = []
    for each in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            times.append(each.cpu_times())
    return float(sum(each.user + each.system + each.children_user + each.children_system for each in times))


def cpu_of_run(broker: Path, name: str, batch_rows: int, **settings: Any) -> float:
    """The CPU time that a run over the whole topic takes."""
    before = cpu_s()
    summing(name, "value > 5").run(broker=broker, until="caught up", batch_rows=batch_rows, progress="none", **settings)
    return cpu_s() - before


def summing(name: str, condition: str) -> ms.Flow:
    """A flow with an expression, a window and a sink that does nothing."""
    flow = ms.Flow(name)
    events = flow.read("events", SCHEMA, event_time="at", watermark=ms.bounded("1 second"))
    kept = events.where(condition).with_column("value", "value * 2")
    panes = kept.key_by("key").window(ms.fixed("10 seconds")).agg(total=ms.sum("value"), n=ms.count())

    def nothing(rows: pa.Table, batch: int) -> None:
        """Only the steps before it are measured."""

    nothing.__name__ = name  # sinks of one app differ
    panes.write(ms.foreach_batch(nothing))
    return flow


@dataclass
class Batches:
    """What the batches of an app took."""

    times_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def run_app(broker: Path, name: str, flows: int, batch_rows: int, found: Batches) -> None:
    """Runs an app of so many flows, of which each has a part of the keys. Its first batch warms up."""
    app = ms.app([summing(f"flow-{number}", f"key % {FLOWS} = {number}") for number in range(flows)], name=name)
    used: list[float] = []

    def note(number: int, tables: Mapping[str, pa.Table]) -> None:
        used.append(cpu_s())

    job = app.run(broker=broker, until="caught up", batch_rows=batch_rows, progress="none", on_batch=note)
    found.times_s += job.batch_times()[1:]
    found.cpu_s += [after - before for before, after in pairwise(used)]


def flows_against_one(broker: Path, rounds: int, batch_rows: int) -> dict[str, float]:
    """How many times as long, and as much CPU time, a batch of many flows takes as one of a single flow."""
    one, many = Batches(), Batches()
    for number in range(rounds):
        run_app(broker, f"one-{number}", 1, batch_rows, one)
        run_app(broker, f"many-{number}", FLOWS, batch_rows, many)
    run_app(broker, "one-last", 1, batch_rows, one)
    for what, batches in ((f"an app of {FLOWS} flows", many), ("one of a single flow", one)):
        times = ", ".join(f"{each * 1000:.0f}" for each in batches.times_s)
        print(f"{what}: {times} ms a batch; CPU {statistics.median(batches.cpu_s) * 1000:.0f} ms", flush=True)
    return {
        f"time_{FLOWS}_flows_vs_1": round(statistics.median(many.times_s) / statistics.median(one.times_s), 2),
        f"cpu_{FLOWS}_flows_vs_1": round(statistics.median(many.cpu_s) / statistics.median(one.cpu_s), 2),
    }


def copying(name: str) -> ms.Flow:
    flow = ms.Flow(name)
    flow.read("ticks", "n long").write(f"copied.{name}")
    return flow


def pauses(broker: Path, changes: int) -> tuple[float, float]:
    """The median of the longest waits for another flow's results at a change, and the longest wait without one."""
    ends = threading.Event()
    with ms.connect(broker) as log:
        log.create_topic("ticks", schema="n long", partitions=1)

        def tick() -> None:
            with log.producer() as producer:
                number = 0
                while not ends.wait(0.02):
                    producer.send("ticks", {"n": number})
                    number += 1

        feeding = threading.Thread(target=tick, daemon=True)
        feeding.start()
        app = ms.app([copying("steady"), copying("other")], name="changing")
        job = app.start(broker=broker, progress="none")
        spans = []
        time.sleep(15)
        quiet_from, quiet_to = time.time() - 5, time.time()
        for number in range(changes):
            began = time.time()
            if number % 2:
                app.add(copying("other"))
            else:
                app.remove("other")
            time.sleep(3)
            spans.append((began, time.time()))
        job.stop()
        ends.set()
        feeding.join()
        with log.consumer("copied.steady") as consumer:
            written = [record.timestamp.timestamp() for record in consumer.until_caught_up()]

    def longest(first: float, last: float) -> float:
        found = sorted({first, last, *(each for each in written if first <= each <= last)})
        return max(after - before for before, after in pairwise(found))

    return statistics.median(longest(*each) for each in spans), longest(quiet_from, quiet_to)


VARIANTS: dict[str, dict[str, Any]] = {
    "all": {},
    "no metrics": {"metrics": False},
    "no events": {"provenance": False},
}


def cpu_ratios(broker: Path, rounds: int, batch_rows: int) -> dict[str, list[float]]:
    """By variant, the CPU time without something by that of the whole, round by round."""
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(rounds):
        order = list(VARIANTS)[number % 3 :] + list(VARIANTS)[: number % 3]
        taken = {
            name: cpu_of_run(broker, f"round-{number}-{name[-6:]}".replace(" ", "-"), batch_rows, **VARIANTS[name])
            for name in order
        }
        for name, each in taken.items():
            found[name].append(each / taken["all"])
        print(f"round {number}: " + ", ".join(f"{name} {taken[name]:.2f} s of CPU" for name in VARIANTS), flush=True)
    return found


WORK: dict[str, list[tuple[type, str]]] = {
    "metrics": [(Sampler, "sample"), (JobMetrics, "observe"), (JobMetrics, "ended")],
    "events": [(BatchEvents, "record"), (BatchEvents, "_run")],
}


def shares_in_driver(broker: Path, runs: int, batch_rows: int) -> dict[str, float]:
    """The median share of the CPU time of a run that the driver takes for metrics, and for events."""
    spent: dict[str, float] = {}

    def timed(kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return work(*given, **named)
            finally:
                spent[kind] = spent.get(kind, 0.0) + time.thread_time() - began

        return run

    found: dict[str, list[float]] = {kind: [] for kind in WORK}
    with ExitStack() as patched:
        for kind, places in WORK.items():
            for owner, name in places:
                patched.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, timed(kind, getattr(owner, name)))
        for number in range(runs):
            spent.clear()
            whole = cpu_of_run(broker, f"shares-{number}", batch_rows)
            for kind in WORK:
                found[kind].append(spent[kind] / whole)
    return {f"cpu_share_of_{kind}_in_driver": round(statistics.median(each), 4) for kind, each in found.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer rounds and rows, within a minute")
    quick = options.parse_args().quick
    rounds, batches, batch_rows = (2, 16, 50_000) if quick else (12, 43, 100_000)
    scratch = Path(tempfile.mkdtemp(prefix="millstream-metrics-"))
    try:
        session()
        fill(scratch / "log", batches * batch_rows)
        for number in range(1 if quick else 3):
            cpu_of_run(scratch / "log", f"warming-{number}", batch_rows)
        ratios = cpu_ratios(scratch / "log", rounds, batch_rows)
        shares = shares_in_driver(scratch / "log", rounds, batch_rows)
        flows = flows_against_one(scratch / "log", 1 if quick else 3, 4 * batch_rows)
        paused = {} if quick else dict(zip(PAUSES, pauses(scratch / "log", 10), strict=True))
        without = ratios["no metrics"]
        figures = {
            "speed_with_metrics_vs_without": round(statistics.median(without), 3),
            "ratio_min": round(min(without), 3),
            "ratio_max": round(max(without), 3),
            "speed_with_events_vs_without": round(statistics.median(ratios["no events"]), 3),
            **shares,
            **flows,
            "flows_bar": FLOWS_BAR,
            **{name: round(value, 2) for name, value in paused.items()},
        }
        print(json.dumps({"benchmark": "metrics", "quick": quick, "bar": BAR, **figures}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
