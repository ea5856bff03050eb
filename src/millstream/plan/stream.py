"""Streams and the steps on them. Each call validates its arguments and adds a node to the plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from millstream.expressions.column_texts import ColumnsLike, ExpressionLike
from millstream.expressions.expression import Expression, InDriver, expression
from millstream.plan.bad_rows import HAVE_DEAD_LETTERS, check_dead_letters
from millstream.plan.checks import (
    check_calls,
    check_function,
    check_keys,
    check_loop,
    check_partitions,
    refusal,
    schema_of,
    sink_of,
)
from millstream.plan.nodes import Dead, Late, MapAsync, MapRows, Node, Project, Where, Write
from millstream.plan.on_spark import engine
from millstream.plan.on_spark.driver_only import check_models
from millstream.plan.on_spark.needs_spark import SparkFunction, check_variants
from millstream.plan.shown.explain import Format, explained
from millstream.plan.shown.viewed import Viewed
from millstream.plan.steps.choosing import flat, selected, with_keys
from millstream.plan.steps.columns import kept, renamed, replaced, sampled, without
from millstream.plan.steps.headers import HEADERS, set_headers
from millstream.plan.steps.queueing import Queueing
from millstream.plan.steps.retries import Retry
from millstream.plan.steps.routing import Match, branches_of
from millstream.plan.steps.written_stream import Written
from millstream.plan.time.late import late_columns
from millstream.plan.time.watermarks import Watermark
from millstream.plan.time.windows import Window
from millstream.records import DEAD_LETTER_SCHEMA, Schema, SchemaLike
from millstream.user_lines import AtUsersLine, users_line

if TYPE_CHECKING:
    from millstream.plan.joins.joining import AsOfWhen, Side
    from millstream.plan.joins.keys import On
    from millstream.plan.patterns.recognize import Recognized
    from millstream.plan.steps.keyed import Keyed, Windowed
    from millstream.plan.table_nodes import How
    from millstream.plan.tables import Grouping, Table

RESERVED = ("window", "pane", "weight", "event_time")
Batch = Literal["polars", "pandas", "arrow"]
BATCHES = get_args(Batch)


class Stream(Queueing):
    """Rows that keep coming."""

    if not TYPE_CHECKING:  # for type checkers, a name that does not exist stays an error
        __getattr__ = Viewed._unknown

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
        return engine.call(self, "dataframe", self.flow._with_log(settings))

    # ------------------------------------------------------------ row by row

    def where(self, condition: ExpressionLike, *, name: str | None = None) -> Stream:
        """Keeps the rows for which the condition is true."""
        return self._where(condition, name, "where")

    def _where(self, condition: ExpressionLike, name: str | None, kind: str) -> Stream:
        checked = expression(condition, self.schema, boolean=True)
        return self._next(self.flow.named(Where("", self.schema, (self.node,), users_line(), checked), kind, name))

    def select(self, *columns: ColumnsLike, name: str | None = None, **made: ExpressionLike) -> Stream:
        """Keeps the named columns, "*" for all of them, and adds new ones given as name='expression'.

        Also as in PySpark: "data.*" for the fields of a struct, "data.user", "price * 2 as double", a Column. A
        function that makes rows and several columns names them itself: "posexplode(xs) as (place, x)".
        """
        if not columns and not made:
            raise refusal("select needs at least one column", f"columns that exist: {', '.join(self.schema.names)}")
        from millstream.plan.steps.generating import with_generated

        stream, chosen, made = with_generated(self, flat(columns), made)
        return stream._project(selected(stream.schema, chosen, made), name, "select")

    def with_column(self, column: str, made: ExpressionLike, *, name: str | None = None) -> Stream:
        """Adds a column, or replaces the one of that name."""
        return self._project(replaced(self.schema, {column: made}, "with_column"), name, "with_column")

    def with_columns(
        self, columns: Mapping[str, ExpressionLike] | None = None, *, name: str | None = None, **made: ExpressionLike
    ) -> Stream:
        """Adds or replaces columns, given as name='expression' or as a dict.

        Every expression sees the columns as they were before.
        """
        return self._project(replaced(self.schema, {**(columns or {}), **made}, "with_columns"), name, "with_columns")

    def with_headers(self, headers: Mapping[str, str] | None = None, *, name: str | None = None, **set: str) -> Stream:
        """Sets headers of records, given as name='expression' or as a dict; one that is null is removed.

        They are the column `headers`, which `write(ms.topic(…, headers="headers"))` writes as headers.
        """
        return self.with_column(HEADERS, set_headers(self.schema, {**(headers or {}), **set}), name=name)

    def drop(self, *columns: ColumnsLike, name: str | None = None) -> Stream:
        """Removes columns."""
        return self._project(without(self.schema, flat(columns)), name, "drop")

    def rename(self, columns: Mapping[str, str] | None = None, *, name: str | None = None, **renames: str) -> Stream:
        """Renames columns, given as old='new' or as a dict; the others stay as they are.

        `name` is the name of the step: a column called name is renamed with a dict.
        """
        return self._project(renamed(self.schema, {**(columns or {}), **renames}), name, "rename")

    def sample(self, fraction: float, *, by: ColumnsLike = (), seed: int = 0, name: str | None = None) -> Stream:
        """Keeps about this fraction of the rows, chosen by a hash of their values: the same ones in every run.

        With `by`, rows that are equal in these columns are kept or dropped together, for example all of a user. By
        default the hash uses every column that is a string, a whole number, a decimal, a boolean, a date or a
        timestamp. Another `seed` chooses other rows.
        """
        return self._where(sampled(self.schema, fraction, flat([by]), seed), name, "sample")

    def _kept(self, column: str) -> Expression:
        return kept(self.schema, column)

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

        With `batch=True` or "polars" it takes and returns polars frames, with "pandas" pandas frames, with "arrow"
        pyarrow tables. A row for which it raises goes to `.dead`. `schema` describes the result, if it differs from
        the input.
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
        check_models(verb, function)
        if not callable(function):
            hint = "for a Spark SQL expression, use select(…) or with_column(…)" if isinstance(function, str) else None
            raise refusal(f"{verb} takes a function, not {function!r}", hint or f"for example {verb}(lambda row: …)")
        if inspect.iscoroutinefunction(function):
            raise refusal(
                f"{verb} takes a synchronous function, but this one is async", "use map_async(function, schema)"
            )
        if batch not in (True, False, *BATCHES):
            raise refusal(f"batch is True, False, 'polars', 'pandas' or 'arrow', not {batch!r}", "True means 'polars'")
        columns = self.schema if schema is None else schema_of(schema)
        kind = batch if isinstance(batch, str) else "polars"
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

    def with_event_time(
        self, event_time: ExpressionLike, watermark: Watermark | None = None, *, name: str | None = None
    ) -> Stream:
        """Sets the event time of the rows, after parsing: a column, or an expression such as "timestamp_millis(ts)".

        The watermark of each source partition follows the rows of that partition after this step; it is
        `ms.ascending()` by default. It is set once, before steps that keep state.
        """
        from millstream.plan.time.timing import with_event_time

        return self._next(with_event_time(self, event_time, watermark, name))

    def map_async(
        self,
        function: Callable[..., Any],
        schema: SchemaLike | None = None,
        *,
        concurrency: int = 16,
        timeout: str | timedelta | None = "30 seconds",
        retries: int = 2,
        ordered: bool = True,
        name: str | None = None,
    ) -> Stream:
        """Calls a function that waits for another system with each row, for many rows at the same time.

        An async function runs in an event loop, a plain one in threads. It returns a row, or None to drop it. A call
        that takes longer than `timeout` or raises is repeated up to `retries` times; then the row goes to `.dead`.
        With `ordered=False` results come as they are ready. `schema` describes the result, if it differs from the
        input.
        """
        columns = self.schema if schema is None else schema_of(schema)
        limit = check_calls(function, concurrency, timeout, retries, ordered)
        made = MapAsync("", columns, (self.node,), users_line(), function, concurrency, limit, retries, ordered)
        return self._next(self.flow.named(made, "map_async", name))

    def parse(
        self,
        column: ExpressionLike,
        schema: SchemaLike | None = None,
        *,
        format: str = "json",
        name: str | None = None,
        **options: Any,
    ) -> Stream:
        """Replaces a column with the columns that are encoded in it; a value that cannot be read goes to `.dead`.

        `format` is json, csv (with `delimiter`), avro (with `avro_schema`), protobuf (with `message`, `descriptors` or
        both) or regex, also called grok (with `pattern`, whose named groups are the columns; `%{NUMBER:latency}` and
        `%{NUMBER:latency:double}` are groups with a known pattern). The columns of a null are null.
        """
        from millstream.plan.steps.parsing import parse

        return parse(self, column, schema, format, options, name)

    def split(self, branches: Mapping[str, ExpressionLike], *, rest: str | None = None) -> dict[str, Stream]:
        """Sends each row to the first branch whose condition is true, and the others to `rest`, if it is named."""
        return branches_of(self, "split", branches, rest, "first")

    def route(
        self, *, match: Match = "first", rest: str | None = None, **branches: ExpressionLike
    ) -> dict[str, Stream]:
        """Sends each row to the first branch whose condition is true, or with match="all" to every such branch.

        The others go to `rest`, if it is named.
        """
        return branches_of(self, "route", branches, rest, match)

    def union(self, *others: Stream, missing: bool = False, name: str | None = None) -> Stream:
        """The rows of all streams, with columns matched by name; the watermark is the smallest of theirs.

        With `missing`, a column that one of them lacks is null in its rows.
        """
        from millstream.plan.steps.columns import union

        return union(self, others, missing, name)

    # ------------------------------------------------------------ grouping

    def key_by(self, *columns: ColumnsLike, **made: ExpressionLike) -> Keyed:
        """Rows with the same values in these columns belong together; without columns, all rows do.

        A key may be made: key_by("user", day="to_date(at)").
        """
        stream, keys = with_keys(self, columns, made, "key_by")
        check_keys(stream.schema, keys, "key_by")
        for column in keys:
            if column.lower() in RESERVED:
                raise refusal(
                    f"a key cannot be named '{column}': panes have a column of that name", "rename it with select(…)"
                )
        from millstream.plan.steps.keyed import Keyed

        return Keyed(stream, keys)

    def match_recognize(self, text: str, *, name: str | None = None) -> Recognized:
        """Finds sequences of rows with SQL's MATCH_RECOGNIZE: the clauses between its parentheses, as text.

        With ONE ROW PER MATCH, the columns are those of PARTITION BY and MEASURES; with ALL ROWS PER MATCH, those of
        the stream and of MEASURES.
        """
        from millstream.plan.patterns.recognize import recognize

        return recognize(self, text, name)

    def window(
        self,
        window: Window,
        *,
        allowed_lateness: str | timedelta = timedelta(0),
        timestamp: str = "end_of_window",
    ) -> Windowed:
        """A window over all rows together; see `Keyed.window`."""
        from millstream.plan.steps.keyed import Keyed

        return Keyed(self, ()).window(window, allowed_lateness=allowed_lateness, timestamp=timestamp)

    # ------------------------------------------------------------ tables and joins

    def to_table(
        self,
        key: ColumnsLike | None = None,
        *,
        deleted: ExpressionLike | None = None,
        forget_deleted_after: str | timedelta | None = None,
        name: str | None = None,
    ) -> Table:
        """The newest row of each key, by event time, or the last to arrive without one; without a key, all rows.

        A row deletes its key if the condition `deleted` is true; by default, if all other columns are null. A deleted
        key is remembered, so that an older row cannot bring it back, forever or for a time after the watermark.
        """
        from millstream.plan.tables import to_table

        return to_table(self, key, deleted, forget_deleted_after, name)

    def group_by(self, *columns: ColumnsLike, **made: ExpressionLike) -> Grouping:
        """Groups rows without windows, by some columns or all together; `.agg(…)` of it is a table.

        A column may be made: group_by("user", day="to_date(at)").
        """
        from millstream.plan.tables import Grouping

        return Grouping(*with_keys(self, columns, made, "group_by"))

    def distinct(self, *columns: ColumnsLike, within: str | timedelta | None = None, name: str | None = None) -> Stream:
        """Removes duplicates: keeps the first row for each combination of these columns, or of all columns.

        Of a table, it keeps one row as long as there is any. With `within`, rows of a stream whose event times are that
        far apart, or further, are not duplicates.
        """
        from millstream.plan.tables import distinct

        return distinct(self, flat(columns), within, name)

    def take(self, count: int, *, per: ColumnsLike = (), name: str | None = None) -> Stream:
        """The first rows of the stream, or the first of each key."""
        from millstream.plan.tables import take

        return take(self, count, per, name)

    def top(
        self,
        count: int,
        *,
        by: str | Sequence[str],
        per: ColumnsLike = (),
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
        condition: ExpressionLike | None = None,
        name: str | None = None,
    ) -> Stream:
        """Joins rows that are equal in some columns: `on` names them, or maps own columns to the other side's.

        With a stream, `within` bounds this row's event time minus the other's, for example ("0 seconds", "1 hour").
        With a table, each row is joined with the table as of its event time, or as of now with `as_of="now"`. Two
        tables make a table that is kept up to date. With a lookup table, `flow.table(…)`, each row is joined by
        itself. `how` is inner, left, right, full, semi or anti. `suffix` is added to the names of the other side's
        columns that are taken. A row also matches only if `condition` is true, such as "price <= budget", over the
        columns of both sides under their names in the result.
        """
        from millstream.plan.joins.joining import join

        return join(self, other, on, how, within, as_of, allowed_lateness, suffix, condition, name)

    # ------------------------------------------------------------ outputs

    @property
    def late(self) -> Stream:
        """The rows that arrived too late for this stream's last step, with the reason."""
        node = self.flow._behind.get(self.node, self.node)
        columns = late_columns(node)
        if columns is not None:
            with AtUsersLine():
                return self._side(node, Late, "late", Schema.from_arrow(columns))
        raise refusal(
            f"the step '{self.node.name}' ({type(self.node).__name__.lower()}) has no late rows",
            "rows are late for windows, for joins of streams, for to_table(key=…), for distinct(…, within=…) and for "
            "process(…, order='event_time'): use .late directly after those",
        )

    @property
    def dead(self) -> Stream:
        """The rows that this stream's last step could not handle, with the reason."""
        node = self.flow._behind.get(self.node, self.node)
        if not isinstance(node, HAVE_DEAD_LETTERS):
            raise refusal(
                f"the step '{self.node.name}' ({type(self.node).__name__.lower()}) has no dead letters",
                "reading encoded records, where, select, spark, map, flat_map, map_async, parse and process have dead "
                "letters: use .dead directly after those; so do sinks: write(…).dead",
            )
        check_dead_letters(node)
        return self._side(node, Dead, "dead", DEAD_LETTER_SCHEMA)

    def _side(self, node: Node, kind: type[Node], suffix: str, schema: Schema) -> Stream:
        """A side output is a single step, however often it is used."""
        found = self.flow._sides.get((node, kind))
        if found is None:
            step = self.flow.step(None, f"{node.name}.{suffix}")
            found = self.flow._sides[node, kind] = kind(step, schema, (node,), users_line())
        return self._next(found)

    def write(
        self, sink: Any, *, name: str | None = None, partitions: int | None = None, retry: Retry | None = None
    ) -> Written:
        """Writes the rows to a topic or another sink. `.dead` of the result has the rows that the sink rejects.

        A topic that does not exist is created with `partitions`; default: as many as the largest input topic has.
        `retry` limits how long a job tries to write to a sink that is unavailable: `ms.retry(at_most="10 minutes")`.
        """
        return self._write(sink, name, partitions, retry)

    def _write(
        self,
        sink: Any,
        name: str | None,
        partitions: int | None,
        retry: Retry | None,
        *,
        net: bool = False,
        keys: tuple[str, ...] = (),
    ) -> Written:
        sink = sink_of(sink, self.schema, keys)
        check_partitions(sink, partitions)
        if retry is not None and not isinstance(retry, Retry):
            raise refusal(f"{retry!r} is not a retry policy", "for example retry=ms.retry(at_most='10 minutes')")
        for other in self.flow.outputs:
            if other.sink.target == sink.target:
                raise refusal(
                    f"two streams write to {sink.name}, the other one at {other.user_line}",
                    "write to another sink, or combine them with union(…)",
                )
        check_loop(self.flow._sources, [sink])
        step = self.flow.step(name, f"write {sink.name}")
        line, traced = users_line(), sink.refuses_rows
        made = Write(step, self.schema, (self.node,), line, sink, net, keys, traced, partitions, retry)
        check_variants(made)
        self.flow.outputs.append(made)
        return Written(self, made)

    def _next(self, node: Node) -> Stream:
        if node.is_table:
            from millstream.plan.tables import Table

            return Table(self.flow, node)
        return Stream(self.flow, node)
