"""The same expressions on Spark and in DuckDB, over the same rows: values, types, and which rows are errors.

Spark evaluates many expressions in one query. An error of one row must not end the query, so each expression is inside
Spark's own `TryEval`; a struct around the value tells an error (no struct) from a null (a struct with null).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from millstream.errors import ExpressionFailed
from millstream.expressions.expression import Expression, _with_times, connection, evaluate, expression
from millstream.records import Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

ERROR = "error"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.subexpressionElimination.enabled": "false",  # it would evaluate a shared part outside of TryEval
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # compiling hundreds of expressions takes longer than a few rows
}
AT_ONCE = 60


def on_spark(spark: SparkSession, texts: list[str], rows: pa.Table) -> dict[str, tuple[pa.DataType, list[Any]]]:
    """The type and the values of each expression; `ERROR` for a row that fails."""
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    try:
        given = spark.createDataFrame(rows).coalesce(1)
        found = {}
        for start in range(0, len(texts), AT_ONCE):
            some = texts[start : start + AT_ONCE]
            columns = [_tried(spark, text).alias(f"c{at}") for at, text in enumerate(some)]
            table = given.select(*columns).toArrow()
            for at, text in enumerate(some):
                column = table.column(at).combine_chunks()
                inner = column.field(0)
                values = plain(inner)
                fine = column.is_valid().to_pylist()
                found[text] = (
                    nullable(inner.type),
                    [value if ok else ERROR for value, ok in zip(values, fine, strict=True)],
                )
        return found
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _tried(spark: SparkSession, text: str) -> Column:
    from pyspark.sql.classic.column import Column

    jvm: Any = spark._jvm
    nullable = f"named_struct('v', case when l = 77 then null else ({text}) end)"  # no row has 77
    parsed = spark._jsparkSession.sessionState().sqlParser().parseExpression(nullable)
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(parsed)
    return Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(tried))


def in_duckdb(text: str, rows: pa.Table) -> tuple[pa.DataType, list[Any]]:
    """As `on_spark`."""
    made = expression(text, Schema.from_arrow(rows.schema))
    return made.type, _values(made, rows)


def _values(made: Expression, rows: pa.Table) -> list[Any]:
    fine = [True] * rows.num_rows
    try:
        column = evaluate({"x": made.duckdb}, rows).column("x").combine_chunks()
    except ExpressionFailed:
        fine = _fine(made, rows)
        column = evaluate({"x": made.duckdb}, rows.filter(pa.array(fine))).column("x").combine_chunks()
    assert column.type == made.type, f"{column.type} is not {made.type}"
    values = iter(plain(column) if len(column) else [])
    return [next(values) if each else ERROR for each in fine]


def _fine(made: Expression, rows: pa.Table) -> list[bool]:
    """Which rows are not errors: planned once, and executed for each."""
    run = connection()
    naive = rows.cast(_with_times(rows.schema, None)).append_column("row_number", pa.array(range(rows.num_rows)))
    run.from_arrow(naive).create_view("nasty_rows", replace=True)
    run.execute("CREATE OR REPLACE TEMP TABLE nasty_table AS FROM nasty_rows")
    run.execute(f"PREPARE one AS SELECT {made.duckdb} FROM nasty_table WHERE row_number = $1")
    found = []
    for at in range(rows.num_rows):
        try:
            run.execute(f"EXECUTE one({at})").fetchall()
            found.append(True)
        except duckdb.Error:
            found.append(False)
    run.execute("DEALLOCATE one")
    return found


def nullable(kind: pa.DataType) -> pa.DataType:
    """The plain type, without Spark's knowledge of what is never null."""
    kind = Schema.from_arrow(pa.schema([("x", kind)])).arrow.field(0).type
    if pa.types.is_list(kind):
        return pa.list_(nullable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(nullable(kind.key_type), nullable(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, nullable(field.type)) for field in kind])
    return kind


def plain(column: pa.Array) -> list[Any]:
    """Python values that compare: every NaN is equal, -0.0 is not 0.0, and times are numbers, as years may be large."""
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_floating(kind):
        return [None if value is None else repr(value) for value in column.to_pylist()]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        parts = [plain(part) for part in column.flatten()]
        valid = column.is_valid().to_pylist()
        return [
            dict(zip(names, values, strict=True)) if ok else None for ok, *values in zip(valid, *parts, strict=True)
        ]
    if pa.types.is_map(kind):
        pairs = list(zip(plain(column.keys), plain(column.items), strict=True))
        return _sliced(column, pairs)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _sliced(column, plain(column.values))
    return column.to_pylist()  # type: ignore[no-any-return]


def _sliced(column: Any, values: list[Any]) -> list[Any]:
    offsets, valid = column.offsets.to_pylist(), column.is_valid().to_pylist()
    return [
        values[start:stop] if ok else None for ok, start, stop in zip(valid, offsets[:-1], offsets[1:], strict=True)
    ]


def close(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two plain values are equal; floating-point numbers may differ by a relative tolerance."""
    if one == other or not tolerance or not isinstance(one, str) or not isinstance(other, str):
        return bool(one == other)
    try:
        a, b = float(one), float(other)
    except ValueError:
        return False
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def differences(
    text: str, spark: tuple[pa.DataType, list[Any]], here: tuple[pa.DataType, list[Any]], rows: pa.Table,
    tolerance: float = 0,
) -> list[str]:  # fmt: skip
    """What differs, with the row's own values of the columns in question."""
    if spark[0] != here[0]:
        return [f"{text}: Spark's type is {spark[0]}, here it is {here[0]}"]
    columns = sorted(expression(text, Schema.from_arrow(rows.schema)).columns)
    return [
        f"{text}: Spark gives {wanted!r}, here it is {found!r}, for {rows.select(columns).slice(at, 1).to_pylist()}"
        for at, (wanted, found) in enumerate(zip(spark[1], here[1], strict=True))
        if not close(wanted, found, tolerance)
    ]
