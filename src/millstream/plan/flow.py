"""What a user writes: streams and the steps between them. Each call checks what it is given and adds a node.

A mistake is refused in the call that makes it, with the user's line, what exists, and what to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.expressions.expression import Expression, expression
from millstream.expressions.lowered import type_name
from millstream.expressions.spark_types import quoted
from millstream.plan import engine
from millstream.plan import spark_frames as frames
from millstream.plan.checks import (
    NAME,
    and_none,
    called,
    check_instant,
    check_keys,
    check_partitions,
    check_place,
    chosen_on_lost,
    column_of,
    differences,
    loop,
    refusal,
    same_place,
    schema_of,
)
from millstream.plan.endpoints import Files, Kafka, Place
from millstream.plan.endpoints import Table as DatabaseTable
from millstream.plan.explain import Format, explained
from millstream.plan.late import late_columns
from millstream.plan.naming import default_name, plain
from millstream.plan.nodes import (
    INSTANT,
    Dead,
    Late,
    MapRows,
    Node,
    Process,
    Project,
    Read,
    Union,
    Where,
    Write,
)
from millstream.plan.run_settings import ReplaySettings, RunSettings, Settings, takes
from millstream.plan.watermarks import Bounded, Punctuated, Watermark
from millstream.plan.windows import Window
from millstream.plan.written_stream import Written, check_behind_sinks
from millstream.records import DEAD_LETTER_SCHEMA, Schema, SchemaLike
from millstream.user_lines import AtUsersLine, users_line

if TYPE_CHECKING:
    from millstream.jobs.job import Job
    from millstream.plan.joining import AsOfWhen, On, Side
    from millstream.plan.keyed import Keyed, Windowed
    from millstream.plan.table_nodes import How
    from millstream.plan.tables import Grouping, Table

RESERVED = ("window", "pane", "weight", "event_time")
Batch = Literal["polars", "arrow"]
AnyNode = TypeVar("AnyNode", bound=Node)


class Flow:
    """A named job: what it reads, the steps, and what it writes.

    `log` is the address of its log, for `run` and for topics that are read with their own schema; default:
    MILLSTREAM_BROKER, else `.millstream` in the current folder.
    """

    def __init__(self, name: str, *, log: str | PathLike[str] | None = None) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r} is not a name for a flow", where=users_line(), next_step="use letters, digits and . _ -"
            )
        self.name = name
        self.log = None if log is None else fspath(log)
        self.outputs: list[Write] = []
        self._names: set[str] = set()
        self._sources: list[Any] = []
        self._sides: dict[tuple[Node, type[Node]], Node] = {}
        self._read_behind: dict[Node, Read] = {}

    def read(
        self,
        source: Any,
        schema: SchemaLike | None = None,
        event_time: str | None = None,
        watermark: Watermark | None = None,
        *,
        name: str | None = None,
        changes: bool = False,
        on_lost: str | None = None,
    ) -> Stream:
        """Reads the rows of a topic, or of another source such as `ms.files(…)` or a Spark DataFrame.

        A DataFrame has a schema of its own, and so has a topic that was created with one: it is looked up now, and the
        flow keeps it. Every other source needs `schema`. `watermark` is `ms.ascending()` by default.
        With `changes`, a column `weight` tells additions (+1) from retractions (-1). It is not part of the row, and
        neither is a column `event_time` that holds the event time.
        `on_lost` decides what happens if records of a topic were deleted before they were read: "error", or continue
        at the "earliest" or "latest" record that is left, with a warning about the gap.
        """
        source = frames.as_source(source)
        check_place(source, "read")
        source, on_lost = chosen_on_lost(source, on_lost)
        if schema is None:
            schema = self._schema_of(source)
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
        read = Read(step, columns, (), users_line(), source, event_time, strategy, changes, on_lost)
        return Stream(self, self._row_of(read) if changes else read)

    def _schema_of(self, source: Any) -> SchemaLike:
        """Of a source that brings its schema along."""
        if isinstance(source, frames.SparkFrame):
            return frames.schema_of(source)
        if isinstance(source, str | Kafka):
            return engine.schema_of_topic(source, self.log)
        raise refusal(f"no schema says what is in {called(source)}", "read(source, 'user string, at timestamp')")

    def _row_of(self, read: Read) -> Node:
        """The columns of a change that are the row's: one that takes a row back differs from it in the others."""
        apart = {"weight", "event_time"} if read.event_time == "event_time" else {"weight"}
        kept = [column for column in read.schema.names if column not in apart]
        if len(kept) == len(read.schema.names):
            return read
        if not kept:
            raise refusal(
                f"nothing of a row is left beside {' and '.join(read.schema.names)}", "name the columns of the rows too"
            )
        columns = Schema.from_arrow(pa.schema([read.schema.field(column) for column in kept]))
        made = tuple((column, Stream(self, read)._kept(column)) for column in kept)
        row = Project(self.step(None, f"{read.name}.row"), columns, (read,), read.place, made)
        self._read_behind[row] = read
        return row

    def named(self, node: AnyNode, kind: str, given: str | None) -> AnyNode:
        """The node under the user's name, or under one that follows from what it does and what it is fed by."""
        return replace(node, name=self.step(given, default_name(node, kind)))

    def step(self, given: str | None, default: str) -> str:
        """The step's name: the user's, or the default one, with a number where two are the same in all respects."""
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
        base = plain(default)
        name, count = base, 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def check(self) -> tuple[Write, ...]:
        """The outputs of the flow; raises an error if there are none."""
        if not self.outputs:
            raise refusal(f"the flow '{self.name}' writes nothing", "end a stream with .write('topic')")
        check_behind_sinks(self.outputs)
        return tuple(self.outputs)

    def explain(self, format: Format = "text", *, physical: bool = False) -> str:
        """The steps as text, as a Mermaid flowchart, or as an SVG drawing; with `physical`, as Spark executes them.

        As text, the physical plan follows the logical one; as a drawing, it replaces it.
        """
        logical = explained(self.name, self.check(), format)
        if not physical:
            return logical
        on_spark = str(engine.call(self, "explained", {"format": format}))
        return f"{logical}\n{on_spark}" if format == "text" else on_spark

    def table(self, rows: Any, schema: SchemaLike) -> Side:
        """A lookup table to join a stream with: static rows from files, a database table, or a list of dicts.

        They are read once, now, and do not change while the flow runs.
        """
        from millstream.plan.joining import Side

        return Side.of(self, rows, schema_of(schema))

    # ------------------------------------------------------------ running

    @takes(RunSettings)
    def run(self, settings: dict[str, Any]) -> Job:
        """Runs the flow as a job on Spark until Ctrl-C or SIGTERM, and returns the job once it has ended.

        `until="caught up"` stops once everything available at the start has been read. `batch=True` reads that as one
        batch and closes every window. The next run of a flow with the same name continues where this one stopped.
        """
        job: Job = engine.call(self, "run", self._placed(settings))
        return job

    @takes(Settings)
    def start(self, settings: dict[str, Any]) -> Job:
        """Starts the flow as `run` does and returns the job immediately: job.stop(), job.wait(), job.progress."""
        job: Job = engine.call(self, "start", self._placed(settings))
        return job

    @takes(ReplaySettings)
    def replay(self, settings: dict[str, Any]) -> Job:
        """Recomputes the results from history next to the running job: `into` another topic, `since` a time.

        It ends once it has caught up; with `follow=True` it keeps running. Then `millstream switch` moves readers over.
        """
        job: Job = engine.call(self, "replay", self._placed(settings))
        return job

    def _placed(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings if self.log is None else {"broker": self.log, **settings}


class Stream:
    """Rows that keep coming."""

    def __init__(self, flow: Flow, node: Node) -> None:
        self.flow = flow
        self.node = node

    @property
    def schema(self) -> Schema:
        return self.node.schema

    @property
    def is_table(self) -> bool:
        """Whether its rows are current until they are retracted, rather than events with a time of their own."""
        return self.node.is_table

    def explain(self, format: Format = "text") -> str:
        """The steps up to here as text, as a Mermaid flowchart, or as an SVG drawing."""
        return explained(self.flow.name, [self.node], format)

    def to_dataframe(self, **settings: Any) -> Any:
        """The stream as a streaming Spark DataFrame, to continue in PySpark; the query has its own checkpoint."""
        return engine.call(self, "dataframe", settings)

    # ------------------------------------------------------------ row by row

    def where(self, condition: str, *, name: str | None = None) -> Stream:
        """Keeps the rows for which the condition is true."""
        return self._where(condition, name, "where")

    def _where(self, condition: str, name: str | None, kind: str) -> Stream:
        checked = expression(condition, self.schema, boolean=True)
        return self._next(self.flow.named(Where("", self.schema, (self.node,), users_line(), checked), kind, name))

    def select(self, *columns: str, name: str | None = None, **made: str) -> Stream:
        """Keeps the named columns, and adds new ones given as name='expression'."""
        if not columns and not made:
            raise refusal("select needs at least one column", f"columns that exist: {', '.join(self.schema.names)}")
        kept = [(column_of(self.schema, column), self._kept(column)) for column in columns]
        return self._project(
            kept + [(new, expression(text, self.schema)) for new, text in made.items()], name, "select"
        )

    def with_column(self, column: str, made: str, *, name: str | None = None) -> Stream:
        """Adds a column, or replaces the one of that name."""
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
        return self._next(self.flow.named(Project("", columns, (self.node,), users_line(), tuple(made)), kind, name))

    def map(
        self,
        function: Callable[..., Any],
        schema: SchemaLike | None = None,
        *,
        batch: bool | Batch = False,
        name: str | None = None,
    ) -> Stream:
        """Calls a Python function with each row (a dict); it returns a row, or None to drop it.

        With `batch=True` or "polars" it takes and returns polars frames, with "arrow" pyarrow tables. A row for which
        it raises goes to `.dead`. `schema` describes the result, if it differs from the input.
        """
        return self._mapped(function, schema, batch, flat=False, name=name)

    def flat_map(
        self, function: Callable[..., Any], schema: SchemaLike | None = None, *, name: str | None = None
    ) -> Stream:
        """Calls a Python function with each row; it returns any number of rows."""
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
        made = MapRows("", columns, (self.node,), users_line(), function, bool(batch), flat, kind)
        return self._next(self.flow.named(made, verb, name))

    def split(self, branches: Mapping[str, str], *, rest: str | None = None) -> dict[str, Stream]:
        """Sends each row to the first branch whose condition is true, and the others to `rest`, if it is named."""
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
        """The rows of all streams; the watermark is the smallest of theirs."""
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
        made = self.flow.named(Union("", columns, inputs, users_line()), "union", name)
        return next((other._next(made) for other in others if other.is_table), self._next(made))

    # ------------------------------------------------------------ grouping

    def key_by(self, *columns: str) -> Keyed:
        """Rows with the same values in these columns belong together."""
        if not columns:
            raise refusal(
                "key_by needs a column",
                f"columns that exist: {', '.join(self.schema.names)}; without a key, leave it out",
            )
        check_keys(self.schema, columns, "key_by")
        for column in columns:
            if column.lower() in RESERVED:
                raise refusal(
                    f"a key cannot be named '{column}': panes have such a column", "give it another name with select(…)"
                )
        from millstream.plan.keyed import Keyed

        return Keyed(self, columns)

    def window(
        self,
        window: Window,
        *,
        allowed_lateness: str | timedelta = timedelta(0),
        timestamp: str = "end_of_window",
    ) -> Windowed:
        """A window over all rows together; see `Keyed.window`."""
        from millstream.plan.keyed import Keyed

        return Keyed(self, ()).window(window, allowed_lateness=allowed_lateness, timestamp=timestamp)

    # ------------------------------------------------------------ tables and joins

    def to_table(
        self, key: str | Sequence[str] | None = None, *, deleted: str | None = None, name: str | None = None
    ) -> Table:
        """The newest row of each key, by event time, or the last to arrive without one; without a key, all rows.

        A row deletes its key if the condition `deleted` is true; by default, if all other columns are null.
        """
        from millstream.plan.tables import to_table

        return to_table(self, key, deleted, name)

    def group_by(self, *columns: str) -> Grouping:
        """Groups rows without windows, by some columns or all together; `.agg(…)` of it is a table."""
        from millstream.plan.tables import Grouping

        return Grouping(self, columns)

    def distinct(self, *columns: str, within: str | timedelta | None = None, name: str | None = None) -> Stream:
        """Keeps the first of the rows that are equal in these columns, or in all; of a table, one while there is any.

        Rows of a stream whose event times are `within` or more apart do not count as equal.
        """
        from millstream.plan.tables import distinct

        return distinct(self, columns, within, name)

    def take(self, count: int, *, per: str | Sequence[str] = (), name: str | None = None) -> Stream:
        """The first rows of the stream, or the first of each key."""
        from millstream.plan.tables import take

        return take(self, count, per, name)

    def top(
        self,
        count: int,
        *,
        by: str | Sequence[str],
        per: str | Sequence[str] = (),
        rank: str | None = None,
        ties: bool = False,
        name: str | None = None,
    ) -> Table:
        """The first rows in an order such as "score desc", of each group if `per` is given, kept up to date.

        Nulls come last, and rows that are equal in the order are ordered by all their columns. `rank` names a column
        for the position, from 1. With `ties`, rows that are equal in the order share a position, and those equal to
        the last one are included.
        """
        from millstream.plan.tables import top

        return top(self, count, by, per, rank, ties, name)

    def join(
        self,
        other: Stream | Side,
        on: On,
        how: How = "inner",
        *,
        within: tuple[str | timedelta, str | timedelta] | None = None,
        as_of: AsOfWhen | None = None,
        allowed_lateness: str | timedelta = timedelta(0),
        suffix: str = "_right",
        name: str | None = None,
    ) -> Stream:
        """Joins rows that are equal in some columns: `on` names them, or maps own columns to the other side's.

        With a stream, `within` bounds this row's event time minus the other's, for example ("0 seconds", "1 hour").
        With a table, each row is joined with the table as of its event time, or as of now with `as_of="now"`. Two
        tables make a table that is kept up to date. With a lookup table, `flow.table(…)`, each row is joined by
        itself. `how` is inner, left, right, full, semi or anti. `suffix` is added to the names of the other side's
        columns that are taken.
        """
        from millstream.plan.joining import join

        return join(self, other, on, how, within, as_of, allowed_lateness, suffix, name)

    # ------------------------------------------------------------ the ends

    @property
    def late(self) -> Stream:
        """The rows that were too late for this stream's last step, with the reason."""
        columns = late_columns(self.node)
        if columns is not None:
            with AtUsersLine():
                return self._side(self.node, Late, "late", Schema.from_arrow(columns))
        raise refusal(
            f"the step '{self.node.name}' ({type(self.node).__name__.lower()}) has no late rows",
            "rows are late for windows, for joins of streams, for to_table(key=…) and for distinct(…, within=…): "
            "take .late right behind those",
        )

    @property
    def dead(self) -> Stream:
        """The rows that this stream's last step could not handle, with the reason."""
        node = self.flow._read_behind.get(self.node, self.node)
        if not isinstance(node, MapRows | Process | Read):
            raise refusal(
                f"the step '{self.node.name}' ({type(self.node).__name__.lower()}) has no dead letters",
                "rows die where bytes are decoded and in map, flat_map and process: take .dead right behind those; "
                "and in sinks: write(…).dead",
            )
        return self._side(node, Dead, "dead", DEAD_LETTER_SCHEMA)

    def _side(self, node: Node, kind: type[Node], suffix: str, schema: Schema) -> Stream:
        """A side output is one step, however often it is asked for."""
        found = self.flow._sides.get((node, kind))
        if found is None:
            step = self.flow.step(None, f"{node.name}.{suffix}")
            found = self.flow._sides[node, kind] = kind(step, schema, (node,), users_line())
        return self._next(found)

    def write(self, sink: Any, *, name: str | None = None, partitions: int | None = None) -> Written:
        """Writes the rows to a topic or another sink. `.dead` of the result has the rows that the sink refuses.

        A topic that does not exist is created with `partitions`; default: as many as the largest of the topics that
        feed it.
        """
        return self._write(sink, name, partitions)

    def _write(
        self, sink: Any, name: str | None, partitions: int | None, *, net: bool = False, keys: tuple[str, ...] = ()
    ) -> Written:
        check_place(sink, "write")
        check_partitions(sink, partitions)
        if isinstance(sink, Place):
            sink.check_written(self.schema)
        for other in self.flow.outputs:
            if same_place(other.sink, sink):
                raise refusal(
                    f"two streams are written to {called(sink)}, the other at {other.place}",
                    "write to another sink, or bring them together with union(…)",
                )
        if isinstance(sink, str) and sink in [source for source in self.flow._sources if isinstance(source, str)]:
            raise loop(sink)
        step = self.flow.step(name, f"write {called(sink)}")
        traced = isinstance(sink, DatabaseTable | Files | Kafka)
        made = Write(step, self.schema, (self.node,), users_line(), sink, net, keys, traced, partitions)
        self.flow.outputs.append(made)
        return Written(self, made)

    def _next(self, node: Node) -> Stream:
        if node.is_table:
            from millstream.plan.tables import Table

            return Table(self.flow, node)
        return Stream(self.flow, node)
