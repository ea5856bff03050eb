"""A stateful step of a plan, independent of where its state is stored: its input, its state, its output.

`local.py` keeps the tables of such a step in memory, Spark in sorted runs; the step does not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import polars as pl

from millstream.operators import elementwise
from millstream.operators.aggregates.accumulators import ORDER, ROW, TIME, WEIGHT
from millstream.operators.aggregates.partials import Partials
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import HIDDEN, computed
from millstream.operators.lateness import is_untimed
from millstream.operators.windows.assignment import instant, instants
from millstream.operators.windows.triggers import can_finish
from millstream.operators.windows.windowed import WindowedOperator
from millstream.plan import nodes
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import END
from millstream.plan.time.windows import microseconds
from millstream.state.tables import Marks

SENT, LATE, DEAD, LOST, TIMED_OUT = "sent", "late", "dead", "lost", "timed_out"
"""The outputs of a stateful step: its stream and its side outputs, each a frame with a time and a weight; and a count.
"""

NOTES, NOTE = "notes", "note"
"""A further output, of notices for the owner of a job, and its only column."""

INPUTS = ("rows", "others")
"""The names of its first and second input."""
MATCHING = "matching"
EVERY_INPUT = (*INPUTS, MATCHING)
"""The names of all inputs that a step can have."""
PARTIALS = "partials"

NO_MARKS = Marks(pl.lit(None, pl.Int64), pl.lit(None, pl.Int64))


class Stateful(Protocol):
    keys: list[str]
    """The key columns, as they are named in its inputs and in every table of state."""

    own_keys: Mapping[str, list[str]]
    """Tables of state whose rows are found by their own columns. Rows that were looked up stay, unless another row of
    the same key replaces them; a table whose own columns are none is replaced as a whole.
    """

    nothing: Frames
    """For each input, an empty frame."""

    def tables(self) -> Frames:
        """The tables of state, empty."""

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """The step's input from the rows of a stream; `first` is the arrival number of the first row."""

    def folded(
        self, rows: pl.DataFrame, first: int, watermark: int, side: int = 0
    ) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        """Pre-aggregates rows where possible; the others are fed as they are.

        The watermark of this step is not beyond `watermark` now.
        """

    def joined(self, partials: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Merges pre-aggregates of several tasks."""

    def clock(self, clock: Clock) -> Clock:
        """The clock as this step sees it."""

    def asked(self, inputs: Frames) -> Frames:
        """By table, the rows whose keys are looked up; all rows that are kept or added must have such keys."""

    def whole_tables(self, held: Frames, inputs: Frames, clock: Clock) -> Sequence[str]:
        """The tables that this step must read as a whole, given what is held. They are held under `whole(name)`."""

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        """The new state that replaces what was held, and the output (`sent`, and `late` or `dead`).

        Held are all rows of the requested keys, by table, and the rows that are due; keys that are only due may have
        all their rows or only some. A table that is not named in the new state stays as it is, and so do the rows of a
        table with its own keys that have no replacement.
        """

    def marks(self, clock: Clock) -> dict[str, Marks]:
        """By table, the marks of its rows after a step."""


@runtime_checkable
class Answering(Protocol):
    """A step whose state stands for rows that can be asked for: those of a table, or of open windows."""

    current_table: ClassVar[str]
    """The table of state with these rows."""

    def current(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that some rows of that table stand for, without a time and a weight."""


FOR_EVERY_KEY = "__for_every_key"
"""A column of what a step is fed: whether a row is for every key, and has none itself."""
Past = Callable[[], Iterator[pl.DataFrame]]
"""Reads all rows of a step's first input from the log again, up to those of the current batch, in pieces."""


@runtime_checkable
class LooksBack(Protocol):
    """A step that may read rows of the past again. It does if it has a past, and otherwise holds them in its state."""

    past: Past | None


NO_OWN_KEYS: Mapping[str, list[str]] = MappingProxyType({})


class PartsOfState:
    """A step that never needs a whole table."""

    def whole_tables(self, held: Frames, inputs: Frames, clock: Clock) -> Sequence[str]:
        return ()


class PlainStep(PartsOfState):
    """A step without pre-aggregation that sees the clock as it is."""

    own_keys = NO_OWN_KEYS

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        raise NotImplementedError

    def folded(
        self, rows: pl.DataFrame, first: int, watermark: int, side: int = 0
    ) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        return None, self.fed(rows, first, side)

    def joined(self, partials: Sequence[pl.DataFrame]) -> pl.DataFrame:
        raise NotImplementedError

    def clock(self, clock: Clock) -> Clock:
        return clock


class WindowedStep(PartsOfState):
    """A windowed aggregation."""

    own_keys = NO_OWN_KEYS
    current_table: ClassVar[str] = "windows"

    def __init__(self, node: nodes.WindowedAggregate, *, whole_rows: bool = True) -> None:
        """Without `whole_rows`, late rows are only counted, because no step reads `.late`."""
        self.node = node
        self._whole_rows = whole_rows or (node.window.merges and can_finish(node.trigger))
        self._in_processing_time = getattr(node.window, "time", "event") == "processing"
        given = node.inputs[0]
        nothing = self.fed(elementwise.frame_of([], given), 0)
        self.nothing = {INPUTS[0]: nothing}
        self.operator = WindowedOperator(node, nothing.schema, changing=given.is_changing)
        self.defaults = {
            "windows": {name: of for fold in self.operator.folding for name, of in fold.of_nothing().items()}
        }
        self.keys = self.operator.keys
        self._types: Any = dict(elementwise.types_of(node.schema))
        self.partials = Partials(self.operator) if Partials.possible(self.operator) else None
        self._nothing_sent: dict[str, pl.DataFrame] = {}

    def tables(self) -> Frames:
        return {"windows": self.operator.no_windows(), "counters": self.operator.no_counters()}

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """Keys, arguments, time, weight, order, and the whole row for `.late`."""
        given = self.node.inputs[0].schema
        keys = [rows[name].alias(f"key.{name}") for name in self.node.keys]
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        arguments = computed(rows, given, self.node.arguments).get_columns() if self.node.arguments else []
        whole = rows.select(*(given.names if self._whole_rows else ()), *HIDDEN).to_struct(ROW)
        return pl.DataFrame([whole, *keys, *arguments, rows[TIME], rows[WEIGHT], order])

    def folded(
        self, rows: pl.DataFrame, first: int, watermark: int, side: int = 0
    ) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        """Pre-aggregates rows after the watermark: they cannot be late.

        In processing time no row is late before the end of time.
        """
        if self.partials is None:
            return None, self.fed(rows, first)
        timed = rows.select(known=~is_untimed()).to_series()
        known = timed if not self._in_processing_time else pl.repeat(True, len(rows), eager=True)
        if self._whole_rows:
            if self._in_processing_time:
                known &= watermark < END
            else:
                known &= rows[TIME] >= watermark - microseconds(self.node.lateness)
        rest = self.nothing[INPUTS[0]]
        if not known.all():
            rest, rows = self.fed(rows.filter(~known), first), rows.filter(known)
        given = self.node.inputs[0].schema
        keys = [rows[name].alias(f"key.{name}") for name in self.node.keys]
        arguments = computed(rows, given, self.node.arguments).get_columns() if self.node.arguments else []
        return self.partials.folded(pl.DataFrame([*keys, *arguments, rows[TIME], rows[WEIGHT]])), rest

    def joined(self, partials: Sequence[pl.DataFrame]) -> pl.DataFrame:
        assert self.partials is not None
        return self.partials.joined(partials)

    def clock(self, clock: Clock) -> Clock:
        if not self._in_processing_time:
            return clock
        # The processing time is the watermark; it ends with the end of time.
        before = END if clock.watermark_before >= END else clock.now_before
        after = END if clock.watermark >= END else clock.now
        return Clock(before, after, clock.now_before, clock.now)

    def asked(self, inputs: Frames) -> Frames:
        fed = inputs[INPUTS[0]]
        return {"windows": of_keys(self.keys, inputs), "counters": fed if self.operator.by_rows else fed.clear()}

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        if self._in_processing_time:  # a row's time is its time of arrival
            inputs = {**inputs, "rows": inputs["rows"].with_columns(pl.lit(clock.now, pl.Int64).alias(TIME))}
            if PARTIALS in inputs and self.partials is not None:
                inputs = {**inputs, PARTIALS: self.partials.timed(inputs[PARTIALS], clock.now)}
        changes, sent = self.operator.step(held, inputs, clock)
        panes, late = self._made(SENT, self._panes, sent["panes"]), self._made(LATE, self._late_rows, sent["late"])
        return changes, {SENT: panes, LATE: late, LOST: sent["lost"]}

    def _made(self, name: str, make: Callable[[pl.DataFrame], pl.DataFrame], given: pl.DataFrame) -> pl.DataFrame:
        """An output; an empty one is made once, because most small bundles have nothing to send."""
        if len(given) or name not in self._nothing_sent:
            made = make(given)
            self._nothing_sent[name] = made.clear()
            return made
        return self._nothing_sent[name]

    def marks(self, clock: Clock) -> dict[str, Marks]:
        event, due = self.operator.deadlines(clock)
        return {"windows": Marks(event, due, self.operator.hold()), "counters": NO_MARKS}

    def current(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Windows with what they hold now, whether they have sent it or not."""
        made = self._panes(self.operator.as_they_are(rows))
        return made.select(*self.node.keys, "window", *(name for name, _ in self.node.aggregates))

    def _panes(self, panes: pl.DataFrame) -> pl.DataFrame:
        node = self.node
        pane = [pl.col(f"pane.{field.name}").alias(field.name) for field in nodes.PANE]
        names = ("start", "end", "event_time")
        start, end, event_time = map(instant, names) if self.operator.by_rows else instants(panes, *names)
        columns = [pl.col(f"key.{name}").alias(name) for name in node.keys]
        columns += [
            pl.struct(start, end).alias("window"),
            pl.struct(pane).alias("pane"),
            pl.col("weight"),
        ]
        columns += [pl.col(name) for name, _ in node.aggregates]
        columns += [event_time, pl.col("event_time").alias(TIME), pl.col("weight").alias(WEIGHT)]
        made = panes.select(columns)
        schema = made.schema  # polars makes a new one every time
        fits = all(schema[name] == kind for name, kind in self._types.items())
        return made if fits else made.cast(self._types)

    def _late_rows(self, late: pl.DataFrame) -> pl.DataFrame:
        """The original rows, with the window that rejected them and the reason."""
        start, end = (instant(name, pl.col("window").struct.field(name)) for name in ("start", "end"))
        span = pl.when(pl.col("window").is_not_null()).then(pl.struct(start, end)).alias("window")
        rows, reasons = late.select(pl.col(ROW).struct.unnest()), late.select(span, "reason")
        kept = [column for column in rows.get_columns() if column.name not in ("window", "reason", *HIDDEN)]
        return pl.DataFrame([*kept, *reasons.get_columns(), *rows.select(HIDDEN).get_columns()])


def stateful(node: Node, *, whole_rows: bool = True) -> Stateful | None:
    """The step of a stateful node; None for a stateless one."""
    if isinstance(node, nodes.WindowedAggregate):
        return WindowedStep(node, whole_rows=whole_rows)
    if not node.keeps_state:
        return None
    from millstream.operators.forgetting import Forgetting
    from millstream.operators.registry import STEPS  # imports this module

    made = STEPS[type(node)](node)
    return Forgetting(made) if node.per_batch_state else made


class Holding(Protocol):
    """Where the tables of a step are stored."""

    def held(
        self, keys: Mapping[str, pl.DataFrame], before: tuple[int, int], now: tuple[int, int]
    ) -> dict[str, pl.DataFrame]: ...

    def whole(self, name: str) -> pl.DataFrame: ...


def held_for(step: Stateful, tables: Holding, inputs: Frames, clock: Clock) -> Frames:
    """What a step reads of its tables."""
    before, now = (clock.watermark_before, clock.now_before), (clock.watermark, clock.now)
    held = tables.held(step.asked(inputs), before, now)
    return held | {whole(name): tables.whole(name) for name in step.whole_tables(held, inputs, clock)}


def whole(table: str) -> str:
    """The name under which a whole table is held."""
    return f"whole {table}"


def of_keys(keys: list[str], inputs: Frames) -> pl.DataFrame:
    """The keys of all inputs."""
    came = [frame for frame in inputs.values() if len(frame)] or list(inputs.values())
    return came[0] if len(came) == 1 or not keys else pl.concat([frame.select(keys) for frame in came])
