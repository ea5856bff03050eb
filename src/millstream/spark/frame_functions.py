"""The user's functions of a DataFrame: what they may do, and how a row's hidden columns pass through them.

A row carries its time, weight and offset in hidden columns, which the function does not see: they are added to the
projections in the plan that it has made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from millstream.errors import InvalidPlan, MillstreamError
from millstream.expressions.spark_types import instead_of
from millstream.records import Schema
from millstream.spark.analysis import (
    FOR_OTHER_DATA,
    analysis_errors,
    column_type,
    empty_frame,
    expressions_in,
    has_subquery,
)
from millstream.spark.batch_clock import INSTEAD as CLOCK_INSTEAD
from millstream.spark.batch_clock import BatchClock, differs_when_repeated
from millstream.spark.session.start import running, session_for_analysis
from millstream.user_lines import AtUsersLine, users_line

PROJECT, FILTER, GENERATE = "Project", "Filter", "Generate"
ROW_BY_ROW = (PROJECT, FILTER, GENERATE, "SubqueryAlias", "ResolvedHint")
INSTEAD = {
    "Aggregate": "use group_by(…).agg(…), or a window",
    "Deduplicate": "use distinct(…)",
    "Distinct": "use distinct(…)",
    "Sort": "use top(…)",
    "GlobalLimit": "use take(…)",
    "LocalLimit": "use take(…)",
    "Join": "use join(…), with flow.table(…) for a lookup table",
    "Window": "use a window, or process(…)",
    "EventTimeWatermark": "set the watermark in read(…)",
    "MapInPandas": "use map(…, batch=True)",
    "MapInArrow": "use map(…, batch='arrow')",
}
DOES = "stream.spark(…) takes a function that makes rows of single rows: select, withColumn, where, explode"


def result_schema(function: Callable[[Any], Any], schema: Schema) -> Schema:
    """The columns that a function makes of a stream; refuses one that looks at more than one row."""
    spark = running() or session_for_analysis()
    line = users_line()
    given = empty_frame(spark, schema)
    with analysis_errors(spark, getattr(function, "__name__", "the function"), schema, line):
        made = function(given)
        if not isinstance(made, DataFrame):
            raise InvalidPlan(f"the function returns {made!r}, not a DataFrame", where=line, next_step=DOES)
        plan: Any = made._jdf.queryExecution().analyzed()
    base = given._jdf.queryExecution().analyzed()
    _check(plan, base, line)
    columns = []
    for field in made.schema.fields:
        try:
            columns.append((field.name, column_type(field.dataType)))
        except (MillstreamError, PySparkException):
            kind = field.dataType.simpleString()
            raise InvalidPlan(
                f"the column '{field.name}' of the result is {kind}, which a column of a stream cannot be",
                where=line,
                next_step=instead_of(kind, field.name),
            ) from None
    with AtUsersLine():
        return Schema.from_arrow(pa.schema(columns))


def dataframe_of(rows: pa.Table, spark: SparkSession | None = None) -> DataFrame:
    """Rows as a DataFrame of a session, by default the running one.

    PySpark makes that session the active one, in Python for all threads. A query has a session of its own, which does
    not know functions that the user registers later: so what was active is restored.
    """
    found = spark or running() or session_for_analysis()
    sessions: Any = SparkSession._get_j_spark_session_class(found._jvm)
    before, active = SparkSession._activeSession, sessions.getActiveSession()
    try:
        return found.createDataFrame(rows)
    finally:
        SparkSession._activeSession = before
        if active.isDefined():
            sessions.setActiveSession(active.get())


def guarded(condition: Column, number: str) -> Column:
    """A condition that Spark must evaluate row by row; `number` is a column that is never negative.

    Where Spark sees that no row can pass, it does not run what is before the filter: sources and steps with state.
    """
    return sf.coalesce(condition, sf.lit(False)) == (sf.col(number) >= 0)


def applied(function: Callable[[Any], Any], frame: DataFrame, hidden: Sequence[str], number: str) -> DataFrame:
    """The result of a function over a frame; the hidden columns of a row pass through it."""
    base: Any = frame._jdf.queryExecution().analyzed()
    made = function(frame.drop(*hidden))
    plan: Any = made._jdf.queryExecution().analyzed()
    _check(plan, base, users_line())
    jvm: Any = frame.sparkSession._jvm
    output = base.output()
    attributes = [output.apply(place) for place in range(output.size())]
    carried = _seq(jvm, [each for each in attributes if each.name() in hidden])
    return _Carrying(frame, base, carried, number).frame_of(plan)


def _check(plan: Any, base: Any, line: str | None) -> None:
    if has_subquery(plan):
        raise InvalidPlan(
            "the function looks at other data, which may change: a subquery", where=line, next_step=FOR_OTHER_DATA
        )
    if differs_when_repeated(expressions_in(plan)):
        raise InvalidPlan(
            "the function reads Spark's own clock, and results must be repeatable", where=line, next_step=CLOCK_INSTEAD
        )
    node = plan
    while not node.equals(base):
        name = str(node.nodeName())
        if name not in ROW_BY_ROW or node.children().size() != 1:
            raise InvalidPlan(
                f"the function looks at more than one row, or at other data: {name}",
                where=line,
                next_step=INSTEAD.get(name, DOES),
            )
        if not node.deterministic():
            raise InvalidPlan(
                "the function differs with each call, and results must be repeatable",
                where=line,
                next_step="leave out rand(), uuid() and the like",
            )
        node = node.children().apply(0)


class _Carrying:
    """What a function makes of a frame, whose plan is `base`, with the carried columns in every projection."""

    def __init__(self, frame: DataFrame, base: Any, carried: Any, number: str) -> None:
        self._frame = frame
        self._base = base
        self._carried = carried
        self._number = number
        self._clock = BatchClock(frame)

    def frame_of(self, node: Any) -> DataFrame:
        if node.equals(self._base):
            return self._frame
        before = self.frame_of(node.children().apply(0))
        session = self._frame.sparkSession
        jvm: Any = session._jvm
        name, child = str(node.nodeName()), before._jdf.queryExecution().analyzed()
        if name == FILTER:
            condition = self._clock.replaced(node.condition())
            column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column(condition)
            return before.where(guarded(Column(column), self._number))
        if name == PROJECT:
            given = node.projectList()
            columns = [self._clock.replaced(given.apply(place)) for place in range(given.size())]
            projected = _seq(jvm, columns).appendedAll(self._carried)
            made = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(projected, child)
        else:
            made = node.withNewChildren(_seq(jvm, [child]))
            if name == GENERATE:
                made = self._clock.replaced_in(made)
        jdf = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, made)
        return DataFrame(jdf, session)


def _seq(jvm: Any, values: list[Any]) -> Any:
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(values)
