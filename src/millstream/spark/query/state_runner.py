"""The only place that knows how a stateful step runs on Spark.

`StepRunner` is called once per key group and batch, with the packed rows that are for it. Its durable state is small: a
head, rewritten each batch, and the deltas, one per batch that changed something. The rows of state lie
beside the executor in sorted runs under the version that the head names; if they are not there, the deltas make them
again. Spark rolls head and deltas back together, so a batch that is tried again finds exactly its own version.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import MapState, ValueState

from millstream.connectors.files.drafts import Drafting
from millstream.errors import DamagedState
from millstream.operators.accumulators import ORDER
from millstream.operators.stateful import INPUTS, LATE, LOST, Stateful, stateful
from millstream.operators.stateful import PARTIALS as FOLDED
from millstream.operators.windowed import Clock
from millstream.plan.bundles import BEGINNING, END
from millstream.plan.nodes import Node, Write
from millstream.plan.rewiring import rewired
from millstream.private_files import private_folder
from millstream.spark.failures import marked, new_mark
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
    control_from_bytes,
    control_to_bytes,
    from_bytes,
)
from millstream.spark.query.physical_plan import Layout, labels
from millstream.spark.session.user_code import ship
from millstream.state.runs import Runs
from millstream.state.tables import NEVER

FIRST_OF_STEPS = 1 << 30
"""The numbers of tasks are those of sources below this, and those of key groups of steps from here on."""
DELTAS_MAX = 2_000
DELTA_ROWS_MIN = 200_000
"""Deltas are replaced by one snapshot when they hold this many rows, and several times what is alive."""
DELTA_TIMES = 4
PIECE_BYTES = 4 << 20
MORE, LAST = b"+", b"."
"""What a piece of a delta begins with: whether another one follows."""
Mine = tuple[int, int, Content]


@dataclass(slots=True)
class Head:
    """What a key group must know to go on: which version of its rows is current, and how far it has come."""

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

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode([getattr(self, name) for name in self.__slots__])

    @classmethod
    def from_bytes(cls, blob: bytes) -> Head:
        return cls(*msgspec.msgpack.decode(blob, type=list[Any]))


class Plan:
    """A layout made ready to run in a worker: built once per process, since it takes a while."""

    def __init__(self, layout: Layout, partitions: int, drafting: Mapping[str, Drafting]) -> None:
        self.layout = layout
        self._drafting = drafting
        self.labels = labels(layout.groups, partitions)
        self.steps: list[Stateful] = []
        for node in layout.chain:
            step = stateful(node, whole_rows=layout.takes_late(node))
            assert step is not None
            self.steps.append(step)
        self._near = {
            origin: [number for number, step in enumerate(layout.chain) if layout.shares_key_group(origin, step)]
            for origin in (*layout.sources, *layout.chain)
        }
        self.group_of = {label: group for group, label in enumerate(self.labels)}

    def packer(
        self,
        origin: Node,
        *,
        task: int,
        reached: int = END,
        entry: Node | None = None,
        own_label: int | None = None,
    ) -> Packer:
        own_label = self.labels[task % len(self.labels)] if own_label is None else own_label
        near = self._near[origin]
        return Packer(
            self.layout, origin, self.labels, self.steps, task, own_label, reached, entry, near, self._drafting
        )


@dataclass(frozen=True)
class Shipment:
    """A layout on its way to the workers, under a name by which each of them knows whether it has it."""

    name: str
    layout: Layout
    partitions: int
    runs_folder: str
    """Where state lies beside the executor: a path, or a name in its folder for temporary files."""
    drafting: Mapping[str, Drafting] = field(default_factory=dict)
    """By output, how its rows become files."""
    mark: str = field(default_factory=new_mark)
    """What marks a failure of this run on its way back through Spark."""

    @property
    def folder(self) -> Path:
        return scratch_folder() / self.runs_folder

    @cached_property
    def plan(self) -> Plan:
        return Plan(self.layout, self.partitions, self.drafting)

    @cached_property
    def _packed_layout(self) -> bytes:
        # Sinks stay in the driver: what they hold, such as a function, need not be known elsewhere.
        outputs = rewired(
            self.layout.outputs,
            lambda node: replace(node, sink=None) if isinstance(node, Write) and not node.is_discarded else node,
        )
        ship(self.layout.order)
        packed: bytes = cloudpickle.dumps(replace(self.layout, outputs=outputs))  # type: ignore[no-untyped-call]
        return packed

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (
            self.name,
            self._packed_layout,
            self.partitions,
            self.runs_folder,
            dict(self.drafting),
            self.mark,
        )


def scratch_folder() -> Path:
    """Where a worker keeps what it can rebuild: where its cluster says (Spark standalone, YARN) and tidies up after
    the job, else the folder for temporary files."""
    given = os.environ.get("SPARK_EXECUTOR_DIRS", "").split(os.pathsep)[0] or os.environ.get("LOCAL_DIRS", "")
    return Path(given.split(",")[0] or tempfile.gettempdir())


def _arrived(
    name: str, packed_layout: bytes, partitions: int, runs_folder: str, drafting: dict[str, Drafting], mark: str
) -> Shipment:
    """A worker unpacks a plan once, though it comes with every task."""
    if name not in _SHIPMENTS:
        while len(_SHIPMENTS) >= PLANS_KEPT:  # a worker serves many queries one after the other
            _SHIPMENTS.pop(next(iter(_SHIPMENTS)))
        shipment = Shipment(name, cloudpickle.loads(packed_layout), partitions, runs_folder, drafting, mark)
        shipment.__dict__["_packed_layout"] = packed_layout
        _SHIPMENTS[name] = shipment
    return _SHIPMENTS[name]


def _frame(content: Content) -> pl.DataFrame:
    return content if isinstance(content, pl.DataFrame) else from_bytes(content)


PLANS_KEPT = 8
_SHIPMENTS: dict[str, Shipment] = {}


class StepRunner:
    """Runs one step of the chain in a worker, a key group at a time, on the state that Spark keeps for it."""

    def __init__(self, shipment: Shipment, number: int, head: ValueState, deltas: MapState) -> None:
        self._shipment = shipment
        self._number = number
        self._head = head
        self._deltas = deltas
        self._plan = shipment.plan
        self._step = self._plan.steps[number]
        self._node = self._plan.layout.chain[number]
        layout = self._plan.layout
        self._upstream = layout.upstream(self._node)
        self._groups = {
            origin: 1 if layout.shares_key_group(origin, self._node) else layout.groups for origin in self._upstream
        }

    def run(self, label: int, mine: list[Mine]) -> list[Packed]:
        """What a key group sends, given the kind, the task and the content of each packed row that is for it."""
        with marked(self._shipment.mark, self._node.name):
            return list(self._run(label, mine))

    def _run(self, label: int, mine: list[Mine]) -> Iterator[Packed]:
        group = self._plan.group_of[label]
        stored = self._head.get()
        head = self._read_head(bytes(stored[0])) if stored else Head()
        inputs = InputWatermark(self._upstream, self._groups)
        if head.inputs is not None:
            inputs.go_on(head.inputs)
        controls = [control_from_bytes(cast(bytes, blob)) for kind, _, blob in mine if kind == CONTROL]
        for control in sorted(controls, key=lambda control: -int(control["now"])):  # who knows the time speaks first
            inputs.hear(control)
        watermark = max(head.watermark, inputs.watermark())
        clock = self._step.clock(Clock(head.watermark, watermark, head.now, inputs.now))
        packer = self._plan.packer(self._node, task=FIRST_OF_STEPS + (self._number << 12) + group, own_label=label)
        given = self._inputs(mine, head)
        late = 0
        if given or head.next_event <= clock.watermark or head.next_clock <= clock.now:
            sent = self._step_once(label, head, given, clock)
            late = (len(sent[LATE]) if LATE in sent else 0) + (sent[LOST]["rows"][0] if LOST in sent else 0)
            packer.add(sent, clock.now)
        head.watermark, head.now, head.inputs = watermark, inputs.now, inputs.kept()
        head.passed_on = max(head.passed_on, min(clock.watermark, head.hold))
        self._head.update((head.to_bytes(),))
        idle = inputs.is_idle() and clock.watermark == watermark  # a step in processing time never is
        said = {"group": group, "watermark": head.passed_on, "idle": idle, "now": clock.now}
        yield from packer.pack(said)
        report = {"step": self._node.name, "watermark": watermark, "rows": head.rows, "late": late, "now": inputs.now}
        yield label, DRIVER, REPORT, group, control_to_bytes(report)

    def _read_head(self, blob: bytes) -> Head:
        try:
            return Head.from_bytes(blob)
        except (msgspec.MsgspecError, TypeError) as why:
            raise self._damaged("its head is not as this version keeps it") from why

    def _inputs(self, mine: list[Mine], head: Head) -> dict[str, pl.DataFrame]:
        """By input, the rows in the order of the tasks they come from, numbered on from those before; and what was
        folded."""
        partials = [_frame(content) for kind, _, content in mine if kind == PARTIALS]
        by_task: dict[int, list[tuple[int, pl.DataFrame]]] = {}
        for kind, task, content in mine:
            if kind in SIDES:
                by_task.setdefault(task, []).append((SIDES.index(kind), _frame(content)))
        rows: dict[str, list[pl.DataFrame]] = {}
        for _, parts in sorted(by_task.items()):
            if ORDER not in parts[0][1].columns:  # a step to which it makes no difference
                for side, part in parts:
                    rows.setdefault(INPUTS[side], []).append(part)
                continue
            for side, part in sorted(parts, key=lambda part: int(part[1][ORDER][0])):
                rows.setdefault(INPUTS[side], []).append(part.with_columns(pl.col(ORDER) + head.count))
            head.count += max(int(part[ORDER].max()) for _, part in parts) + 1  # type: ignore[arg-type]
        found = {name: pl.concat(parts) for name, parts in rows.items()}
        return found | ({FOLDED: pl.concat(partials)} if partials else {})

    def _step_once(
        self, label: int, head: Head, inputs: dict[str, pl.DataFrame], clock: Clock
    ) -> dict[str, pl.DataFrame]:
        step = self._step
        folder = private_folder(self._shipment.folder) / self._node.name / str(label)
        runs = Runs(folder, step.keys, step.tables(), step.own_keys)
        runs.open(head.version, self._stored_deltas)
        inputs = {**step.nothing, **inputs}
        asked = step.asked(inputs)
        before, now = (clock.watermark_before, clock.now_before), (clock.watermark, clock.now)
        held = runs.held(asked, before, now)
        changes, sent = step.step(held, inputs, clock)
        applied = runs.apply(changes, step.marks(clock))
        head.version, head.rows = applied.version, applied.rows
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
        """Piece by piece, each under a number of its own: a list would be one value that RocksDB reads whole to append
        to it, and a value of 26 MB takes twice as long as the same in pieces."""
        for start in range(0, len(delta), PIECE_BYTES):
            end = start + PIECE_BYTES
            self._deltas.updateValue((head.deltas,), ((MORE if end < len(delta) else LAST) + delta[start:end],))
            head.deltas += 1

    def _stored_deltas(self) -> Iterator[bytes]:
        """In the order they were kept in, one at a time."""
        pieces = []
        for number in sorted(int(key[0]) for key in self._deltas.keys()):  # noqa: SIM118 a state, not a dict
            stored = self._deltas.getValue((number,))
            assert stored is not None
            piece = bytes(stored[0])
            if piece[:1] not in (MORE, LAST):
                raise self._damaged(f"piece {number} is not as this version keeps it")
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
            next_step="start the job from an older checkpoint, or without one from the beginning of its topics",
        )
