"""An expression is Spark SQL text, or a Column of PySpark. Where DuckDB gives the same result, it runs without a JVM.

It is checked when the flow is built: that it parses (with sqlglot, which knows Spark's grammar), that its columns
exist, and its type. If an operator or function in it has no equivalent in DuckDB, Spark checks it, and only Spark can
evaluate it. Spark is Spark 4 in ANSI mode, its default, with the session's time zone UTC. Where the engines differ, an
expression is translated or left to Spark ("rejected"):

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
| `explode`, `explode_outer` of an array, as a whole expression | the array; the step makes the rows |
| aggregates, window functions, other generators, subqueries | rejected |
| rand, uuid, current_timestamp … | rejected: results must be repeatable |
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import ExpressionFailed, InvalidExpression, NeedsSpark, SparkFailed
from millstream.expressions.clock import NOW, with_clock_column
from millstream.expressions.column_texts import ColumnText, as_text
from millstream.expressions.lowered import NULL_KEY, Mistake, Refusal, Unsure, type_name
from millstream.expressions.lowered import text as literal
from millstream.expressions.python_functions import PREFIX, register
from millstream.expressions.spark_types import INSTANT, INTERVAL, NoCommonType, quoted
from millstream.records import Schema
from millstream.records.variants import VARIANT
from millstream.user_lines import users_line

if TYPE_CHECKING:  # both are slow to import, and a worker may need neither
    import duckdb
    import sqlglot

ANALYZER = "millstream.spark.analysis"
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


class InDriver:
    """A value that stays in the driver: what is sent to workers does not contain it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return InDriver, (None,)


@dataclass(frozen=True)
class Expression:
    """A checked expression: the user's Spark SQL, its translation to DuckDB, and the type of its result."""

    spark: str
    duckdb: str | None
    """None if only Spark can evaluate it."""
    type: pa.DataType
    columns: frozenset[str]
    reason: str = ""
    """Why only Spark can."""
    native: InDriver | None = field(default=None, repr=False, compare=False)
    """The user's Column of PySpark, if it is not text."""
    calls_python: bool = False
    """Whether Spark calls a Python function for it."""
    clocked: str | None = None
    """The Spark SQL with a column for the clock, if it uses the clock."""
    makes_rows: bool = False
    """Whether it makes several rows of one, as explode does."""

    def __str__(self) -> str:
        return self.spark

    @property
    def column(self) -> str | None:
        """The column, if the expression is just a column name."""
        only = next(iter(self.columns)) if len(self.columns) == 1 and not self.makes_rows else None
        return only if only is not None and self.duckdb == f'"{only}"' else None

    @property
    def needs_spark(self) -> bool:
        return self.duckdb is None

    @property
    def uses_clock(self) -> bool:
        return self.clocked is not None

    @property
    def lowered(self) -> str:
        """Its translation to DuckDB; raises if there is none."""
        if self.duckdb is None:
            raise NeedsSpark(
                f"'{self}' cannot be evaluated without Spark: {self.reason}",
                next_step='run the flow on Spark: flow.run(), or play(on="spark") in a test',
            )
        return self.duckdb


def expression(given: Any, schema: Schema, *, boolean: bool = False) -> Expression:
    """Checks an expression against the columns it can use: Spark SQL text, or a Column of PySpark.

    What cannot be translated to DuckDB is checked by Spark, which is started for that if none is running.
    """
    given = as_text(given)
    if isinstance(given, ColumnText):
        return _checked_by_spark(given, schema, boolean, "it is a Column of PySpark")
    try:
        return lowered_expression(given, schema, boolean=boolean, makes_rows=True)
    except _NotLowered as error:
        if isinstance(error.refusal, Unsure) and not _analyzer().is_running():
            raise InvalidExpression(error.what, where=error.where, next_step=error.next_step) from None
        try:
            return _checked_by_spark(given, schema, boolean, _reason(error.refusal))
        except SparkFailed as failed:
            raise InvalidExpression(
                f"{error.what}; and Spark cannot be asked: {failed.what}",
                where=error.where,
                next_step=failed.next_step,
            ) from failed


def _reason(refusal: Refusal) -> str:
    """Why only Spark can evaluate an expression."""
    # A function that does not exist here may be one that the user has registered.
    named = re.match(r"there is no function (\w+)|the function (\w+) (?:runs on|is not)", refusal.what)
    return f"the function {named[1] or named[2]} has no translation" if named else refusal.what


def _analyzer() -> Any:
    return import_module(ANALYZER)


def _checked_by_spark(given: Any, schema: Schema, boolean: bool, reason: str) -> Expression:
    clocked = None if isinstance(given, ColumnText) else _clocked(given, schema)
    found: Expression = _analyzer().analyzed(clocked or given, schema if clocked is None else _with_now(schema), reason)
    if clocked is not None:
        found = replace(found, spark=given, columns=found.columns - {NOW}, clocked=clocked)
    _check_type(found.type, str(found), boolean)
    return found


class _NotLowered(InvalidExpression):
    """An expression that Spark may be able to evaluate."""

    refusal: Refusal


def _not_lowered(refusal: Refusal, text: str) -> InvalidExpression:
    kind = InvalidExpression if type(refusal) is Mistake else _NotLowered
    made = kind(f"{refusal.what}, in '{text}'", where=users_line(), next_step=refusal.next_step)
    if isinstance(made, _NotLowered):
        made.refusal = refusal
    return made


def lowered_expression(text: Any, schema: Schema, *, boolean: bool = False, makes_rows: bool = False) -> Expression:
    """Checks an expression that must be evaluated without Spark, where rows are read or in a test.

    With `makes_rows` it may be an `explode`: its translation is then the array, and its type that of the elements.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidExpression(
            f"an expression must be Spark SQL text, not {text!r}",
            where=users_line(),
            next_step="for example 'score > 0'",
        )
    from millstream.expressions.generators import exploded, exploded_argument
    from millstream.expressions.spark_sql import lower

    tree = parsed(text)
    clocked = _clocked(text, schema)
    if clocked is not None:
        tree, schema = parsed(clocked), _with_now(schema)
    array = exploded_argument(tree) if makes_rows else None
    try:
        lowered, columns = lower(tree if array is None else array, schema)
        if array is not None:
            lowered = exploded(lowered, tree)
    except Refusal as refusal:
        raise _not_lowered(refusal, text) from None
    except NoCommonType:
        what = Refusal(
            "a decimal would need more than 38 digits", "cast a part of it to a smaller decimal, or to double"
        )
        raise _not_lowered(what, text) from None
    _check_type(lowered.type, text, boolean)
    _try(lowered.sql, text, schema)
    return Expression(text, lowered.sql, lowered.type, columns - {NOW}, clocked=clocked, makes_rows=array is not None)


def _clocked(text: str, schema: Schema) -> str | None:
    clocked = with_clock_column(text, [name.lower() for name in schema.names])
    return None if clocked == text else clocked


def _with_now(schema: Schema) -> Schema:
    return Schema.from_arrow(schema.arrow.append(pa.field(NOW, INSTANT)))


def _check_type(kind: pa.DataType, text: str, boolean: bool) -> None:
    if pa.types.is_null(kind):
        raise InvalidExpression(
            f"'{text}' is always null and has no type", where=users_line(), next_step="write cast(null as string)"
        )
    if kind == INTERVAL:
        raise InvalidExpression(
            f"'{text}' is an interval, which a column cannot have",
            where=users_line(),
            next_step="add it to a timestamp, or use the difference of unix_micros(…)",
        )
    if boolean and not pa.types.is_boolean(kind):
        raise InvalidExpression(
            f"'{text}' is {type_name(kind)}, but a condition must be true or false",
            where=users_line(),
            next_step="compare it with something, for example with > 0 or is not null",
        )


def parsed(text: str) -> sqlglot.Expr:
    import sqlglot

    from millstream.expressions.spark_sql import SparkGrammar

    try:
        found = sqlglot.parse(text, dialect=SparkGrammar)
    except sqlglot.errors.SqlglotError as error:
        reason = _CONTROL.sub("", str(error)).splitlines()[0]
        refused = _NotLowered(
            f"'{text}' cannot be read as Spark SQL: {reason}",
            where=users_line(),
            next_step="write one expression, as after SELECT or WHERE",
        )
        refused.refusal = Unsure("it is syntax that only Spark reads")
        raise refused from None
    if len(found) != 1 or found[0] is None:
        raise InvalidExpression(f"'{text}' is not one expression", where=users_line(), next_step="write one at a time")
    return found[0]


def _try(lowered: str, text: str, schema: Schema) -> None:
    """DuckDB decides: evaluating a row of nulls shows whether a pattern or constant is invalid."""
    import duckdb

    nulls = pa.table({field.name: pa.nulls(1, field.type) for field in schema.arrow if field.type != VARIANT})
    try:
        _computed({"result": lowered}, nulls)
    except duckdb.Error as error:
        if _is_about_rows(error, lowered):
            return
        what = Refusal(
            f"it cannot be computed: {str(error).splitlines()[0]}",
            "fix the constant or the pattern in it, or write it as a map(…)",
        )
        raise _not_lowered(what, text) from None


def _is_about_rows(error: duckdb.Error, lowered: str) -> bool:
    """Whether a row of nulls fails, as with a division by 0: others may not, and those that do are reported."""
    message = str(error).partition(": ")[2]
    return NULL_KEY in message or f"error({literal(message)})" in lowered


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
