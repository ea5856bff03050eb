"""What a user writes: streams and the steps between them. Each call checks what it is given and adds a node.

A mistake is refused in the call that makes it, with the user's line, what exists, and what to do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa

from millstream.errors import InvalidInput, InvalidWindow
from millstream.plan import engine, frames
from millstream.plan.aggregates import Aggregate
from millstream.plan.checks import (
    NAME,
    and_none,
    called,
    check_event_time,
    check_instant,
    check_place,
    check_process,
    column_of,
    differences,
    fed_with,
    loop,
    refusal,
    result_type,
    schema_of,
    window_arguments,
)
from millstream.plan.explain import Format, explained
from millstream.plan.expressions import Expression, expression
from millstream.plan.lowered import type_name
from millstream.plan.nodes import (
    INSTANT,
    PANE,
    SPAN,
    Dead,
    Late,
    MapRows,
    Mode,
    Node,
    PaneTime,
    Process,
    Project,
    Read,
    Union,
    Where,
    WindowedAggregate,
    Write,
)
from millstream.plan.place import AtUsersLine, users_line
from millstream.plan.places import Place
from millstream.plan.spark_types import family, quoted
from millstream.plan.triggers import CHOICES as TRIGGERS
from millstream.plan.triggers import AfterWatermark, Repeatedly, Trigger
from millstream.plan.watermarks import Bounded, Punctuated, Watermark
from millstream.plan.windows import Everything, Window
from millstream.records import DEAD_LETTER_SCHEMA, Schema, SchemaLike, duration

RESERVED = ("window", "pane", "weight", "event_time")
WINDOWS = "windows: fixed, sliding, sessions, calendar, rows, delta, closed_by, everything"
MODES = "discarding(), accumulating() or retracting()"
NOT_KEYS = ("map", "array", "struct", "interval")
Batch = Literal["polars", "arrow"]


class Flow:
    """A named job: what it reads, the steps, and what it writes."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r} is not a name for a flow", where=users_line(), next_step="use letters, digits and . _ -"
            )
        self.name = name
        self.outputs: list[Write] = []
        self._names: set[str] = set()
        self._sources: list[Any] = []
        self._sides: dict[tuple[Node, type[Node]], Node] = {}

    def read(
        self,
        source: Any,
        schema: SchemaLike | None = None,
        event_time: str | None = None,
        watermark: Watermark | None = None,
        *,
        name: str | None = None,
        changes: bool = False,
    ) -> Stream:
        """Rows of a topic or of another source; with `changes` they have weights, and one of -1 takes a row back.

        A DataFrame of Spark brings its schema along; every other source is read by the one that is given.
        """
        source = frames.as_source(source)
        check_place(source, "read")
        if schema is None:
            if not isinstance(source, frames.SparkFrame):
                raise refusal(
                    f"no schema says what is in {called(source)}", "read(source, 'user string, at timestamp')"
                )
            schema = frames.schema_of(source)
        columns = schema_of(schema)
        if watermark is not None and not isinstance(watermark, Watermark):
            raise refusal(f"{watermark!r} is not a watermark", "watermarks: bounded, ascending, punctuated, custom")
        if event_time is not None:
            check_instant(columns, event_time)
        elif watermark is not None:
            raise refusal("a watermark is about event time, and none is named", "name its column with event_time='…'")
        if isinstance(watermark, Punctuated):
            marks = expression(watermark.expression, columns)
            if marks.type != INSTANT:
                raise refusal(f"'{marks}' is {type_name(marks.type)}, and a watermark is a timestamp", None)
        if isinstance(source, str) and any(write.sink == source for write in self.outputs):
            raise loop(source)
        strategy = watermark or (Bounded(None, timedelta(0)) if event_time else None)
        step = self.step(name, f"read {called(source)}")
        self._sources.append(source)
        return Stream(self, Read(step, columns, (), users_line(), source, event_time, strategy, changes))

    def step(self, given: str | None, kind: str) -> str:
        """The step's name: the user's, or its kind with a number, the same every time the flow is built."""
        if given is not None:
            if not isinstance(given, str) or not NAME.fullmatch(given):
                raise refusal(f"{given!r} is not a name for a step", "use letters, digits and . _ -")
            if given in self._names:
                raise refusal(
                    f"there are two steps named '{given}'",
                    f"a name keeps a step's state: choose another. Taken: {', '.join(sorted(self._names))}",
                )
            self._names.add(given)
            return given
        base = re.sub(r"[^A-Za-z0-9._-]+", "_", kind).strip("_").lower() or "step"
        name, count = base, 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def check(self) -> tuple[Write, ...]:
        """What the flow writes; a flow that writes nothing is refused."""
        if not self.outputs:
            raise refusal(f"the flow '{self.name}' writes nothing", "end a stream with .write('topic')")
        return tuple(self.outputs)

    def explain(self, format: Format = "text", *, physical: bool = False) -> str:
        """The steps as text, as a Mermaid flowchart, or as an SVG drawing; `physical`: and how they lie on Spark."""
        logical = explained(self.name, self.check(), format)
        return f"{logical}\n{engine.call(self, 'explained', {})}" if physical else logical

    # ------------------------------------------------------------ running

    def run(self, **settings: Any) -> Any:
        """Runs the flow as a job on Spark until Ctrl-C, and gives the job when it has ended.

        `until="caught up"` ends when all that is there now was read; `batch=True` reads that as one batch and closes
        every window. `into="totals.v2"` writes beside the results that are there. `master` is a Spark master, `broker`
        a log, `folder` the job's own, `batch_rows` how many rows of a source a batch has at most, `key_groups` how
        finely keys are spread (fixed when a job first runs), `tick_s` how often an idle job looks at the clock, `show`
        whether progress is shown, `on_batch` a function of a batch's number and its rows by output.
        """
        return engine.call(self, "run", settings)

    def start(self, **settings: Any) -> Any:
        """Starts the flow as `run` does and gives the job at once: job.stop(), job.wait(), job.progress."""
        return engine.call(self, "start", settings)

    def replay(self, **settings: Any) -> Any:
        """Makes the results anew from history, beside the running job: `into` another topic, `since` a time.

        It ends when it has caught up; with `follow=True` it goes on. Then `millstream switch` moves the readers over.
        """
        return engine.call(self, "replay", settings)


class Stream:
    """Rows that keep coming."""

    def __init__(self, flow: Flow, node: Node) -> None:
        self.flow = flow
        self.node = node

    @property
    def schema(self) -> Schema:
        return self.node.schema

    def explain(self, format: Format = "text") -> str:
        """The steps up to here as text, as a Mermaid flowchart, or as an SVG drawing."""
        return explained(self.flow.name, [self.node], format)

    def to_dataframe(self, **settings: Any) -> Any:
        """The stream as a streaming DataFrame of Spark, to go on with PySpark; its checkpoint is the query's own."""
        return engine.call(self, "dataframe", settings)

    # ------------------------------------------------------------ row by row

    def where(self, condition: str, *, name: str | None = None) -> Stream:
        """Keeps the rows for which the condition is true."""
        return self._where(condition, name, "where")

    def _where(self, condition: str, name: str | None, kind: str) -> Stream:
        checked = expression(condition, self.schema, boolean=True)
        return self._next(Where(self.flow.step(name, kind), self.schema, (self.node,), users_line(), checked))

    def select(self, *columns: str, name: str | None = None, **made: str) -> Stream:
        """Columns by name, and new ones as name='expression'."""
        if not columns and not made:
            raise refusal("select needs at least one column", f"columns that exist: {', '.join(self.schema.names)}")
        kept = [(column_of(self.schema, column), self._kept(column)) for column in columns]
        return self._project(
            kept + [(new, expression(text, self.schema)) for new, text in made.items()], name, "select"
        )

    def with_column(self, column: str, made: str, *, name: str | None = None) -> Stream:
        """The same rows with one more column, or with that column made anew."""
        if not isinstance(column, str) or not column:
            raise refusal(f"a column has a name, not {column!r}", "with_column('name', 'expression')")
        value = expression(made, self.schema)
        columns = {known.lower(): (known, self._kept(known)) for known in self.schema.names}
        columns[column.lower()] = (column, value)
        return self._project(list(columns.values()), name, "with_column")

    def _kept(self, column: str) -> Expression:
        return Expression(f"`{column}`", quoted(column), self.schema.field(column).type, frozenset({column}))

    def _project(self, made: Sequence[tuple[str, Expression]], name: str | None, kind: str) -> Stream:
        with AtUsersLine():
            columns = Schema.from_arrow(pa.schema([(column, value.type) for column, value in made]))
        return self._next(Project(self.flow.step(name, kind), columns, (self.node,), users_line(), tuple(made)))

    def map(
        self,
        function: Callable[..., Any],
        schema: SchemaLike | None = None,
        *,
        batch: bool | Batch = False,
        name: str | None = None,
    ) -> Stream:
        """A Python function of each row (a dict) that gives a row, or None to leave it out.

        `batch=True` or "polars" gives it polars frames, "arrow" pyarrow tables, and it gives one back. A row that it
        fails on goes to `.dead`. `schema` says what it gives, if that differs from what it gets.
        """
        return self._mapped(function, schema, batch, flat=False, name=name)

    def flat_map(
        self, function: Callable[..., Any], schema: SchemaLike | None = None, *, name: str | None = None
    ) -> Stream:
        """A Python function that gives any number of rows for each."""
        return self._mapped(function, schema, batch=False, flat=True, name=name)

    def _mapped(
        self,
        function: Callable[..., Any],
        schema: SchemaLike | None,
        batch: bool | str,
        *,
        flat: bool,
        name: str | None,
    ) -> Stream:
        verb = "flat_map" if flat else "map"
        if not callable(function):
            hint = "a Spark SQL expression goes into select(…) or with_column(…)" if isinstance(function, str) else None
            raise refusal(f"{verb} takes a function, not {function!r}", hint or f"for example {verb}(lambda row: …)")
        if inspect.iscoroutinefunction(function):
            raise refusal(f"{verb} takes a plain function, and this one is async", "call it with asyncio.run(…) inside")
        if batch not in (True, False, "polars", "arrow"):
            raise refusal(f"batch is True, False, 'polars' or 'arrow', not {batch!r}", "True is 'polars'")
        columns = self.schema if schema is None else schema_of(schema)
        kind = "arrow" if batch == "arrow" else "polars"
        step = self.flow.step(name, verb)
        return self._next(MapRows(step, columns, (self.node,), users_line(), function, bool(batch), flat, kind))

    def split(self, branches: Mapping[str, str], *, rest: str | None = None) -> dict[str, Stream]:
        """Routes each row to the first branch whose condition holds; the others to `rest`, if it is named."""
        if not isinstance(branches, Mapping) or not branches:
            raise refusal("split takes branches by name", "for example split({'big': 'n > 100'}, rest='small')")
        for branch in (*branches, *([] if rest is None else [rest])):
            if not isinstance(branch, str) or not NAME.fullmatch(branch):
                raise refusal(f"{branch!r} is not a name for a branch", "use letters, digits and . _ -")
        if rest in branches:
            raise refusal(f"there are two branches named '{rest}'", f"taken: {', '.join(branches)}")
        for condition in branches.values():
            expression(condition, self.schema, boolean=True)
        taken: list[str] = []
        streams = {}
        for branch, condition in branches.items():
            streams[branch] = self._where(and_none([f"({condition})"], taken), None, f"split {branch}")
            taken.append(condition)
        if rest is not None:
            streams[rest] = self._where(and_none([], taken), None, f"split {rest}")
        return streams

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The rows of all; the watermark is the smallest of theirs."""
        if not others:
            raise refusal("a union is of two streams or more", "a.union(b)")
        for other in others:
            if not isinstance(other, Stream):
                raise refusal(f"a union is of streams, and {other!r} is none", "a.union(b)")
            if other.flow is not self.flow:
                raise refusal(
                    f"a union is within one flow, and these are of '{self.flow.name}' and '{other.flow.name}'",
                    "read both in one flow, or write a topic in one and read it in the other",
                )
            if differing := differences(self.schema, other.schema):
                raise refusal(
                    f"a union is of streams with the same columns: {differing}", "use select(…) to make them alike"
                )
        inputs = (self.node, *(other.node for other in others))
        fields = [
            field.with_nullable(any(node.schema.field(field.name).nullable for node in inputs))
            for field in self.schema.arrow
        ]
        columns = Schema.from_arrow(pa.schema(fields))
        return self._next(Union(self.flow.step(name, "union"), columns, inputs, users_line()))

    # ------------------------------------------------------------ grouping

    def key_by(self, *columns: str) -> Keyed:
        """Rows with the same values in these columns belong together."""
        if not columns:
            raise refusal(
                "key_by needs a column",
                f"columns that exist: {', '.join(self.schema.names)}; without a key, leave it out",
            )
        for column in columns:
            column_of(self.schema, column)
            kind = self.schema.field(column).type
            if family(kind) in NOT_KEYS:
                hint = "take a field of it: with_column('start', 'window.start')" if column == "window" else None
                raise refusal(
                    f"'{column}' is {type_name(kind)}, which cannot be a key",
                    hint or "make a string or a number of it, or take a field of it, with with_column(…)",
                )
            if column.lower() in RESERVED:
                raise refusal(
                    f"a key cannot be named '{column}': panes have such a column", "give it another name with select(…)"
                )
        if len(set(columns)) < len(columns):
            raise refusal(f"a column stands twice in key_by: {', '.join(columns)}", "name each once")
        return Keyed(self, columns)

    def window(
        self,
        window: Window,
        *,
        allowed_lateness: str | timedelta = timedelta(0),
        timestamp: str = "end_of_window",
    ) -> Windowed:
        """A window over all rows together; see `Keyed.window`."""
        return Keyed(self, ()).window(window, allowed_lateness=allowed_lateness, timestamp=timestamp)

    # ------------------------------------------------------------ the ends

    @property
    def dead(self) -> Stream:
        """The rows that this stream's last step could not handle, with the reason."""
        if not isinstance(self.node, MapRows | Process | Read):
            raise refusal(
                f"the step '{self.node.name}' ({type(self.node).__name__.lower()}) has no dead letters",
                "rows die where bytes are decoded and in map, flat_map and process: take .dead right behind those",
            )
        return self._side(Dead, "dead", DEAD_LETTER_SCHEMA)

    def _side(self, kind: type[Node], suffix: str, schema: Schema) -> Stream:
        """A side output is one step, however often it is asked for."""
        found = self.flow._sides.get((self.node, kind))
        if found is None:
            step = self.flow.step(None, f"{self.node.name}.{suffix}")
            found = self.flow._sides[self.node, kind] = kind(step, schema, (self.node,), users_line())
        return self._next(found)

    def write(self, sink: Any, *, name: str | None = None) -> None:
        """Sends the rows to a topic or to another sink."""
        check_place(sink, "write")
        if isinstance(sink, Place):
            sink.check_written(self.schema)
        for other in self.flow.outputs:
            if other.sink is sink or (type(other.sink) is type(sink) and other.sink == sink):
                raise refusal(
                    f"two streams are written to {called(sink)}, the other at {other.place}",
                    "write to another sink, or bring them together with union(…)",
                )
        if isinstance(sink, str) and sink in [source for source in self.flow._sources if isinstance(source, str)]:
            raise loop(sink)
        step = self.flow.step(name, f"write {called(sink)}")
        self.flow.outputs.append(Write(step, self.schema, (self.node,), users_line(), sink))

    def _next(self, node: Node) -> Stream:
        return Stream(self.flow, node)


class Keyed:
    """A stream whose rows belong together by some columns."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self.stream = stream
        self.keys = keys

    def window(
        self,
        window: Window,
        *,
        allowed_lateness: str | timedelta = timedelta(0),
        timestamp: str = "end_of_window",
    ) -> Windowed:
        """Where in event time. `timestamp` is the event time of a pane: end_of_window, earliest or latest."""
        if not isinstance(window, Window):
            raise refusal(f"{window!r} is not a window", WINDOWS)
        choices = [choice.value for choice in PaneTime]
        if timestamp not in choices:
            raise refusal(f"timestamp is one of {', '.join(choices)}, not {timestamp!r}", "leave it out: end_of_window")
        with AtUsersLine():
            lateness = duration(allowed_lateness, what="allowed_lateness")
        if lateness and (not window.has_end or isinstance(window, Everything)):
            raise InvalidWindow(
                f"{window} has no end in event time that a row could be late for",
                where=users_line(),
                next_step="leave allowed_lateness out",
            )
        if getattr(window, "time", "event") == "event":
            check_event_time(self.stream.node, window)
        arguments = window_arguments(window, self.stream.schema)
        return Windowed(self, window, lateness, PaneTime(timestamp), arguments)

    def process(
        self,
        function: Callable[..., Any],
        schema: SchemaLike | None = None,
        *,
        on_timer: Callable[..., Any] | None = None,
        event_time: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """A Python function of each row and its key, which has state and timers; it gives rows, one row, or None.

        `function(row, key)` is called in order of arrival, `on_timer(tag, time, key)` when a timer is due. `key` is a
        `plan.process.Key`. A row that the function fails on goes to `.dead`. What it gives has the event time of the
        row or of the timer, unless `event_time` names a column of `schema`.
        """
        stream = self.stream
        columns = check_process(stream.node, function, schema, on_timer, event_time)
        step = stream.flow.step(name, "process")
        return Stream(
            stream.flow,
            Process(step, columns, (stream.node,), users_line(), self.keys, function, on_timer, event_time),
        )


class Windowed:
    """A keyed stream in windows: it can be told when to send panes, how they relate, and what to compute."""

    def __init__(
        self,
        keyed: Keyed,
        window: Window,
        lateness: timedelta,
        pane_time: PaneTime,
        arguments: Mapping[str, Expression],
        trigger: Trigger | None = None,
        mode: Mode = Mode.ACCUMULATING,
    ) -> None:
        self._keyed = keyed
        self._window = window
        self._lateness = lateness
        self._pane_time = pane_time
        self._arguments = arguments
        self._trigger = trigger or Repeatedly(AfterWatermark())
        self._mode = mode

    def trigger(self, trigger: Trigger) -> Windowed:
        """When in processing time."""
        if not isinstance(trigger, Trigger):
            raise refusal(f"{trigger!r} is not a trigger", TRIGGERS)
        return self._with(trigger, self._mode)

    def discarding(self) -> Windowed:
        """A pane holds what came since the one before."""
        return self._with(self._trigger, Mode.DISCARDING)

    def accumulating(self) -> Windowed:
        """A pane holds the whole window so far."""
        return self._with(self._trigger, Mode.ACCUMULATING)

    def retracting(self) -> Windowed:
        """A pane takes back the one before, then holds the whole window so far."""
        return self._with(self._trigger, Mode.RETRACTING)

    def _with(self, trigger: Trigger, mode: Mode) -> Windowed:
        return Windowed(self._keyed, self._window, self._lateness, self._pane_time, self._arguments, trigger, mode)

    def agg(self, *unnamed: object, name: str | None = None, **aggregates: Aggregate) -> Panes:
        """What is computed, as name=aggregate."""
        stream = self._keyed.stream
        if unnamed or not aggregates:
            raise refusal(
                "agg takes aggregates by name" if unnamed else "agg needs at least one aggregate",
                "for example .agg(total=ms.sum('score'), n=ms.count())",
            )
        arguments: dict[str, Expression] = {}
        fields = [stream.schema.field(key) for key in self._keyed.keys]
        fields += [pa.field("window", SPAN), pa.field("pane", PANE), pa.field("weight", pa.int32())]
        taken = {*RESERVED, *(key.lower() for key in self._keyed.keys)}
        for column, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise refusal(f"{column}={aggregate!r} is not an aggregate", "for example total=ms.sum('score')")
            if column.lower() in taken:
                raise refusal(
                    f"a pane has a column '{column}' already",
                    f"give the aggregate a name other than {', '.join(taken)}",
                )
            fed = fed_with(column, aggregate, stream.schema)
            fields.append(pa.field(column, result_type(column, aggregate, fed)))
            arguments |= fed
        fields.append(pa.field("event_time", INSTANT))
        with AtUsersLine():
            columns = Schema.from_arrow(pa.schema(fields))
        node = WindowedAggregate(
            stream.flow.step(name, "agg"),
            columns,
            (stream.node,),
            users_line(),
            self._keyed.keys,
            self._window,
            self._lateness,
            self._pane_time,
            self._trigger,
            self._mode,
            tuple(aggregates.items()),
            tuple((arguments | dict(self._arguments)).items()),
        )
        return Panes(stream.flow, node)


class Panes(Stream):
    """What a windowed aggregation sends."""

    @property
    def late(self) -> Stream:
        """The rows that came too late: the input row, `window`, and the `reason`."""
        given = self.node.inputs[0].schema
        kept = [field for field in given.arrow if field.name not in ("window", "reason")]
        columns = pa.schema([*kept, pa.field("window", SPAN), pa.field("reason", pa.string())])
        with AtUsersLine():
            return self._side(Late, "late", Schema.from_arrow(columns))
