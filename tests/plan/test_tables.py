"""Tables: what is refused, with the user's line and a next step; which streams are tables; and what their keys are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.nodes import Dead, Late, Project, Read
from millstream.plan.stream import Stream
from millstream.plan.table_nodes import AllRows, Latest, Top
from millstream.plan.tables import Table
from millstream.testing import Add, play
from step_names import by_kind

SCHEMA = "user string, team string, score int, tags map<string,string>, at timestamp"
CHANGES = "user string, city string, weight int, event_time timestamp"
NOON = "2026-01-01T12:00:00+00:00"


def stream(event_time: str | None = "at") -> Stream:
    return ms.Flow("f").read("scores", SCHEMA, event_time)


def table() -> Table:
    return stream().to_table(key="user")


def bag() -> Table:
    return stream().to_table()


def teams() -> Table:
    return stream().group_by("team", "user").agg(n=ms.count())


def retracting() -> Stream:
    return stream().key_by("team").window(ms.fixed("1 minute")).retracting().agg(n=ms.count())


def changed(schema: str = CHANGES, event_time: str | None = "event_time") -> Stream:
    return ms.Flow("f").read("changes", schema, event_time, changes=True)


def both() -> Stream:
    """A stream and a table in one."""
    rows = stream()
    return rows.union(rows.to_table(key="user"))


def read_again_and_streamed() -> Stream:
    rows = changed()
    return rows.union(rows.to_table(key="user"))


def stream_and_table_to_one_place(first: Any, second: Any) -> None:
    rows = stream().select("user", "score")
    rows.write(first)
    rows.to_table(key="user").write(second)


def given(row: Any, key: Any) -> None:
    return None


REFUSALS: list[tuple[Callable[[], Any], str, str]] = [
    # to_table
    (lambda: stream().to_table(key=()), "a table needs a key", "columns that exist: user, team"),
    (lambda: stream().to_table(key=()), "a table needs a key", "or remove key= to keep every row"),
    (
        lambda: stream().to_table(deleted="score = 0"),
        "deleted= selects rows that delete their key, but there is no key",
        "to_table(key='user', deleted=…)",
    ),
    (lambda: table().to_table(name="b"), "'to_table' is already a table", "remove name="),
    (lambda: bag().to_table(key="user", deleted="score = 0"), "retracted by weight", "remove deleted="),
    (lambda: bag().take(1), "take needs a stream, but 'to_table' is a table", "top(10, by='score desc')"),
    (
        lambda: bag().distinct("user", within="1 day"),
        "needs a stream, but 'to_table'",
        "remove within=",
    ),
    (lambda: bag().window(ms.fixed("1 m")), "'to_table' is a table", "use .changes() for its changes"),
    (lambda: bag().distinct("user").window(ms.fixed("1 m")), "'distinct' is a table", "use .changes() for its changes"),
    (lambda: bag().late, "the step 'to_table' (allrows) has no late rows", "to_table(key=…)"),
    (lambda: stream(None).to_table().as_of(NOON), "the rows of 'read_scores' have no event time", "event_time='…'"),
    (lambda: stream().to_table(key=3), "key takes one column name or several, not 3", "key='user'"),  # type: ignore[arg-type]
    (lambda: stream().to_table(key=["user", 3]), "key takes one column name", "key=('team', 'user')"),  # type: ignore[list-item]
    (lambda: stream().to_table(key="usr"), "there is no column 'usr'", "did you mean 'user'?"),
    (lambda: stream().to_table(key=("user", "user")), "duplicate column in key: user, user", "name each once"),
    (lambda: stream().to_table(key="tags"), "'tags' is map<string,string>, which cannot be a key", "with_column"),
    (lambda: stream().to_table(key="user", deleted="score"), "'score' is int, but a condition", "compare"),
    (lambda: stream().to_table(key="user", name="a b"), "'a b' is not a valid name for a step", "letters"),
    (
        lambda: changed().to_table("user", deleted="city = ''"),
        "'read_changes.row' are retracted by weight",
        "remove deleted=",
    ),
    (
        lambda: changed().to_table("user", name="homes"),
        "'read_changes.row' is already a table, so there is no step to name 'homes'",
        "remove name=",
    ),
    (
        lambda: table().to_table(key="team"),
        "the key of 'to_table' is user, so several rows may have the same team",
        "top(1, by=…, per='team')",
    ),
    (
        lambda: teams().to_table(key="team"),
        "the key of 'group_by' is team, user, so several rows",
        "top(1, by=…, per='team')",
    ),
    (lambda: teams().to_table(key=("n", "team")), "may have the same n, team", "top(1, by=…, per=('n', 'team'))"),
    # aggregates
    (lambda: stream().group_by("tem").agg(n=ms.count()), "there is no column 'tem'", "did you mean 'team'?"),
    (lambda: stream().group_by("team").agg(), "agg needs at least one aggregate", "ms.sum"),
    (lambda: stream().group_by("team").agg(ms.count()), "agg takes aggregates by name", "n=ms.count()"),
    (lambda: stream().group_by("team").agg(team=ms.count()), "a table already has a column 'team'", "other than"),
    (lambda: stream().group_by("team").agg(weight=ms.count()), "a table already has a column 'weight'", "other than"),
    (lambda: stream().group_by("team").agg(n="count"), "'count' is not an aggregate", "ms.sum"),
    # the other side of a table, and its past
    (lambda: table().with_column("weight", "1").changes(), "changes add a column 'weight'", "select("),  # type: ignore[attr-defined]
    (lambda: table().with_column("Event_Time", "at").changes(), "changes add a column 'event_time'", "select("),  # type: ignore[attr-defined]
    (
        lambda: table().with_column("weight", "1").write("out"),
        "writing a table may add a column 'weight'",
        "select(",
    ),
    (lambda: table().as_of("noon"), "'noon' is not a time", "as_of('2026-01-01T12:00:00+00:00')"),
    (
        lambda: table().as_of("2026-01-01T12:00:00"),
        "is not a time with a time zone",
        "as_of('2026-01-01T12:00:00+00:00')",
    ),
    (lambda: table().as_of(3), "3 is not a time with a time zone", "as_of("),  # type: ignore[arg-type]
    (lambda: stream(None).to_table("user").as_of(NOON), "the rows of 'to_table' have no event time", "event_time='…'"),
    # distinct, take, top
    (lambda: stream().distinct("usr"), "there is no column 'usr'", "did you mean 'user'?"),
    (lambda: stream().distinct("user", within="0 seconds"), "within must be longer than 0", "within='1 day'"),
    (lambda: stream().distinct("user", within="soon"), "soon", ""),
    (
        lambda: table().distinct("team", within="1 day"),
        "needs rows that are never retracted, but those of 'to_table' may be",
        "remove within=",
    ),
    (lambda: stream(None).distinct("user", within="1 day"), "the rows of 'read_scores' have none", "event_time='…'"),
    (lambda: stream().take(0), "take takes a positive integer, not 0", "take(10)"),
    (lambda: stream().take(True), "take takes a positive integer, not True", "take(10)"),
    (lambda: stream().take(1, per=3), "per takes one column name or several, not 3", "per='user'"),  # type: ignore[arg-type]
    (lambda: stream().take(1, per="usr"), "there is no column 'usr'", "did you mean 'user'?"),
    (lambda: table().take(1), "take needs rows that are never retracted", "top(10, by='score desc')"),
    (lambda: stream().top(1.5, by="score"), "top takes a positive integer, not 1.5", "top(10)"),  # type: ignore[arg-type]
    (lambda: stream().top(1, by=()), "top needs an order", "by='score desc'"),
    (lambda: stream().top(1, by=3), "by takes one column name or several, not 3", "by=['score desc', 'name']"),  # type: ignore[arg-type]
    (lambda: stream().top(1, by=[("score", "desc")]), "by takes one column name", "by='score desc'"),  # type: ignore[list-item]
    (lambda: stream().top(1, by="scor desc"), "there is no column 'scor'", "did you mean 'score'?"),
    (lambda: stream().top(1, by="tags"), "but 'tags' is map<string,string>", "order by another column"),
    (
        lambda: stream().top(1, by="score, user desc"),
        "by='score, user desc' contains several orders",
        'write them as a list: by=["score", "user desc"]',
    ),
    (
        lambda: stream().top(1, by="greatest(score, 1), user"),
        "contains several orders",
        'by=["greatest(score, 1)", "user"]',
    ),
    (
        lambda: stream().top(1, by="score desc nulls first"),
        "sets the order of nulls",
        "nulls always come last: remove 'nulls first'",
    ),
    (
        lambda: stream().top(1, by="score NULLS LAST"),
        "sets the order of nulls",
        "nulls always come last: remove 'NULLS LAST'",
    ),
    (lambda: stream().top(1, by="score", per="tem"), "there is no column 'tem'", "did you mean 'team'?"),
    (
        lambda: stream().top(1, by="score", rank="user"),
        "rank is the name of a new column, not 'user'",
        "rank='position'",
    ),
    (lambda: stream().top(1, by="score", rank=1), "rank is the name of a new column, not 1", "rank='position'"),  # type: ignore[arg-type]
    (lambda: stream().top(1, by="score", rank="USER"), "USER", ""),
    (
        lambda: stream().top(1, by="score", ties=3),
        "ties is True or False, not 3",
        "includes rows equal to the last one",
    ),  # type: ignore[arg-type]
    # a table is no stream
    (
        lambda: table().window(ms.fixed("1 m")),
        "a window needs a stream, but 'to_table' is a table",
        "use .changes() for its changes as a stream",
    ),
    (lambda: table().key_by("team").window(ms.rows(3)), "a window needs a stream", "group_by(…).agg(…)"),
    (lambda: teams().where("n > 1").window(ms.fixed("1 m")), "'where' is a table", ".changes()"),
    (lambda: stream().top(3, by="score").window(ms.fixed("1 m")), "'top' is a table", ".changes()"),
    (lambda: table().distinct("team").window(ms.fixed("1 m")), "'distinct' is a table", ".changes()"),
    (lambda: table().as_of(NOON).window(ms.fixed("1 m")), "'as_of' is a table", ".changes()"),
    (lambda: both().window(ms.fixed("1 m")), "'union' is a table", ".changes()"),
    (lambda: both().select("team", "at").window(ms.fixed("1 m")), "'select' is a table", ".changes()"),
    (lambda: changed().to_table("user").window(ms.fixed("1 m")), "'read_changes.row' is a table", ".changes()"),
    (lambda: read_again_and_streamed().window(ms.fixed("1 m")), "'union' is a table", ".changes()"),
    (
        lambda: table().key_by("team").process(given, "n int"),
        "process needs rows that are never retracted",
        "use .changes() for the changes",
    ),
    (
        lambda: retracting().key_by("team").process(given, "n int"),
        "process needs rows that are never retracted",
        "use .discarding()",
    ),
    # rows by key
    (
        lambda: stream().key_by("user").agg(n=ms.count()),
        "a keyed stream needs a window before agg",
        "use .window(…).agg(…), or stream.group_by('user').agg(…)",
    ),
    (lambda: stream().key_by("user").to_table(), "to_table takes its key with key=", "stream.to_table(key='user')"),
    (
        lambda: stream().key_by("team", "user").to_table("user"),
        "to_table takes its key with key=",
        "to_table(key=('team', 'user'))",
    ),
    # what is read as changes, and what is written
    (lambda: changed("weight int", None), "there are no columns besides weight", "add the columns of the rows"),
    (lambda: changed("weight int, event_time timestamp"), "besides weight and event_time", "the columns"),
    (
        lambda: stream_and_table_to_one_place(ms.sqlite("a.db", "t"), ms.sqlite("a.db", "t")),
        "two streams write to sqlite t, the other one at",
        "union",
    ),
    (
        lambda: stream_and_table_to_one_place(ms.sqlite("a.db", "t"), ms.sqlite("./a.db", "T")),
        "two streams write to sqlite T",
        "union",
    ),
    (
        lambda: stream_and_table_to_one_place(ms.sqlite("a.db", "t", key="user"), ms.sqlite("a.db", "t")),
        "two streams write to",
        "union",
    ),
    (
        lambda: stream_and_table_to_one_place(ms.postgres("host=a", "t"), ms.postgres("host=a", "t")),
        "two streams write to postgres t",
        "union",
    ),
]


@pytest.mark.parametrize(("mistake", "what", "next_step"), REFUSALS, ids=[f"{i}" for i in range(len(REFUSALS))])
def test_a_mistake_is_refused_where_it_is_made(mistake: Callable[[], Any], what: str, next_step: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        mistake()
    assert what in by_kind(refused.value.what)
    assert next_step in (refused.value.next_step or "")
    assert (refused.value.where or "").startswith(f"{__file__}:")


def test_tables_may_have_endpoints_of_their_own() -> None:
    stream_and_table_to_one_place(ms.sqlite("a.db", "t"), ms.sqlite("a.db", "u"))
    stream_and_table_to_one_place(ms.sqlite("a.db", "t"), ms.sqlite("b.db", "t"))
    stream_and_table_to_one_place(ms.postgres("host=a", "t"), ms.postgres("host=b", "t"))
    stream_and_table_to_one_place(ms.sqlite("host=a", "t"), ms.postgres("host=a", "t"))


def test_which_steps_are_tables() -> None:
    rows, homes = stream(), table()
    flow = homes.flow
    tables = [homes, teams(), rows.top(1, by="score"), homes.distinct("team"), homes.as_of(NOON), both()]
    tables += [homes.join(homes.select("user", n="score"), on="user"), homes.where("score > 1"), homes.map(dict)]
    tables += [homes.join(flow.table([{"team": "a"}], "team string"), on="team")]
    tables += [bag(), bag().distinct("team"), bag().where("score > 1"), retracting().to_table(), changed().to_table()]
    assert all(isinstance(each, Table) and each.node.is_table for each in tables)
    streams = [rows, rows.distinct("user"), rows.take(1), homes.changes(), homes.late, homes.map(dict).dead]
    streams += [retracting(), changed(), both().map(dict).dead, homes.changes().where("weight > 0")]
    streams += [homes.changes().join(homes, on="user", as_of="now"), rows.key_by("user").process(given, "n int")]
    assert not any(isinstance(each, Table) or each.node.is_table for each in streams)


def test_the_changes_of_a_table_go_into_windows() -> None:
    counted = table().changes().window(ms.fixed("1 minute")).agg(n=ms.count())
    assert counted.schema.names == ("window", "pane", "weight", "n", "event_time")


def test_a_key_stays_as_long_as_it_names_the_rows() -> None:
    named = teams()
    assert named.key == ("team", "user")
    assert named.where("n > 1").key == ("team", "user")  # type: ignore[attr-defined]
    assert named.select("user", "team").key == ("team", "user")  # type: ignore[attr-defined]
    assert named.select("user", "n").key == ()  # type: ignore[attr-defined]
    assert named.union(named).key == ()  # type: ignore[attr-defined]
    assert named.to_table(key=("n", "user", "team")).key == ("n", "user", "team")
    assert named.select("user", "n").to_table(key="user").key == ("user",)
    assert retracting().select("team", "n").to_table(key="team").key == ("team",)
    assert stream().top(1, by="score", per="team").key == ("team",)
    assert stream().top(3, by="score", per="team", rank="place").key == ("team", "place")
    assert stream().top(3, by="score", per="team").key == ()
    assert stream().top(1, by="score", per="team", ties=True).key == ()
    assert stream().top(3, by="score", per="team", rank="place", ties=True).key == ()


def test_top_says_whether_it_has_ties() -> None:
    assert stream().top(3, by="score desc", per="team").node.label == "top 3 per team by score desc"
    tied = stream().top(3, by="score desc", per="team", rank="place", ties=True)
    assert tied.node.label == "top 3 with ties per team by score desc, place in place"


def test_all_rows_have_no_key_unless_one_is_given() -> None:
    assert bag().key == ()
    assert bag().where("score > 1").key == ()  # type: ignore[attr-defined]
    assert bag().distinct("team").key == ("team",)  # type: ignore[attr-defined]
    keyed = bag().to_table(key="user")
    assert keyed.key == ("user",)
    assert isinstance(keyed.node, AllRows)


def test_a_table_is_a_table_of_all_its_rows_as_it_is() -> None:
    named = teams()
    assert named.to_table() is named
    assert bag().to_table().explain().count("all rows") == 1


def test_all_rows_are_retracted_only_if_those_of_the_stream_are() -> None:
    assert not bag().node.is_changing
    assert changed().to_table().node.is_changing
    assert retracting().to_table().node.is_changing
    assert "weight" not in retracting().to_table().schema.names


def test_what_is_written_of_all_rows_has_weights() -> None:
    table = bag()
    table.write("out")
    (written,) = table.flow.outputs
    assert written.net
    assert written.is_changing
    assert written.keys == ()


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("score desc", ["score desc"]),
        (["score DESC", "user asc"], ["score desc", "user"]),
        ("coalesce(score, 0) desc", ["coalesce(score, 0) desc"]),
        ("concat(user, ', (', team) desc", ["concat(user, ', (', team) desc"]),
    ],
)
def test_orders(by: str | list[str], said: list[str]) -> None:
    node = stream().top(1, by=by).node
    assert isinstance(node, Top)
    assert [str(order) for order in node.order] == said


# ---------------------------------------------------------------- what is read as changes


def test_weight_and_event_time_of_a_change_are_not_part_of_its_row() -> None:
    row = changed()
    assert row.schema.ddl == "user string, city string"
    assert isinstance(row.node, Project)
    (read,) = row.node.inputs
    assert isinstance(read, Read)
    assert read.schema.ddl == CHANGES
    assert row.node.is_changing


def test_an_event_time_of_the_rows_own_stays() -> None:
    assert changed("user string, weight int, at timestamp", "at").schema.ddl == "user string, at timestamp"
    assert changed(event_time=None).schema.ddl == "user string, city string, event_time timestamp"
    assert isinstance(changed("user string, at timestamp", "at").node, Read)
    assert ms.Flow("f").read("a", CHANGES, "event_time").schema.ddl == CHANGES


def test_what_cannot_be_decoded_of_changes_is_there() -> None:
    row = changed()
    assert isinstance(row.dead.node, Dead)
    assert row.dead.node is row.dead.node
    assert row.dead.node.inputs == row.node.inputs
    assert type(row.to_table(key="user").dead) is Stream


def test_changes_are_rows_before_the_first_step() -> None:
    assert by_kind(changed().select("user").node.name) == "select"


def test_play_retracts_rows_by_the_weights_of_its_steps() -> None:
    steps = [Add([{"user": "ann", "n": 1}], weights=[1]), Add([{"user": "ann", "n": 1}], weights=[-1])]
    counted = play(lambda rows: rows.group_by().agg(n=ms.count()), steps, schema="user string, n int")
    assert counted == [[{"n": 1}], [{"n": 1, "weight": -1}]]


def test_late_rows_of_a_table_are_a_stream() -> None:
    late = table().late
    assert isinstance(late.node, Late)
    assert isinstance(late.node.inputs[0], Latest)
    assert type(late) is Stream
