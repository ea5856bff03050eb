"""Every mistake in a flow is refused in the call that makes it, with the user's line, what exists, and a next step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput, MillstreamError
from millstream.plan.flow import Flow
from millstream.plan.stream import Stream
from step_names import by_kind

SCHEMA = "user string, team string, score int, ok boolean, tags map<string,string>, spot struct<x:int>, at timestamp"


def stream(event_time: str | None = "at", flow: Flow | None = None, source: str = "scores") -> Stream:
    return (flow or ms.Flow("f")).read(source, SCHEMA, event_time)


def panes(keyed: bool = True) -> Any:
    rows = stream()
    return (rows.key_by("team") if keyed else rows).window(ms.fixed("1 minute"))


def two_flows() -> None:
    stream().union(stream(flow=ms.Flow("g")))


def different() -> None:
    flow = ms.Flow("f")
    flow.read("a", "x int, y int").union(flow.read("b", "x bigint, z int"))


def two_names() -> None:
    stream().where("ok", name="good").where("ok", name="good")


def taken_name() -> None:
    stream().where("ok", name="read_scores")


def loop() -> None:
    stream().write("scores")


def loop_the_other_way() -> None:
    rows = stream()
    rows.write("out")
    rows.flow.read("out", "x int")


def some_without_time() -> None:
    flow = ms.Flow("f")
    stream(flow=flow).union(stream(None, flow, "more")).window(ms.fixed("1 minute"))


def panes_without_time() -> None:
    stream().window(ms.everything()).agg(n=ms.count()).window(ms.fixed("1 minute"))


async def later(row: Any) -> Any:
    return row


REFUSALS: list[tuple[Callable[[], Any], str, str]] = [
    # flows, sources and sinks
    (lambda: ms.Flow("a b"), "'a b' is not a valid name for a flow", "letters"),
    (lambda: ms.Flow(3), "3 is not a valid name for a flow", "letters"),  # type: ignore[arg-type]
    (lambda: ms.Flow("f").read("a b", "x int"), "cannot read 'a b': not a valid topic name", "letters"),
    (lambda: ms.Flow("f").read(None, "x int"), "cannot read None: not a valid topic name", "letters"),
    (lambda: ms.Flow("f").read("a", "x strange"), "strange", ""),
    (lambda: ms.Flow("f").read("a", 3), "a schema must be text", "write for example"),  # type: ignore[arg-type]
    (lambda: ms.Flow("f").read("a", SCHEMA, "att"), "there is no column 'att'", "did you mean 'at'? columns"),
    (lambda: ms.Flow("f").read("a", SCHEMA, "score"), "event_time 'score' is int", "timestamp columns: at"),
    (lambda: ms.Flow("f").read("a", "x int", None, ms.ascending()), "a watermark needs event_time", "event_time='…'"),
    (lambda: ms.Flow("f").read("a", SCHEMA, "at", "1 s"), "is not a watermark", "bounded"),  # type: ignore[arg-type]
    (lambda: ms.Flow("f").read("a", SCHEMA, "at", ms.punctuated("score")), "'score' is int", ""),
    (lambda: ms.Flow("f").read("a", SCHEMA, "at", ms.punctuated("att")), "no column 'att'", "did you mean 'at'?"),
    (lambda: stream().write(""), "cannot write '': not a valid topic name", "letters"),
    (lambda: [(rows := stream()).write("out"), rows.write(ms.kafka(topic="out"))], "two streams write to", "union"),
    (
        lambda: [(rows := stream()).write(ms.kafka("a", topic="out")), rows.write(ms.kafka("a:9092", topic="out"))],
        "two streams write to",
        "union",
    ),
    (lambda: stream().write(ms.kafka(topic="scores")), "the flow reads and writes 'scores'", "another topic"),
    (lambda: [(rows := stream()).write("out"), rows.write("out")], "two streams write to out, the other", "union"),
    (loop, "the flow reads and writes 'scores'", "another topic"),
    (loop_the_other_way, "the flow reads and writes 'out'", "another topic"),
    (lambda: ms.Flow("f").check(), "the flow 'f' has no output", ".write("),
    (lambda: ms.Flow("f").explain(), "the flow 'f' has no output", ".write("),
    (lambda: stream().explain("png"), "no format 'png'", "text, mermaid, svg"),  # type: ignore[arg-type]
    # names
    (two_names, "there are two steps named 'good'", "choose another"),
    (taken_name, "there are two steps named 'read_scores'", "choose another"),
    (lambda: stream().where("ok", name="a b"), "'a b' is not a valid name for a step", "letters"),
    # row by row
    (lambda: stream().where("scor > 1"), "there is no column 'scor'", "did you mean 'score'?"),
    (lambda: stream().where("score"), "'score' is int, but a condition must be true or false", "compare"),
    (lambda: stream().where(3), "an expression must be Spark SQL text, not 3", ""),  # type: ignore[arg-type]
    (lambda: stream().select(), "select needs at least one column", "columns that exist: user"),
    (lambda: stream().select("usr"), "there is no column 'usr'", "did you mean 'user'?"),
    (lambda: stream().select("score + 1"), "there is no column 'score + 1'", "name='expression'"),
    (lambda: stream().select("user", "user"), "user", ""),
    (lambda: stream().select("user", USER="team"), "USER", ""),
    (lambda: stream().select(x="rand()"), "repeatable", ""),
    (lambda: stream().with_column("", "1"), "a column name is a string", ""),
    (lambda: stream().with_column("x", "sum(score)"), "more than one row", ".agg"),
    (lambda: stream().map("score + 1"), "map takes a function", "select("),  # type: ignore[arg-type]
    (lambda: stream().flat_map(3), "flat_map takes a function", "lambda"),  # type: ignore[arg-type]
    (lambda: stream().map(later), "this one is async", "map_async"),
    (lambda: stream().map(len, batch="numpy"), "batch is True, False", "polars"),  # type: ignore[arg-type]
    (lambda: stream().map(len, "x strange"), "strange", ""),
    (lambda: stream().split({}), "split takes branches", "rest="),
    (lambda: stream().split({"a b": "ok"}), "'a b' is not a valid name for a branch", "letters"),
    (lambda: stream().split({"a": "ok"}, rest="a"), "two branches named 'a'", "taken: a"),
    (lambda: stream().split({"a": "score"}), "a condition must be true or false", ""),
    (lambda: stream().route(), "route takes branches", "match="),
    (lambda: stream().route(a="ok", match="any"), "match='any' is unknown", "first"),
    (lambda: stream().route(a="ok", rest="a"), "two branches named 'a'", "taken: a"),
    (lambda: stream().union(), "union needs at least two streams", "a.union(b)"),
    (lambda: stream().union("b"), "union takes streams, not 'b'", "a.union(b)"),  # type: ignore[arg-type]
    (two_flows, "union needs streams of one flow", "topic"),
    (different, "'y' is missing in one; 'z' is missing in one; 'x' is int and bigint", "select"),
    (lambda: panes().agg(n=ms.count(), name="p").dead, "the step 'p' (windowedaggregate) has no dead letters", "map"),
    # grouping
    (lambda: stream().key_by("tem"), "there is no column 'tem'", "did you mean 'team'?"),
    (lambda: stream().key_by("team", "team"), "duplicate column in key_by", ""),
    (lambda: stream().key_by("tags"), "'tags' is map<string,string>, which cannot be a key", "with_column"),
    (lambda: panes().agg(n=ms.count()).key_by("window"), "cannot be a key", "window.start"),
    (lambda: panes().agg(n=ms.count()).key_by("weight"), "a key cannot be named 'weight'", "select"),
    (lambda: stream().window("1 minute"), "'1 minute' is not a window", "fixed"),  # type: ignore[arg-type]
    (lambda: stream().window(ms.fixed("1 m"), timestamp="end"), "timestamp is one of end_of_window", ""),
    (lambda: stream().window(ms.fixed("1 m"), allowed_lateness="-1 s"), "allowed_lateness '-1 s' is negative", ""),
    (lambda: stream().window(ms.fixed("1 m"), allowed_lateness=timedelta(-1)), "negative", ""),
    (lambda: stream().window(ms.fixed("1 m"), allowed_lateness=5), "allowed_lateness", "unit"),  # type: ignore[arg-type]
    (lambda: stream().window(ms.rows(3), allowed_lateness="1 s"), "rows(3) has no end", "remove allowed_lateness"),
    (lambda: stream().window(ms.everything(), allowed_lateness="1 s"), "has no end", "remove allowed_lateness"),
    (lambda: stream(None).window(ms.fixed("1 m")), "the rows of 'read_scores' have none", "time='processing'"),
    (lambda: stream(None).where("ok").window(ms.rows(2)), "the rows of 'read_scores' have none", "event_time='…'"),
    (some_without_time, "the rows of 'read_more' have none", "event_time='…'"),
    (panes_without_time, "the panes of everything() have none", "timestamp='latest'"),
    (lambda: stream().window(ms.delta_window("user", 1)), "delta_window needs a number, but 'user' is string", "score"),
    (lambda: stream().window(ms.delta_window("scor", 1)), "there is no column 'scor'", "did you mean 'score'?"),
    (lambda: stream().window(ms.closed_by("score")), "a condition must be true or false", ""),
    (lambda: panes().trigger(ms.each), "is not a trigger", "after_watermark"),
    # aggregates
    (lambda: panes().agg(), "agg needs at least one aggregate", "ms.sum"),
    (lambda: panes().agg(ms.count()), "agg takes aggregates by name", "n=ms.count()"),
    (lambda: panes().agg(n="count"), "'count' is not an aggregate", "ms.sum"),
    (lambda: panes().agg(window=ms.count()), "a pane already has a column 'window'", "other than"),
    (lambda: panes().agg(Weight=ms.count()), "a pane already has a column 'Weight'", "other than"),
    (lambda: panes().agg(team=ms.count()), "a pane already has a column 'team'", "other than"),
    (lambda: panes().agg(n=ms.count(), N=ms.count()), "N", ""),
    (lambda: panes().agg(x=ms.sum("scor")), "there is no column 'scor'", "did you mean 'score'?"),
    (lambda: panes().agg(x=ms.sum("user")), "sum needs a number, but 'user' is string", "cast"),
    (lambda: panes().agg(x=ms.mean("ok")), "mean needs a number, but 'ok' is boolean", "cast"),
    (lambda: panes().agg(x=ms.stddev("at")), "stddev needs a number", "cast"),
    (lambda: panes().agg(x=ms.min("tags")), "min needs an orderable type", ""),
    (lambda: panes().agg(x=ms.max("spot")), "max needs an orderable type", ""),
    (lambda: panes().agg(x=ms.top("tags", 2)), "top needs an orderable type", ""),
    (lambda: panes().agg(x=ms.top("user", 2, by="spot")), "but 'spot' is struct<x:int>", ""),
    (lambda: panes().agg(x=ms.distinct_count("tags")), "anything but a map", ""),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "what", "next_step"), REFUSALS, ids=[what for _, what, _ in REFUSALS])
def test_a_mistake_is_refused_where_it_is_made(mistake: Callable[[], Any], what: str, next_step: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        mistake()
    assert what in by_kind(refused.value.what)
    assert next_step in (refused.value.next_step or "")
    code = mistake.__code__
    assert refused.value.where
    file, line = refused.value.where.split(", ")[0].rsplit(":", 1)
    assert file == __file__
    assert code.co_firstlineno <= int(line) <= max(number or 0 for _, _, number in code.co_lines())


def test_everything_legal_is_legal() -> None:
    rows = stream()
    for window in (ms.everything(), ms.rows(3), ms.delta_window("score", 2.5), ms.closed_by("ok"), ms.sessions("1 m")):
        rows.window(window).agg(n=ms.count())
    for trigger in (ms.after_watermark(), ms.at_expiry(), ms.after_count(2).until(ms.at_expiry())):
        rows.window(ms.everything()).trigger(trigger).agg(n=ms.count())
    stream(None).window(ms.fixed("1 minute", time="processing")).agg(n=ms.count())
    stream().window(ms.everything(), timestamp="latest").agg(n=ms.count()).window(ms.fixed("1 m")).agg(n=ms.count())


def test_the_columns_of_steps() -> None:
    rows = stream()
    assert rows.select("user", twice="score * 2").schema.ddl == "user string, twice int"
    assert rows.select("user").with_column("USER", "length(user)").schema.ddl == "USER int"
    assert rows.select("user").with_column("n", "1L").schema.ddl == "user string, n bigint"
    assert rows.map(len, "n int").schema.ddl == "n int"
    totals = rows.key_by("team").window(ms.fixed("1 m")).agg(total=ms.sum("score"), best=ms.top("user", 2, by="score"))
    assert totals.schema.names == ("team", "window", "pane", "weight", "total", "best", "event_time")
    assert totals.late.schema.names == (*rows.schema.names, "window", "reason")


def test_a_union_may_be_null_where_one_of_its_inputs_may() -> None:
    flow = ms.Flow("f")
    joined = flow.read("a", "x int not null").union(flow.read("b", "x int"))
    assert joined.schema.ddl == "x int"


def branched(flow: Flow, parts: Sequence[str]) -> dict[str, str]:
    """Names of steps, of a flow whose parts are written in some order."""
    rows = stream(flow=flow)
    made: dict[str, Callable[[], Stream]] = {
        "totals": lambda: rows.key_by("team").window(ms.fixed("1 m")).agg(total=ms.sum("score")),
        "per user": lambda: rows.key_by("user").window(ms.fixed("1 m")).agg(total=ms.sum("score")),
        "of good": lambda: rows.where("ok").key_by("team").window(ms.fixed("1 m")).agg(total=ms.sum("score")),
        "chosen": lambda: rows.where("ok", name="good").group_by("team").agg(n=ms.count(), name="chosen"),
        "big": lambda: rows.split({"big": "score > 9"}, rest="small")["big"].distinct("user"),
        "longer": lambda: rows.map(lambda row: {**row, "score": 1}).take(3),
        "shorter": lambda: rows.map(lambda row: {**row, "score": 2}).take(3),
        "late": lambda: rows.key_by("ok").window(ms.fixed("1 m")).agg(n=ms.count()).late,
        "again": lambda: rows.key_by("team").window(ms.fixed("1 m")).agg(total=ms.sum("score")),
    }
    return {part: made[part]().node.name for part in parts}


PARTS = ["totals", "per user", "of good", "chosen", "big", "longer", "shorter", "late"]


def test_names_follow_what_a_step_does_and_is_fed_by() -> None:
    names = branched(ms.Flow("f"), PARTS)
    assert len(set(names.values())) == len(PARTS)
    assert names["chosen"] == "chosen"
    assert re.fullmatch(r"scores\.agg-[0-9a-f]{6}", names["totals"])
    assert re.fullmatch(r"scores\.agg-[0-9a-f]{6}\.late", names["late"])
    assert branched(ms.Flow("g"), list(reversed(PARTS))) == names
    for part in PARTS:
        assert branched(ms.Flow("f"), [part]) == {part: names[part]}


def test_a_name_changes_with_what_lies_before_the_step() -> None:
    def name(condition: str, chosen: str | None = None) -> str:
        return stream().where(condition, name=chosen).distinct("user").node.name

    assert name("ok") == name("ok") != name("not ok")
    assert name("ok", "good") == name("not ok", "good")
    assert stream().where("ok").node.name != stream(source="others").where("ok").node.name


def test_steps_alike_in_all_are_numbered() -> None:
    names = branched(ms.Flow("f"), ["totals", "again"])
    assert names["again"] == f"{names['totals']}_2"


def test_names_are_the_same_in_every_process() -> None:
    program = (
        "import millstream as ms; rows = ms.Flow('f').read('scores', 'user string');"
        "keep = rows.map(lambda row: row if row['user'] in {'ann', 'bob', 'cid', 'dan'} else None);"
        "print(keep.distinct('user').node.name)"
    )
    names = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert names[0] == names[1] != ""


def test_the_body_of_a_function_with_a_name_may_change() -> None:
    def named(body: Callable[..., Any]) -> str:
        body.__name__ = "cleaned"
        return stream().map(body).node.name

    assert named(lambda row: row) == named(lambda row: None)


def test_a_refusal_has_what_where_and_the_next_step() -> None:
    with pytest.raises(MillstreamError) as refused:
        stream().where("scor > 1")
    lines = str(refused.value).splitlines()
    assert lines[0] == "there is no column 'scor', in 'scor > 1'"
    assert lines[1].startswith(f"  where: {__file__}:")
    assert lines[2].startswith("  next:  did you mean 'score'? columns that exist: user, team, score")
