"""Tables: the current state of a stream. Each call validates its arguments and adds a node to the plan.

A table is the sum of its changes: rows of weight +1 and -1, each valid from its event time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from millstream.expressions.column_texts import ColumnsLike, ColumnText, ExpressionLike, as_text
from millstream.expressions.expression import expression
from millstream.expressions.lowered import type_name
from millstream.plan.aggregates.basic import Aggregate, check_order
from millstream.plan.aggregates.texts import named
from millstream.plan.checks import check_keys, refusal, without_event_time
from millstream.plan.nodes import (
    INSTANT,
    Dead,
    Late,
    Node,
    Process,
    Project,
    Read,
    Union,
    Where,
    WindowedAggregate,
    WithEventTime,
)
from millstream.plan.on_spark.hints import OF_GROUPS, Hinted
from millstream.plan.steps.hidden_columns import computed_apart, without_hidden
from millstream.plan.steps.keyed import aggregated
from millstream.plan.steps.retries import Retry
from millstream.plan.steps.written_stream import Written
from millstream.plan.stream import Stream
from millstream.plan.table_nodes import AllRows, AsOf, Changes, Distinct, Grouped, Join, Latest, Order, Take, Top
from millstream.plan.time.bundles import micros
from millstream.plan.walking import derived
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
"""The columns of record metadata in a topic, except its key."""
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
        self._check_columns(CHANGE_COLUMNS, "changes add")
        fields = [*self.schema.arrow, pa.field("weight", pa.int32()), pa.field("event_time", INSTANT)]
        columns = Schema.from_arrow(pa.schema(fields))
        changes = Changes("", columns, (self.node,), users_line())
        return Stream(self.flow, self.flow.named(changes, "changes", name))

    def as_of(self, time: datetime | str, *, name: str | None = None) -> Table:
        """The table as of an event time: the rows that had been added and not retracted by then."""
        moment = _moment(time)
        if (source := without_event_time(self.node)) is not None:
            raise refusal(
                f"the rows of '{source.name}' have no event time, so the table has no history",
                "set it with read(…, event_time='…')",
            )
        node = AsOf("", self.schema, (self.node,), users_line(), micros(moment), moment.isoformat())
        return Table(self.flow, self.flow.named(node, "as_of", name), self.key)

    def to_dataframe(self, **settings: Any) -> Any:
        """The changes of the table as a streaming Spark DataFrame; `weight` is -1 for a retracted row."""
        self._check_columns(("weight",), "the DataFrame of a table adds")
        return super().to_dataframe(**settings)

    def write(
        self, sink: Any, *, name: str | None = None, partitions: int | None = None, retry: Retry | None = None
    ) -> Written:
        """Keeps a copy of the table up to date: in a database, in a compacted topic, or as changes with a weight.

        A topic is keyed by the table's key, and a deleted row becomes a tombstone; without a key it has the changes.
        """
        self._check_columns(("weight",), "writing a table may add")
        return self._write(sink, name, partitions, retry, net=True, keys=self.key)

    def _check_columns(self, names: Sequence[str], what: str) -> None:
        taken = {column.lower() for column in self.schema.names}
        for name in names:
            if name in taken:
                raise refusal(f"{what} a column '{name}'", "rename yours with select(…)")

    def _next(self, node: Node) -> Stream:
        if isinstance(node, Late | Dead):
            return Stream(self.flow, node)
        return Table(self.flow, node, self.key if _keeps(node, self.key) else ())


def _keeps(node: Node, key: tuple[str, ...]) -> bool:
    """Whether the result of a step still has the table's key."""
    if isinstance(node, Where):
        return True
    if isinstance(node, Project):
        same = {name for name, made in node.columns if made.column == name}
        return set(key) <= same
    return False


class Grouping(Hinted):
    """Rows grouped by some columns, to be aggregated."""

    _noun = "a grouping"
    _hints = OF_GROUPS
    if not TYPE_CHECKING:
        __getattr__ = Hinted._unknown

    def __init__(self, stream: Stream, columns: tuple[str, ...]) -> None:
        check_keys(stream.schema, columns, "group_by")
        self._stream = stream
        self._columns = columns

    def agg(self, *texts: object, name: str | None = None, **aggregates: Aggregate | str) -> Table:
        """A table with one row per group, kept up to date; a group without rows has none.

        Aggregates are given as name=aggregate, as name="sum(score)", or as "sum(score) as name".
        """
        stream, keys, chosen = self._stream, self._columns, named(texts, aggregates)
        made, arguments = aggregated(stream, chosen, [*CHANGE_COLUMNS, *keys], "a table")
        with AtUsersLine():
            columns = Schema.from_arrow(pa.schema([*(stream.schema.field(key) for key in keys), *made]))
        node = Grouped("", columns, (stream.node,), users_line(), keys, tuple(chosen.items()), tuple(arguments.items()))
        return _kept(stream, stream.flow.named(node, "group_by", name), keys)


def _kept(stream: Stream, node: Node, key: tuple[str, ...]) -> Table:
    """The result of a step that makes a table; of rows that belong to requests, it is a stream."""
    return Table(stream.flow, node, key) if node.is_table else cast(Table, Stream(stream.flow, node))


def to_table(
    stream: Stream,
    key: ColumnsLike | None,
    deleted: ExpressionLike | None,
    forget_after: str | timedelta | None,
    name: str | None,
) -> Table:
    stream = unweighted(stream)
    if key is not None:
        return latest(stream, key, deleted, forget_after, name)
    if forget_after is not None:
        raise refusal("without a key no key is deleted", "set key=, or remove forget_deleted_after=")
    return all_rows(stream, deleted, name)


def all_rows(stream: Stream, deleted: ExpressionLike | None, name: str | None) -> Table:
    """Every row of a stream; a table is returned as it is."""
    if deleted is not None:
        raise refusal(
            "deleted= selects rows that delete their key, but there is no key",
            "set it: to_table(key='user', deleted=…); or remove deleted=: rows of weight -1 retract equal ones",
        )
    if isinstance(stream, Table):
        _check_unnamed(stream, name)
        return stream
    node = AllRows("", stream.schema, (stream.node,), users_line())
    return Table(stream.flow, stream.flow.named(node, "to_table", name))


def latest(
    stream: Stream,
    key: ColumnsLike,
    deleted: ExpressionLike | None,
    forget_after: str | timedelta | None = None,
    name: str | None = None,
) -> Table:
    """The newest row per key. Without `deleted`, a row whose values are all null deletes its key.

    Key columns, the event time and record metadata are not values: a tombstone has these too. A column renamed by
    `select` stays what it is.
    """
    keys = columns_of(key, "key")
    if not keys:
        raise refusal(
            "a table needs a key",
            f"columns that exist: {', '.join(stream.schema.names)}; or remove key= to keep every row",
        )
    check_keys(stream.schema, keys, "key")
    if stream.node.is_changing or stream.is_table:
        if deleted is not None:
            raise refusal(
                f"rows of '{stream.node.name}' are retracted by weight", "remove deleted=: it is already a table"
            )
        if forget_after is not None:
            raise refusal("a table has no deleted keys to remember", "remove forget_deleted_after=")
        _check_relabelled(stream, keys, name)
        return Table(stream.flow, stream.node, keys)
    condition = None
    if deleted is not None:
        stream, (condition,) = computed_apart(stream, [expression(deleted, stream.schema, boolean=True)], "to_table")
    others = {*keys, *_known_beside_values(stream.node)}
    values = tuple(column for column in stream.schema.names if column not in others)
    by_time = without_event_time(stream.node) is None
    forgotten = _forgotten_after(stream.node, forget_after)
    node = Latest("", stream.schema, (stream.node,), users_line(), keys, condition, values, by_time, forgotten)
    return without_hidden(Table(stream.flow, stream.flow.named(node, "to_table", name), keys), "to_table")


def _forgotten_after(node: Node, given: str | timedelta | None) -> timedelta | None:
    if given is None:
        return None
    with AtUsersLine():
        after = duration(given, what="forget_deleted_after")
    if source := without_event_time(node):
        raise refusal(
            f"forget_deleted_after needs event time, but the rows of '{source.name}' have none",
            "remove it: without event time a deleted key is forgotten at once",
        )
    return after


def _check_relabelled(stream: Stream, keys: tuple[str, ...], name: str | None) -> None:
    """A table may be given a key; it is unique only if it contains the table's own key."""
    _check_unnamed(stream, name)
    known = stream.key if isinstance(stream, Table) else ()
    if not set(known) <= set(keys):
        raise refusal(
            f"the key of '{stream.node.name}' is {', '.join(known)}, so several rows may have the same "
            f"{', '.join(keys)}",
            f"choose which one to keep: top(1, by=…, per={(keys[0] if len(keys) == 1 else keys)!r})",
        )


def _check_unnamed(stream: Stream, name: str | None) -> None:
    if name is not None:
        raise refusal(
            f"'{stream.node.name}' is already a table, so there is no step to name '{name}'",
            "remove name=",
        )


def _known_beside_values(node: Node) -> set[str]:
    """The columns of a stream with the event time or record metadata, which do not depend on the record's value."""
    return derived(node, _known_by)


def _known_by(node: Node, given: list[set[str]]) -> set[str]:
    if isinstance(node, Read):
        fields = node.schema.arrow if node.source.broker_topic else ()
        known = {field.name for field in fields if field.type in METADATA.get(field.name, ())}
        return known if node.event_time is None else {node.event_time, *known}
    if isinstance(node, WithEventTime):
        return given[0] if node.time.column is None else {node.time.column, *given[0]}
    if isinstance(node, Project):
        return {name for name, made in node.columns if made.column in given[0]}
    if isinstance(node, Join):
        sides = zip(given, (node.left, node.right), strict=False)  # static rows are not an input
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
            raise refusal("within must be longer than 0", "for example within='1 day'")
        _check_not_changing(stream, "distinct(…, within=…)", "remove within=")
        if (source := without_event_time(stream.node)) is not None:
            raise refusal(
                f"within needs event time, but the rows of '{source.name}' have none",
                "set it with read(…, event_time='…')",
            )
    node = Distinct("", stream.schema, (stream.node,), users_line(), keys, apart)
    node = stream.flow.named(node, "distinct", name)
    return Table(stream.flow, node, keys) if node.is_table or stream.is_table else Stream(stream.flow, node)


def take(stream: Stream, count: int, per: ColumnsLike, name: str | None) -> Stream:
    keys = columns_of(per, "per")
    check_keys(stream.schema, keys, "per")
    _check_count(count, "take")
    _check_not_changing(stream, "take", "choose the order with top(10, by='score desc')")
    node = Take("", stream.schema, (stream.node,), users_line(), count, keys)
    return Stream(stream.flow, stream.flow.named(node, "take", name))


def top(
    stream: Stream,
    count: int,
    by: str | Sequence[str],
    per: ColumnsLike,
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
        raise refusal(f"ties is True or False, not {ties!r}", "True also includes rows equal to the last one")
    stream, computed = computed_apart(stream, [each.by for each in order], "top")
    order = tuple(Order(by, each.descending) for by, each in zip(computed, order, strict=True))
    columns = stream.schema
    if rank is not None:
        if not isinstance(rank, str) or not rank or rank in columns.names:
            raise refusal(f"rank is the name of a new column, not {rank!r}", "for example rank='position'")
        with AtUsersLine():
            columns = Schema.from_arrow(pa.schema([*columns.arrow, pa.field(rank, pa.int64())]))
    node = Top("", columns, (stream.node,), users_line(), count, keys, order, rank, ties)
    node = stream.flow.named(node, "top", name)
    identifying = (*keys, rank) if rank else keys if keys and count == 1 else ()
    # With ties, any number of rows may share a rank.
    return without_hidden(_kept(stream, node, () if ties else identifying), "top")


def _order(schema: Schema, text: str) -> Order:
    if isinstance(text, ColumnText):
        raise refusal("by is given as a Column, and an order is text", "for example by='score desc'")
    parts = _parts(text)
    if len(parts) > 1:
        listed = ", ".join(f'"{part}"' for part in parts)
        raise refusal(f"by='{text}' contains several orders", f"write them as a list: by=[{listed}]")
    if nulls := NULLS.search(text):
        raise refusal(f"by='{text}' sets the order of nulls", f"nulls always come last: remove '{nulls[0].strip()}'")
    found = DIRECTION.fullmatch(text)
    assert found is not None
    by = expression(found["by"], schema)
    try:
        check_order(by.type)
    except TypeError as needed:
        raise refusal(
            f"an order needs {needed}, but '{by}' is {type_name(by.type)}", "order by another column"
        ) from None
    return Order(by, (found["direction"] or "asc").lower() == "desc")


def _parts(text: str) -> list[str]:
    """Splits at commas outside brackets and quotes."""
    parts, depth = [""], 0
    for piece in PIECE.findall(text):
        depth += (piece in "([{") - (piece in ")]}")
        if piece == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def unweighted(stream: Stream) -> Stream:
    """Drops the weight column of retracting panes, in which a row and its retraction would differ in a table."""
    if not stream.node.is_changing or not _is_weight_of_pane(stream.node):
        return stream
    kept = [(column, stream._kept(column)) for column in stream.schema.names if column != "weight"]
    return stream._project(kept, None, f"{stream.node.name}.row")


def _is_weight_of_pane(node: Node) -> bool:
    """Whether a column `weight` is that of panes."""
    return derived(node, _keeps_weight_of_pane)


def _keeps_weight_of_pane(node: Node, given: list[bool]) -> bool:
    if isinstance(node, Project):
        made = dict(node.columns).get("weight")
        return made is not None and made.column == "weight" and given[0]
    if isinstance(node, Where | Union):
        return any(given)
    return isinstance(node, WindowedAggregate)


def columns_of(given: ColumnsLike, what: str) -> tuple[str, ...]:
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    names = tuple(map(as_text, several))
    if not all(isinstance(name, str) and name for name in names):
        raise refusal(f"{what} takes one column name or several, not {given!r}", f"for example {EXAMPLES[what]}")
    return names


def _check_count(count: object, verb: str) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise refusal(f"{verb} takes a positive integer, not {count!r}", f"for example {verb}(10)")


def _check_not_changing(stream: Stream, verb: str, next_step: str) -> None:
    if stream.node.is_changing:
        raise refusal(
            f"{verb} needs rows that are never retracted, but those of '{stream.node.name}' may be", next_step
        )
    if stream.is_table:
        raise refusal(f"{verb} needs a stream, but '{stream.node.name}' is a table", next_step)


def _moment(time: datetime | str) -> datetime:
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError:
        raise refusal(f"{time!r} is not a time", "for example as_of('2026-01-01T12:00:00+00:00')") from None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise refusal(f"{time!r} is not a time with a time zone", "for example as_of('2026-01-01T12:00:00+00:00')")
    return moment
