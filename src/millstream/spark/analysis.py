"""Asks Spark about an expression that cannot be translated: its type, the columns it uses, whether it can be repeated.

Spark analyzes it over an empty DataFrame with the columns of the stream; no job runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, NullType, VariantType

from millstream.errors import InvalidExpression, InvalidSchema, MillstreamError
from millstream.expressions.column_texts import ColumnText, shown_column
from millstream.expressions.expression import Expression, InDriver
from millstream.expressions.spark_functions import SPARK_FUNCTIONS
from millstream.expressions.spark_types import instead_of
from millstream.records import Schema
from millstream.records.variants import VARIANT
from millstream.spark.batch_clock import INSTEAD, differs_when_repeated, reads_clock
from millstream.spark.pyspark_logs import errors_not_logged
from millstream.spark.session.start import running, session_for_analysis
from millstream.user_lines import users_line, what_exists

RESULT = "result"
PYTHON = ("PythonUDF", "PythonUDAF", "PythonFuncExpression")
FOR_MORE_ROWS = "use .agg(…) for aggregates; an expression here is evaluated for one row"
FOR_WINDOWS = "use .key_by('user').window(ms.fixed('10 minutes')).agg(…); other windows: sliding, sessions"
WINDOW_CALLS = ("window(", "session_window(")
FOR_GENERATORS = "make the rows in a select(…) of its own, select('id', x='explode(xs)'), and go on with its column"
FOR_OTHER_DATA = "join the stream with flow.table(…)"


def is_running() -> bool:
    """Whether there is a session, which may have functions of the user."""
    return running() is not None


def analyzed(given: str, schema: Schema, reason: str) -> Expression:
    """An expression that only Spark can evaluate, given as text or as a Column; `reason` says why only Spark can."""
    spark = running() or session_for_analysis()
    shown, column = str(given), given.column if isinstance(given, ColumnText) else None
    with analysis_errors(spark, shown, schema, users_line()):
        empty = empty_frame(spark, schema)
        made = empty.select((sf.expr(shown) if column is None else column).alias(RESULT))
        plan: Any = made._jdf.queryExecution().analyzed()
        kind = type_of(made, shown)
    names = [str(node.nodeName()) for node in nodes_of(plan)]
    makes_rows = "Generate" in names
    if any(name not in ("Project", "Generate", "LogicalRDD", "LocalRelation") for name in names):
        hint = FOR_WINDOWS if shown.startswith(WINDOW_CALLS) else FOR_MORE_ROWS
        raise _invalid(f"'{shown}' looks at more than one row", hint)
    if has_subquery(plan):
        raise _invalid(f"'{shown}' looks at other data, which may change", FOR_OTHER_DATA)
    if not all(node.deterministic() for node in nodes_of(plan)):
        raise _invalid(
            f"'{shown}' differs with each call, and results must be repeatable", "provide it as a column of the rows"
        )
    if differs_when_repeated(expressions_in(plan), shown):
        raise _invalid(f"'{shown}' reads Spark's own clock, and results must be repeatable", INSTEAD)
    kinds = _kinds(plan)
    return Expression(
        shown,
        None,
        kind,
        frozenset(_used(plan, schema)),
        reason,
        None if column is None else InDriver(column),
        calls_python=any(kind in kinds for kind in PYTHON),
        clocked=shown if reads_clock(kinds) else None,
        makes_rows=makes_rows,
    )


def sql_of(column: Column, schema: Schema) -> str:
    """A Column as Spark SQL, with the casts that Spark adds."""
    spark = running() or session_for_analysis()
    with analysis_errors(spark, shown_column(column), schema, users_line()):
        made = empty_frame(spark, schema).select(column.alias(RESULT))
    plan: Any = made._jdf.queryExecution().analyzed()
    return str(plan.expressions().apply(0).child().sql())


def name_of(column: Column, schema: Schema) -> str:
    """The name of a column in a DataFrame that selects it."""
    spark = running() or session_for_analysis()
    with analysis_errors(spark, shown_column(column), schema, users_line()):
        names = empty_frame(spark, schema).select(column).columns
    if len(names) != 1:
        raise _invalid(
            f"'{shown_column(column)}' makes several columns",
            "write it as text: select('posexplode(xs) as (place, x)')",
        )
    return names[0]


def and_none(conditions: Sequence[str], taken: Sequence[str]) -> Column:
    """Whether all conditions are true and none of the others is; each is text or the text of a Column."""
    if running() is None:
        session_for_analysis()
    own, others = (
        [each.column if isinstance(each, ColumnText) else sf.expr(each) for each in given]
        for given in (conditions, taken)
    )
    return reduce(and_, [*own, *(~sf.coalesce(each, sf.lit(False)) for each in others)])


def empty_frame(spark: SparkSession, schema: Schema) -> DataFrame:
    return spark.createDataFrame([], str(schema))


def type_of(frame: DataFrame, shown: str) -> pa.DataType:
    """The type of a frame's only column."""
    kind = frame.schema.fields[0].dataType
    if isinstance(kind, NullType):
        raise _invalid(f"'{shown}' is always null and has no type", "write cast(null as string)")
    try:
        return column_type(kind)
    except (MillstreamError, PySparkException):
        text = kind.simpleString()
        raise _invalid(f"'{shown}' is {text}, which a column of a stream cannot be", instead_of(text)) from None


def column_type(kind: DataType) -> pa.DataType:
    """A type of Spark as one of a stream's column; values may be null at any depth, as they are in a stream."""
    if isinstance(kind, VariantType):
        return VARIANT
    if "variant" in kind.simpleString():
        raise InvalidSchema("a column cannot contain variants", next_step="convert it")
    found = pa.schema([pa.field(RESULT, _nullable(to_arrow_type(kind, timezone="UTC")))])
    return Schema.from_arrow(found).field(RESULT).type


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    return kind


def nodes_of(plan: Any) -> Iterator[Any]:
    """The nodes of a logical plan of Spark."""
    yield plan
    children = plan.children()
    for place in range(children.size()):
        yield from nodes_of(children.apply(place))


def expressions_in(plan: Any) -> Iterator[Any]:
    """All expressions of a logical plan of Spark."""
    for node in nodes_of(plan):
        found = node.expressions()
        waiting = [found.apply(place) for place in range(found.size())]
        while waiting:
            each = waiting.pop()
            yield each
            children = each.children()
            waiting += [children.apply(place) for place in range(children.size())]


def _kinds(plan: Any) -> set[str]:
    return {str(each.getClass().getSimpleName()) for each in expressions_in(plan)}


def has_subquery(plan: Any) -> bool:
    return any(kind.endswith("Subquery") or kind in ("ListQuery", "Exists") for kind in _kinds(plan))


def _used(plan: Any, schema: Schema) -> Iterator[str]:
    """Spark resolves names whatever their case, and keeps them as they were written."""
    own = {name.lower(): name for name in schema.names}
    for node in nodes_of(plan):
        found = node.references().iterator()
        while found.hasNext():
            name = str(found.next().name()).lower()
            if name in own:
                yield own[name]


@contextmanager
def analysis_errors(spark: SparkSession, shown: str, schema: Schema, line: str | None) -> Iterator[None]:
    """Spark's refusal as one of ours, with the user's line."""
    try:
        with errors_not_logged():
            yield
    except ParseException as error:
        what, next_step = f"cannot be read as Spark SQL: {_message(error)}", "write one expression, as after SELECT"
        raise InvalidExpression(f"'{shown}' {what}", where=line, next_step=next_step) from None
    except AnalysisException as error:
        what, hint = _refused(spark, error, shown, schema)
        raise InvalidExpression(what, where=line, next_step=hint) from None
    except PySparkException as error:
        raise InvalidExpression(f"Spark cannot evaluate '{shown}': {_message(error)}", where=line) from None


def _refused(spark: SparkSession, error: AnalysisException, shown: str, schema: Schema) -> tuple[str, str]:
    """What is wrong, and what to do next."""
    condition, parameters = error.getCondition() or "", error.getMessageParameters() or {}
    if condition == "UNRESOLVED_ROUTINE":
        name = parameters.get("routineName", "").replace("`", "")
        registered = [row[0] for row in spark.sql("show user functions").collect()]
        near = what_exists(name, sorted({*SPARK_FUNCTIONS, *registered})).split("? ")
        hint = f"{near[0]}?" if len(near) == 2 else "register it with spark.udf.register, or use a map(…)"
        return f"there is no function {name}, in '{shown}'", hint
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = parameters.get("objectName", "").replace("`", "")
        return f"there is no column '{name}', in '{shown}'", what_exists(name, schema.names)
    if condition.startswith("WRONG_NUM_ARGS"):
        return (
            f"'{shown}' has the wrong number of arguments: {_message(error)}",
            "see the function in Spark's reference",
        )
    if condition.startswith("UNSUPPORTED_GENERATOR"):
        return f"'{shown}' makes several rows of one inside another expression", FOR_GENERATORS
    if condition.startswith("MISSING_ATTRIBUTES"):
        return f"'{shown}' is a Column of another DataFrame", "name the column: sf.col('id'), or write text: 'id > 3'"
    if "number of aliases" in str(error):
        return f"'{shown}' makes several columns", f"name them in a select(…): select('{shown} as (a, b)')"
    if "AGGREGATE" in condition or "GROUP" in condition or "WINDOW" in condition:
        return f"'{shown}' looks at more than one row", FOR_MORE_ROWS
    return f"Spark cannot evaluate '{shown}': {_message(error)}", "convert its parts with cast(… as …)"


def _message(error: PySparkException) -> str:
    """Spark's message in one line, without its code and its plan."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if text.startswith("["):
        text = text.partition("] ")[2]
    return text.partition(" SQLSTATE:")[0].partition(" Please, refer to ")[0].rstrip(".")


def _invalid(what: str, next_step: str | None) -> InvalidExpression:
    return InvalidExpression(what, where=users_line(), next_step=next_step)
