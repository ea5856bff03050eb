"""What a batch of a job did, as a record of the job's own topic: ranges read, rows of each step, places written.

An event stands for itself: it has the offsets that its batch starts and ends at, and the clock. With the records it is
all that is needed to run the batch again.
"""

from __future__ import annotations

import hashlib

import msgspec

from millstream.connectors.source import Offsets
from millstream.jobs.job_folder import JobFolder
from millstream.log.topics import INTERNAL, is_name
from millstream.spark.query.physical_plan import PhysicalPlan

NAME_MAX = 237  # of a topic's name, without the prefix


class StepFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of a step in one batch."""

    kind: str
    """source, step (keeps no state), stateful, late, dead or output."""
    rows_in: int | None = None
    """None: unknown, since Spark runs several steps as one, or the job keeps no metrics."""
    rows_out: int | None = None
    rows_late: int = 0
    rows_dead: int = 0
    target: str | None = None
    """Of a source or an output: what it reads or writes."""
    topic: str | None = None
    """The same, if it is a topic of the job's broker."""
    places: dict[str, tuple[int, int]] = {}
    """Of an output: by partition, the offsets that its records start and end at, if the sink knows them."""


class TaskFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one task did: of a source, or of a key group of a stateful step and the steps after it."""

    step: str
    task: int
    """The number of the task, or of the key group."""
    read: tuple[tuple[str, int, int], ...] = ()
    """Partition, start, end."""
    rows: int = 0
    """Read by the task."""
    rows_late: int = 0
    rows_dead: int = 0
    rows_out: dict[str, int] = {}
    """By step after it that the task also runs, the rows that came out."""


class BatchEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    run: str
    """The identity of the job's state: another one if it has started over."""
    batch: int
    """As outputs number it."""
    at: float
    """When it was complete, in seconds since 1970."""
    plan: str
    """The hash of the flow's steps."""
    clock: int
    starts: dict[str, Offsets] | None
    """By source; None: unknown."""
    ends: dict[str, Offsets]
    done: dict[str, list[str]] = {}
    ended: bool = False
    ticks: tuple[int, ...] = ()
    """The clocks of the batches right before this one that found nothing to do."""
    steps: dict[str, StepFigures] = {}
    """In the order of the flow. Empty: recorded by the next run, because the job was killed before it could."""
    tasks: tuple[TaskFigures, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing but the clock moved."""
        moved = any(step.rows_in or step.rows_out for step in self.steps.values())
        return bool(self.steps) and not moved and self.starts == self.ends and not self.done and not self.ended

    def ranges(self, source: str) -> dict[str, tuple[int, int]]:
        """By partition of a source, the range that was read."""
        starts = (self.starts or {}).get(source, {})
        ends = self.ends.get(source, {})
        return {name: (starts[name], end) for name, end in ends.items() if name in starts and end > starts[name]}


_decoder = msgspec.json.Decoder(BatchEvent)


def to_bytes(event: BatchEvent) -> bytes:
    return msgspec.json.encode(event)


def from_bytes(blob: bytes) -> BatchEvent:
    return _decoder.decode(blob)


def events_topic(job: JobFolder) -> str:
    """The topic of a job's events: by the name of its folder, which a submitted job has to itself."""
    name = job.path.name if job.path.parent.name == "jobs" else job.job
    if len(name) <= NAME_MAX and is_name(INTERNAL + name):
        return INTERNAL + name
    kept = "".join(each if each.isascii() and each.isalnum() else "-" for each in name)
    return f"{INTERNAL}{kept[: NAME_MAX - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def plan_hash(physical_plan: PhysicalPlan) -> str:
    """The same as long as the steps, their columns and their connections are; lines of the file do not matter."""
    steps = [
        [node.name, node.label, [each.name for each in node.inputs], node.schema.ddl] for node in physical_plan.order
    ]
    return hashlib.sha256(msgspec.json.encode(steps)).hexdigest()[:16]
