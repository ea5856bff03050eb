"""Every step that takes an expression, with Columns of PySpark. mypy checks this file: a Column must be accepted."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf

import millstream as ms

SCHEMA = "id int, user string, n int, at timestamp"
WITHIN = ("-1 minutes", "1 minute")


def row_by_row(rows: ms.Stream) -> dict[str, ms.Stream]:
    columns: list[str | Column] = ["id", sf.col("n")]
    branches = rows.route(big=sf.col("n") > 3, even="n % 2 = 0", rest="small")
    both = rows.route(match="all", big=sf.col("n") > 3, even=sf.col("n") % 2 == 0, rest="neither")
    split = rows.split({"known": sf.col("user").isNotNull()}, rest="unknown")
    return {
        "where": rows.where(sf.col("n") > 3),
        "select": rows.select(sf.col("id"), (sf.col("n") * 2).alias("twice"), text=sf.concat("user", sf.lit("!"))),
        "select a list": rows.select(columns),
        "with_column": rows.with_column("m", sf.col("n") + 1),
        "with_columns": rows.with_columns({"m": sf.col("n") + 1}, k="n + 2", l=sf.col("n") + 3),
        "drop": rows.drop(sf.col("at"), "user"),
        "parse": rows.select(body=sf.to_json(sf.struct("id", "n"))).parse(sf.col("body"), "id int, n int"),
        "sample": rows.sample(1.0, by=sf.col("id")),
        "distinct": rows.distinct(sf.col("user")),
        "take": rows.take(1, per=sf.col("user")),
        **branches,
        **{f"all {name}": each for name, each in both.items()},
        **split,
    }


def row_by_row_as_text(rows: ms.Stream) -> dict[str, ms.Stream]:
    branches = rows.route(big="n > 3", even="n % 2 = 0", rest="small")
    both = rows.route(match="all", big="n > 3", even="n % 2 = 0", rest="neither")
    split = rows.split({"known": "user is not null"}, rest="unknown")
    return {
        "where": rows.where("n > 3"),
        "select": rows.select("id", twice="n * 2", text="concat(user, '!')"),
        "select a list": rows.select("id", "n"),
        "with_column": rows.with_column("m", "n + 1"),
        "with_columns": rows.with_columns(m="n + 1", k="n + 2", l="n + 3"),
        "drop": rows.select("id", "n"),
        "parse": rows.select("id", "n"),
        "sample": rows,
        "distinct": rows.distinct("user"),
        "take": rows.take(1, per="user"),
        **branches,
        **{f"all {name}": each for name, each in both.items()},
        **split,
    }


def with_state(rows: ms.Stream) -> dict[str, ms.Stream]:
    ends = sf.col("n") > 3
    keyed = rows.key_by(sf.lower("user").alias("user"), day=sf.to_date("at"))
    same = rows.select("id", sf.col("user").alias("name"), "n", "at")
    return {
        "window": keyed.window(ms.fixed("10 minutes")).agg(
            total=ms.sum(sf.col("n") * 2), best=ms.max_by(sf.col("id"), sf.col("n")), big=ms.count_if(ends)
        ),
        "closed_by": rows.key_by(sf.col("user")).window(ms.closed_by(ends)).agg(n=ms.sum(sf.col("n"))),
        "delta": rows.key_by("user").window(ms.delta_window(sf.col("n") * 2, 4)).agg(n=ms.sum("n")),
        "group_by": rows.group_by(sf.col("user")).agg(total=ms.sum(sf.col("n"))),
        "to_table": rows.to_table(sf.col("user"), deleted=sf.col("n") > 100),
        "top": rows.top(1, by="n desc", per=sf.col("user")),
        "join": rows.join(same, on=sf.col("id"), condition=sf.col("n") <= sf.col("n_right"), within=WITHIN),
        "pairs": rows.join(same, on=[(sf.lower("user"), sf.lower("name")), "id"], within=WITHIN),
        "mapped": rows.join(same, on={"lower(user)": sf.lower("name")}, within=WITHIN),
    }


def with_state_as_text(rows: ms.Stream) -> dict[str, ms.Stream]:
    keyed = rows.with_column("user", "lower(user)").key_by("user", day="to_date(at)")
    same = rows.select("id", "user as name", "n", "at")
    return {
        "window": keyed.window(ms.fixed("10 minutes")).agg(
            total=ms.sum("n * 2"), best=ms.max_by("id", "n"), big=ms.count_if("n > 3")
        ),
        "closed_by": rows.key_by("user").window(ms.closed_by("n > 3")).agg(n=ms.sum("n")),
        "delta": rows.key_by("user").window(ms.delta_window("n * 2", 4)).agg(n=ms.sum("n")),
        "group_by": rows.group_by("user").agg(total=ms.sum("n")),
        "to_table": rows.to_table("user", deleted="n > 100"),
        "top": rows.top(1, by="n desc", per="user"),
        "join": rows.join(same, on="id", condition="n <= n_right", within=WITHIN),
        "pairs": rows.join(same, on=[("lower(user)", "lower(name)"), "id"], within=WITHIN),
        "mapped": rows.join(same, on={"lower(user)": "lower(name)"}, within=WITHIN),
    }


def with_event_time(rows: ms.Stream) -> ms.Stream:
    return rows.with_event_time(sf.timestamp_millis("ms"), ms.bounded("1 minute"))


def read_with_event_time(flow: ms.Flow) -> ms.Stream:
    return flow.read("raw", "ms long", event_time=sf.timestamp_millis("ms"))
