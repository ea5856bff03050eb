"""The step that matches documents with stored queries, and what a query of a table is.

A query is in force from its event time on, until it is changed or removed; a document is matched by the queries that
are in force at its own event time. So a replay finds the same matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, NoReturn

import polars as pl

from millstream.errors import InvalidInput, InvalidQuery
from millstream.expressions.expression import Expression, lowered_expression
from millstream.plan.nodes import StreamNode
from millstream.plan.stored.versions import Change, Version
from millstream.plan.time.bundles import micros
from millstream.plan.time.windows import microseconds
from millstream.records import Schema, format_duration
from millstream.search.checked import condition_of
from millstream.search.conditions import Condition
from millstream.search.fields import Searched

ID, QUERY, CONDITION, OWNER, SINCE, WEIGHT = "id", "query", "condition", "owner", "since", "weight"
"""The columns of a table of queries; the last one is that of its changes."""
CONTENT = (ID, QUERY, CONDITION, OWNER, SINCE)
PROBLEM = "__problem"
SCORE, FRAGMENTS, FIELD, FRAGMENT = "score", "fragments", "field", "fragment"
CONDITIONS_CACHED = 20_000
FOREVER = 1 << 60
"""As a history, in microseconds: all documents that there are."""


@dataclass(frozen=True, eq=False)
class MatchQueries(StreamNode):
    """Matches each document of its first input with the queries of the second, which may change."""

    searched: Searched
    score: bool
    highlight: bool
    history: timedelta
    """How long documents are held for queries that are yet to come."""
    timed_queries: bool
    """Whether changes of queries have an event time."""
    from_log: bool = False
    """Whether new queries read documents of the past from the log, where that is possible, instead of the state."""
    keeps_state: ClassVar[bool] = True
    broadcast_input: ClassVar[int | None] = 1

    @property
    def history_us(self) -> int:
        """How far new queries look back."""
        return FOREVER if self.from_log else microseconds(self.history)

    @property
    def awaited_inputs(self) -> int:
        return 2 if self.timed_queries else 1

    @property
    def label(self) -> str:
        held = f", history {format_duration(self.history)}" if self.history else ""
        history = ", history in the log" if self.from_log else held
        return f"match queries in {', '.join(self.searched.text)}{history}"


@lru_cache(CONDITIONS_CACHED)
def where_of(text: str, schema: Schema) -> Expression:
    """The Spark SQL condition of a query; it must run without Spark."""
    try:
        made = lowered_expression(text, schema, boolean=True)
    except InvalidInput as error:
        raise InvalidQuery(f"the condition: {error.what}", next_step=error.next_step) from None
    if made.uses_clock:
        raise InvalidQuery("the condition uses the clock", next_step="compare with a column of the documents")
    return made


@dataclass(frozen=True)
class CheckedQueries:
    """The function that checks changes of a table of queries, many at once: PROBLEM is what is wrong, null if nothing.

    It is empty for the retraction of a wrong query, which was never in force and whose dead letter has been sent.
    """

    searched: Searched

    def __call__(self, changes: pl.DataFrame) -> pl.DataFrame:
        rows = changes.select(ID, QUERY, CONDITION, WEIGHT).rows()
        problems = [self._problem(*row[:3], retracted=row[3] < 0) for row in rows]
        return changes.with_columns(pl.Series(PROBLEM, problems, pl.String))

    def _problem(self, name: str | None, text: str | None, where: str | None, *, retracted: bool) -> str | None:
        try:
            if name is None or text is None:
                raise InvalidQuery("a query needs an id and a text", next_step="fill in id and query")
            condition_of(text, self.searched)
            if where is not None:
                where_of(where, self.searched.schema)
        except InvalidInput as error:
            return (
                "" if retracted else str(InvalidQuery(error.what, where=f"query {name!r}", next_step=error.next_step))
            )
        return None


def refuse_query(row: dict[str, Any]) -> NoReturn:
    """Makes a dead letter of a wrong query."""
    raise WrongQuery(row[PROBLEM])


class WrongQuery(Exception):
    """A query in a table that is wrong; its text is that of an InvalidQuery."""


def change_of(row: Mapping[str, Any], time: int | None) -> Change:
    """A change of the table, given its columns and the time from which it is valid."""
    since: datetime | None = row[SINCE]
    content = (row[ID], row[QUERY], row[CONDITION], row[OWNER], None if since is None else micros(since))
    return Change(content, time, row[WEIGHT])


def condition(version: Version, searched: Searched) -> Condition:
    return condition_of(version.content[1], searched)


def looks_back_to(version: Version, history: int) -> int | None:
    """The first moment before its own whose documents it is to find, as far as they are held; None: it does not."""
    since = version.content[4]
    if since is None or not history or since >= version.start:
        return None
    first: int = max(since, version.start - history)
    return first
