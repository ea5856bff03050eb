"""Tables: what a stream adds up to. Each call checks what it is given and adds a node.

A table is the sum of its changes: rows of weight +1 and -1, each with the event time from which it holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from millstream.expressions.expression import expression
from millstream.expressions.lowered import type_name
from millstream.plan.aggregates import Aggregate, check_order
from millstream.plan.bundles import micros
from millstream.plan.checks import check_keys, refusal, without_event_time
from millstream.plan.endpoints import Table as DatabaseTable
from millstream.plan.flow import Stream
from millstream.plan.keyed import aggregated, check_named
from millstream.plan.nodes import INSTANT, Dead, Late, Node, Process, Project, Read, Union, Where, WindowedAggregate
from millstream.plan.table_nodes import AllRows, AsOf, Changes, Distinct, Grouped, Join, Latest, Order, Take, Top
from millstream.plan.walking import derived
from millstream.plan.written_stream import Written
from millstream.records import Schema, duration
from millstream.user_lines import AtUsersLine, users_line

CHANGE_COLUMNS = ("weight", "event_time")
METADATA: dict[str, tuple[pa.DataType, ...]] = {
    "topic": (pa.string(),),
    "partition": (pa.int32(), pa.int64()),
    "offset": (pa.int64(),),
    "timestamp": (INSTANT,),
    "headers": (pa.map_(pa.string(), pa.binary()),),
}
"""What a topic knows of each record but for its key, by the name of the column."""
NULLS = re.compile(r"\s+nulls\s+(first|last)\s*$", re.IGNORECASE)
PIECE = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|.", re.DOTALL)
EXAMPLES = {
    "key": "key='user', or key=('team', 'user')",
    "on": "on='user', on=('team', 'user'), or on={'own': 'other'} where the names differ",
    "per": "per='user'",
    "by": "by='score desc', or by=['score desc', 'name']",
}
DIRECTION = re.compile(r"(?P<by>.*?)(?:\s+(?P<direction>asc|desc))?\s*", re.IGNORECASE | re.DOTALL)


class Table(Stream):
    """Rows that are current until they are retracted. `key` has the columns that identify a row, if there are any."""

    def __init__(self, flow: Any, node: Node, key: tuple[str, ...] = ()) -> None:
        super().__init__(flow, node)
        self.key = key

    @property
    def is_table(self) -> bool:
        return True

    def changes(self, *, name: str | None = None) -> Stream:
        """The table as a stream of its changes, with `weight` (+1, -1) and `event_time`."""
        self._check_columns(CHANGE_COLUMNS, "changes have")
        fields = [*self.schema.arrow, pa.field("weight", pa.int32()), pa.field("event_time", INSTANT)]
        columns = Schema.from_arrow(pa.schema(fields))
        changes = Changes("", columns, (self.node,), users_line())
        return Stream(self.flow, self.flow.named(changes, "changes", name))

    def as_of(self, time: datetime | str, *, name: str | None = None) -> Table:
        """The table as of an event time: the rows that had been added and not retracted by then."""
        moment = _moment(time)
        if (source := without_event_time(self.node)) is not None:
            raise refusal(
                f"the rows of '{source.name}' have no event time, so nothing says what was there at {time}",
                "name their column with read(…, event_time='…')",
            )
        node = AsOf("", self.schema, (self.node,), users_line(), micros(moment), moment.isoformat())
        return Table(self.flow, self.flow.named(node, "as_of", name), self.key)

    def to_dataframe(self, **settings: Any) -> Any:
        """The changes of the table as a streaming DataFrame of Spark; `weight` is -1 for a row that is retracted."""
        self._check_columns(("weight",), "the DataFrame of a table has")
        return super().to_dataframe(**settings)

    def write(self, sink: Any, *, name: str | None = None, partitions: int | None = None) -> Written:
        """Keeps a copy of the table up to date: in a database, in a compacted topic, or as changes with a weight.

        A topic is keyed by the table's key, and a row that goes is a tombstone; without a key it holds the changes.
        """
        self._check_columns(("weight",), "what is written of a table may have")
        if isinstance(sink, DatabaseTable) and sink.mode == "append" and self.key:
            sink = replace(sink, mode="upsert", key=self.key)
        return self._write(sink, name, partitions, net=True, keys=self.key)

    def _check_columns(self, names: Sequence[str], what: str) -> None:
        taken = {column.lower() for column in self.schema.names}
        for name in names:
            if name in taken:
                raise refusal(f"{what} a column '{name}' of its own", "give yours another name with select(…)")

    def _next(self, node: Node) -> Stream:
        if isinstance(node, Late | Dead):
            return Stream(self.flow, node)
        return Table(self.flow, node, self.key if _keeps(node, self.key) else ())


def _keeps(node: Node, key: tuple[str, ...]) -> bool:
    """Whether the key of a table is still that of what a step makes of it."""
    if isinstance(node, Where):
        return True
    if isinstance(node, Project):
        same = {name for name, made in node.columns if made.column == name}
        return set(key) <= same
    return False


class Grouping:
    """Rows grouped by some columns, to be aggregated."""

    def __init__(self, stream: Stream, columns: tuple[str, ...]) -> None:
        check_keys(stream.schema, columns, "group_by")
        self._stream = stream
        self._columns = columns

    def agg(self, *unnamed: object, name: str | None = None, **aggregates: Aggregate) -> Table:
        """A table with a row per group, kept up to date; a group without rows has none."""
        check_named(unnamed, aggregates)
        stream, keys = self._stream, self._columns
        made, arguments = aggregated(stream.schema, aggregates, [*CHANGE_COLUMNS, *keys], "a table")
        with AtUsersLine():
            columns = Schema.from_arrow(pa.schema([*(stream.schema.field(key) for key in keys), *made]))
        node = Grouped(
            "", columns, (stream.node,), users_line(), keys, tuple(aggregates.items()), tuple(arguments.items())
        )
        return Table(stream.flow, stream.flow.named(node, "group_by", name), keys)


def to_table(stream: Stream, key: str | Sequence[str] | None, deleted: str | None, name: str | None) -> Table:
    stream = unweighted(stream)
    return all_rows(stream, deleted, name) if key is None else latest(stream, key, deleted, name)


def all_rows(stream: Stream, deleted: str | None, name: str | None) -> Table:
    """Every row of a stream. A table is one already."""
    if deleted is not None:
        raise refusal(
            "deleted= says which rows delete their key, and no key is named",
            "name it: to_table(key='user', deleted=…); or leave out deleted=: rows of weight -1 take equal ones away",
        )
    if isinstance(stream, Table):
        _check_unnamed(stream, name)
        return stream
    node = AllRows("", stream.schema, (stream.node,), users_line())
    return Table(stream.flow, stream.flow.named(node, "to_table", name))


def latest(stream: Stream, key: str | Sequence[str], deleted: str | None, name: str | None) -> Table:
    """Per key the newest row. Without `deleted`, a row whose values are all null deletes its key.

    A value is a column that is no key, not the event time, and nothing that a topic knows of each record: a tombstone
    has these too. What `select` calls by another name stays what it is.
    """
    keys = columns_of(key, "key")
    if not keys:
        raise refusal(
            "a table needs a key",
            f"columns that exist: {', '.join(stream.schema.names)}; or leave out key=: then every row is in the table",
        )
    check_keys(stream.schema, keys, "key")
    if stream.node.is_changing or stream.is_table:
        if deleted is not None:
            raise refusal(
                f"rows of '{stream.node.name}' are taken back by their weight", "leave out deleted=: it is a table"
            )
        _check_relabelled(stream, keys, name)
        return Table(stream.flow, stream.node, keys)
    condition = None if deleted is None else expression(deleted, stream.schema, boolean=True)
    others = {*keys, *_known_beside_values(stream.node)}
    values = tuple(column for column in stream.schema.names if column not in others)
    by_time = without_event_time(stream.node) is None
    node = Latest("", stream.schema, (stream.node,), users_line(), keys, condition, values, by_time)
    return Table(stream.flow, stream.flow.named(node, "to_table", name), keys)


def _check_relabelled(stream: Stream, keys: tuple[str, ...], name: str | None) -> None:
    """A table may be told its key; that finds each of its rows only if the key it has is within."""
    _check_unnamed(stream, name)
    known = stream.key if isinstance(stream, Table) else ()
    if not set(known) <= set(keys):
        raise refusal(
            f"the key of '{stream.node.name}' is {', '.join(known)}, and several of its rows may be alike in "
            f"{', '.join(keys)}",
            f"say which of them is kept: top(1, by=…, per={(keys[0] if len(keys) == 1 else keys)!r})",
        )


def _check_unnamed(stream: Stream, name: str | None) -> None:
    if name is not None:
        raise refusal(
            f"'{stream.node.name}' is a table as it is, so there is no step that could be named '{name}'",
            "leave out name=",
        )


def _known_beside_values(node: Node) -> set[str]:
    """The columns of a stream that hold the event time, or what a topic knows of a record whatever its value."""
    return derived(node, _known_by)


def _known_by(node: Node, given: list[set[str]]) -> set[str]:
    if isinstance(node, Read):
        fields = node.schema.arrow if isinstance(node.source, str) else ()
        known = {field.name for field in fields if field.type in METADATA.get(field.name, ())}
        return known if node.event_time is None else {node.event_time, *known}
    if isinstance(node, Project):
        return {name for name, made in node.columns if made.column in given[0]}
    if isinstance(node, Join):
        sides = zip(given, (node.left, node.right), strict=False)  # rows known beforehand are no input
        return {name for known, columns in sides for name, column in columns if column in known}
    if isinstance(node, WindowedAggregate):
        return {"event_time"}
    if isinstance(node, Process) and node.event_time is not None:
        return {node.event_time}
    return set().union(*given)


def distinct(stream: Stream, columns: Sequence[str], within: str | timedelta | None, name: str | None) -> Stream:
    stream = unweighted(stream)
    keys = tuple(columns) or tuple(stream.schema.names)
    check_keys(stream.schema, keys, "distinct")
    apart: timedelta | None = None
    if within is not None:
        with AtUsersLine():
            apart = duration(within, what="within")
        if not apart:
            raise refusal("within must be longer than nothing", "for example within='1 day'")
        _check_not_changing(stream, "distinct(…, within=…)", "leave out within=")
        if (source := without_event_time(stream.node)) is not None:
            raise refusal(
                f"within is about event time, and the rows of '{source.name}' have none",
                "name their column with read(…, event_time='…')",
            )
    node = Distinct("", stream.schema, (stream.node,), users_line(), keys, apart)
    node = stream.flow.named(node, "distinct", name)
    return Table(stream.flow, node, keys) if node.is_table or stream.is_table else Stream(stream.flow, node)


def take(stream: Stream, count: int, per: str | Sequence[str], name: str | None) -> Stream:
    keys = columns_of(per, "per")
    check_keys(stream.schema, keys, "per")
    _check_count(count, "take")
    _check_not_changing(stream, "take", "say which rows come first: top(10, by='score desc')")
    node = Take("", stream.schema, (stream.node,), users_line(), count, keys)
    return Stream(stream.flow, stream.flow.named(node, "take", name))


def top(
    stream: Stream,
    count: int,
    by: str | Sequence[str],
    per: str | Sequence[str],
    rank: str | None,
    ties: bool,
    name: str | None,
) -> Table:
    stream = unweighted(stream)
    keys = columns_of(per, "per")
    check_keys(stream.schema, keys, "per")
    _check_count(count, "top")
    order = tuple(_order(stream.schema, each) for each in columns_of(by, "by"))
    if not order:
        raise refusal("top needs an order", "for example by='score desc'")
    if not isinstance(ties, bool):
        raise refusal(f"ties is True or False, not {ties!r}", "True: rows equal to the last one that is in are in too")
    columns = stream.schema
    if rank is not None:
        if not isinstance(rank, str) or not rank or rank in columns.names:
            raise refusal(f"rank is the name of a new column, not {rank!r}", "for example rank='place'")
        with AtUsersLine():
            columns = Schema.from_arrow(pa.schema([*columns.arrow, pa.field(rank, pa.int64())]))
    node = Top("", columns, (stream.node,), users_line(), count, keys, order, rank, ties)
    node = stream.flow.named(node, "top", name)
    if ties:  # any number of rows may stand in one place
        return Table(stream.flow, node)
    return Table(stream.flow, node, (*keys, rank) if rank else keys if keys and count == 1 else ())


def _order(schema: Schema, text: str) -> Order:
    parts = _parts(text)
    if len(parts) > 1:
        listed = ", ".join(f'"{part}"' for part in parts)
        raise refusal(f"by='{text}' is several orders in one text", f"write them as a list: by=[{listed}]")
    if nulls := NULLS.search(text):
        raise refusal(f"by='{text}' says where nulls stand", f"nulls stand last: leave out '{nulls[0].strip()}'")
    found = DIRECTION.fullmatch(text)
    assert found is not None
    by = expression(found["by"], schema)
    try:
        check_order(by.type)
    except TypeError as needed:
        raise refusal(
            f"an order needs {needed}, and '{by}' is {type_name(by.type)}", "order by another column"
        ) from None
    return Order(by, (found["direction"] or "asc").lower() == "desc")


def _parts(text: str) -> list[str]:
    """A text at its commas, except those in brackets and in quotes."""
    parts, depth = [""], 0
    for piece in PIECE.findall(text):
        depth += (piece in "([{") - (piece in ")]}")
        if piece == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def unweighted(stream: Stream) -> Stream:
    """Panes that take others back say so in a column, in which the two differ: as rows of a table they have none."""
    if not stream.node.is_changing or not _is_weight_of_pane(stream.node):
        return stream
    kept = [(column, stream._kept(column)) for column in stream.schema.names if column != "weight"]
    return stream._project(kept, None, f"{stream.node.name}.row")


def _is_weight_of_pane(node: Node) -> bool:
    """Whether a column `weight` is the one that panes have."""
    return derived(node, _keeps_weight_of_pane)


def _keeps_weight_of_pane(node: Node, given: list[bool]) -> bool:
    if isinstance(node, Project):
        made = dict(node.columns).get("weight")
        return made is not None and made.column == "weight" and given[0]
    if isinstance(node, Where | Union):
        return any(given)
    return isinstance(node, WindowedAggregate)


def columns_of(given: str | Sequence[str], what: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise refusal(f"{what} takes the name of a column, or several, not {given!r}", f"for example {EXAMPLES[what]}")
    return tuple(names)


def _check_count(count: object, verb: str) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise refusal(f"{verb} takes a whole number from 1 on, not {count!r}", f"for example {verb}(10)")


def _check_not_changing(stream: Stream, verb: str, next_step: str) -> None:
    if stream.node.is_changing:
        raise refusal(f"{verb} is for rows that stay, and those of '{stream.node.name}' may be taken back", next_step)
    if stream.is_table:
        raise refusal(f"{verb} is for the rows of a stream, and '{stream.node.name}' is a table", next_step)


def _moment(time: datetime | str) -> datetime:
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError:
        raise refusal(f"{time!r} is not a time", "for example as_of('2026-01-01T12:00:00+00:00')") from None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise refusal(f"{time!r} is not a time with a zone", "for example as_of('2026-01-01T12:00:00+00:00')")
    return moment
