"""Expressions that only Spark can evaluate, on real Spark: in every step, behind state, and beside other steps."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import millstream as ms
from millstream.errors import InvalidExpression, InvalidPlan, InvalidSchema, NeedsSpark, RecordFailed
from millstream.testing import Add, Watermark, play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id int, body string, xs array<int>, at timestamp"


def at(minute: int) -> datetime:
    return datetime(2026, 1, 31, 12, minute, tzinfo=UTC)


ROWS = [
    {"id": 1, "body": '{"user": "ann", "score": 5}', "xs": [1, 2], "at": at(0)},
    {"id": 2, "body": '{"user": "bob", "score": 7}', "xs": [], "at": at(1)},
    {"id": 3, "body": "broken", "xs": None, "at": at(2)},
    {"id": 4, "body": '{"user": "ann", "score": 11}', "xs": [3], "at": at(3)},
]


def played(flow: Any, steps: Any = None, **how: Any) -> list[list[dict[str, Any]]]:
    given = [Add(ROWS)] if steps is None else steps
    out = play(flow, given, schema=SCHEMA, event_time="at", **{"on": "spark", **how})
    return [[dict(row) for row in step] for step in out]


def test_json_is_parsed_filtered_and_aggregated(spark: SparkSession) -> None:
    def totals(rows: ms.Stream) -> ms.Stream:
        parsed = rows.with_column("event", "from_json(body, 'user string, score int')")
        users = parsed.select("id", "at", user="event.user", score="event.score").where("user is not null")
        return users.key_by("user").window(ms.fixed("10 minutes")).agg(total=ms.sum("score"))

    (_, closed) = played(totals, [Add(ROWS), Watermark(at(30))])
    assert [(row["user"], row["total"]) for row in closed] == [("ann", 16), ("bob", 7)]


@pytest.mark.more
def test_a_key_is_a_column_of_pyspark(spark: SparkSession) -> None:
    """By position with its alias, by name, and as a function of the user's."""
    from pyspark.sql import functions as sf

    first = sf.udf(lambda name: name[:1], "string")

    def counted(rows: ms.Stream) -> dict[str, ms.Stream]:
        users = rows.select("at", user="coalesce(get_json_object(body, '$.user'), 'none')")
        keyed = {
            "alias": users.key_by(sf.upper("user").alias("k")),
            "named": users.key_by(k=sf.substring("user", 1, 2)),
            "function": users.key_by(first(sf.col("user")).alias("k")),
        }
        return {name: each.window(ms.fixed("1 hour")).agg(n=ms.count()) for name, each in keyed.items()}

    closed = play(counted, [Add(ROWS), Watermark(None)], schema=SCHEMA, event_time="at", on="spark")[-1]
    found = {name: sorted((row["k"], row["n"]) for row in rows) for name, rows in closed.items()}
    assert found == {
        "alias": [("ANN", 2), ("BOB", 1), ("NONE", 1)],
        "named": [("an", 2), ("bo", 1), ("no", 1)],
        "function": [("a", 2), ("b", 1), ("n", 1)],
    }


DAYLIGHT_SAVING = {
    "hour": "hour(at)",
    "day": "date_trunc('day', at)",
    "text": "cast(at as string)",
    "next_day": "at + interval 1 day",
    "as_text": "date_format(at, 'yyyy-MM-dd HH:mm')",
    "local": "to_timestamp(date_format(at, 'yyyy-MM-dd HH:mm:ss'))",
    "seconds": "unix_timestamp(date_format(at, 'yyyy-MM-dd HH:mm:ss'))",
}


@pytest.mark.more
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_the_time_zone_of_the_session_and_its_daylight_saving_change_nothing(spark: SparkSession, zone: str) -> None:
    """Over the nights in which clocks change: with a translation, in Spark's own engine, and without Spark."""
    switches = (datetime(2026, 3, 8), datetime(2026, 3, 29), datetime(2026, 10, 25), datetime(2026, 11, 1))
    hours = [switch + timedelta(minutes=30 * each) for switch in switches for each in range(16)]
    given = [Add([{"id": n, "at": each.replace(tzinfo=UTC)} for n, each in enumerate(hours)])]

    def translated(rows: ms.Stream) -> ms.Stream:
        return rows.select("id", **DAYLIGHT_SAVING)

    def on_spark(rows: ms.Stream) -> ms.Stream:
        return rows.where("xxhash64(id) is not null").spark(
            lambda df: df.selectExpr("id", *(f"{text} as {name}" for name, text in DAYLIGHT_SAVING.items()))
        )

    (expected,) = played(translated, given, on="local")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for flow in (translated, on_spark):
            (found,) = played(flow, given)
            assert sorted(found, key=lambda row: row["id"]) == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert [row["hour"] for row in expected] == [each.hour for each in hours]


@pytest.mark.more
def test_a_branch_without_spark_passes_beside_it_and_both_meet_again(spark: SparkSession) -> None:
    def united(rows: ms.Stream) -> ms.Stream:
        hashed = rows.where("xxhash64(id) is not null").select("id", mark="'spark'")
        plain = rows.where("id > 2").select("id", mark="'plain'")
        return hashed.union(plain)

    (rows,) = played(united)
    assert sorted((row["id"], row["mark"]) for row in rows) == [
        (1, "spark"), (2, "spark"), (3, "plain"), (3, "spark"), (4, "plain"), (4, "spark"),
    ]  # fmt: skip


@pytest.mark.more
def test_behind_a_step_that_keeps_state_and_before_the_next(spark: SparkSession) -> None:
    def nested(rows: ms.Stream) -> ms.Stream:
        counted = rows.key_by("id").window(ms.fixed("1 minute")).agg(n=ms.count())
        marked = counted.with_column("kind", "aggregate(sequence(1, int(n) + id % 2), 0, (sum, x) -> sum + x)")
        return marked.key_by("kind").window(ms.fixed("1 hour")).agg(keys=ms.count())

    out = played(nested, [Add(ROWS), Watermark(at(30)), Watermark(None)])
    assert [(row["kind"], row["keys"]) for row in out[-1]] == [(1, 2), (3, 2)]


@pytest.mark.more
def test_arguments_of_aggregates(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    score = "int(get_json_object(body, '$.score'))"
    kept = {}

    def flow(stream: ms.Stream) -> ms.Stream:
        made = stream.window(ms.fixed("10 minutes")).agg(
            total=ms.sum(score), ids=ms.max(sf.col("id") + 1), n=ms.count()
        )
        kept["late"] = made.late.schema.names
        return made

    (_, closed) = played(flow, [Add(ROWS), Watermark(at(30))])
    assert [(row["total"], row["ids"], row["n"]) for row in closed] == [(23, 5, 4)]
    assert kept["late"] == ("id", "body", "xs", "at", "window", "reason")


@pytest.mark.more
def test_a_generator_makes_rows(spark: SparkSession) -> None:
    (rows,) = played(lambda stream: stream.select("id", x="explode(xs)"))
    assert [(row["id"], row["x"]) for row in rows] == [(1, 1), (1, 2), (4, 3)]


def test_columns_and_functions_of_pyspark(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    @sf.udf("string")
    def loud(text: str) -> str:
        return text.upper()  # would fail on None: only rows of the stream come here

    spark.udf.register("twice", lambda x: x * 2, "int")

    def flow(stream: ms.Stream) -> ms.Stream:
        kept = stream.where(sf.col("id") != 3)
        return kept.select("id", body=loud(sf.col("body")), double="twice(id)", first=sf.get("xs", sf.lit(0)))

    (rows,) = played(flow)
    assert [(row["id"], row["double"], row["first"]) for row in rows] == [(1, 2, 1), (2, 4, None), (4, 8, 3)]
    assert rows[0]["body"] == '{"USER": "ANN", "SCORE": 5}'


def test_columns_are_selected_as_in_pyspark(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    stream: Any = ms.Flow("f").read("rows", SCHEMA)
    named = stream.select(sf.col("id"), sf.upper("body").alias("loud"), sf.col("at").alias("time"), sf.lit(1))
    assert named.schema.names == ("id", "loud", "time", "1")
    assert stream.select(sf.col("*"), sf.explode("xs").alias("x")).schema.names == (*stream.schema.names, "x")
    packed = stream.select(sf.struct("id", "at").alias("s"))
    assert packed.select("s.*").schema.names == packed.select(sf.col("s.*")).schema.names == ("id", "at")
    assert stream.group_by(sf.col("id"), sf.to_date("at").alias("day")).agg(n=ms.count()).key == ("id", "day")


@pytest.mark.more
def test_an_estimator_of_mllib_is_a_function_of_a_dataframe(spark: SparkSession) -> None:
    from pyspark.ml.feature import Bucketizer

    split = Bucketizer(splits=[0.0, 2.5, 10.0], inputCol="x", outputCol="bucket")
    rows = [{"x": 1.0}, {"x": 3.0}]
    (made,) = play(lambda stream: stream.spark(split.transform), [Add(rows)], schema="x double", on="spark")
    assert [row["bucket"] for row in made] == [0.0, 1.0]


@pytest.mark.more
def test_a_function_of_pandas_series(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    @sf.pandas_udf("double")  # type: ignore[call-overload, untyped-decorator, unused-ignore]
    def halved(x: pd.Series) -> pd.Series:
        return x / 2

    (rows,) = played(lambda stream: stream.where(halved("id") > 0.5).select("id", half=halved("id")))
    assert [(row["id"], row["half"]) for row in rows] == [(2, 1.0), (3, 1.5), (4, 2.0)]


@pytest.mark.more
def test_an_order_and_a_deletion_that_only_spark_evaluates(spark: SparkSession) -> None:
    def flow(stream: ms.Stream) -> dict[str, ms.Stream]:
        ids = stream.select("id", "body")
        kept = stream.select("at", key="id % 2", n="id").to_table(
            "key", deleted="n = 4 and xxhash64(n) is not null", name="kept"
        )
        first = ids.top(2, by="transform(array(id), x -> xxhash64(x) * 0 + x)[0] desc", rank="place", name="first")
        return {"top": first, "kept": kept, "late": kept.late}

    (out,) = play(flow, [Add(ROWS)], schema=SCHEMA, event_time="at", on="spark")
    assert sorted((row["id"], row["place"]) for row in out["top"]) == [(3, 2), (4, 1)]
    assert set(out["top"][0].keys()) - {"weight"} == {"id", "body", "place"}
    current: Counter[tuple[int, int]] = Counter()
    for row in out["kept"]:
        current[row["key"], row["n"]] += row.get("weight", 1)
    assert [row for row, count in current.items() if count] == [(1, 3)]
    assert out["late"] == []


@pytest.mark.more
@pytest.mark.parametrize("kind", ["text", "column"])
def test_an_event_time_that_only_spark_evaluates(spark: SparkSession, kind: str) -> None:
    from pyspark.sql import functions as sf

    column = sf.timestamp_seconds(sf.col("id") * 86_400)
    given = column if kind == "column" else "timestamp_seconds(id * 86400 + xxhash64(id) % 1)"

    def flow(stream: ms.Stream) -> dict[str, ms.Stream]:
        timed = stream.select("id").with_event_time(given, ms.bounded("1 day"))  # type: ignore[arg-type]
        panes = timed.where("id <> 2").window(ms.fixed("1 day")).agg(ids=ms.collect("id"))
        return {"panes": panes, "late": panes.late}

    steps = [Add([{"id": 1}, {"id": 4}]), Add([{"id": 2}, {"id": 1}, {"id": 9}])]
    first, second = play(flow, steps, schema="id int", on="spark")
    assert [row["ids"] for row in first["panes"]] == [[1]]
    assert [row["ids"] for row in second["panes"]] == [[4]]
    assert [row["id"] for row in second["late"]] == [1]


@pytest.mark.more
def test_a_time_behind_spark_that_is_too_far_ahead_does_not_count(spark: SparkSession) -> None:
    def flow(stream: ms.Stream) -> dict[str, ms.Stream]:
        hashed = stream.where("xxhash64(id) is not null")
        timed = hashed.with_event_time("timestamp_seconds(id)", ms.bounded("0 seconds", ahead_at_most="1 hour"))
        panes = timed.window(ms.fixed("10 seconds")).agg(ids=ms.collect("id"))
        return {"panes": panes, "late": panes.late}

    steps = [Add([{"id": 1}, {"id": 9_999}, {"id": None}]), Add([{"id": 12}])]
    first, second = play(flow, steps, schema="id int", on="spark")
    assert {(row["id"], row["reason"]) for row in first["late"]} == {(9_999, "ahead"), (None, "no event time")}
    assert [row["ids"] for row in second["panes"]] == [[1]]


@pytest.mark.parametrize(
    ("made", "column"),
    [
        ("array(parse_json(body)) as vs", "'vs' of the result is array<variant>"),
        ("make_ym_interval(id) as y", "'y' of the result is interval year to month"),
    ],
)
def test_a_column_that_a_stream_cannot_have_is_named(spark: SparkSession, made: str, column: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        played(lambda stream: stream.spark(lambda df: df.selectExpr("id", made)))
    assert column in refused.value.what
    assert ("to_json(" if "variant" in column else "cast(") in (refused.value.next_step or "")
    with pytest.raises(InvalidSchema, match=column.split("'")[1]) as read:
        ms.Flow("framed").read(spark.createDataFrame([], SCHEMA).selectExpr("id", made))
    assert __file__ in (read.value.where or "")


@pytest.mark.parametrize("runner", ["local", "reference"])
def test_without_spark_it_is_refused_where_the_flow_is_played(spark: SparkSession, runner: str) -> None:
    with pytest.raises(NeedsSpark, match="xxhash64") as refused:
        played(lambda stream: stream.with_column("h", "xxhash64(id)"), on=runner)
    assert 'play(on="spark")' in (refused.value.next_step or "")


@pytest.mark.parametrize(
    ("made", "what", "next_step"),
    [
        ("transform(xss, x -> x)", "there is no column 'xss'", "did you mean 'xs'?"),
        ("xxhash46(id)", "there is no function xxhash46", "did you mean 'xxhash64'?"),
        ("transform(xs, x -> rand())", "results must be repeatable", ""),
        ("bit_and(id)", "looks at more than one row", ".agg("),
        ("window(at, '10 minutes')", "looks at more than one row", ".window(ms.fixed("),
        ("array(parse_json(body))", "array<variant>", "variant_get"),
        ("map(id, xs", "cannot be read as Spark SQL", ""),
    ],
)
def test_mistakes_name_the_users_line(spark: SparkSession, made: str, what: str, next_step: str) -> None:
    with pytest.raises(InvalidExpression) as refused:
        played(lambda stream: stream.with_column("made", made))
    assert what in refused.value.what
    assert next_step in (refused.value.next_step or "")
    assert __file__ in (refused.value.where or "")


def test_a_value_that_an_expression_cannot_handle_names_the_step_and_the_line(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    score = "int(body) + cast(xxhash64(id) % 1 as int)"
    with pytest.raises(RecordFailed) as failed:
        played(lambda stream: stream.with_column("score", score, name="scored").where(sf.col("score") / 1 > 0))
    assert "the step 'scored' cannot handle a record: The value" in failed.value.what
    assert failed.value.what.isprintable()
    assert __file__ in (failed.value.where or "")


def test_a_function_of_the_user_that_raises_is_named_with_its_line(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    @sf.udf("int")
    def inverse(x: int) -> int:
        return 1 // (x - 2)

    with pytest.raises(RecordFailed) as failed:
        played(lambda stream: stream.select(x=inverse("id"), name="inverted"))
    assert "the step 'inverted' cannot handle a record: ZeroDivisionError" in failed.value.what
    assert "'id': 2" in failed.value.what
    line = inverse.func.__code__.co_firstlineno + 2
    assert failed.value.where == f"{__file__}:{line}"


@pytest.mark.more
def test_a_function_of_a_dataframe_keeps_time_and_order(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    def parsed(df: Any) -> Any:
        event = sf.from_json("body", "user string, score int").alias("event")
        return df.select(event, sf.explode("xs").alias("x")).where("event.score > 0").select("event.user", "x")

    def flow(stream: ms.Stream) -> ms.Stream:
        counted = stream.spark(parsed).key_by("user").window(ms.fixed("2 minutes")).agg(n=ms.count(), xs=ms.sum("x"))
        return counted.spark(lambda df: df.select("user", "n", sf.xxhash64("user").isNotNull().alias("hashed"), "xs"))

    (_, closed) = played(flow, [Add(ROWS), Watermark(at(30))])
    assert [tuple(row.values()) for row in closed] == [("ann", 2, True, 3), ("ann", 1, True, 3)]


@pytest.mark.parametrize(
    ("function", "what", "next_step"),
    [
        (lambda df: df.groupBy("id").count(), "more than one row", "group_by(…)"),
        (lambda df: df.distinct(), "more than one row", "distinct(…)"),
        (lambda df: df.selectExpr("rand() as r"), "differs with each call", "rand()"),
        (lambda df: df.where("id in (select 1)"), "looks at other data", "flow.table(…)"),
        (lambda df: df.select("idd"), "there is no column 'idd'", "did you mean 'id'?"),
        (lambda df: None, "not a DataFrame", "select"),
    ],
)
def test_a_function_that_keeps_state_is_refused(spark: SparkSession, function: Any, what: str, next_step: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        played(lambda stream: stream.spark(function))
    assert what in refused.value.what
    assert next_step in (refused.value.next_step or "")
    assert __file__ in (refused.value.where or "")


@pytest.mark.more
def test_a_condition_that_is_never_true_does_not_hold_back_the_rest(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    def flow(stream: ms.Stream) -> ms.Stream:
        none = stream.where(sf.lit(1) > 2).union(stream.spark(lambda df: df.where("1 > 2").select("*")))
        return stream.union(none).window(ms.fixed("10 minutes")).agg(n=ms.count())

    (_, closed) = played(flow, [Add(ROWS), Watermark(at(30))])
    assert [row["n"] for row in closed] == [4]


def test_the_names_of_steps_do_not_depend_on_the_run(spark: SparkSession) -> None:
    """State is stored under them; Spark prints addresses of objects, and counts the arguments of lambdas."""
    from pyspark.sql import functions as sf

    @sf.udf("string")
    def loud(text: str) -> str:
        return text.upper()

    def explained() -> str:
        rows: Any = ms.Flow("same").read("rows", SCHEMA, event_time="at")
        added = rows.with_column("more", sf.transform("xs", lambda x: x + 1))
        keyed = added.where(sf.length(loud("body")) > 1).key_by(k=loud(sf.lower("body")))
        made: ms.Stream = keyed.window(ms.fixed("1 hour")).agg(n=ms.max(loud(sf.concat("body", sf.lit("!")))))
        return made.explain()

    first = explained()
    assert explained() == first
    for text in ("where >(length(loud(body)), 1)", "loud(lower(body)) as k", "n=max(loud(concat(body, '!')))"):
        assert text in first
    assert "transform(xs, x_1 -> +(x_1, 1)) as more" in first


@pytest.mark.more
def test_streams_are_joined_on_what_only_spark_computes(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    @sf.udf("string")
    def folded(text: str) -> str:
        return text.casefold()

    def flow(clicks: ms.Stream, views: ms.Stream) -> ms.Stream:
        named: Any = [(folded("user"), folded("name"))]
        pairs = clicks.join(views, on=named, within=("-1 minute", "1 minute")).select("user", "name", "n")
        codes = clicks.flow.table([{"code": 1}, {"code": 3}], "code int")
        return pairs.join(codes, on={"xxhash64(n)": "xxhash64(code)"}).select("user", "name", "code")

    schema = {"clicks": "user string, n int, at timestamp", "views": "name string, at timestamp"}
    clicks = [{"user": "Ann", "n": 1, "at": at(0)}, {"user": "bob", "n": 3, "at": at(0)}]
    script = [Add(clicks, to="clicks"), Add([{"name": "ANN", "at": at(0)}], to="views")]
    out = play(flow, script, schema=schema, event_time={"clicks": "at", "views": "at"}, on="spark")
    assert [tuple(row.values()) for row in out[1]] == [("Ann", "ANN", 1)]


@pytest.mark.parametrize(
    ("made", "what", "next_step"),
    [
        ("explode(xs) + xxhash64(id)", "makes several rows of one inside another expression", "in a select(…)"),
        ("concat(xxhash64(body), uper(body))", "there is no function uper", "did you mean 'upper'?"),
        ("xxhash64(length(body, 1))", "the wrong number of arguments", "Spark's reference"),
    ],
)
def test_a_mistake_in_an_expression_for_spark(spark: SparkSession, made: str, what: str, next_step: str) -> None:
    with pytest.raises(InvalidExpression) as refused:
        ms.Flow("wrong").read("rows", SCHEMA).select("id", x=made)
    assert what in refused.value.what
    assert next_step in (refused.value.next_step or "")
    assert __file__ in (refused.value.where or "")


def test_a_column_of_another_dataframe_is_refused(spark: SparkSession) -> None:
    other: Any = spark.createDataFrame([], "id int")
    with pytest.raises(InvalidExpression, match="is a Column of another DataFrame"):
        ms.Flow("wrong").read("rows", SCHEMA).where(other.id > 3)
