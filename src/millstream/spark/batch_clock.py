"""The clock in what a user wrote for Spark: the time of the batch is in place of Spark's, as in expressions of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from millstream.expressions.clock import NOW

CASTS: Mapping[str, str | None] = {
    "CurrentTimestamp": None,
    "Now": None,
    "CurrentDate": "date",
    "LocalTimestamp": "timestamp_ntz",
}
"""Spark's expressions of the clock, and the type that the batch's time is cast to."""
OTHER_CLOCK = "CurrentTime"
"""Its type is one that Spark does not support everywhere, so there is no column to replace it."""
WORDS = ("now", "today", "tomorrow", "yesterday")
"""Texts that Spark reads as a time of its own clock where a date or a timestamp is needed."""
INSTEAD = "use current_timestamp() or current_date(), which are the clock of the batch"
_LITERAL = re.compile(rf"\b(?:date|timestamp(?:_ltz|_ntz)?)\s*['\"]\s*(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def reads_clock(kinds: Iterable[str]) -> bool:
    """Whether one of these expressions of Spark reads the clock."""
    return any(kind in CASTS for kind in kinds)


def differs_when_repeated(expressions: Iterable[Any], text: str = "") -> bool:
    """Whether analyzed expressions, or their text, read Spark's own clock in a way that cannot be replaced.

    Spark evaluates a literal such as `timestamp'now'` while it parses, so only its text shows it.
    """
    return bool(_LITERAL.search(text)) or any(
        str(each.getClass().getSimpleName()) == OTHER_CLOCK or _is_word_as_time(each) for each in expressions
    )


def _is_word_as_time(expression: Any) -> bool:
    if str(expression.getClass().getSimpleName()).startswith("ParseTo"):  # to_date and to_timestamp
        expression = expression.replacement()
    if str(expression.getClass().getSimpleName()) != "Cast":
        return False
    given = expression.child()
    if str(given.getClass().getSimpleName()) != "Literal" or given.dataType().typeName() != "string":
        return False
    kind = str(expression.dataType().typeName())
    return kind.startswith(("date", "timestamp")) and str(given.value()).strip().lower() in WORDS


class BatchClock:
    """The clock of the rows of a frame, which have it in a hidden column; if they do not, Spark's is left as it is."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    @cached_property
    def _times(self) -> dict[str, Any]:
        if NOW not in self._frame.columns:
            return {}
        return {kind: self._analyzed(sf.col(NOW) if to is None else sf.col(NOW).cast(to)) for kind, to in CASTS.items()}

    def _analyzed(self, column: Column) -> Any:
        plan: Any = self._frame.select(column.alias("time"))._jdf.queryExecution().analyzed()
        return plan.projectList().apply(0).child()

    def replaced(self, expression: Any) -> Any:
        """An analyzed expression of Spark, with the batch's time."""
        found = self._times.get(str(expression.getClass().getSimpleName()))
        if found is not None:
            return found
        children = expression.children()
        given = [children.apply(place) for place in range(children.size())]
        made = [self.replaced(each) for each in given]
        if all(one is other for one, other in zip(given, made, strict=True)):
            return expression
        jvm: Any = self._frame.sparkSession._jvm
        return expression.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq(made))

    def replaced_in(self, generate: Any) -> Any:
        """A node of Spark's plan that makes rows, with the batch's time in its generator."""
        generator = generate.generator()
        made = self.replaced(generator)
        if made is generator:
            return generate
        return generate.copy(
            made,
            generate.unrequiredChildIndex(),
            generate.outer(),
            generate.qualifier(),
            generate.generatorOutput(),
            generate.child(),
        )
