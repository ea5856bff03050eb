"""The plan of a running query may change between two batches: the end of each batch names its plan.

    driver            stores the new plan in a file that Spark sends to workers, and announces it in the job's folder
    planner           plans the next batch with it, and puts its name into the end of the batch
    task of a source  reads what the plan reads, and sends the plan's name to every key group
    stage             runs the steps of that plan

So Spark's query is not stopped, and each batch is of one plan. Only a query whose stages do not depend on its plan can
change: all of its rows are packed, and each stage keeps the state of all of its steps under two names.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkFiles, cloudpickle

from millstream.log.storage.disk import read_document, write_document
from millstream.private_files import private_folder
from millstream.spark.query.batch_offsets import JobFeed
from millstream.spark.query.packing import CONTROL, PLAN, to_batch
from millstream.spark.query.state_runner import CHANGE, Shipment
from millstream.spark.query.task_reading import Task

ANNOUNCED = "next_plan.json"
FOLDER = "plans"
OF_BATCH = "plan"
"""In the end of a batch: the name of its plan, if that is not the one the query was started with."""
PLANS_KEPT = 4


@dataclass(frozen=True)
class ChangedPlan:
    """A plan that follows the one a query was started with."""

    feed: JobFeed
    slots: Mapping[str, int]
    """By step, the slot of its state."""

    @property
    def name(self) -> str:
        return self.feed.shipment.name

    def steps_of(self, stage: int) -> tuple[list[int], list[int]]:
        """The steps of a stage, counted from 1, and the slots of their state."""
        plan = self.feed.shipment.physical_plan
        numbers = list(plan.stages[stage - 1]) if stage <= len(plan.stages) else []
        return numbers, [self.slots[plan.chain[number].name] for number in numbers]


def announce(changed: ChangedPlan, send: Callable[[str], None]) -> None:
    """In the driver: the next batch that is planned has this plan. `send` sends a file to the workers."""
    folder = Path(changed.feed.folder)
    path = private_folder(folder / FOLDER) / changed.name
    path.write_bytes(cloudpickle.dumps(changed))  # type: ignore[no-untyped-call]
    send(str(path))
    write_document(folder / ANNOUNCED, {"run": changed.feed.shipment.run, "name": changed.name})


def next_name(before: Shipment) -> str:
    """A name for the plan that follows another one of the same run."""
    _, _, number = before.name.partition(CHANGE)
    return f"{before.run}{CHANGE}{int(number or 0) + 1}"


@dataclass
class ChangingFeed:
    """The feed of a query whose plan may change: each batch has the feed of its own plan."""

    first: JobFeed
    _newest: ChangedPlan | None = field(default=None, repr=False)
    _seen: tuple[int, int] | None = field(default=None, repr=False)

    # ------------------------------------------------------------ in the driver

    def initial(self) -> dict[str, Any]:
        return self.first.initial()

    def stop_at_latest(self) -> None:
        self.first.stop_at_latest()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        self._look()
        if self._newest is None:
            return self.first.latest(start)
        end = self._newest.feed.latest(start, must_move=start.get(OF_BATCH) != self._newest.name)
        return end if end == start else {**end, OF_BATCH: self._newest.name}

    def _look(self) -> None:
        """Looks for an announced plan. One of an earlier run does not count."""
        folder = Path(self.first.folder)
        try:
            found = (folder / ANNOUNCED).stat()
        except FileNotFoundError:
            return
        if self._seen == (found.st_ino, found.st_mtime_ns):
            return
        announced = read_document(folder / ANNOUNCED)
        if announced["run"] == self.first.shipment.run:
            plans = private_folder(folder / FOLDER)  # what is unpickled, no other user can have written
            self._newest = pickle.loads((plans / Path(announced["name"]).name).read_bytes())
        self._seen = found.st_ino, found.st_mtime_ns

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        if self._newest is None or end.get(OF_BATCH) != self._newest.name:
            return self.first.tasks(start, end)
        return [replace(task, plan=self._newest.name) for task in self._newest.feed.tasks(start, end)]

    # ------------------------------------------------------------ in the workers

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        if task.plan is None:
            yield from self.first.read(task)
            return
        feed = changed_plan(task.plan).feed
        if task.number == 0:
            name = task.plan.encode()
            yield to_batch([(label, PLAN, CONTROL, 0, name) for label in feed.shipment.worker_plan.labels])
        yield from feed.read(task)


_CHANGED: dict[str, ChangedPlan] = {}


def changed_plan(name: str) -> ChangedPlan:
    """In a worker: the plan of this name, which Spark has sent."""
    if name not in _CHANGED:
        while len(_CHANGED) >= PLANS_KEPT:
            _CHANGED.pop(next(iter(_CHANGED)))
        _CHANGED[name] = pickle.loads(Path(SparkFiles.get(name)).read_bytes())
    return _CHANGED[name]
