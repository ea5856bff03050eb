"""An expression is Spark SQL text; without a JVM it runs in DuckDB with the same result as Spark, or is rejected.

It is checked when the flow is built: that it parses (with sqlglot, which knows Spark's grammar), that its columns
exist, that every operator and function in it has an equivalent in DuckDB, and its type. Spark is Spark 4 in ANSI mode,
its default, with the session's time zone UTC. Decisions where the two engines differ:

| in Spark | here |
|---|---|
| `/` of integers is a double; `div` and `%` truncate towards zero; by zero is an error | the same |
| an integer overflow is an error | the same |
| an integer literal is an int, or a bigint if it is long; 1.5 is a decimal, 1e3 a double | the same |
| decimals: `+ - * %` have Spark's precision and scale | the same up to 38 digits; `/` is rejected: cast to double |
| float with an integer or a decimal becomes double | the same |
| comparing text with a number or a boolean parses the text | rejected: cast; literals next to dates are parsed |
| cast of text that cannot be parsed is an error; `try_cast` returns null | the same; dates only as ISO 8601, UTC |
| cast of a fraction to an integer truncates | the same |
| cast of float and double to text prints 1.0E10 | rejected |
| `AND`, `OR`, `CASE`, `IF`, `coalesce` evaluate the right side only if needed | the same |
| `LIKE` escapes with a backslash | the same |
| regular expressions are Java's | patterns must be literals; what RE2 lacks is rejected |
| `array[i]` from 0, an error out of bounds; `map[key]` null if missing; `size(null)` null | the same |
| `<=>`, `IN`, `BETWEEN`, `CASE`, nulls and NaN in comparisons | the same |
| dates and times in UTC; dayofweek 1 is Sunday; patterns have Java's letters | the same; letters: `datetime_patterns` |
| functions | those of `functions.FUNCTIONS`; all others are rejected by name |
| columns of type timestamp_ntz and interval | passed on, but not computed with |
| aggregates, window functions, generators, subqueries | rejected |
| rand, uuid, current_timestamp … | rejected: results must be repeatable |
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import ExpressionFailed, InvalidExpression
from millstream.expressions.lowered import NULL_KEY, Refusal, type_name
from millstream.expressions.python_functions import PREFIX, register
from millstream.expressions.spark_types import INTERVAL, NoCommonType, quoted
from millstream.records import Schema
from millstream.user_lines import users_line

if TYPE_CHECKING:  # both are slow to import, and a worker may need neither
    import duckdb
    import sqlglot

_local = threading.local()
_COLUMN = re.compile(r'"(?:[^"]|"")+"')
_CONTROL = re.compile(r"\x1b\[[0-9;]*m")


def connection() -> duckdb.DuckDBPyConnection:
    """One per thread."""
    import duckdb

    if not hasattr(_local, "connection"):
        _local.connection = duckdb.connect(config={"threads": 1})
    found: duckdb.DuckDBPyConnection = _local.connection
    return found


@dataclass(frozen=True)
class Expression:
    """A checked expression: the user's Spark SQL, its translation to DuckDB, and the type of its result."""

    spark: str
    duckdb: str
    type: pa.DataType
    columns: frozenset[str]

    def __str__(self) -> str:
        return self.spark

    @property
    def column(self) -> str | None:
        """The column, if the expression is just a column name."""
        only = next(iter(self.columns)) if len(self.columns) == 1 else None
        return only if only is not None and self.duckdb == f'"{only}"' else None


def expression(text: str, schema: Schema, *, boolean: bool = False) -> Expression:
    """Checks an expression against the columns it can use."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidExpression(
            f"an expression must be Spark SQL text, not {text!r}",
            where=users_line(),
            next_step="for example 'score > 0'",
        )
    from millstream.expressions.spark_sql import lower

    try:
        lowered, columns = lower(_parsed(text), schema)
    except Refusal as refusal:
        raise InvalidExpression(
            f"{refusal.what}, in '{text}'", where=users_line(), next_step=refusal.next_step
        ) from None
    except NoCommonType:
        raise InvalidExpression(
            f"a decimal in '{text}' would need more than 38 digits",
            where=users_line(),
            next_step="cast a part of it to a smaller decimal, or to double",
        ) from None
    if pa.types.is_null(lowered.type):
        raise InvalidExpression(
            f"'{text}' is always null and has no type", where=users_line(), next_step="write cast(null as string)"
        )
    if lowered.type == INTERVAL:
        raise InvalidExpression(
            f"'{text}' is an interval, which a column cannot have",
            where=users_line(),
            next_step="add it to a timestamp, or use the difference of unix_micros(…)",
        )
    if boolean and not pa.types.is_boolean(lowered.type):
        raise InvalidExpression(
            f"'{text}' is {type_name(lowered.type)}, but a condition must be true or false",
            where=users_line(),
            next_step="compare it with something, for example with > 0 or is not null",
        )
    _try(lowered.sql, text, schema)
    return Expression(text, lowered.sql, lowered.type, columns)


def _parsed(text: str) -> sqlglot.Expr:
    import sqlglot

    from millstream.expressions.spark_sql import SparkGrammar

    try:
        found = sqlglot.parse(text, dialect=SparkGrammar)
    except sqlglot.errors.SqlglotError as error:
        reason = _CONTROL.sub("", str(error)).splitlines()[0]
        raise InvalidExpression(
            f"'{text}' cannot be read as Spark SQL: {reason}",
            where=users_line(),
            next_step="write one expression, as after SELECT or WHERE",
        ) from None
    if len(found) != 1 or found[0] is None:
        raise InvalidExpression(f"'{text}' is not one expression", where=users_line(), next_step="write one at a time")
    return found[0]


def _try(lowered: str, text: str, schema: Schema) -> None:
    """DuckDB decides: evaluating a row of nulls shows whether a pattern or constant is invalid."""
    import duckdb

    nulls = pa.table({field.name: pa.nulls(1, field.type) for field in schema.arrow})
    try:
        _computed({"result": lowered}, nulls)
    except duckdb.Error as error:
        if NULL_KEY in str(error):
            return
        raise InvalidExpression(
            f"'{text}' cannot be computed: {str(error).splitlines()[0]}",
            where=users_line(),
            next_step="fix the constant or the pattern in it, or write it as a map(…)",
        ) from None


def evaluate(expressions: dict[str, str], rows: pa.Table) -> pa.Table:
    """Computes DuckDB expressions over rows, one output row per input row, in order.

    A column that is only passed on is not touched. DuckDB is installed without time zones, so instants are passed as
    naive times in UTC, and returned so.
    """
    import duckdb

    made = {name: text for name, text in expressions.items() if not _COLUMN.fullmatch(text)}
    try:
        computed = _computed(made, rows) if made else None
    except duckdb.Error as error:
        raise ExpressionFailed(
            f"an expression failed on a row: {str(error).splitlines()[0]}",
            next_step="it would also fail on Spark: filter such rows out with where(…) first, or use try_cast(…)",
        ) from None
    columns = {}
    for name, text in expressions.items():
        if name in made:
            assert computed is not None
            columns[name] = computed.column(name)
        else:
            columns[name] = rows.column(text[1:-1].replace('""', '"'))
    return pa.table(columns)


def _computed(expressions: dict[str, str], rows: pa.Table) -> pa.Table:
    chosen = ", ".join(f"{text} AS {quoted(name)}" for name, text in expressions.items())
    if PREFIX in chosen and not hasattr(_local, "registered"):
        register(connection())
        _local.registered = True
    source = connection().from_arrow(rows.cast(_with_times(rows.schema, None)))
    result = source.project(chosen).to_arrow_table()
    result = result.cast(_with_times(result.schema, "UTC"))
    return result.cast(Schema.from_arrow(result.schema).arrow)


def _with_times(schema: pa.Schema, zone: str | None) -> pa.Schema:
    return pa.schema([field.with_type(_with_time(field.type, zone)) for field in schema])


def _with_time(kind: pa.DataType, zone: str | None) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=zone)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_time(kind.value_type, zone)))
    if pa.types.is_map(kind):
        return pa.map_(_with_time(kind.key_type, zone), _with_time(kind.item_type, zone))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_time(field.type, zone)) for field in kind])
    return kind
