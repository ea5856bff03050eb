"""Names that people know from PySpark: using one raises an error that gives the name here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn

from millstream.errors import UnknownStep
from millstream.user_lines import users_line, what_exists

AGGREGATE = "aggregates are named: .agg(n=ms.count(), total=ms.sum('score'))"
GROUPED = "group first: .group_by('user').agg(n=ms.count()); or in windows: .key_by('user').window(…).agg(…)"
OF_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("count", "sum", "avg", "mean", "min", "max"), AGGREGATE),
    "pivot": "write a conditional aggregate for each value: .agg(a=ms.count_if(\"kind = 'a'\"))",
    **dict.fromkeys(
        ("applyInPandas", "applyInPandasWithState", "transformWithState", "transformWithStateInPandas"),
        "use stream.key_by('user').process(function, schema)",
    ),
}
OF_STREAMS: Mapping[str, str] = {
    "groupBy": "use group_by('user').agg(…) for a table, or key_by('user').window(…).agg(…) for windows",
    "groupby": "use group_by('user').agg(…) for a table, or key_by('user').window(…).agg(…) for windows",
    "filter": "use where('score > 0')",
    "withColumn": "use with_column('total', 'price * quantity')",
    "withColumns": "use with_columns(total='price * quantity')",
    "withColumnRenamed": "use rename(old='new')",
    "withColumnsRenamed": "use rename({'old': 'new'})",
    "selectExpr": "use select('user', 'price * quantity as total')",
    **dict.fromkeys(
        ("orderBy", "sort", "order_by"),
        "a stream has no end, so it cannot be sorted: use top(10, by='score desc') for the first rows in an order",
    ),
    "limit": "use take(10)",
    **dict.fromkeys(("head", "first", "tail"), "use take(10), or top(10, by='score desc')"),
    **dict.fromkeys(("dropDuplicates", "drop_duplicates"), "use distinct('id'), or distinct('id', within='1 day')"),
    "dropDuplicatesWithinWatermark": "use distinct('id', within='1 day')",
    **dict.fromkeys(("unionByName", "unionAll"), "use union(other), or union(other, missing=True)"),
    "withWatermark": "set it where rows are read: flow.read(…, event_time='at', watermark=ms.bounded('10 seconds'))",
    **dict.fromkeys(("writeStream", "writeTo"), "use write('topic'), or write(ms.files(…)), and then flow.run()"),
    "foreachBatch": "use write(ms.foreach_batch(function, batch='spark'))",
    **dict.fromkeys(("show", "display"), "use preview(rows=20), or write(ms.console()) and then flow.run()"),
    "printSchema": "use print(stream.schema)",
    "columns": "use schema.names",
    "mapInPandas": "use map(function, schema, batch='pandas')",
    "mapInArrow": "use map(function, schema, batch='arrow')",
    "dropna": "use where('score is not null')",
    "fillna": "use with_column('score', 'coalesce(score, 0)')",
    "crossJoin": "use join(other, on=…): a join needs a column to join on",
    "randomSplit": "use sample(0.1), or split({…})",
    "toDF": "use rename(old='new'), or to_dataframe() for a Spark DataFrame",
    "agg": GROUPED,
    "count": GROUPED,
    "explode": "use select('id', item='explode(items)')",
    **dict.fromkeys(("transform", "pipe"), "call the function with the stream: function(stream)"),
    "na": "use with_column('score', 'coalesce(score, 0)'), or where('score is not null')",
    "alias": "leave it out: in a join, columns of the same name on the other side get a suffix, join(…, suffix='_b')",
    **dict.fromkeys(
        ("cache", "persist", "unpersist", "repartition", "coalesce", "checkpoint", "hint"),
        "leave it out: a source is read once however many steps use it, and rows are distributed by key",
    ),
    "isStreaming": "leave it out: a stream always is",
    "dtypes": "use schema",
    "toPandas": "use preview(rows=1000), which returns a frame of polars: preview().to_pandas()",
    "collect": "use preview(rows=1000); or play it in a test: millstream.testing.play; or write it to ms.memory(…)",
}
OF_KEYED: Mapping[str, str] = {
    **OF_GROUPS,
    **dict.fromkeys(("groupBy", "groupby", "group_by"), "key_by already groups: use .window(…).agg(…)"),
}


class Hinted:
    """Raises an error with the right name for an attribute that does not exist."""

    _noun: ClassVar[str] = "a stream"
    _hints: ClassVar[Mapping[str, str]] = OF_STREAMS

    def _unknown(self, name: str) -> NoReturn:
        if name.startswith("_"):  # of Python's own protocols: copying, pickling, displaying
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        known = [each for each in dir(type(self)) if not each.startswith("_")]
        raise UnknownStep(
            f"{self._noun} has no step '{name}'",
            where=users_line(),
            next_step=self._hints.get(name) or self._column_hint(name) or what_exists(name, known, kind="steps"),
        )

    def _column_hint(self, name: str) -> str | None:
        """What to do instead, if the name is that of a column."""
        return None
