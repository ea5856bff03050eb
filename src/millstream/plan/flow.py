"""The user API: a flow, what it reads, and how it is run. Streams and their steps are in stream.py.

A mistake raises in the call that makes it, with the user's line, the valid choices, and the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.expressions.column_texts import ExpressionLike
from millstream.plan.checks import (
    NAME,
    check_loop,
    check_looped,
    chosen_on_lost,
    refusal,
    schema_of,
    source_of,
    with_format,
)
from millstream.plan.endpoints import Endpoint, TableSource
from millstream.plan.naming import default_name, plain
from millstream.plan.nodes import (
    Node,
    Project,
    Read,
    WithEventTime,
    Write,
)
from millstream.plan.on_spark import engine
from millstream.plan.on_spark.needs_spark import check_variants, computed_before
from millstream.plan.run_settings import ReplaySettings, RunSettings, Settings, takes
from millstream.plan.shown.explain import Format, explained
from millstream.plan.shown.html import drawing, note, page, schema_table
from millstream.plan.shown.viewed import previewed_rows
from millstream.plan.steps.asks import Ask, ask, of_requests
from millstream.plan.steps.headers import with_headers_column
from millstream.plan.steps.inner_queues import in_job
from millstream.plan.steps.written_stream import check_behind_sinks
from millstream.plan.stream import Stream
from millstream.plan.time.timing import checked_watermark, event_time_of, with_event_time
from millstream.plan.time.watermarks import Watermark, ascending
from millstream.plan.walking import in_order
from millstream.records import Schema, SchemaLike
from millstream.user_lines import users_line

if TYPE_CHECKING:
    from millstream.jobs.job import Job
    from millstream.plan.joins.joining import Side
    from millstream.plan.tables import Table

KEPT_TABLE_IDLE = "5 seconds"
AnyNode = TypeVar("AnyNode", bound=Node)


class Flow:
    """A named job: its sources, steps and sinks.

    `log` is the address of its log, for `run` and for topics that are read with their own schema; default:
    MILLSTREAM_BROKER, else `.millstream` in the current folder.
    """

    def __init__(self, name: str, *, log: str | PathLike[str] | None = None) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r} is not a valid name for a flow",
                where=users_line(),
                next_step="use letters, digits and . _ -",
            )
        self.name = name
        self.log = None if log is None else fspath(log)
        self.outputs: list[Write] = []
        self._names: set[str] = set()
        self._sources: list[Endpoint] = []
        self._sides: dict[tuple[Node, type[Node]], Node] = {}
        self.previews: dict[Node, Any] = {}
        """By step, the rows of its last preview, which notebooks show."""
        self._behind: dict[Node, Node] = {}
        """By step that a user did not write, the one before it: `.late` and `.dead` are those of the latter."""
        self.timed_sources: dict[Read, WithEventTime] = {}
        """By source, the step after it that sets the event time of its rows."""
        self.asks: dict[str, Ask] = {}
        """By name, the questions that callers may ask."""
        self.queues: dict[str, Endpoint] = {}
        """By step, the queues inside the flow."""
        self._in_job: tuple[tuple[Write, ...], tuple[Write, ...]] = ((), ())
        """The outputs, and how a job has them with queues."""
        self.requests: set[Node] = set()
        """The steps whose rows belong to requests of callers."""
        self.answers: dict[Node, tuple[Node, Node]] = {}
        """By the step that collects the answers of a question: its requests, and the rows that answer them."""

    def read(
        self,
        source: Any,
        schema: SchemaLike | None = None,
        event_time: ExpressionLike | None = None,
        watermark: Watermark | None = None,
        *,
        name: str | None = None,
        changes: bool = False,
        on_lost: str | None = None,
        format: str | None = None,
        loop: bool = False,
        headers: bool = False,
    ) -> Stream:
        """Reads the rows of a topic, or of another source such as `ms.files(…)` or a Spark DataFrame.

        Several topics are given as a list of names, or by a pattern: `ms.topics("orders[.].*")`.

        A DataFrame knows its schema, and so does a topic that was created with one: it is looked up once, now.
        Every other source needs `schema`. `event_time` is a timestamp column, or an expression such as
        "timestamp_millis(ts)". `watermark` is `ms.ascending()` by default.
        With `changes`, a column `weight` marks additions (+1) and retractions (-1). It is not part of the row, and
        neither is an event time column named `event_time`.
        `on_lost` decides what happens if records of a topic were deleted before they were read: "error", or continue
        at the "earliest" or "latest" record that is left, with a warning about the gap.
        `format` is how the values of a topic without a schema are encoded: json (default), avro, protobuf, csv, string
        or bytes.
        With `loop`, the flow may also write this topic: what it writes in a batch, it reads in the next one.
        With `headers`, the headers of a topic's records are a column `headers`, from names to bytes.
        """
        source, on_lost = chosen_on_lost(with_format(source_of(source), format), on_lost)
        columns = schema_of(engine.own_schema(source, self.log) if schema is None else schema)
        if headers:
            columns = with_headers_column(source, columns)
        source.check_columns(columns)
        strategy = checked_watermark(watermark, columns)
        if event_time is None and watermark is not None:
            raise refusal("a watermark needs event_time", "set it with event_time='…'")
        moment = None if event_time is None else event_time_of(event_time, columns)
        is_computed = moment is not None and moment.column is None
        if loop:
            check_looped(source)
        else:
            check_loop([source], [write.sink for write in self.outputs])
            self._sources.append(source)
        step = self.step(name, f"read {source.name}")
        column = None if moment is None else moment.column
        followed = strategy if column else None
        read = Read(step, columns, (), users_line(), source, column, followed, changes, on_lost, loop)
        node: Node = self._row_of(read) if changes else read
        if is_computed:
            node = with_event_time(Stream(self, node), event_time, watermark, None)
            self._behind[node] = read
        return Stream(self, node)

    def ask(self, name: str, schema: SchemaLike, function: Callable[[Stream], Stream]) -> Ask:
        """Answers requests of callers: `flow.ask("reach", "url string", function)`; `ms.client(…)` calls it.

        The function gets the requests as a stream, with the columns of the schema and `request`, the id of a request.
        It returns the rows of the answers, which still have the column `request`. Requests may be filtered, mapped,
        joined with tables as of now, and aggregated per request: a request is answered in the batch that reads it.
        """
        return ask(self, name, schema, function)

    def _row_of(self, read: Read) -> Node:
        """The columns of a change that belong to the row: a retraction differs from its row in the others."""
        apart = {"weight", "event_time"} if read.event_time == "event_time" else {"weight"}
        kept = [column for column in read.schema.names if column not in apart]
        if len(kept) == len(read.schema.names):
            return read
        if not kept:
            raise refusal(
                f"there are no columns besides {' and '.join(read.schema.names)}",
                "add the columns of the rows to the schema",
            )
        columns = Schema.from_arrow(pa.schema([read.schema.field(column) for column in kept]))
        made = tuple((column, Stream(self, read)._kept(column)) for column in kept)
        row = Project(self.step(None, f"{read.name}.row"), columns, (read,), read.user_line, made)
        self._behind[row] = read
        return row

    def named(self, node: AnyNode, kind: str, given: str | None) -> AnyNode:
        """The node under the user's name, or under a default derived from its definition and inputs."""
        node = computed_before(node, lambda before: self.named(before, f"{kind} arguments", None))
        check_variants(node)
        is_of_requests = not self.requests.isdisjoint(node.inputs)
        if is_of_requests:
            node = of_requests(node, self.requests)
        made = replace(node, name=self.step(given, default_name(node, kind)))
        if is_of_requests:
            self.requests.add(made)
        return made

    def step(self, given: str | None, default: str) -> str:
        """The step's name: the user's, or the default, with a number if two steps are identical."""
        if given is not None:
            if not isinstance(given, str) or not NAME.fullmatch(given):
                raise refusal(
                    f"{given!r} is not a valid name for a step",
                    f"use letters, digits and . _ -; for a column called name, write '{given} as name'",
                )
            if given in self._names:
                raise refusal(
                    f"there are two steps named '{given}'",
                    f"state is stored under the step's name: choose another. Taken: {', '.join(sorted(self._names))}",
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
            raise refusal(f"the flow '{self.name}' has no output", "end a stream with .write('topic')")
        check_behind_sinks(self.outputs)
        for node in in_order(self.outputs):
            node.check_in_job()
        if not self.queues:
            return tuple(self.outputs)
        if self._in_job[0] != tuple(self.outputs):
            self._in_job = tuple(self.outputs), in_job(self.outputs, self.queues)
        return self._in_job[1]

    def check_at_once(self) -> tuple[Write, ...]:
        """The outputs of a run beside the job, which reads everything at once: rows pass through queues."""
        self.check()
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

    @overload
    def table(self, rows: TableSource) -> Table: ...

    @overload
    def table(self, rows: Any, schema: SchemaLike | None = None) -> Side: ...

    def table(self, rows: Any, schema: SchemaLike | None = None) -> Side | Table:
        """A lookup table to join a stream with: static rows from files, a database table, a list of dicts, or a frame.

        They are read once, now, and do not change while the flow runs. A frame (Spark, polars, pandas, pyarrow) has a
        schema of its own; everything else needs `schema`. Of a source that captures changes, such as
        `ms.sqlite_changes(…)`, it is a table that is kept up to date.
        """
        from millstream.plan.joins.joining import Side

        if isinstance(rows, TableSource):
            return self._kept_table(rows, schema)
        return Side.of(self, rows, None if schema is None else schema_of(schema))

    def _kept_table(self, source: TableSource, schema: SchemaLike | None) -> Table:
        """A quiet database does not hold back the streams that are joined with its table."""
        if schema is not None:
            raise refusal(f"{source} knows its columns", "remove schema=")
        from millstream.plan.captured_rows import captured_rows

        found = source.as_table(self.log)
        rows = self.read(found.source, found.schema, found.event_time, ascending(idle=KEPT_TABLE_IDLE))
        own = [column for column in found.schema.names if column not in found.apart]
        kept = captured_rows(rows, found.key, found.deleted, found.emptied, found.places).select(*own)
        return cast("Table", kept)

    def _repr_html_(self) -> str:
        """In a notebook: the plan, the columns of each output, and the rows of its last preview."""
        if not self.outputs:
            return page(f"flow {self.name}", [note("no output yet: end a stream with .write('topic')")])
        parts = [drawing(explained(self.name, self.outputs, "svg"))]
        for output in self.outputs:
            parts.append(schema_table(output.schema, output.name))
            parts += previewed_rows(self, output.inputs[0])
        return page(f"flow {self.name}", parts)

    # ------------------------------------------------------------ running

    @takes(RunSettings)
    def run(self, settings: dict[str, Any]) -> Job:
        """Runs the flow as a job on Spark until Ctrl-C or SIGTERM, and returns the job once it has ended.

        `until="caught up"` stops once everything available at the start has been read. `batch=True` reads that as one
        batch and closes every window. The next run of a flow with the same name continues where this one stopped.
        """
        job: Job = engine.call(self, "run", self._with_log(settings))
        return job

    @takes(Settings)
    def start(self, settings: dict[str, Any]) -> Job:
        """Starts the flow as `run` does and returns the job immediately: job.stop(), job.wait(), job.progress."""
        job: Job = engine.call(self, "start", self._with_log(settings))
        return job

    @takes(ReplaySettings)
    def replay(self, settings: dict[str, Any]) -> Job:
        """Recomputes the results from history next to the running job: `into` another topic, `since` a time.

        It ends once it has caught up; with `follow=True` it keeps running. Then `millstream switch` moves readers over.
        """
        job: Job = engine.call(self, "replay", self._with_log(settings))
        return job

    def _with_log(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings if self.log is None else {"broker": self.log, **settings}
