"""The physical plan of a flow: regions of element-wise steps, each after one origin, between the steps that keep state.

An origin is a source or a step that keeps state. The rows of its region go to outputs and to steps that keep state,
which form one chain; a step passes on rows that are not for it. So any plan is one query that reads each source once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import polars as pl
import pyarrow as pa

from millstream.errors import ExpressionFailed, RecordFailed
from millstream.operators import elementwise, mapping
from millstream.operators.aggregates.accumulators import TIME
from millstream.operators.lateness import with_ahead_marked
from millstream.operators.stateful import DEAD, LATE, SENT, TIMED_OUT
from millstream.plan import nodes, table_nodes
from millstream.plan.bad_rows import listened_to, record_failed
from millstream.plan.nodes import Node
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.patterns.node import TimedOut
from millstream.plan.time.timing import Timed, timing
from millstream.plan.walking import in_order
from millstream.records import Schema
from millstream.spark.query.column_pruning import required_columns
from millstream.spark.query.spark_parts import SparkPart, parts_of

Frames = Mapping[str, pl.DataFrame]
T = TypeVar("T")
CLOCKLESS = (
    table_nodes.Latest,
    table_nodes.Grouped,
    table_nodes.Distinct,
    table_nodes.Take,
    table_nodes.Top,
    table_nodes.TableJoin,
    table_nodes.LookupJoin,
    table_nodes.SideJoin,
)
"""Steps without processing-time timers: with event time, they may still wait for the watermark."""


@dataclass(frozen=True)
class SourcePartition:
    """The origin of rows: a source (a topic, a folder of files) and one of its partitions."""

    source: str
    name: str

    @property
    def number(self) -> int | None:
        last = self.name.rpartition("/")[2]
        return int(last) if last.isdigit() else None

    @property
    def topic(self) -> str:
        """The source; of several topics the one that the partition is of."""
        return self.name.rpartition("/")[0] or self.source

    def stamped(self, dead: pl.DataFrame) -> pl.DataFrame:
        """Dead letters with the topic and partition of their rows."""
        return dead.with_columns(pl.lit(self.topic).alias("topic"), pl.lit(self.number, pl.Int32).alias("partition"))


@dataclass(frozen=True)
class Region:
    """The element-wise steps after an origin. A union may be in several regions; each contributes its part."""

    origin: Node
    steps: tuple[Node, ...]
    listening: frozenset[Node]
    """The steps whose dead letters are consumed."""
    by_spark: frozenset[Node] = frozenset()
    """The steps that Spark's own engine runs, not this region; see `spark_parts`."""

    def run(
        self, sent: Frames, now: int, entry: Node | None = None, partition: SourcePartition | None = None
    ) -> dict[Node, pl.DataFrame]:
        """The rows of every step of the region, given what the origin sent, or `entry`, a step after it.

        `partition` is set if all rows come from one.
        """
        start = entry or self.origin
        made = {start: sent[SENT]} if SENT in sent else {}
        dead = {start: self._checked(start, sent[DEAD])} if DEAD in sent else {}
        kept: dict[Node, pl.Series] = {}
        first = 0 if entry in (None, self.origin) else self.steps.index(entry) + 1
        for step in self.steps[first:]:
            given = [made[before] for before in step.inputs if before in made]
            if isinstance(step, nodes.Late):
                if LATE in sent:
                    made[step] = sent[LATE]
            elif isinstance(step, TimedOut):
                if TIMED_OUT in sent:
                    made[step] = sent[TIMED_OUT]
            elif isinstance(step, nodes.Dead):
                if entry is None or step.inputs[0] in dead:
                    made[step] = dead.get(step.inputs[0], elementwise.frame_of([], None))
            elif step in self.by_spark or not given:  # rows come here only behind another step
                continue
            elif isinstance(step, nodes.Mapped) or (step in self.listening and type(step) in mapping.MAPPED):
                made[step], found = mapping.mapped(given[0], step, now)
                dead[step] = self._checked(step, found if partition is None else partition.stamped(found))
            elif isinstance(step, nodes.Union):
                made[step] = pl.concat(given, how="diagonal")
            elif step in self._kept(step, given[0], kept):
                made[step] = given[0].filter(kept[step])
            else:
                made[step] = evaluated(step, given[0], partial(elementwise.row_by_row, step, now=now), partition)
                if isinstance(step, nodes.WithEventTime):
                    made[step] = with_ahead_marked(made[step], step, now)
        return made

    @cached_property
    def _conditions(self) -> dict[Node, list[nodes.Where]]:
        """By step, the conditions that several steps behind it ask of its rows, as the flows of an app do."""
        found: dict[Node, list[nodes.Where]] = {}
        for step in self.steps:
            if not isinstance(step, nodes.Where) or step in self.listening | self.by_spark:
                continue
            if step.condition.column is None and not step.condition.uses_clock:
                found.setdefault(step.inputs[0], []).append(step)
        return {before: asked for before, asked in found.items() if len(asked) > 1}

    def _kept(self, step: Node, rows: pl.DataFrame, kept: dict[Node, pl.Series]) -> dict[Node, pl.Series]:
        """Adds which of the rows a step and its like keep, unless each of them computes that by itself."""
        alike = self._conditions.get(step.inputs[0], [])
        if alike and step is alike[0]:
            kept |= elementwise.conditions_of(rows, alike)
        return kept

    def _checked(self, step: Node, dead: pl.DataFrame) -> pl.DataFrame:
        """A record that a step cannot handle is a dead letter; if those are not consumed, the job stops at it."""
        if len(dead) and step not in self.listening:
            raise record_failed(step, dead.row(0, named=True))
        return dead


def evaluated(
    step: Node, rows: pl.DataFrame, work: Callable[[pl.DataFrame], T], partition: SourcePartition | None = None
) -> T:
    """Applies `work` to all rows; if an expression fails, finds the first row that it fails on."""
    try:
        return work(rows)
    except ExpressionFailed as error:
        failing = rows
        while len(failing) > 1:
            half = failing.head(len(failing) // 2)
            try:
                work(half)
                failing = failing.slice(len(half))
            except ExpressionFailed:
                failing = half
        offset = failing[elementwise.OFFSET][0] if elementwise.OFFSET in failing.columns else None
        names = [name for name in failing.columns if not name.startswith("__")]
        found = [f"topic {partition.source}, partition {partition.name}"] if partition else []
        found += [] if offset is None else [f"offset {offset}"]
        raise RecordFailed(
            f"the step '{step.name}' cannot handle a record: {error.what}: {failing.select(names).row(0, named=True)}",
            where=", ".join(found) or step.user_line,
            next_step=error.next_step,
        ) from error


@dataclass(frozen=True)
class End:
    """A destination of a region: the number of a step of the chain or of an output, and the node whose rows it gets."""

    number: int
    node: Node
    side: int | None
    """The number of the step's input; None for an output."""


@dataclass(frozen=True)
class PhysicalPlan:
    """A plan as one query: its sources, the chain of steps that keep state, and its outputs."""

    outputs: tuple[Node, ...]
    groups: int
    """The number of key groups; rows of a key are always in the same one."""
    one_stage: bool = False
    """Whether all steps share a stage: only with a single key group, whose rows need not be moved."""

    @cached_property
    def order(self) -> list[Node]:
        return in_order(self.outputs)

    @cached_property
    def sources(self) -> list[nodes.Read]:
        return [node for node in self.order if isinstance(node, nodes.Read)]

    @cached_property
    def fed_sources(self) -> list[nodes.Read]:
        """The sources that our own feed reads; the others are Spark DataFrames."""
        return [node for node in self.sources if not isinstance(node.source, SparkFrame)]

    @cached_property
    def dataframe_sources(self) -> list[nodes.Read]:
        return [node for node in self.sources if isinstance(node.source, SparkFrame)]

    @cached_property
    def reading(self) -> dict[nodes.Read, Schema]:
        """The columns that are read of each source."""
        return required_columns(self.order, self.outputs)

    @cached_property
    def shared_reading(self) -> dict[nodes.Read, Schema]:
        """The columns that are read of each source, together with those of other steps that read the same topic."""
        found = dict(self.reading)
        for same in self._readers.values():
            if len(same) > 1:
                names = {name for node in same for name in self.reading[node].names}
                columns = [field for field in same[0].schema.arrow if field.name in names]
                found |= dict.fromkeys(same, Schema.from_arrow(pa.schema(columns)))
        return found

    @cached_property
    def _readers(self) -> dict[tuple[str, ...], list[nodes.Read]]:
        """Steps that read the same topic in the same way; each read of another source is for itself."""
        found: dict[tuple[str, ...], list[nodes.Read]] = {}
        for node, place in self.reads_as.items():
            found.setdefault(place, []).append(node)
        return found

    @cached_property
    def reads_as(self) -> dict[nodes.Read, tuple[str, ...]]:
        """Equal for two sources if one read serves both. Only topics are shared: other sources keep what they read."""
        return {
            node: (
                *node.source.fingerprint,
                node.on_lost,
                repr(node.schema),
                *(() if node.source.counts_lag else (node.name,)),
            )
            for node in self.fed_sources
        }

    @cached_property
    def spark_parts(self) -> list[SparkPart]:
        """The parts that Spark's own engine runs, in order; their numbers follow those of the outputs."""
        return parts_of(self.order, self.outputs, len(self.chain) + len(self.outputs))

    def spark_parts_after(self, stage: int) -> list[SparkPart]:
        """The parts whose rows come from sources (0), or from a stage of the chain, counted from 1."""
        origins = self.sources if stage == 0 else [self.chain[number] for number in self.stages[stage - 1]]
        return [part for part in self.spark_parts if any(origin in self._origins[part.first] for origin in origins)]

    @cached_property
    def in_spark(self) -> frozenset[Node]:
        """The steps that run in Spark's own engine."""
        return frozenset(step for part in self.spark_parts for step in part.steps)

    @cached_property
    def timing(self) -> dict[nodes.Read, Timed]:
        """By source, the node that gives its rows their event time; sources without event time are left out."""
        return timing(self.order)

    @cached_property
    def chain(self) -> list[Node]:
        return [node for node in self.order if node.keeps_state]

    @cached_property
    def needs_ticks(self) -> bool:
        """Whether the clock alone can change a result, so that an idle job needs batches without rows.

        Tables whose rows have no event time change only with rows: a batch would only delay the next one.
        """
        clockless = all(isinstance(step, CLOCKLESS) for step in self.chain)
        return bool(self.chain) and not (clockless and not self.timing and not self.dataframe_sources)

    @cached_property
    def looks_back(self) -> bool:
        """Whether a step may read rows of the past again."""
        return any(getattr(node, "from_log", False) for node in self.chain)

    @cached_property
    def _origins(self) -> dict[Node, list[Node]]:
        """The origins whose regions a node is in."""
        found: dict[Node, list[Node]] = {}
        for node in self.order:
            before = [origin for given in node.inputs for origin in found[given]]
            is_origin = isinstance(node, nodes.Read) or node.keeps_state
            found[node] = [node] if is_origin else list(dict.fromkeys(before))
        return found

    def traces(self, output: Node) -> bool:
        """Whether rows of an output carry their partition and offset, because its sink may refuse some."""
        return isinstance(output, nodes.Write) and (output.traced or output in self.listening)

    @cached_property
    def listening(self) -> frozenset[Node]:
        """The steps whose dead letters are used."""
        return listened_to(self.order)

    def refused(self, output: nodes.Write) -> Region:
        """The steps after the dead letters of a sink. They keep no state, and run where the sink is written."""
        after: dict[Node, None] = {}
        for node in self.order:
            starts = isinstance(node, nodes.Dead) and node.inputs[0] is output
            if starts or any(given in after for given in node.inputs):
                after[node] = None
        return Region(output, tuple(after), self.listening, self.in_spark)

    def takes_late(self, step: Node) -> bool:
        """Whether the late rows of a step are consumed."""
        return any(isinstance(node, nodes.Late) and node.inputs[0] is step for node in self.order)

    def upstream(self, step: Node) -> list[Node]:
        """The origins that feed a step of the chain and determine its watermark."""
        counting = step.inputs[: step.awaited_inputs]
        return list(dict.fromkeys(origin for given in counting for origin in self._origins[given]))

    def origins_of_input(self, step: Node, side: int) -> list[Node]:
        """The sources and steps of the chain that feed one input of a step."""
        return self._origins[step.inputs[side]]

    def origins_of(self, step: Node) -> list[Node]:
        """The sources and steps of the chain that feed a step."""
        return list(dict.fromkeys(origin for given in step.inputs for origin in self._origins[given]))

    @cached_property
    def stages(self) -> list[list[int]]:
        """The numbers of the chain's steps by stage; Spark runs a stage after one shuffle.

        A step is in the stage after its inputs, or in the same one if their rows need not be moved.
        """
        stage_of: dict[Node, int] = {}
        for step in self.chain:
            before = [origin for given in step.inputs for origin in self._origins[given] if origin.keeps_state]
            stage_of[step] = max(
                (stage_of[origin] + (not self._keeps_key_group(origin, step)) for origin in before),
                default=0,
            )
        found: list[list[int]] = [[] for _ in range(max(stage_of.values(), default=-1) + 1)]
        for number, step in enumerate(self.chain):
            found[stage_of[step]].append(number)
        return found

    def shares_key_group(self, origin: Node, step: Node) -> bool:
        """Whether a step reads another of the same stage: a key group then only gets messages of its own."""
        if not origin.keeps_state:
            return False
        stage = next(stage for stage in self.stages if self.chain.index(step) in stage)
        return self.chain.index(origin) in stage

    def _keeps_key_group(self, origin: Node, step: Node) -> bool:
        """Whether rows that one step sends to another keep their key, and so their key group."""
        if self.one_stage:
            return not self._leaves_for_spark(origin, step)
        if isinstance(origin, nodes.Process):  # its rows are the user's
            return False
        keys = _output_keys(origin)
        inputs = [(side, given) for side, given in enumerate(step.inputs) if origin in self._origins[given]]
        return bool(keys) and all(self._key_after(given, origin) == _input_keys(step, side) for side, given in inputs)

    def _leaves_for_spark(self, origin: Node, step: Node) -> bool:
        """Whether rows that one step sends to another go through Spark's own engine on the way."""
        before = in_order(step.inputs)
        return any(origin in self._origins[node] for node in before if node in self.in_spark)

    def _key_after(self, node: Node, origin: Node) -> tuple[str, ...] | None:
        """The names of an origin's key columns after further steps; None if unknown."""
        if node is origin:
            keys = _output_keys(origin)
            return keys if all(_hashes_alike(origin.schema.field(key).type) for key in keys) else None
        if len(node.inputs) != 1 or node in self.in_spark:
            return None
        before = self._key_after(node.inputs[0], origin)
        if before is None or isinstance(node, nodes.Where | table_nodes.AllRows | table_nodes.AsOf):
            return before
        if isinstance(node, nodes.Project):
            names: dict[str | None, str] = {}
            for name, made in node.columns:  # its own name, if a column occurs several times
                names[made.column] = name if name == made.column else names.get(made.column, name)
            return tuple(names[key] for key in before) if all(key in names for key in before) else None
        return None

    @cached_property
    def _regions(self) -> dict[Node, Region]:
        return {origin: self._region(origin) for origin in (*self.sources, *self.chain)}

    def first_slots(self) -> dict[str, int]:
        """By step, the slot in which its stage keeps its state, for a job without state."""
        return {self.chain[number].name: slot for stage in self.stages for slot, number in enumerate(stage)}

    def region(self, origin: Node) -> Region:
        return self._regions[origin]

    def _region(self, origin: Node) -> Region:
        steps = tuple(node for node in self.order if node is not origin and origin in self._origins[node])
        return Region(origin, steps, self.listening, self.in_spark)

    @cached_property
    def _all_ends(self) -> dict[Node, list[End]]:
        return {origin: list(self._ends(origin)) for origin in (*self.sources, *self.chain)}

    def ends(self, origin: Node) -> list[End]:
        """The destinations of a region's rows."""
        return self._all_ends[origin]

    def _ends(self, origin: Node) -> Iterator[End]:
        for number, step in enumerate(self.chain):
            for side, given in enumerate(step.inputs):
                if origin in self._origins[given]:
                    yield End(number, given, side)
        for number, output in enumerate(self.outputs, len(self.chain)):
            if origin in self._origins[output]:
                yield End(number, output, None)

    def steps_after(self, origin: Node) -> list[int]:
        """The steps of the chain that an origin feeds."""
        return list(dict.fromkeys(end.number for end in self.ends(origin) if end.side is not None))


def _output_keys(step: Node) -> tuple[str, ...]:
    """The output columns of a step that hold its key; none if unknown."""
    if not isinstance(step, table_nodes.Join):
        keys: tuple[str, ...] = getattr(step, "keys", ())
        return keys
    names = {column: name for name, column in step.left}
    known = step.how not in ("right", "full") and all(column in names for column, _ in step.on)
    return tuple(names[column] for column, _ in step.on) if known else ()


def _input_keys(step: Node, side: int) -> tuple[str, ...]:
    """The columns of an input that form a step's key; none if its rows are for every key, or come from Spark."""
    if side == step.broadcast_input:
        return ()
    if isinstance(step, table_nodes.Join):
        return tuple(pair[side] for pair in step.on) if side < step.sides else ()
    keys: tuple[str, ...] = getattr(step, "keys", ())
    return keys


def _hashes_alike(kind: pa.DataType) -> bool:
    """Whether every step hashes a key of this type unchanged: joins widen narrow integers."""
    return not pa.types.is_integer(kind) or pa.types.is_int64(kind)


def labels(groups: int, partitions: int) -> list[int]:
    """Labels for key groups that Spark's hash distributes evenly over its partitions."""
    groups_max = -(-groups // partitions)
    counts = [0] * partitions
    found: list[int] = []
    label = 0
    while len(found) < groups:
        partition = _spark_hash(label) % partitions
        if counts[partition] < groups_max:
            counts[partition] += 1
            found.append(label)
        label += 1
    return found


def _spark_hash(value: int) -> int:
    """Spark's Murmur3 of an int, with its seed of 42, which it partitions by."""
    mask = 0xFFFFFFFF
    k = (value * 0xCC9E2D51) & mask
    k = ((k << 15) | (k >> 17)) & mask
    k = (k * 0x1B873593) & mask
    h = 42 ^ k
    h = ((h << 13) | (h >> 19)) & mask
    h = (h * 5 + 0xE6546B64) & mask
    h ^= 4
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & mask
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & mask
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def event_times(rows: pl.DataFrame, node: nodes.Read) -> pl.Series:
    """The time of each row of a source."""
    if node.event_time is None:
        return pl.Series(TIME, [None], pl.Int64).new_from_index(0, len(rows))
    times = rows[node.event_time].dt.cast_time_unit("us").to_physical().alias(TIME)
    return elementwise.within_range(times)  # files and DataFrames may hold times out of range
