"""What a call of a flow refuses: each mistake with the user's line, what exists, and what to do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import InvalidAggregate, InvalidPlan, InvalidWindow
from millstream.expressions.expression import Expression, expression
from millstream.expressions.lowered import type_name
from millstream.expressions.spark_types import family
from millstream.plan.aggregates import Aggregate
from millstream.plan.endpoints import LOST_CHOICES, Kafka, Place, Sqlite, Table
from millstream.plan.nodes import INSTANT, Node, PaneTime, Process, Read, WindowedAggregate
from millstream.plan.table_nodes import Latest, LookupJoin
from millstream.plan.walking import derived
from millstream.plan.windows import ClosedBy, DeltaWindow, Everything, Window
from millstream.records import Schema, SchemaLike
from millstream.user_lines import AtUsersLine, users_line, what_exists

if TYPE_CHECKING:
    from millstream.plan.flow import Stream

NOT_KEYS = ("map", "array", "struct", "interval")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def refusal(what: str, next_step: str | None) -> InvalidPlan:
    return InvalidPlan(what, where=users_line(), next_step=next_step)


def schema_of(schema: SchemaLike) -> Schema:
    with AtUsersLine():
        return Schema.of(schema)


def column_of(schema: Schema, name: object) -> str:
    if not isinstance(name, str) or name not in schema.names:
        hint = "; a new one is name='expression'" if isinstance(name, str) and not name.isidentifier() else ""
        raise refusal(f"there is no column {name!r}", what_exists(name, schema.names) + hint)
    return name


def check_keys(schema: Schema, columns: Sequence[str], what: str) -> None:
    """Columns that exist, each named once, of types that can be compared."""
    for column in columns:
        column_of(schema, column)
        kind = schema.field(column).type
        if family(kind) in NOT_KEYS:
            hint = "take a field of it: with_column('start', 'window.start')" if column == "window" else None
            raise refusal(
                f"'{column}' is {type_name(kind)}, which cannot be a key",
                hint or "make a string or a number of it, or take a field of it, with with_column(…)",
            )
    if len(set(columns)) < len(columns):
        raise refusal(f"a column stands twice in {what}: {', '.join(columns)}", "name each once")


def check_place(place: Any, verb: str) -> None:
    """A source or a sink: a topic's name, or a value of its own kind."""
    if place is None or (isinstance(place, str) and not NAME.fullmatch(place)):
        raise refusal(f"{place!r} is not a topic to {verb}", "a topic's name has letters, digits and . _ -")
    if verb == "read" and isinstance(place, Place):
        place.check_read()


def chosen_on_lost(source: Any, on_lost: str | None) -> tuple[Any, str]:
    """The source and what to do when its records are lost: as it says itself, or as its reader does."""
    if on_lost is None:
        return source, source.on_lost if isinstance(source, Kafka) else "error"
    if on_lost not in LOST_CHOICES:
        raise refusal(f"on_lost={on_lost!r} is unknown", what_exists(on_lost, LOST_CHOICES, kind="choices"))
    if isinstance(source, Kafka):
        return replace(source, on_lost=on_lost), on_lost
    if not isinstance(source, str):
        raise refusal(f"on_lost is about topics, and {source} is none", "leave out on_lost=")
    return source, on_lost


def check_partitions(sink: Any, partitions: int | None) -> None:
    """Of a topic to be created; other sinks have none."""
    if partitions is None:
        return
    if not isinstance(sink, str | Kafka):
        raise refusal(f"topics have partitions, and {called(sink)} is not a topic", "leave out partitions=")
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        raise refusal(
            f"partitions is a whole number from 1 on, not {partitions!r}",
            "leave it out: as many as the largest topic has that the rows come from",
        )


def called(place: Any) -> str:
    return place if isinstance(place, str) else f"{getattr(place, 'name', None) or type(place).__name__}"


def same_place(one: Any, other: Any) -> bool:
    """Whether two sinks are one: a table of a database is the same however rows are written to it."""
    if isinstance(one, Table) and isinstance(other, Table):
        one, other = (replace(each, mode="append", key=()) for each in (one, other))
    if isinstance(one, Sqlite) and isinstance(other, Sqlite):  # its names of tables know no case
        one, other = (
            replace(each, path=str(Path(each.path).expanduser().resolve()), table=each.table.lower())
            for each in (one, other)
        )
    return one is other or (type(one) is type(other) and bool(one == other))


def loop(topic: str) -> InvalidPlan:
    return refusal(f"the flow reads and writes '{topic}', so it would feed itself", "write to another topic")


def differences(one: Schema, other: Schema) -> str:
    """How two schemas differ, apart from what may be null; empty if they do not."""
    own, others = ({field.name: field.type for field in schema.arrow} for schema in (one, other))
    said = [
        f"'{name}' is missing in one" for name in dict.fromkeys([*own, *others]) if (name in own) != (name in others)
    ]
    said += [
        f"'{name}' is {type_name(kind)} and {type_name(others[name])}"
        for name, kind in own.items()
        if name in others and others[name] != kind
    ]
    if not said and one.names != other.names:
        said = [f"the order is {', '.join(one.names)} and {', '.join(other.names)}"]
    return "; ".join(said)


def without_event_time(node: Node) -> Node | None:
    """The step before, or this one, that rows without event time come from."""
    return derived(node, _without_event_time)


def _without_event_time(node: Node, before: list[Node | None]) -> Node | None:
    if isinstance(node, Read):
        return node if node.event_time is None else None
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
    """Refuses a table where each row has its place in time: what takes a row back has a later one than that row."""
    if stream.is_table:
        raise refusal(
            f"{what} is for the rows of a stream, and '{stream.node.name}' is a table",
            f".changes() gives its changes as a stream; {instead}",
        )


def check_event_time(node: Node, window: Window) -> None:
    """A window in event time is for rows that have one."""
    source = without_event_time(node)
    if isinstance(source, Read):
        raise InvalidWindow(
            f"{window} is about event time, and the rows of '{source.name}' have none",
            where=users_line(),
            next_step="name its column with read(…, event_time='…'), or use a window with time='processing'",
        )
    if isinstance(source, Latest):
        raise InvalidWindow(
            f"{window} is about event time, and the rows of '{source.name}' have none",
            where=users_line(),
            next_step="name the column of what it is made of with read(…, event_time='…')",
        )
    if source is not None:
        raise InvalidWindow(
            f"{window} is about event time, and the panes of everything() have none",
            where=users_line(),
            next_step="give them one with window(everything(), timestamp='latest')",
        )


def window_arguments(window: Window, schema: Schema) -> dict[str, Expression]:
    if isinstance(window, DeltaWindow):
        value = expression(window.column, schema)
        if family(value.type) != "number":
            numbers = [field.name for field in schema.arrow if family(field.type) == "number"]
            raise InvalidWindow(
                f"delta_window needs a number, and '{value}' is {type_name(value.type)}",
                where=users_line(),
                next_step=f"columns that are numbers: {', '.join(numbers) or 'none'}",
            )
        return {"window.delta": value}
    if isinstance(window, ClosedBy):
        return {"window.closes": expression(window.predicate, schema, boolean=True)}
    return {}


def fed_with(column: str, aggregate: Aggregate, schema: Schema) -> dict[str, Expression]:
    """The arguments of an aggregate, by the names they have among those of all aggregates of a step."""
    return {f"{column}.{argument}": expression(text, schema) for argument, text in aggregate.arguments.items()}


def result_type(column: str, aggregate: Aggregate, fed: Mapping[str, Expression]) -> pa.DataType:
    """The type of an aggregate's result; refuses arguments that it cannot use."""
    for argument in aggregate.arguments:
        given = fed[f"{column}.{argument}"]
        try:
            aggregate.check(argument, given.type)
        except TypeError as needed:
            raise InvalidAggregate(
                f"{aggregate.kind} needs {needed}, and '{given}' is {type_name(given.type)}",
                where=users_line(),
                next_step="name another column, or bring it there with an expression such as cast(… as double)",
            ) from None
    given_type = fed[f"{column}.input"].type if f"{column}.input" in fed else None
    return aggregate.result_type(given_type)


def and_none(conditions: Sequence[str], taken: Sequence[str]) -> str:
    return " and ".join([*conditions, *(f"not coalesce(({other}), false)" for other in taken)])


def check_instant(schema: Schema, event_time: str) -> None:
    """The column that holds the event time is a timestamp."""
    column_of(schema, event_time)
    if schema.field(event_time).type != INSTANT:
        moments = [field.name for field in schema.arrow if field.type == INSTANT]
        raise refusal(
            f"event_time '{event_time}' is {type_name(schema.field(event_time).type)}, not a timestamp",
            f"columns of type timestamp: {', '.join(moments) or 'none'}",
        )


def check_function(verb: str, function: object, arguments: Sequence[str], example: str) -> None:
    """A plain function that can be called with these arguments."""
    if not callable(function):
        raise refusal(f"{verb} takes a function, not {function!r}", example)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise refusal(f"{verb} takes a plain function, and this one is async", "call it with asyncio.run(…) inside")
    if not _takes(function, len(arguments)):
        raise refusal(
            f"{verb} calls its function with ({', '.join(arguments)}), and "
            f"{getattr(function, '__name__', 'this one')}{inspect.signature(function)} does not take that",
            example,
        )


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a function written in C may not say what it takes
        return True
    return True


def check_process(
    node: Node, function: object, schema: SchemaLike | None, on_timer: object, event_time: str | None
) -> Schema:
    """What `process` refuses; the columns it gives."""
    check_function("process", function, ("row", "key"), "write def function(row, key): …")
    if on_timer is not None:
        check_function("on_timer", on_timer, ("tag", "time", "key"), "write def on_timer(tag, time, key): …")
    if node.is_changing:
        raise refusal(
            f"process takes rows as they come, and those of '{node.name}' may be taken back",
            ".changes() gives the changes of a table as a stream"
            if node.is_table
            else "use .discarding() or .accumulating() in the aggregation before, or aggregate the changes first",
        )
    if schema is None:
        raise refusal("process needs the columns that its function gives", "for example schema='device string, n int'")
    columns = schema_of(schema)
    if event_time is not None:
        check_instant(columns, event_time)
        if (source := without_event_time(node)) is not None:
            raise refusal(
                f"the rows of '{source.name}' have no event time, so no watermark would come with '{event_time}'",
                "name their column with read(…, event_time='…')",
            )
    return columns
