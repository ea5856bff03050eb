"""Joins: what is refused, with the user's line and a next step; and which columns a join has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import MillstreamError, NotFound
from millstream.plan.flow import Flow
from millstream.plan.joins.joining import Side
from millstream.plan.stream import Stream
from millstream.plan.table_nodes import IntervalJoin, LookupJoin, SideJoin, TableJoin, WindowJoin
from millstream.plan.tables import Table
from step_names import by_kind

LEFT = "id int, name string, at timestamp"
RIGHT = "id bigint, user string, price double, seen timestamp"
WITHIN = ("0 seconds", "1 hour")


class Both:
    """Two streams of a flow, a table of each, and static rows."""

    def __init__(self, left: str = LEFT, right: str = RIGHT, *, times: bool = True) -> None:
        self.flow = Flow("f")
        self.a = self.flow.read("a", left, "at" if times else None)
        self.b = self.flow.read("b", right, "seen" if times else None)

    @property
    def left(self) -> Table:
        return self.a.to_table(key="id")

    @property
    def right(self) -> Table:
        return self.b.to_table(key="id")

    @property
    def side(self) -> Side:
        return self.flow.table([{"id": 1, "user": "ann"}], "id bigint, user string")


def streams(on: Any = "id", within: Any = WITHIN, both: Both | None = None, **said: Any) -> Stream:
    both = both or Both()
    return both.a.join(both.b, on, within=within, **said)


def lookup(on: Any = "id", both: Both | None = None, **said: Any) -> Stream:
    both = both or Both()
    return both.a.join(both.right, on, **said)


def tables(on: Any = "id", **said: Any) -> Stream:
    both = Both()
    return both.left.join(both.right, on, **said)


def known(on: Any = "id", **said: Any) -> Stream:
    both = Both()
    return both.a.join(both.side, on, **said)


def in_windows(window: Any = None, on: Any = "id", both: Both | None = None, **said: Any) -> Stream:
    both = both or Both()
    return both.a.window(window or ms.fixed("1 minute")).join(both.b, on, **said)


def two_flows() -> Any:
    return Both().a.join(Both().b, on="id", within=WITHIN)


def table_with_stream() -> Any:
    both = Both()
    return both.left.join(both.b, on="id")


def table_within_a_time() -> Any:
    both = Both()
    return both.a.union(both.left).join(both.b, on="id", within=WITHIN)


def stream_with_table_within_a_time() -> Any:
    both = Both()
    return both.b.join(both.a.union(both.left), on="id", within=WITHIN)


def table_looked_up() -> Any:
    both = Both()
    return both.a.union(both.left).join(both.right, on="id", as_of="event_time")


def windows_of_a_table() -> Any:
    both = Both()
    return both.a.window(ms.fixed("1 minute")).join(both.right, on="id")


def windows_of_a_union() -> Any:
    both = Both()
    return both.b.window(ms.fixed("1 minute")).join(both.a.union(both.left), on="id")


def windows_of_known_rows() -> Any:
    both = Both()
    return both.a.window(ms.fixed("1 minute")).join(both.side, on="id")  # type: ignore[arg-type]


def windows_twice() -> Any:
    return in_windows(both=Both(right="id bigint, seen timestamp, Window int"))


def with_a_mode() -> Any:
    both = Both()
    return both.a.window(ms.fixed("1 minute")).discarding().join(both.b, on="id")


def by_key() -> Any:
    both = Both()
    return both.a.key_by("id").join(both.b.key_by("id"))


def by_keys() -> Any:
    return Both().a.key_by("id", "name").join("b", on="id")


def with_keyed() -> Any:
    both = Both()
    return both.a.join(both.b.key_by("id"), on="id")  # type: ignore[arg-type]


def windows_of_keyed() -> Any:
    both = Both()
    return both.a.window(ms.fixed("1 minute")).join(both.b.key_by("id"), on="id")  # type: ignore[arg-type]


def retracted_now() -> Any:
    both = Both()
    changing = both.flow.read("c", LEFT, "at", changes=True)
    return changing.join(both.right, on="id", as_of="now")


def stream_as_rows() -> Any:
    both = Both()
    return both.flow.table(both.b, RIGHT)


REFUSALS: list[tuple[Callable[[], Any], str, str]] = [
    # what is joined
    (lambda: Both().a.join("b", on="id"), "join takes a stream or a table, not 'b'", "a.join(b"),  # type: ignore[arg-type]
    (with_keyed, "join takes a stream or a table, not Keyed", "a.join(b"),
    (windows_of_keyed, "join takes a stream or a table, not Keyed", "a.join(b"),
    (two_flows, "join needs both inputs in one flow, but these are of 'f' and 'f'", "write a topic in one"),
    (by_key, "not with key_by", "use stream.join(other, on='id')"),
    (by_keys, "not with key_by", "stream.join(other, on=('id', 'name'))"),
    (
        table_with_stream,
        "'to_table' is a table, which cannot be joined with a stream",
        "swap them: stream.join(table, as_of=…)",
    ),
    (table_within_a_time, "'union' is a table, which cannot be joined with a stream", "join two tables"),
    (stream_with_table_within_a_time, "within= does not apply to a join of a stream and a table", "leave it out"),
    (table_looked_up, "as_of= does not apply to a join of two tables", "leave it out"),
    # how and on
    (lambda: streams(how="outer"), "there is no 'outer' join", "joins that exist: inner, left"),
    (lambda: streams(on=()), "a join needs at least one column in on=", "on='user'"),
    (lambda: streams(on={}), "a join needs at least one column in on=", "on='user'"),
    (lambda: in_windows(on=None), "a join needs at least one column in on=", "on='user'"),
    (lambda: streams(on=None), "on takes one column name or several, not None", "on={'own': 'other'}"),
    (
        lambda: streams(on=[("id",)]),
        "on takes one column name or several",
        "on={'own': 'other'} where the names differ",
    ),
    (
        lambda: streams(on={("id",): "id"}),
        "on maps columns to columns, not {('id',): 'id'}",
        "on={'own': 'other'}",
    ),
    (
        lambda: streams(on={"id": ["id"]}),
        "on maps columns to columns, not {'id': ['id']}",
        "on={'own': 'other'}",
    ),
    (lambda: streams(on="idd"), "there is no column 'idd'", "did you mean 'id'? columns that exist: id, name, at"),
    (lambda: streams(on={"id": "idd"}), "there is no column 'idd'", "columns that exist: id, user, price, seen"),
    (lambda: streams(on=("id", "id")), "duplicate column in on: id, id", "name each once"),
    (
        lambda: streams(on={"id": "user"}),
        "'id' is int and 'user' is string: they cannot be compared",
        "cast(id as bigint)",
    ),
    (
        lambda: streams(on={"id": "price"}),
        "'id' is int and 'price' is double: they cannot be compared",
        "cast(id as bigint)",
    ),
    # names
    (lambda: streams(suffix=""), "suffix is a string to append to names, not ''", "suffix='_right'"),
    (lambda: tables(suffix=None), "suffix is a string to append to names, not None", "suffix='_right'"),
    (lambda: in_windows(suffix=3), "suffix is a string to append to names, not 3", "suffix='_right'"),
    (
        lambda: streams(both=Both("id int, user string, User_Right int, at timestamp")),
        "the join would have two columns 'user_right'",
        "choose another suffix, or rename with select(…)",
    ),
    (lambda: streams(name="a b"), "'a b' is not a valid name for a step", "letters"),
    # two streams
    (
        lambda: streams(within=None),
        "a join of two streams needs within=",
        "within=('0 seconds', '1 hour')",
    ),
    (lambda: streams(within="1 hour"), "within takes two durations, not '1 hour'", "within=('-5 minutes', '1 hour')"),
    (lambda: streams(within=("1 hour",)), "within takes two durations", "within=('-5 minutes', '1 hour')"),
    (
        lambda: streams(within=("1 hour", "0 s")),
        "within starts at '1 hour', after its end at '0 s'",
        "swap them",
    ),
    (lambda: streams(within=("-soon", "0 s")), "soon", ""),
    (lambda: streams(within=(3, "5 s")), "within", "unit"),
    (lambda: streams(as_of="now"), "as_of= does not apply to a join of two streams", "leave it out"),
    (lambda: streams(allowed_lateness="-1 s"), "allowed_lateness '-1 s' is negative", ""),
    (
        lambda: streams(both=Both(times=False)),
        "within needs event time, but the rows of 'read_a' have none",
        "event_time='…'",
    ),
    # windows
    (
        windows_of_a_table,
        "a join in windows needs a stream, but 'to_table' is a table",
        "stream.join(table, as_of=…)",
    ),
    (
        windows_of_a_union,
        "a join in windows needs a stream, but 'union' is a table",
        "use .changes() for its changes as a stream",
    ),
    (windows_of_known_rows, "a lookup table has no windows", "stream.join(flow.table(…), on=…)"),
    (windows_twice, "a join in windows adds a column 'window', but 'read_b' already has one", "select(…)"),
    (with_a_mode, "a join in windows has no trigger or mode", "remove trigger(…), discarding()"),
    (lambda: in_windows(ms.rows(3)), "streams cannot be joined in rows(3)", "fixed, sliding, sessions or calendar"),
    (lambda: in_windows(ms.fixed("1 m", time="processing")), "streams cannot be joined in fixed(", "in event time"),
    (
        lambda: in_windows(both=Both(times=False)),
        "needs event time, but the rows of 'read_a' have none",
        "event_time='…'",
    ),
    # a stream and a table
    (lambda: lookup(), "a join with a table needs as_of=", "as_of='event_time'"),
    (lambda: lookup(as_of="today"), "as_of='today' is unknown", "as_of='now'"),
    (lambda: lookup(as_of="now", how="right"), "a right join would need rows of the table", "inner, left, semi, anti"),
    (
        lambda: lookup(as_of="now", allowed_lateness="1 s"),
        "allowed_lateness= does not apply to a join of a stream and",
        "leave it out",
    ),
    (
        lambda: lookup(as_of="event_time", both=Both(times=False)),
        "as_of='event_time' needs event time",
        "event_time='…'",
    ),
    (retracted_now, "rows of 'read_c' may be retracted", "use as_of='event_time'"),
    # two tables
    (lambda: tables(within=WITHIN), "within= does not apply to a join of two tables", "leave it out"),
    (lambda: tables(as_of="now"), "as_of= does not apply to a join of two tables", "leave it out"),
    (
        lambda: tables(allowed_lateness="1 s"),
        "allowed_lateness= does not apply to a join of two tables",
        "leave it out",
    ),
    # static rows
    (lambda: known(how="full"), "a full join would need rows of the table", "join two tables"),
    (
        lambda: known(within=WITHIN),
        "within= does not apply to a join of a stream and a lookup table",
        "leave it out",
    ),
    (lambda: known(as_of="now"), "as_of= does not apply to a join of a stream and a lookup table", "leave it out"),
    (stream_as_rows, "flow.table takes static rows, not a stream", "stream.to_table(key=…)"),
    (lambda: Both().flow.table([{"id": "x"}], "id int"), "row 0 of the list does not fit", "the schema is id int"),
    (lambda: Both().flow.table(3, "id int"), "rows cannot be read from int", "a list of dicts"),
    (lambda: Both().flow.table([], "id strange"), "strange", ""),
    (
        lambda: Both().flow.table(ms.sqlite("/nowhere/a.db", "t"), "id int"),
        "there is no such file",
        "the path of the database",
    ),
]


@pytest.mark.parametrize(("mistake", "what", "next_step"), REFUSALS, ids=[f"{i}" for i in range(len(REFUSALS))])
def test_a_mistake_is_refused_where_it_is_made(mistake: Callable[[], Any], what: str, next_step: str) -> None:
    with pytest.raises(MillstreamError) as refused:
        mistake()
    assert what in by_kind(refused.value.what)
    assert next_step in (refused.value.next_step or "")
    assert (refused.value.where or "").startswith(f"{__file__}:")


def test_rows_that_cannot_be_read_name_their_place_and_the_users_line(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as refused:
        Flow("f").table(ms.sqlite(tmp_path / "a.db", "t"), "id int")
    line, place = (refused.value.where or "").split(", ")
    assert line.startswith(f"{__file__}:")
    assert place == str(tmp_path / "a.db")


def test_the_kinds_of_joins() -> None:
    assert isinstance(streams().node, IntervalJoin)
    assert isinstance(in_windows().node, WindowJoin)
    assert isinstance(lookup(as_of="now").node, LookupJoin)
    assert isinstance(tables().node, TableJoin)
    assert isinstance(known().node, SideJoin)


def test_bounds_may_be_negative() -> None:
    node = streams(within=("-5 minutes", timedelta(hours=1))).node
    assert isinstance(node, IntervalJoin)
    assert (node.low, node.high) == (timedelta(minutes=-5), timedelta(hours=1))


def test_the_columns_of_joins() -> None:
    both = "id bigint, name string, at timestamp, user string, price double, seen timestamp"
    assert streams().schema.ddl == both
    assert tables(how="full").schema.ddl == both
    assert lookup(as_of="now", how="semi").schema.ddl == "id bigint, name string, at timestamp"
    assert in_windows().schema.names[-1] == "window"
    assert known({"id": "id"}).schema.ddl == "id bigint, name string, at timestamp, user string"
    assert streams({"name": "user"}).schema.names == ("id", "name", "at", "id_right", "user", "price", "seen")


def test_names_that_differ_only_in_case_get_the_suffix() -> None:
    both = Both("id int, name string, at timestamp", "id int, Name string, seen timestamp")
    assert both.a.join(both.b, "id", within=WITHIN).schema.names == ("id", "name", "at", "Name_right", "seen")
    both = Both("Id int, at timestamp", "id int, seen timestamp")
    assert both.a.join(both.b, {"Id": "id"}, within=WITHIN).schema.names == ("Id", "at", "id_right", "seen")


def test_keys_are_what_a_join_in_windows_is_on() -> None:
    both = Both()
    joined = both.a.key_by("id").window(ms.fixed("1 minute")).join(both.b)
    assert isinstance(joined.node, WindowJoin)
    assert joined.node.on == (("id", "id"),)


def test_a_join_names_the_columns_of_both_sides_and_only_expressions_in_on() -> None:
    """Names and kept state depend on it: a computed column in front of the join is a column like any other."""
    both = Both()
    assert "on name = user" in both.a.join(both.side, on={"name": "user"}).node.label
    cast = both.a.with_column("id", "cast(id as bigint)").join(both.b, on="id", within=WITHIN)
    assert "join on id within" in cast.node.label
    computed = both.a.join(both.b, on={"lower(name)": "user"}, within=WITHIN)
    assert "on lower(name) = user" in computed.node.inputs[0].label


def test_an_expression_that_cannot_be_a_key_is_shown_as_it_was_written() -> None:
    with pytest.raises(MillstreamError, match=r"'split\(name, ','\)' is array<string>, which cannot be a key"):
        streams(on={"split(name, ',')": "user"})
