"""What a task of the feed does with the rows that it reads: the steps after each source, and packing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from millstream.connectors.source import Offsets, Slab, Slice
from millstream.operators.lateness import with_ahead_marked
from millstream.operators.source_watermarks import advanced
from millstream.operators.stateful import DEAD, SENT
from millstream.plan.nodes import Read
from millstream.plan.time.bundles import END
from millstream.spark.query import task_messages
from millstream.spark.query.packing import DRIVER, REPORT, Packed
from millstream.spark.query.physical_plan import SourcePartition
from millstream.spark.query.source_frames import dead_frame, framed
from millstream.spark.query.state_runner import WorkerPlan
from millstream.spark.query.task_messages import SourceControl, SourceReport

GROUP_BYTES_MAX = 64 << 10


@dataclass(frozen=True)
class Task:
    """What one task of a batch reads: by number of the source, its slices, and its partitions without new rows."""

    number: int
    slices: dict[int, list[Slice]]
    silent: dict[int, list[str]]
    ends: dict[str, Offsets]
    """By source, the offsets that the batch ends at; one task reports them."""
    done: dict[str, list[str]]
    """By source, partitions that count as idle from now on."""
    notes: list[str]
    """Warnings of the planner; one task reports them."""
    now: int
    ended: bool
    watermark_max: int
    waited_s: float
    """How long the planner waited for rows; one task reports it."""
    planned_s: float
    plan: str | None = None
    """The name of the batch's plan, if it is not the one that the query was started with."""
    dropped: dict[str, int] = field(default_factory=dict)
    """By source, how many records it has dropped in this run; one task reports them."""


class Reader:
    """What a task makes of the rows of one source."""

    def __init__(self, plan: WorkerPlan, node: Read, number: int, task: Task) -> None:
        self.node = node
        self.number = number
        self._plan = plan
        self._task = task
        self._packer = plan.packer(node, task=(number << 16) + task.number, watermark_max=task.watermark_max)
        self._partitions: dict[str, tuple[int | None, bool]] = dict.fromkeys(
            [*task.silent.get(number, []), *(each.partition for each in task.slices.get(number, []))], (None, False)
        )
        self._count = self._dead = 0

    def add(self, slab: Slab, partition: str) -> None:
        node, plan, now = self.node, self._plan.physical_plan, self._task.now
        rows = framed(slab, node, plan.reading[node].names)
        rows = with_ahead_marked(rows, node, now)  # the clock of the batch, the same if it is repeated
        self._count += len(rows)
        self._dead += 0 if slab.dead is None else len(slab.dead)
        made = self._packer.add({SENT: rows, DEAD: dead_frame(slab)}, now, SourcePartition(str(node.source), partition))
        timed = plan.timing.get(node)  # rows that get their time behind Spark count there
        timed_rows = rows if timed is None else made.get(timed)
        self._partitions[partition] = advanced(self._partitions[partition], timed, timed_rows)

    def packed(self, losses: Sequence[str]) -> Iterator[Packed]:
        """What the next steps and outputs get, and the report of this task."""
        node, task, is_first = self.node, self._task, self.number == 0
        done = tuple(name for name in task.silent.get(self.number, []) if name in task.done.get(node.name, []))
        ends = task.ends.get(node.name, {}) if self._plan.physical_plan.looks_back else {}
        control = SourceControl(node.name, task.now, self._partitions, done, END if task.ended else None, ends)
        yield from self._packer.pack(control)
        report = SourceReport(
            node.name,
            self._count,
            self._dead,
            task.now,
            task.ends.get(node.name, {}),
            {name: watermark for name, (watermark, _) in self._partitions.items()},
            (*task.notes, *losses),
            task.waited_s if is_first else 0.0,
            task.planned_s if is_first else 0.0,
            tuple((each.partition, each.start, each.end) for each in task.slices.get(self.number, [])),
            task.dropped.get(node.name),
        )
        yield self._plan.labels[0], DRIVER, REPORT, task.number, task_messages.to_bytes(report)


def grouped(packed: Iterable[Packed]) -> Iterator[list[Packed]]:
    """Packed rows in groups that are small together: each that Spark gets on its own takes time."""
    group: list[Packed] = []
    size = 0
    for each in packed:
        group.append(each)
        size += len(each[4]) if isinstance(each[4], bytes) else 0
        if size >= GROUP_BYTES_MAX:
            yield group
            group, size = [], 0
    if group:
        yield group
