"""Streams and the steps on them. Each call validates its arguments and adds a node to the plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from millstream.expressions.expression import Expression, InDriver, expression
from millstream.plan import engine
from millstream.plan.checks import (
    NAME,
    and_none,
    check_function,
    check_keys,
    check_loop,
    check_partitions,
    column_of,
    differences,
    refusal,
    schema_of,
    sink_of,
)
from millstream.plan.explain import Format, explained
from millstream.plan.late import late_columns
from millstream.plan.needs_spark import SparkFunction, kept_column
from millstream.plan.nodes import (
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
from millstream.plan.windows import Window
from millstream.plan.written_stream import Written
from millstream.records import DEAD_LETTER_SCHEMA, Schema, SchemaLike
from millstream.user_lines import AtUsersLine, users_line

if TYPE_CHECKING:
    from millstream.plan.flow import Flow
    from millstream.plan.joining import AsOfWhen, On, Side
    from millstream.plan.keyed import Keyed, Windowed
    from millstream.plan.table_nodes import How
    from millstream.plan.tables import Grouping, Table

RESERVED = ("window", "pane", "weight", "event_time")
Batch = Literal["polars", "arrow"]


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
            raise refusal(f"a column name is a string, not {column!r}", "with_column('name', 'expression')")
        value = expression(made, self.schema)
        columns = {known.lower(): (known, self._kept(known)) for known in self.schema.names}
        columns[column.lower()] = (column, value)
        return self._project(list(columns.values()), name, "with_column")

    def _kept(self, column: str) -> Expression:
        return kept_column(self.schema, column)

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
            hint = "for a Spark SQL expression, use select(…) or with_column(…)" if isinstance(function, str) else None
            raise refusal(f"{verb} takes a function, not {function!r}", hint or f"for example {verb}(lambda row: …)")
        if inspect.iscoroutinefunction(function):
            raise refusal(
                f"{verb} takes a synchronous function, but this one is async", "call asyncio.run(…) inside it"
            )
        if batch not in (True, False, "polars", "arrow"):
            raise refusal(f"batch is True, False, 'polars' or 'arrow', not {batch!r}", "True means 'polars'")
        columns = self.schema if schema is None else schema_of(schema)
        kind = "arrow" if batch == "arrow" else "polars"
        made = MapRows("", columns, (self.node,), users_line(), function, bool(batch), flat, kind)
        return self._next(self.flow.named(made, verb, name))

    def spark(self, function: Callable[[Any], Any], *, name: str | None = None) -> Stream:
        """Calls a function with the stream as a Spark DataFrame; it returns another one: `df.select(…)`, `df.where(…)`.

        It keeps no state: each row of the result comes from one row. It runs in Spark's own engine.
        """
        check_function("spark", function, ("df",), "for example spark(lambda df: df.select('*'))")
        columns = engine.result_schema(function, self.schema)
        called = getattr(function, "__name__", "function")
        made = SparkFunction("", columns, (self.node,), users_line(), called, InDriver(function))
        return self._next(self.flow.named(made, "spark", name))

    def split(self, branches: Mapping[str, str], *, rest: str | None = None) -> dict[str, Stream]:
        """Sends each row to the first branch whose condition is true, and the others to `rest`, if it is named."""
        if not isinstance(branches, Mapping) or not branches:
            raise refusal("split takes branches by name", "for example split({'big': 'n > 100'}, rest='small')")
        for branch in (*branches, *([] if rest is None else [rest])):
            if not isinstance(branch, str) or not NAME.fullmatch(branch):
                raise refusal(f"{branch!r} is not a valid name for a branch", "use letters, digits and . _ -")
        if rest in branches:
            raise refusal(f"there are two branches named '{rest}'", f"taken: {', '.join(branches)}")
        for condition in branches.values():
            if expression(condition, self.schema, boolean=True).native is not None:
                raise refusal("split takes conditions as text, not Columns", "write them as Spark SQL, or use where(…)")
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
            raise refusal("union needs at least two streams", "a.union(b)")
        for other in others:
            if not isinstance(other, Stream):
                raise refusal(f"union takes streams, not {other!r}", "a.union(b)")
            if other.flow is not self.flow:
                raise refusal(
                    f"union needs streams of one flow, but these are of '{self.flow.name}' and '{other.flow.name}'",
                    "read both in one flow, or write a topic in one and read it in the other",
                )
            if differing := differences(self.schema, other.schema):
                raise refusal(
                    f"union needs streams with the same columns: {differing}", "use select(…) to make them equal"
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
                "key_by needs at least one column",
                f"columns that exist: {', '.join(self.schema.names)}; to use no key, remove key_by",
            )
        check_keys(self.schema, columns, "key_by")
        for column in columns:
            if column.lower() in RESERVED:
                raise refusal(
                    f"a key cannot be named '{column}': panes have a column of that name", "rename it with select(…)"
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
        """Removes duplicates: keeps the first row for each combination of these columns, or of all columns.

        Of a table, it keeps one row as long as there is any. With `within`, rows of a stream whose event times are that
        far apart, or further, are not duplicates.
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

    # ------------------------------------------------------------ outputs

    @property
    def late(self) -> Stream:
        """The rows that arrived too late for this stream's last step, with the reason."""
        columns = late_columns(self.node)
        if columns is not None:
            with AtUsersLine():
                return self._side(self.node, Late, "late", Schema.from_arrow(columns))
        raise refusal(
            f"the step '{self.node.name}' ({type(self.node).__name__.lower()}) has no late rows",
            "rows are late for windows, for joins of streams, for to_table(key=…) and for distinct(…, within=…): "
            "use .late directly after those",
        )

    @property
    def dead(self) -> Stream:
        """The rows that this stream's last step could not handle, with the reason."""
        node = self.flow._read_behind.get(self.node, self.node)
        if not isinstance(node, MapRows | Process | Read):
            raise refusal(
                f"the step '{self.node.name}' ({type(self.node).__name__.lower()}) has no dead letters",
                "reading encoded records, map, flat_map and process have dead letters: use .dead directly after those; "
                "so do sinks: write(…).dead",
            )
        return self._side(node, Dead, "dead", DEAD_LETTER_SCHEMA)

    def _side(self, node: Node, kind: type[Node], suffix: str, schema: Schema) -> Stream:
        """A side output is a single step, however often it is used."""
        found = self.flow._sides.get((node, kind))
        if found is None:
            step = self.flow.step(None, f"{node.name}.{suffix}")
            found = self.flow._sides[node, kind] = kind(step, schema, (node,), users_line())
        return self._next(found)

    def write(self, sink: Any, *, name: str | None = None, partitions: int | None = None) -> Written:
        """Writes the rows to a topic or another sink. `.dead` of the result has the rows that the sink rejects.

        A topic that does not exist is created with `partitions`; default: as many as the largest input topic has.
        """
        return self._write(sink, name, partitions)

    def _write(
        self, sink: Any, name: str | None, partitions: int | None, *, net: bool = False, keys: tuple[str, ...] = ()
    ) -> Written:
        sink = sink_of(sink, self.schema, keys)
        check_partitions(sink, partitions)
        for other in self.flow.outputs:
            if other.sink.target == sink.target:
                raise refusal(
                    f"two streams write to {sink.name}, the other one at {other.user_line}",
                    "write to another sink, or combine them with union(…)",
                )
        check_loop(self.flow._sources, [sink])
        step = self.flow.step(name, f"write {sink.name}")
        made = Write(step, self.schema, (self.node,), users_line(), sink, net, keys, sink.refuses_rows, partitions)
        self.flow.outputs.append(made)
        return Written(self, made)

    def _next(self, node: Node) -> Stream:
        if node.is_table:
            from millstream.plan.tables import Table

            return Table(self.flow, node)
        return Stream(self.flow, node)
