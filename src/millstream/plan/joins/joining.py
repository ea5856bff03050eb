"""Joins of streams, tables and lookup tables. Each call validates its arguments and adds a node to the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal, TypeVar, cast

import pyarrow as pa

from millstream.errors import InvalidPlan
from millstream.expressions.column_texts import ExpressionLike
from millstream.plan.checks import check_stream, refusal, without_event_time
from millstream.plan.flow import Flow
from millstream.plan.joins.conditions import checked_condition, kept_where, matched
from millstream.plan.joins.keys import On, joined_on, with_parts
from millstream.plan.nodes import Node
from millstream.plan.on_spark.spark_frames import SparkFrame, as_source
from millstream.plan.steps.hidden_columns import without_hidden
from millstream.plan.steps.keyed import Keyed, Windowed
from millstream.plan.stream import Stream
from millstream.plan.table_nodes import (
    HOWS,
    Columns,
    How,
    IntervalJoin,
    Join,
    JoinCondition,
    LookupJoin,
    SideJoin,
    TableJoin,
    WindowJoin,
)
from millstream.plan.tables import Table, unweighted
from millstream.plan.time.late import WINDOW
from millstream.plan.time.windows import Calendar, Fixed, Sessions, Sliding, Window
from millstream.records import Schema, duration, signed_duration
from millstream.user_lines import AtUsersLine, users_line, what_exists

AsOfWhen = Literal["event_time", "now"]
Given = TypeVar("Given")
Other = TypeVar("Other", bound="Stream | Side")
LOOKUPS = ("inner", "left", "semi", "anti")
JOINED_WINDOWS = (Fixed, Sliding, Sessions, Calendar)


class Joined(Stream):
    """The result of a join of streams."""


@dataclass(frozen=True)
class Side:
    """A lookup table: static rows to join a stream with."""

    flow: Flow
    schema: Schema
    rows: pa.Table
    description: str

    @classmethod
    def of(cls, flow: Flow, given: Any, schema: Schema | None) -> Side:
        if isinstance(given, Stream):
            raise refusal("flow.table takes static rows, not a stream", "use stream.to_table(key=…)")
        source = as_source(given)
        if isinstance(source, SparkFrame):
            if source.streams:
                raise refusal(
                    "flow.table takes static rows, not a streaming DataFrame",
                    "use flow.read(frame).to_table(key=…), or a frame of spark.read",
                )
            schema = source.own_schema(None) if schema is None else schema
        # Imported here: only a flow with a lookup table needs to read rows.
        static_rows = import_module("millstream.connectors.static_rows")
        with AtUsersLine():
            columns: Schema = static_rows.own_schema(given) if schema is None else schema
            rows: pa.Table = static_rows.load(given, columns)
        plain = isinstance(given, Sequence) or hasattr(given, "columns")
        return cls(flow, columns, rows, f"{rows.num_rows} rows" if plain else str(given))


@dataclass(frozen=True)
class _Shape:
    """The arguments of all joins: see `table_nodes.Join`."""

    columns: Schema
    on: Columns
    how: How
    left: Columns
    right: Columns
    condition: JoinCondition | None
    behind: str | None
    """A condition that is evaluated behind the join."""
    before: str | None
    """A condition that is evaluated before the join."""
    pair: tuple[pa.Field, ...]
    """The columns of a pair."""


def join(
    stream: Stream,
    other: Stream | Side,
    on: On,
    how: How,
    within: Any,
    as_of: AsOfWhen | None,
    lateness: str | timedelta,
    suffix: str,
    condition: ExpressionLike | None,
    name: str | None,
) -> Stream:
    stream, other = _rows_of(stream), _rows_of(other)
    stream, other, shape = _shape(stream, other, on, how, suffix, condition)
    made = _join(stream, other, shape, within, as_of, lateness, name)
    return kept_where(without_hidden(made, "join"), shape.behind)


def _join(
    stream: Stream,
    other: Stream | Side,
    shape: _Shape,
    within: Any,
    as_of: AsOfWhen | None,
    lateness: str | timedelta,
    name: str | None,
) -> Stream:
    with AtUsersLine():
        late = duration(lateness, what="allowed_lateness")
    if isinstance(other, Side):
        _check_absent({"within": within, "as_of": as_of, "allowed_lateness": late}, "a stream and a lookup table")
        _check_lookup(shape.how)
        side = SideJoin("", shape.columns, (stream.node,), users_line(), *_parts(shape), other.rows, other.description)
        return stream._next(_made(stream.flow, side, shape, name))
    if stream.is_table:
        if not other.is_table:
            raise refusal(
                f"'{stream.node.name}' is a table, which cannot be joined with a stream",
                "swap them: stream.join(table, as_of=…); or join two tables, or a stream with its .changes()",
            )
        _check_absent({"within": within, "as_of": as_of, "allowed_lateness": late}, "two tables")
        made = TableJoin("", shape.columns, _nodes(stream, other), users_line(), *_parts(shape))
        return Table(stream.flow, _made(stream.flow, made, shape, name))
    if other.is_table:
        _check_absent({"within": within, "allowed_lateness": late}, "a stream and a table")
        return _lookup(stream, other, shape, as_of, name)
    _check_absent({"as_of": as_of}, "two streams")
    low, high = _interval(within)
    _check_event_times("within needs event time", stream, other)
    node = IntervalJoin("", shape.columns, _nodes(stream, other), users_line(), *_parts(shape), low, high, late)
    return Joined(stream.flow, _made(stream.flow, node, shape, name))


def _made(flow: Flow, node: Join, shape: _Shape, name: str | None, *more: pa.Field) -> Join:
    """The join under its name; pairs of it have further columns."""
    return flow.named(
        node if shape.before is None else matched(flow, node, [*shape.pair, *more], shape.before), "join", name
    )


def join_in_windows(
    stream: Stream,
    other: Stream,
    window: Window,
    lateness: timedelta,
    on: On,
    how: How,
    suffix: str,
    condition: ExpressionLike | None,
    name: str | None,
) -> Joined:
    if isinstance(other, Side):
        raise refusal("a lookup table has no windows", "remove window(…): stream.join(flow.table(…), on=…)")
    stream, other = _rows_of(stream), _rows_of(other)
    stream, other, shape = _shape(stream, other, on, how, suffix, condition)
    for side in (stream, other):
        check_stream(side, "a join in windows", "or use stream.join(table, as_of=…)")
        if "window" in map(str.lower, side.schema.names):
            raise refusal(
                f"a join in windows adds a column 'window', but '{side.node.name}' already has one",
                "rename it with select(…)",
            )
    if not isinstance(window, JOINED_WINDOWS) or getattr(window, "time", "event") != "event":
        raise refusal(
            f"streams cannot be joined in {window}", "use fixed, sliding, sessions or calendar, in event time"
        )
    _check_event_times(f"{window} needs event time", stream, other)
    with AtUsersLine():
        columns = Schema.from_arrow(pa.schema([*shape.columns.arrow, WINDOW]))
    node = WindowJoin("", columns, _nodes(stream, other), users_line(), *_parts(shape), window, lateness)
    made = without_hidden(Joined(stream.flow, _made(stream.flow, node, shape, name, WINDOW)), "join")
    return kept_where(made, shape.behind)


def _lookup(stream: Stream, table: Stream, shape: _Shape, as_of: AsOfWhen | None, name: str | None) -> Joined:
    if as_of not in ("event_time", "now"):
        raise refusal(
            "a join with a table needs as_of=" if as_of is None else f"as_of={as_of!r} is unknown",
            "as_of='event_time' joins the version valid at the row's event time, as_of='now' the current one",
        )
    _check_lookup(shape.how)
    if as_of == "event_time":
        _check_event_times("as_of='event_time' needs event time", stream, table)
    elif stream.node.is_changing:
        raise refusal(
            f"rows of '{stream.node.name}' may be retracted, and the table may have changed by then",
            "use as_of='event_time'",
        )
    inputs = _nodes(stream, table)
    made = LookupJoin("", shape.columns, inputs, users_line(), *_parts(shape), as_of == "event_time")
    return Joined(stream.flow, _made(stream.flow, made, shape, name))


def _rows_of(given: Given) -> Given:
    # Anything but a stream is rejected later. Without the weight of panes, a stream is still a stream.
    return cast(Given, unweighted(given)) if isinstance(given, Stream) else given


def _shape(
    stream: Stream, other: Other, on: On, how: How, suffix: str, condition: ExpressionLike | None
) -> tuple[Stream, Other, _Shape]:
    """Both sides, with what they are joined on as columns, and the shape of the join."""
    if not isinstance(other, Stream | Side):
        shown = type(other).__name__ if isinstance(other, Keyed | Windowed) else repr(other)
        is_frame = type(other).__name__ == "DataFrame"
        static = "make a lookup table of it: stream.join(flow.table(frame), on='user')"
        raise refusal(f"join takes a stream or a table, not {shown}", static if is_frame else "a.join(b, on='user', …)")
    if other.flow is not stream.flow:
        raise refusal(
            f"join needs both inputs in one flow, but these are of '{stream.flow.name}' and '{other.flow.name}'",
            "read both in one flow, or write a topic in one and read it in the other",
        )
    if how not in HOWS:
        raise refusal(f"there is no {how!r} join", what_exists(how, HOWS, kind="joins"))
    if not isinstance(suffix, str) or not suffix:
        raise refusal(f"suffix is a string to append to names, not {suffix!r}", "for example suffix='_right'")
    stream, other, pairs = joined_on(stream, other, on)
    left, right = _named(stream, other, pairs, suffix)
    checked = checked_condition(condition, (left, right), _fields(stream, other, pairs, left, right), how)
    if any(checked.parts):
        stream, other = with_parts(stream, checked.parts[0]), with_parts(other, checked.parts[1])
        left, right = _named(stream, other, pairs, suffix)
    pair = tuple(_fields(stream, other, pairs, left, right))
    fields, others = list(pair[: len(left)]), list(pair[len(left) :])
    if how in ("right", "full"):
        fields = [field.with_nullable(True) for field in fields]
    if how not in ("semi", "anti"):
        fields += [field.with_nullable(True) for field in others] if how in ("left", "full") else others
    with AtUsersLine():
        columns = Schema.from_arrow(pa.schema(fields))
    return stream, other, _Shape(columns, pairs, how, left, right, checked.inside, checked.behind, checked.before, pair)


def _named(stream: Stream, other: Stream | Side, pairs: Columns, suffix: str) -> tuple[Columns, Columns]:
    """The columns of both sides under their names in the output."""
    shared = {one for one, same in pairs if one == same}
    taken = {column.lower() for column in stream.schema.names}  # column names are case-insensitive, as in SQL
    left: Columns = tuple((column, column) for column in stream.schema.names)
    right: list[tuple[str, str]] = []
    for column in other.schema.names:
        if column in shared:
            continue
        given = f"{column}{suffix}" if column.lower() in taken else column
        if given.lower() in taken:
            raise refusal(
                f"the join would have two columns '{given}'", "choose another suffix, or rename with select(…)"
            )
        taken.add(given.lower())
        right.append((given, column))
    return left, tuple(right)


def _fields(stream: Stream, other: Stream | Side, pairs: Columns, left: Columns, right: Columns) -> list[pa.Field]:
    """The columns of a pair."""
    shared = {one for one, same in pairs if one == same}
    fields = [_wide(stream.schema, other.schema, column, column in shared) for _, column in left]
    return fields + [other.schema.field(column).with_name(given) for given, column in right]


def _wide(own: Schema, others: Schema, column: str, shared: bool) -> pa.Field:
    """A column of the first input, with a type wide enough for both inputs if they share it."""
    field = own.field(column)
    return field.with_type(pa.int64()) if shared and others.field(column).type != field.type else field


def _parts(shape: _Shape) -> tuple[Columns, How, Columns, Columns, JoinCondition | None]:
    return shape.on, shape.how, shape.left, shape.right, shape.condition


def _nodes(stream: Stream, other: Stream) -> tuple[Node, Node]:
    return stream.node, other.node


def _interval(within: Any) -> tuple[timedelta, timedelta]:
    if within is None:
        raise refusal(
            "a join of two streams needs within=",
            "for example within=('0 seconds', '1 hour'), this row's time minus the other's; or join in windows: "
            "a.window(ms.fixed('1 hour')).join(b, on=…)",
        )
    if not isinstance(within, Sequence) or isinstance(within, str) or len(within) != 2:
        raise refusal(f"within takes two durations, not {within!r}", "for example within=('-5 minutes', '1 hour')")
    low, high = (_signed(each) for each in within)
    if low > high:
        raise refusal(f"within starts at {within[0]!r}, after its end at {within[1]!r}", "swap them")
    return low, high


def _signed(given: Any) -> timedelta:
    with AtUsersLine():
        return signed_duration(given, what="within")


def _check_lookup(how: How) -> None:
    if how not in LOOKUPS:
        raise refusal(
            f"a {how} join would need rows of the table that match no row of the stream",
            f"use one of {', '.join(LOOKUPS)}; or turn the stream into a table and join two tables",
        )


def _check_absent(arguments: Mapping[str, object], what: str) -> None:
    for name, value in arguments.items():
        if value:
            raise refusal(f"{name}= does not apply to a join of {what}", "leave it out")


def _check_event_times(what: str, *streams: Stream) -> None:
    for stream in streams:
        if (source := without_event_time(stream.node)) is not None:
            raise InvalidPlan(
                f"{what}, but the rows of '{source.name}' have none",
                where=users_line(),
                next_step="set it with read(…, event_time='…')",
            )
