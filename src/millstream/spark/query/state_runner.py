"""Runs a stateful step on Spark; no other module knows how.

`StepRunner` is called once per key group and batch, with its packed rows. Its durable state is small: a head, rewritten
each batch, and the deltas, one per batch with changes. The rows of state are sorted runs on the executor's disk, under
the version in the head; if they are missing, they are rebuilt from the deltas. Spark rolls head and deltas back
together, so a repeated batch finds exactly its own version.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import MapState, ValueState

from millstream.connectors.sink import Preparer
from millstream.errors import DamagedState
from millstream.operators.aggregates.accumulators import ORDER
from millstream.operators.clock import Clock
from millstream.operators.stateful import EVERY_INPUT, LATE, LOST, NOTE, NOTES, LooksBack, Stateful, held_for, stateful
from millstream.operators.stateful import PARTIALS as FOLDED
from millstream.plan.endpoints import Endpoint
from millstream.plan.nodes import Node, Write
from millstream.plan.rewiring import rewired
from millstream.plan.time.bundles import BEGINNING, END
from millstream.private_files import private_folder
from millstream.spark.query import task_messages
from millstream.spark.query.input_watermarks import InputWatermark
from millstream.spark.query.packing import (
    CONTROL,
    DRIVER,
    PARTIALS,
    REPORT,
    SIDES,
    Content,
    Packed,
    Packer,
    from_bytes,
)
from millstream.spark.query.past_rows import LogPlace, PastRows
from millstream.spark.query.physical_plan import PhysicalPlan, labels
from millstream.spark.query.slot_states import SlotDeltas, SlotHead
from millstream.spark.query.task_messages import SourceControl, StepControl, StepReport, control_from_bytes
from millstream.spark.query_failures import marked, new_mark
from millstream.spark.session.user_code import ship
from millstream.state.run_files import Runs
from millstream.state.tables import NEVER

FIRST_OF_STEPS = 1 << 30
"""Task numbers below this belong to sources, those from here on to key groups of steps."""
DELTAS_MAX = 2_000
DELTA_ROWS_MIN = 200_000
"""Deltas are replaced by one snapshot when they hold this many rows, and several times the live rows."""
DELTA_TIMES = 4
PIECE_BYTES = 4 << 20
CHANGE = "."
"""In the name of a plan: a number follows, which counts the changes."""
MORE, LAST = b"+", b"."
"""The first byte of a piece of a delta: whether another one follows."""
Received = tuple[int, int, Content]


@dataclass(slots=True)
class Head:
    """What a key group continues with: the current version of its rows, its deadlines, and its watermark."""

    version: str | None = None
    next_event: int = NEVER
    next_clock: int = NEVER
    hold: int = NEVER
    count: int = 0
    watermark: int = BEGINNING
    passed_on: int = BEGINNING
    now: int = 0
    rows: int = 0
    delta_rows: int = 0
    deltas: int = 0
    first_delta: int = 0
    inputs: tuple[Any, ...] | None = None
    size_bytes: int = 0

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode([getattr(self, name) for name in self.__slots__])

    @classmethod
    def from_bytes(cls, blob: bytes) -> Head:
        return cls(*msgspec.msgpack.decode(blob, type=list[Any]))


class WorkerPlan:
    """A physical plan prepared for a worker: built once per process, since it is expensive."""

    def __init__(
        self, physical_plan: PhysicalPlan, partitions: int, preparers: Mapping[str, Preparer], counts_rows: bool
    ) -> None:
        self.physical_plan = physical_plan
        self._preparers = preparers
        self._counts_rows = counts_rows
        self.labels = labels(physical_plan.groups, partitions)
        self.steps: list[Stateful] = []
        for node in physical_plan.chain:
            step = stateful(node, whole_rows=physical_plan.takes_late(node))
            assert step is not None
            self.steps.append(step)
        self._local_steps = {
            origin: [
                number
                for number, step in enumerate(physical_plan.chain)
                if physical_plan.shares_key_group(origin, step)
            ]
            for origin in (*physical_plan.sources, *physical_plan.chain)
        }
        self.group_of = {label: group for group, label in enumerate(self.labels)}

    def packer(
        self,
        origin: Node,
        *,
        task: int,
        watermark_max: int = END,
        entry: Node | None = None,
        own_label: int | None = None,
    ) -> Packer:
        own_label = self.labels[task % len(self.labels)] if own_label is None else own_label
        local_steps = self._local_steps[origin]
        return Packer(
            self.physical_plan,
            origin,
            self.labels,
            self.steps,
            task,
            own_label,
            watermark_max,
            entry,
            local_steps,
            self._preparers,
            self._counts_rows,
        )


@dataclass(frozen=True)
class Shipment:
    """A physical plan for the workers, with a name by which a worker knows whether it already has it."""

    name: str
    physical_plan: PhysicalPlan
    partitions: int
    runs_folder: str
    """The folder for state on the executor: a path, or a name in its folder for temporary files."""
    preparers: Mapping[str, Preparer] = field(default_factory=dict)
    """By output, how its rows become files."""
    mark: str = field(default_factory=new_mark)
    """Marks the failures of this run in Spark's errors."""
    counts_rows: bool = True
    """Whether tasks report the rows of each step."""
    evolved: tuple[str, ...] = ()
    """Steps whose state may be that of an earlier version of the flow."""
    log: LogPlace | None = None
    """Where steps read rows of the past again; None: they hold them in their state."""

    @property
    def folder(self) -> Path:
        return scratch_folder() / self.runs_folder

    @property
    def run(self) -> str:
        """The query it belongs to: the name of the plan that was started, of which changed ones add a number."""
        return self.name.partition(CHANGE)[0]

    @cached_property
    def worker_plan(self) -> WorkerPlan:
        return WorkerPlan(self.physical_plan, self.partitions, self.preparers, self.counts_rows)

    @cached_property
    def _packed_plan(self) -> bytes:
        # Sinks stay in the driver: workers may lack what they hold, such as a function.
        outputs = rewired(
            self.physical_plan.outputs,
            lambda node: replace(node, sink=Endpoint()) if isinstance(node, Write) and not node.is_discarded else node,
        )
        ship(self.physical_plan.order)
        packed: bytes = cloudpickle.dumps(replace(self.physical_plan, outputs=outputs))  # type: ignore[no-untyped-call]
        return packed

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked_shipment, (
            self.name,
            self._packed_plan,
            self.partitions,
            self.runs_folder,
            dict(self.preparers),
            self.mark,
            self.counts_rows,
            self.evolved,
            self.log,
        )


def scratch_folder() -> Path:
    """Where a worker keeps what it can rebuild: the folder of its cluster (Spark standalone, YARN), which is removed
    after the job, otherwise the folder for temporary files."""
    given = os.environ.get("SPARK_EXECUTOR_DIRS", "").split(os.pathsep)[0] or os.environ.get("LOCAL_DIRS", "")
    return Path(given.split(",")[0] or tempfile.gettempdir())


def _unpacked_shipment(
    name: str,
    packed_plan: bytes,
    partitions: int,
    runs_folder: str,
    preparers: dict[str, Preparer],
    mark: str,
    counts_rows: bool,
    evolved: tuple[str, ...],
    log: LogPlace | None,
) -> Shipment:
    """A worker unpickles a plan once, though it comes with every task."""
    if not _SHIPMENTS:
        gc.freeze()  # modules are never garbage: a full collection that scans them takes longer than most steps
    if name not in _SHIPMENTS:
        while len(_SHIPMENTS) >= PLANS_KEPT:  # a worker serves many queries one after the other
            _SHIPMENTS.pop(next(iter(_SHIPMENTS)))
        plan = cloudpickle.loads(packed_plan)
        shipment = Shipment(name, plan, partitions, runs_folder, preparers, mark, counts_rows, evolved, log)
        shipment.__dict__["_packed_plan"] = packed_plan
        _SHIPMENTS[name] = shipment
    return _SHIPMENTS[name]


def _frame(content: Content) -> pl.DataFrame:
    return content if isinstance(content, pl.DataFrame) else from_bytes(content)


PLANS_KEPT = 8
_SHIPMENTS: dict[str, Shipment] = {}


class StepRunner:
    """Runs one step of the chain in a worker, a key group at a time, on the state that Spark keeps for it."""

    def __init__(
        self, shipment: Shipment, number: int, head: ValueState | SlotHead, deltas: MapState | SlotDeltas
    ) -> None:
        self._shipment = shipment
        self._number = number
        self._head = head
        self._deltas = deltas
        self._plan = shipment.worker_plan
        self._step = self._plan.steps[number]
        self._node = self._plan.physical_plan.chain[number]
        physical_plan = self._plan.physical_plan
        self._defaults = getattr(self._step, "defaults", {}) if self._node.name in shipment.evolved else None
        self._past: PastRows | None = None
        if shipment.log is not None and isinstance(self._step, LooksBack) and getattr(self._node, "from_log", False):
            self._past = PastRows(physical_plan, self._node, self._step, shipment.log, shipment.run)
        self._upstream = physical_plan.upstream(self._node)
        self._groups = {
            origin: 1 if physical_plan.shares_key_group(origin, self._node) else physical_plan.groups
            for origin in self._upstream
        }

    def run(self, label: int, received: list[Received]) -> list[Packed]:
        """What a key group sends, given the kind, the task and the content of each of its packed rows."""
        with marked(self._shipment.mark, self._node.name):
            return list(self._run(label, received))

    def _run(self, label: int, received: list[Received]) -> Iterator[Packed]:
        group = self._plan.group_of[label]
        stored = self._head.get()
        head = self._read_head(bytes(stored[0])) if stored else Head()
        inputs = InputWatermark(self._upstream, self._groups, self._plan.physical_plan.timing)
        if head.inputs is not None:
            inputs.restore(head.inputs)
        controls = [control_from_bytes(cast(bytes, blob)) for kind, _, blob in received if kind == CONTROL]
        for control in sorted(controls, key=lambda control: -control.now):  # those that carry the time come first
            inputs.update(control)
        watermark = max(head.watermark, inputs.watermark())
        clock = self._step.clock(Clock(head.watermark, watermark, head.now, inputs.now))
        packer = self._plan.packer(self._node, task=FIRST_OF_STEPS + (self._number << 12) + group, own_label=label)
        if self._past is not None and isinstance(self._step, LooksBack):
            ends = {each.origin: each.ends for each in controls if isinstance(each, SourceControl) and each.ends}
            groups = len(self._plan.labels)
            self._step.past = partial(self._past.pieces, ends, inputs.now, group, groups)
        given = self._inputs(received, head)
        late = 0
        notes: tuple[str, ...] = ()
        if given or head.next_event <= clock.watermark or head.next_clock <= clock.now:
            sent = self._step_once(label, head, given, clock)
            if not getattr(self._node, "for_condition", False):  # the join behind has the same late rows
                late = (len(sent[LATE]) if LATE in sent else 0) + (sent[LOST]["rows"][0] if LOST in sent else 0)
            notes = tuple(sent[NOTES][NOTE]) if NOTES in sent else ()
            packer.add(sent, clock.now)
        head.watermark, head.now, head.inputs = watermark, inputs.now, inputs.kept()
        head.passed_on = max(head.passed_on, min(clock.watermark, head.hold))
        self._head.update((head.to_bytes(),))
        idle = inputs.is_idle() and clock.watermark == watermark  # a step in processing time never is
        yield from packer.pack(StepControl(self._node.name, group, head.passed_on, idle, clock.now))
        report = StepReport(
            self._node.name, watermark, head.rows, late, inputs.now, notes, head.passed_on, head.size_bytes
        )
        yield label, DRIVER, REPORT, group, task_messages.to_bytes(report)

    def _read_head(self, blob: bytes) -> Head:
        try:
            return Head.from_bytes(blob)
        except (msgspec.MsgspecError, TypeError) as why:
            raise self._damaged("its head has an unknown format") from why

    def _inputs(self, received: list[Received], head: Head) -> dict[str, pl.DataFrame]:
        """By input, the rows in the order of their tasks, numbered on from those before; and the folded partials."""
        partials = [_frame(content) for kind, _, content in received if kind == PARTIALS]
        by_task: dict[int, list[tuple[int, pl.DataFrame]]] = {}
        for kind, task, content in received:
            if kind in SIDES:
                by_task.setdefault(task, []).append((SIDES.index(kind), _frame(content)))
        rows: dict[str, list[pl.DataFrame]] = {}
        for _, parts in sorted(by_task.items()):
            if ORDER not in parts[0][1].columns:  # the step does not depend on the order
                for side, part in parts:
                    rows.setdefault(EVERY_INPUT[side], []).append(part)
                continue
            for side, part in sorted(parts, key=lambda part: int(part[1][ORDER][0])):
                rows.setdefault(EVERY_INPUT[side], []).append(part.with_columns(pl.col(ORDER) + head.count))
            head.count += max(int(part[ORDER].max()) for _, part in parts) + 1  # type: ignore[arg-type]
        found = {name: pl.concat(parts) for name, parts in rows.items()}
        return found | ({FOLDED: pl.concat(partials)} if partials else {})

    def _step_once(
        self, label: int, head: Head, inputs: dict[str, pl.DataFrame], clock: Clock
    ) -> dict[str, pl.DataFrame]:
        step = self._step
        folder = private_folder(self._shipment.folder) / self._node.name / str(label)
        runs = Runs(folder, step.keys, step.tables(), step.own_keys, self._defaults)
        runs.open(head.version, self._stored_deltas)
        inputs = {**step.nothing, **inputs}
        changes, sent = step.step(held_for(step, runs, inputs, clock), inputs, clock)
        applied = runs.apply(changes, step.marks(clock))
        head.version, head.rows, head.size_bytes = applied.version, applied.rows, applied.size_bytes
        head.next_event, head.next_clock, head.hold = applied.next_event, applied.next_clock, applied.hold
        head.delta_rows += applied.delta_rows
        many = head.deltas - head.first_delta > DELTAS_MAX
        if many or head.delta_rows > max(DELTA_ROWS_MIN, DELTA_TIMES * applied.rows):
            self._deltas.clear()
            head.first_delta = head.deltas
            for delta in runs.snapshot():
                self._keep(delta, head)
            head.delta_rows = applied.rows
        elif applied.delta:
            self._keep(applied.delta, head)
        return sent

    def _keep(self, delta: bytes, head: Head) -> None:
        """Stores a delta in numbered pieces: RocksDB reads a whole list to append to it, and a value of 26 MB takes
        twice as long as the same in pieces."""
        for start in range(0, len(delta), PIECE_BYTES):
            end = start + PIECE_BYTES
            self._deltas.updateValue((head.deltas,), ((MORE if end < len(delta) else LAST) + delta[start:end],))
            head.deltas += 1

    def _stored_deltas(self) -> Iterator[bytes]:
        """In the order they were stored in, one at a time."""
        pieces = []
        for number in sorted(int(key[0]) for key in self._deltas.keys()):  # noqa: SIM118 a state, not a dict
            stored = self._deltas.getValue((number,))
            assert stored is not None
            piece = bytes(stored[0])
            if piece[:1] not in (MORE, LAST):
                raise self._damaged(f"piece {number} has an unknown format")
            pieces.append(piece[1:])
            if piece[:1] == LAST:
                yield b"".join(pieces)
                pieces = []
        if pieces:
            raise self._damaged("its last piece is missing")

    def _damaged(self, why: str) -> DamagedState:
        return DamagedState(
            f"the state of a step cannot be read: {why}",
            where=f"step '{self._node.name}'",
            next_step="run the job with an older checkpoint, or without one from the start of its topics",
        )
