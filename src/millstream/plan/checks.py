"""Validation of flow calls: each error has the user's line, the valid choices, and the next step."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import InvalidAggregate, InvalidPlan, InvalidWindow
from millstream.expressions.expression import Expression, expression
from millstream.expressions.lowered import type_name
from millstream.expressions.spark_types import family, instead_of
from millstream.plan.aggregates.basic import Aggregate
from millstream.plan.endpoints import LOST_CHOICES, VALUE_FORMATS, Endpoint
from millstream.plan.nodes import INSTANT, Node, PaneTime, Process, Read, RowOrder, WindowedAggregate, WithEventTime
from millstream.plan.on_spark import engine
from millstream.plan.on_spark import spark_frames as frames
from millstream.plan.on_spark.driver_only import check_models
from millstream.plan.table_nodes import Latest, LookupJoin
from millstream.plan.time.windows import ClosedBy, DeltaWindow, Everything, Window
from millstream.plan.walking import derived
from millstream.records import Schema, SchemaLike, duration
from millstream.records.variants import VARIANT
from millstream.user_lines import AtUsersLine, users_line, what_exists

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

NOT_KEYS = ("map", "array", "struct", "interval")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def refusal(what: str, next_step: str | None) -> InvalidPlan:
    return InvalidPlan(what, where=users_line(), next_step=next_step)


def schema_of(schema: SchemaLike) -> Schema:
    with AtUsersLine():
        return Schema.of(schema)


def column_of(schema: Schema, name: object) -> str:
    if not isinstance(name, str) or name not in schema.names:
        hint = "; define a new one with name='expression'" if isinstance(name, str) and not name.isidentifier() else ""
        raise refusal(f"there is no column {name!r}", what_exists(name, schema.names) + hint)
    return str(name)


def check_keys(schema: Schema, columns: Sequence[str], what: str) -> None:
    """Requires columns that exist, each named once, of comparable types."""
    for column in columns:
        column_of(schema, column)
        check_key_type(column, schema.field(column).type)
    if len(set(columns)) < len(columns):
        raise refusal(f"duplicate column in {what}: {', '.join(columns)}", "name each once")


def check_key_type(written: str, kind: pa.DataType) -> None:
    if family(kind) in NOT_KEYS:
        hint = "use one of its fields: with_column('start', 'window.start')" if written == "window" else None
        if kind == VARIANT:
            hint = instead_of("variant", written)
        raise refusal(
            f"'{written}' is {type_name(kind)}, which cannot be a key",
            hint or "convert it to a string or a number, or use one of its fields, with with_column(…)",
        )


def source_of(given: Any) -> Endpoint:
    """The user's source as an endpoint."""
    source = _endpoint(frames.as_source(given), "read")
    source.check_read()
    return source


def sink_of(given: Any, schema: Schema, key: tuple[str, ...]) -> Endpoint:
    """The user's sink as an endpoint, for rows of this schema; for a table, with its key."""
    sink = _endpoint(given, "write").keyed_by(key)
    sink.check_written(schema)
    return sink


def _endpoint(given: Any, verb: str) -> Endpoint:
    if isinstance(given, list | tuple) and verb != "read":
        raise refusal(f"cannot {verb} {given!r}: one output is one topic", "call write(…) once for each")
    if given is None or (isinstance(given, str) and not NAME.fullmatch(given)):
        raise refusal(f"cannot {verb} {given!r}: not a valid topic name", "use letters, digits and . _ -")
    return engine.endpoint_of(given)


def chosen_on_lost(source: Endpoint, on_lost: str | None) -> tuple[Endpoint, str]:
    """The source with its on_lost policy: the argument of `read`, else the source's own."""
    if on_lost is None:
        return source, source.lost_choice
    if on_lost not in LOST_CHOICES:
        raise refusal(f"on_lost={on_lost!r} is unknown", what_exists(on_lost, LOST_CHOICES, kind="choices"))
    if not source.is_topic:
        raise refusal(f"on_lost applies to topics only, and {source} is not a topic", "remove on_lost=")
    return source.with_lost_choice(on_lost), on_lost


def with_format(source: Endpoint, format: str | None) -> Endpoint:
    """The source with the format of its values, if one is given."""
    if format is None:
        return source
    if format not in VALUE_FORMATS:
        raise refusal(f"there is no format {format!r}", what_exists(format, VALUE_FORMATS, kind="formats"))
    return source.with_format(format)


def check_partitions(sink: Endpoint, partitions: int | None) -> None:
    """Only a topic to be created has partitions."""
    if partitions is None:
        return
    if sink.topic_name is None:
        raise refusal(f"partitions applies to topics only, and {sink.name} is not a topic", "remove partitions=")
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        raise refusal(
            f"partitions must be a positive integer, not {partitions!r}",
            "remove it to use as many as the largest input topic has",
        )


def check_loop(sources: Sequence[Endpoint], sinks: Sequence[Endpoint]) -> None:
    """Rejects a flow that would consume its own output."""
    topics = [sink for sink in sinks if sink.topic_name is not None]
    for source in sources:
        for sink in topics:
            name = sink.broker_topic
            if source.target != sink.target and not (name is not None and source.reads_topic(name)):
                continue
            raise refusal(
                f"the flow reads and writes '{sink.topic_name}': it would consume its own output",
                "write to another topic, or read it with loop=True: what is written in a batch is read in the next one",
            )


def check_looped(source: Endpoint) -> None:
    if source.broker_topic is None:
        raise refusal(f"{source} cannot be part of a loop", "loop=True is for a topic of the flow's own log")


def differences(one: Schema, other: Schema) -> str:
    """How two schemas differ, ignoring order and nullability; empty if they do not."""
    own, others = ({field.name: field.type for field in schema.arrow} for schema in (one, other))
    found = [
        f"'{name}' is missing in one" for name in dict.fromkeys([*own, *others]) if (name in own) != (name in others)
    ]
    found += [
        f"'{name}' is {type_name(kind)} and {type_name(others[name])}"
        for name, kind in own.items()
        if name in others and others[name] != kind
    ]
    return "; ".join(found)


def without_event_time(node: Node) -> Node | None:
    """The step upstream, or this one, whose rows have no event time."""
    return derived(node, _without_event_time)


def _without_event_time(node: Node, before: list[Node | None]) -> Node | None:
    if isinstance(node, Read):
        return node if node.event_time is None else None
    if isinstance(node, WithEventTime):
        return None
    if isinstance(node, WindowedAggregate):
        return node if isinstance(node.window, Everything) and node.pane_time is PaneTime.END_OF_WINDOW else None
    if isinstance(node, Process) and node.event_time is not None:
        return None
    if isinstance(node, Latest):
        return None if node.by_time else node
    if isinstance(node, LookupJoin):
        return before[0]
    return next((source for source in before if source is not None), None)


def check_stream(stream: Stream, what: str, instead: str) -> None:
    """Rejects a table where rows are assigned by time: a retraction has a later time than the row it retracts."""
    if stream.is_table:
        raise refusal(
            f"{what} needs a stream, but '{stream.node.name}' is a table",
            f"use .changes() for its changes as a stream; {instead}",
        )


def check_event_time(node: Node, window: Window) -> None:
    """Rejects an event time window over rows without event time."""
    source = without_event_time(node)
    if isinstance(source, Read):
        raise InvalidWindow(
            f"{window} needs event time, but the rows of '{source.name}' have none",
            where=users_line(),
            next_step="set it with read(…, event_time='…'), or use a window with time='processing'",
        )
    if isinstance(source, Latest):
        raise InvalidWindow(
            f"{window} needs event time, but the rows of '{source.name}' have none",
            where=users_line(),
            next_step="set it on its input with read(…, event_time='…')",
        )
    if source is not None:
        raise InvalidWindow(
            f"{window} needs event time, but the panes of everything() have none",
            where=users_line(),
            next_step="give them one with window(everything(), timestamp='latest')",
        )


def window_arguments(window: Window, schema: Schema) -> dict[str, Expression]:
    if isinstance(window, DeltaWindow):
        value = expression(window.column, schema)
        if family(value.type) != "number":
            numbers = [field.name for field in schema.arrow if family(field.type) == "number"]
            raise InvalidWindow(
                f"delta_window needs a number, but '{value}' is {type_name(value.type)}",
                where=users_line(),
                next_step=f"numeric columns: {', '.join(numbers) or 'none'}",
            )
        return {"window.delta": value}
    if isinstance(window, ClosedBy):
        return {"window.closes": expression(window.predicate, schema, boolean=True)}
    return {}


def fed_with(column: str, aggregate: Aggregate, schema: Schema) -> dict[str, Expression]:
    """The arguments of an aggregate, under names unique within the step."""
    return {f"{column}.{argument}": expression(text, schema) for argument, text in aggregate.arguments.items()}


def result_type(column: str, aggregate: Aggregate, fed: Mapping[str, Expression]) -> pa.DataType:
    """The type of an aggregate's result; rejects arguments of unsupported types."""
    for argument in aggregate.arguments:
        given = fed[f"{column}.{argument}"]
        try:
            aggregate.check(argument, given.type)
        except TypeError as needed:
            raise InvalidAggregate(
                f"{aggregate.kind} needs {needed}, but '{given}' is {type_name(given.type)}",
                where=users_line(),
                next_step="use another column, or convert it with an expression such as cast(… as double)",
            ) from None
    given_type = fed[f"{column}.input"].type if f"{column}.input" in fed else None
    return aggregate.result_type(given_type)


def and_none(conditions: Sequence[str], taken: Sequence[str]) -> str:
    return " and ".join([*conditions, *(f"not coalesce(({other}), false)" for other in taken)])


def check_instant(schema: Schema, event_time: str) -> None:
    """Requires a timestamp as the event time column."""
    column_of(schema, event_time)
    if schema.field(event_time).type != INSTANT:
        moments = [field.name for field in schema.arrow if field.type == INSTANT]
        raise refusal(
            f"event_time '{event_time}' is {type_name(schema.field(event_time).type)}, not a timestamp",
            f"timestamp columns: {', '.join(moments) or 'none'}",
        )


def check_function(verb: str, function: object, arguments: Sequence[str], example: str) -> None:
    """Requires a synchronous function that accepts these arguments, and can be sent to workers."""
    if verb != "spark":  # which calls it in the driver
        check_models(verb, function)
    if not callable(function):
        raise refusal(f"{verb} takes a function, not {function!r}", example)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise refusal(f"{verb} takes a synchronous function, but this one is async", "call asyncio.run(…) inside it")
    if not _takes(function, len(arguments)):
        raise refusal(
            f"{verb} calls its function with ({', '.join(arguments)}), but "
            f"{getattr(function, '__name__', 'this one')}{inspect.signature(function)} does not accept that",
            example,
        )


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a function written in C may have no signature
        return True
    return True


def check_calls(
    function: object, concurrency: object, timeout: str | timedelta | None, retries: object, ordered: object
) -> timedelta | None:
    """Validates the arguments of `map_async` and returns its limit of time."""
    if not callable(function):
        raise refusal(f"map_async takes a function, not {function!r}", "write async def function(row): …")
    if not _takes(function, 1):
        raise refusal("map_async calls its function with (row), which this one does not accept", "def function(row): …")
    for what, number, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise refusal(f"{what} is a whole number from {least}, not {number!r}", f"for example {what}=8")
    if not isinstance(ordered, bool):
        raise refusal(f"ordered is True or False, not {ordered!r}", "False: results come as they are ready")
    if timeout is None:
        return None
    with AtUsersLine():
        limit = duration(timeout, what="timeout")
    if not limit:
        raise refusal("timeout must be longer than 0", "for example timeout='5 seconds', or None for no limit")
    return limit


def check_never_retracted(verb: str, node: Node) -> None:
    if node.is_changing:
        raise refusal(
            f"{verb} needs rows that are never retracted, but those of '{node.name}' may be",
            "use .changes() for the changes of a table as a stream"
            if node.is_table
            else "use .discarding() or .accumulating() in the aggregation before, or aggregate the changes first",
        )


def check_process(
    node: Node, function: object, schema: SchemaLike | None, on_timer: object, event_time: str | None
) -> Schema:
    """Validates the arguments of `process` and returns its output columns."""
    check_function("process", function, ("row", "key"), "write def function(row, key): …")
    if on_timer is not None:
        check_function("on_timer", on_timer, ("tag", "time", "key"), "write def on_timer(tag, time, key): …")
    check_never_retracted("process", node)
    if schema is None:
        raise refusal("process needs the schema of its function's results", "for example schema='device string, n int'")
    columns = schema_of(schema)
    if event_time is not None:
        check_instant(columns, event_time)
        if (source := without_event_time(node)) is not None:
            raise refusal(
                f"the rows of '{source.name}' have no event time, so there is no watermark for '{event_time}'",
                "set it with read(…, event_time='…')",
            )
    return columns


def row_order(node: Node, order: str | None, *, has_on_timer: bool) -> RowOrder:
    """The order in which `process` is called with rows: as given, or by event time if timers may be in event time."""
    source = without_event_time(node)
    if order is None:
        return RowOrder.EVENT_TIME if has_on_timer and source is None else RowOrder.ARRIVAL
    choices = [choice.value for choice in RowOrder]
    if order not in choices:
        raise refusal(f"order={order!r} is unknown", what_exists(order, choices, kind="orders"))
    if order == RowOrder.EVENT_TIME.value and source is not None:
        raise refusal(
            f"order='event_time' needs event time, but the rows of '{source.name}' have none",
            "set it with read(…, event_time='…'), or use order='arrival'",
        )
    return RowOrder(order)
