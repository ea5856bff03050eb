"""The steps on single rows and columns as small transcripts, each played on every runner."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import millstream as ms
from millstream.records import codec, rows_to_batch
from millstream.testing import Add, Clock, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = "key string, n int, at timestamp"


def add(*rows: tuple[Any, ...]) -> Add:
    """Rows as (key, n, seconds)."""
    return Add([{"key": key, "n": n, "at": t(seconds)} for key, n, seconds in rows])


def run(build: Any, *steps: Any, schema: Any = SCHEMA, event_time: Any = "at") -> list[Any]:
    return play(build, list(steps), schema=schema, event_time=event_time)


@pytest.mark.on_spark("more")
def test_columns_are_added_renamed_and_dropped() -> None:
    def build(rows: Any) -> Any:
        more = rows.with_columns(n="n + 1", was="n").rename(key="user").drop("at")
        return more.select("*", both="concat(user, cast(was as string))")

    assert run(build, add(("a", 1, 0), (None, None, 1))) == [
        [{"user": "a", "n": 2, "was": 1, "both": "a1"}, {"user": None, "n": None, "was": None, "both": None}]
    ]


@pytest.mark.on_spark("more")
def test_headers_are_read_set_and_removed() -> None:
    """Bytes stay as they are, other values become text; headers that are not named stay."""

    def build(rows: Any) -> Any:
        wanted = rows.where("cast(headers['kind'] as string) IS DISTINCT FROM 'test'")
        made = wanted.with_headers({"by-step": r"'it\'s'"}, n="n", raw="headers['raw']", old="cast(null as string)")
        return made.select("key", "headers")

    schema = "key string, n int, at timestamp, headers map<string,binary>"
    given = [{"raw": b"\xff", "old": b"1", "kind": b"real"}, None, {"kind": b"test"}]
    rows = [{"key": key, "n": 7, "at": t(0), "headers": each} for key, each in zip("abc", given, strict=True)]
    [found] = run(build, Add(rows), schema=schema)
    assert [(row["key"], dict(row["headers"])) for row in found] == [
        ("a", {"kind": b"real", "by-step": b"it's", "n": b"7", "raw": b"\xff"}),
        ("b", {"by-step": b"it's", "n": b"7"}),
    ]


def test_headers_of_a_stream_without_any() -> None:
    [[row]] = run(lambda rows: rows.with_headers(n="n", none="key").select("headers"), add((None, 1, 0)))
    assert dict(row["headers"]) == {"n": b"1"}


@pytest.mark.on_spark
def test_union_by_name_with_missing_columns() -> None:
    schemas = {"one": "a int, b string, at timestamp", "two": "at timestamp, c double, a int"}
    times = {"one": "at", "two": "at"}
    steps = [Add([{"a": 1, "b": "x", "at": t(0)}], to="one"), Add([{"at": t(1), "c": 0.5, "a": 2}], to="two")]
    out = run(lambda one, two: one.union(two, missing=True), *steps, schema=schemas, event_time=times)
    assert out == [
        [{"a": 1, "b": "x", "at": t(0), "c": None}],
        [{"a": 2, "b": None, "at": t(1), "c": 0.5}],
    ]


def test_a_union_by_name_can_be_aggregated() -> None:
    schemas = {"one": "k string, n int, at timestamp", "two": "at timestamp, n int"}
    steps = [
        Add([{"k": "a", "n": 1, "at": t(0)}], to="one"),
        Add([{"at": t(1), "n": 2}, {"at": t(2), "n": 3}], to="two"),
        Watermark(None),
    ]

    def build(one: Any, two: Any) -> Any:
        return one.union(two, missing=True).key_by("k").window(ms.fixed("1 minute")).agg(total=ms.sum("n"))

    out = run(build, *steps, schema=schemas, event_time={"one": "at", "two": "at"})
    assert [(row["k"], row["total"]) for row in out[2]] == [(None, 5), ("a", 1)]


SAMPLED = [3, 4, 5, 9, 10, 13, 16, 17, 19, 28, 31, 33, 37, 39]
"""Chosen once: a change of the hash would change the results of running jobs."""


@pytest.mark.on_spark("more")
def test_a_sample_is_the_same_in_every_run_however_rows_are_bundled() -> None:
    rows = [("k", n, n) for n in range(40)]
    halves = run(lambda stream: stream.sample(0.25), add(*rows[:13]), add(*rows[13:]))
    whole = run(lambda stream: stream.sample(0.25), add(*rows))
    assert [row["n"] for step in halves for row in step] == [row["n"] for row in whole[0]] == SAMPLED


def test_another_seed_chooses_other_rows() -> None:
    rows = add(*(("k", n, n) for n in range(40)))
    chosen = [run(lambda s, seed=seed: s.sample(0.25, seed=seed), rows)[0] for seed in (0, 1)]
    assert chosen[0] != chosen[1]
    assert run(lambda s: s.sample(0), rows) == [[]]
    assert len(run(lambda s: s.sample(1), rows)[0]) == 40


def test_a_sample_by_a_column_has_all_rows_of_a_value_or_none() -> None:
    rows = add(*((f"user {n % 10}", n, n) for n in range(100)), (None, 1, 1), ("", 1, 1))
    users = [row["key"] for row in run(lambda s: s.sample(0.5, by="key"), rows)[0]]
    known = {user for user in users if user}
    assert 1 <= len(known) <= 9
    assert all(users.count(user) == 10 for user in known)


def test_a_sample_of_a_table_keeps_up_with_its_changes() -> None:
    def build(rows: Any) -> Any:
        return rows.to_table(key="key").sample(0.5, by=("key", "n")).group_by().agg(n=ms.count(), total=ms.sum("n"))

    values = [("a", 1, 0), ("b", 2, 1), ("c", 3, 2), ("a", 4, 3), ("b", 5, 4), ("c", 6, 5)]
    table = run(build, *(add(row) for row in values))
    whole = run(build, add(*values))
    assert table[-1][-1:] == whole[0][-1:] or not table[-1]


# ---------------------------------------------------------------- functions


@pytest.mark.on_spark("more")
def test_a_function_of_pandas_frames() -> None:
    """Goal: whole numbers stay whole beside nulls, and a row it fails on is a dead letter."""

    def twice(frame: Any) -> Any:
        assert type(frame).__module__.startswith("pandas")
        if (frame["key"] == "bad").any():
            raise ValueError("a bad key")
        return frame.assign(n=[None if n is None else n * 2 for n in frame["n"]])[["n", "key"]]

    def build(rows: Any) -> Any:
        made = rows.map(twice, "key string, n bigint", batch="pandas")
        return {"made": made, "dead": made.dead.select("reason")}

    out = run(build, add(("a", 2**31 - 1, 0), ("b", None, 1)), add(("bad", 1, 2), ("c", 2, 3)))
    assert out[0]["made"] == [{"key": "a", "n": 2**32 - 2}, {"key": "b", "n": None}]
    assert out[1]["made"] == [{"key": "c", "n": 4}]
    assert [row["reason"].partition(": ")[2] for row in out[1]["dead"]] == ["ValueError: a bad key"]


@pytest.mark.on_spark("more")
def test_process_without_a_key_has_one_state_for_all_rows() -> None:
    due = t(5)

    def count(row: Any, key: Any) -> Any:
        key.state["n"] = key.state.get("n", 0) + 1
        key.at_processing_time(due, "seen")
        return {"n": key.state["n"]}

    def negated(tag: str, time: Any, key: Any) -> Any:
        return {"n": -key.state["n"]}

    def build(rows: Any) -> Any:
        return rows.key_by().process(count, "n int", on_timer=negated, order="arrival")

    out = run(build, add(("a", 1, 0), ("b", 1, 1)), add(("c", 1, 2)), Clock(due))
    assert [row["n"] for step in out for row in step] == [1, 2, 3, -3]


def test_a_window_without_a_key_has_all_rows() -> None:
    steps = [add(("a", 1, 0), ("b", 1, 0)), Watermark(None)]
    out = run(lambda rows: rows.key_by().window(ms.fixed("1 minute")).agg(n=ms.count()), *steps)
    assert [row["n"] for row in out[1]] == [2]


# ---------------------------------------------------------------- encoded columns

BODIES = "body string, at timestamp"


def bodies(*values: str | bytes | None) -> Add:
    return Add([{"body": value, "at": t(place)} for place, value in enumerate(values)])


@pytest.mark.on_spark
def test_a_column_of_json_becomes_columns() -> None:
    def build(rows: Any) -> Any:
        made = rows.parse("body", "user string, score int, tags array<string>")
        return {"made": made.drop("at"), "dead": made.dead}

    values = ['{"user": "ann", "score": 3, "tags": ["x"]}', "{", None, '{"score": 2, "more": 1}']
    out = run(build, bodies(*values), schema=BODIES)
    assert out[0]["made"] == [
        {"user": "ann", "score": 3, "tags": ["x"]},
        {"user": None, "score": None, "tags": None},
        {"user": None, "score": 2, "tags": None},
    ]
    assert [letter["value"] for letter in out[0]["dead"]] == [b"{"]
    assert ".parse-" in out[0]["dead"][0]["reason"]


@pytest.mark.on_spark("more")
def test_a_row_that_an_expression_fails_on_is_a_dead_letter() -> None:
    def build(rows: ms.Stream) -> dict[str, ms.Stream]:
        kept = rows.where("cast(name as int) > 1", name="kept")
        halved = kept.with_column("n", "10 / (cast(name as int) - 4)", name="halved")
        return {
            "made": halved.select("name", "n"),
            "kept": kept.dead.select("reason", row="cast(value as string)"),
            "halved": halved.dead.select("reason"),
        }

    names = [{"name": name} for name in ("1", "x", "2", "4", "y", "6")]
    (first, second) = run(build, Add(names), Add(names[:1]), schema="name string", event_time=None)
    assert [(row["name"], row["n"]) for row in first["made"]] == [("2", -5.0), ("6", 5.0)]
    assert [row["row"] for row in first["kept"]] == ["{'name': 'x'}", "{'name': 'y'}"]
    assert first["kept"][0]["reason"].startswith("kept: an expression failed on a row")
    assert [row["reason"].partition(":")[0] for row in first["halved"]] == ["halved"]
    assert second == {"made": [], "kept": [], "halved": []}


def test_a_null_without_a_value_for_a_required_column_is_a_dead_letter() -> None:
    def build(rows: Any) -> Any:
        made = rows.parse("body", "n int not null")
        return {"made": made.drop("at"), "dead": made.dead.select("value", "reason")}

    out = run(build, bodies('{"n": 1}', None), schema=BODIES)
    assert out[0]["made"] == [{"n": 1}]
    assert [(letter["value"], letter["reason"].partition(": ")[2]) for letter in out[0]["dead"]] == [
        (None, "it is null, and column 'n' is NOT NULL")
    ]


def test_a_column_of_csv_and_of_avro() -> None:
    out = run(
        lambda rows: rows.parse("body", "a int, b string", format="csv", delimiter=";").drop("at"),
        bodies("1;x", "2;"),
        schema=BODIES,
    )
    assert out == [[{"a": 1, "b": "x"}, {"a": 2, "b": None}]]
    record = codec("avro", "a int, b string")
    batch, _ = rows_to_batch([{"a": 1, "b": "x"}], record.schema)
    out = run(
        lambda rows: rows.parse("body", "a int, b string", format="avro").drop("at"),
        bodies(*record.encode(batch).to_pylist()),
        schema="body binary, at timestamp",
    )
    assert out == [[{"a": 1, "b": "x"}]]


@pytest.mark.on_spark("more")
def test_a_column_of_protobuf() -> None:
    record = codec("protobuf", "a int, b array<string>")
    options = {"message": "Record", "descriptors": record.type.files}  # type: ignore[attr-defined]

    def build(rows: Any) -> Any:
        made = rows.parse("body", format="protobuf", **options)
        return {"made": made.drop("at"), "dead": made.dead.select("value", "reason")}

    batch, _ = rows_to_batch([{"a": 1, "b": ["x", ""]}], record.schema)
    values = [*record.encode(batch).to_pylist(), b"\xff", None]
    out = run(build, bodies(*values), schema="body binary, at timestamp")
    assert out[0]["made"] == [{"a": 1, "b": ["x", ""]}, {"a": None, "b": None}]
    [letter] = out[0]["dead"]
    assert (letter["value"], letter["reason"].partition(": ")[2]) == (b"\xff", "not a Protobuf message 'Record'")


@pytest.mark.on_spark("more")
def test_named_groups_of_a_pattern_become_columns() -> None:
    def build(rows: Any) -> Any:
        pattern = r"%{IP:client} \[(?P<level>\w+)\] (?P<path>/\S*)(?: took %{NUMBER:took})?"
        made = rows.parse("body", "client string, path string, took double", format="regex", pattern=pattern)
        return {"made": made.drop("at"), "dead": made.dead.select("value")}

    out = run(build, bodies("10.0.0.1 [info] /home took 1.5", "10.0.0.2 [info] /", "nothing"), schema=BODIES)
    assert out[0]["made"] == [
        {"client": "10.0.0.1", "path": "/home", "took": 1.5},
        {"client": "10.0.0.2", "path": "/", "took": None},
    ]
    assert out[0]["dead"] == [{"value": b"nothing"}]


def test_named_groups_are_texts_without_a_schema() -> None:
    digits = {"format": "regex", "pattern": "(?P<a>.)(?P<b>.)"}
    out = run(lambda rows: rows.parse("body", **digits).drop("at"), bodies("12"), schema=BODIES)
    assert out == [[{"a": "1", "b": "2"}]]


def test_a_pattern_gives_the_types_of_its_groups() -> None:
    pattern = "%{SYSLOGTIMESTAMP:at_text} %{IPORHOST:host} took %{NUMBER:took:float} in %{INT:tries:int} tries"
    line = bodies("Oct  1 10:00:00 web-1 took 1.5 in 2 tries")
    out = run(lambda rows: rows.parse("body", format="grok", pattern=pattern).drop("at"), line, schema=BODIES)
    assert out == [[{"at_text": "Oct  1 10:00:00", "host": "web-1", "took": 1.5, "tries": 2}]]


def test_lines_of_a_web_server() -> None:
    line = '127.0.0.1 - ann [10/Oct/2000:13:55:36 -0700] "GET /a?b HTTP/1.0" 200 {} "http://x/" "curl 8"'

    def build(rows: Any) -> Any:
        return rows.parse("body", format="grok", pattern="%{COMBINEDAPACHELOG}").drop("at", "timestamp", "rawrequest")

    out = run(build, bodies(line.format(2326), line.format("-")), schema=BODIES)
    assert [row["bytes"] for row in out[0]] == [2326, None]
    assert tuple(out[0][0].values()) == (
        "127.0.0.1", "-", "ann", "GET", "/a?b", "1.0", 200, 2326, "http://x/", "curl 8",
    )  # fmt: skip


# ---------------------------------------------------------------- calls of other systems


@pytest.mark.more
@pytest.mark.on_spark("more")
def test_async_calls_give_rows_in_order_and_dead_letters_after_their_retries() -> None:
    async def ask(row: Any) -> Any:
        import asyncio

        await asyncio.sleep(0.001 * (10 - row["n"]))
        if row["n"] == 3:
            raise ValueError("not known")
        if row["n"] == 4:
            await asyncio.sleep(600)
        return None if row["n"] == 5 else {"n": row["n"], "answer": f"is {row['key']}"}

    def build(rows: Any) -> Any:
        made = rows.map_async(ask, "n int, answer string", concurrency=3, timeout="3 seconds", retries=1)
        return {"made": made, "dead": made.dead.select("reason")}

    out = run(build, add(*((f"k{n}", n, n) for n in range(7))))
    assert [row["answer"] for row in out[0]["made"]] == ["is k0", "is k1", "is k2", "is k6"]
    assert sorted(letter["reason"].partition(": ")[2] for letter in out[0]["dead"]) == [
        "TimeoutError: no answer within 3 seconds",
        "ValueError: not known",
    ]


def test_plain_functions_are_called_in_threads_and_tried_again() -> None:
    def ask(row: Any) -> Any:
        tries[row["n"]] = tries.get(row["n"], 0) + 1
        if tries[row["n"]] < 3:
            raise OSError("busy")
        return {"n": row["n"] * 10, "thread": threading.current_thread().name.startswith("millstream-calls")}

    tries: dict[int, int] = {}
    out = run(lambda rows: rows.map_async(ask, "n int, thread boolean"), add(("a", 1, 0), ("b", 2, 1)))
    assert out == [[{"n": 10, "thread": True}, {"n": 20, "thread": True}]]


def test_results_in_any_order_are_all_there() -> None:
    out = run(
        lambda rows: rows.map_async(lambda row: {"n": row["n"]}, "n int", ordered=False),
        add(*((f"k{n}", n, n) for n in range(20))),
    )
    assert sorted(row["n"] for row in out[0]) == list(range(20))


def test_a_result_that_does_not_fit_its_schema_is_a_dead_letter() -> None:
    def build(rows: Any) -> Any:
        made = rows.map_async(lambda row: {"n": "one"}, "n int")
        return {"made": made, "dead": made.dead.select("reason")}

    out = run(build, add(("a", 1, 0)))
    assert out[0]["made"] == []
    assert "ValueError" in out[0]["dead"][0]["reason"]
