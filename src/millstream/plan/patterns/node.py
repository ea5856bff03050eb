"""The step that finds the matches of a pattern, and its side output for partial matches that timed out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import ClassVar

import pyarrow as pa

from millstream.errors import InvalidPattern
from millstream.plan.nodes import INSTANT, StreamNode
from millstream.plan.patterns.automaton import IS_FIRST
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.measured import Measured
from millstream.plan.patterns.terms import Contiguity, Repeat, all_terms
from millstream.records import Schema, format_duration

MATCH, VARIABLE, MATCH_START, MATCH_END = "match", "variable", "match_start", "match_end"
PATH, ROW, IS_EXCLUDED = "path", "row", "is_excluded"
RULE, RULE_VERSION, MATCHED_ROWS = "rule", "version", "rows"
CLASSIFIER = "__classifier"
"""The variable of the last row."""


class Matches(Enum):
    """Which of the possible matches are emitted."""

    EVERY = "every"
    PREFERRED = "preferred"


class Rows(Enum):
    """What becomes of a match: one row with a list for each variable, each of its rows, one row with one list, or one
    row with measures of it."""

    ONE = "one"
    ALL = "all"
    LIST = "list"
    MEASURES = "measures"


class SkipTo(Enum):
    """Where the search goes on after a match."""

    NONE = "none"
    """Everywhere: matches may overlap in any way."""
    NEXT = "to next"
    """After the first row of the match."""
    PAST_LAST = "past last"
    """After the last row of the match."""
    FIRST_OF = "to first"
    """At the first row of a variable."""
    LAST_OF = "to last"
    """At the last row of a variable."""


@dataclass(frozen=True)
class Skip:
    to: SkipTo
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.to.value} {' '.join(self.variables)}".strip()


@dataclass(frozen=True, eq=False)
class Match(StreamNode):
    """Finds the matches of a pattern among the rows of each key, in order of event time."""

    keys: tuple[str, ...]
    search: Search
    skip: Skip
    matches: Matches
    rows: Rows
    early: bool
    before: int = 0
    """With rows as a list: how many rows before a match are in the list as well."""
    after: int = 0
    """The same for rows after it: a match waits for them."""
    measures: tuple[Measured, ...] = ()
    keeps_state: ClassVar[bool] = True

    @property
    def is_changing(self) -> bool:
        return self.early

    @property
    def lookback(self) -> int:
        """How many rows before a match are needed: by its conditions, or in its result."""
        return max(self.search.lookback, self.before)

    def check_in_job(self) -> None:
        rules = self.search.rules
        if self.matches is not Matches.EVERY or rules.has_limit:
            return
        for term in all_terms(rules.term):
            if isinstance(term, Repeat) and term.high is None and term.inner is Contiguity.FOLLOWED_BY_ANY:
                raise InvalidPattern(
                    f"the pattern asks for all combinations of {term} without a limit of time: each further row would "
                    "double the number of matches",
                    where=self.user_line,
                    next_step="limit the time with within(…), or use matches='preferred', times(low, high) or "
                    "consecutive()",
                )

    @property
    def label(self) -> str:
        keys = f" per {', '.join(self.keys)}" if self.keys else ""
        early = ", early" if self.early else ""
        return f"match {self.search.rules}{keys}, {self.matches.value}, skip {self.skip}, {self.rows.value} row{early}"

    @property
    def is_anchored(self) -> bool:
        """Whether it depends on which row is the first of its key."""
        tests = (arc.test for state in self.search.automaton.states for arc in state.arcs)
        return any(number == IS_FIRST for test in tests for number, _ in test)

    @property
    def state_label(self) -> str:
        """Rows are the state, whatever the pattern. With `early`, they stand for the matches that were sent, too.

        Which of them stand for matches depends on `matches`, and when a key without new rows is looked at, on whether
        there is a limit of time.
        """
        if self.early:
            return self.label
        first = ", from the first" if self.is_anchored else ""
        limit = ", with a limit" if self.search.rules.has_limit else ""
        return f"rows per {', '.join(self.keys) or 'flow'}, {self.matches.value}{first}{limit}"


@dataclass(frozen=True, eq=False)
class MatchRules(StreamNode):
    """Finds the matches of rules, which come from its second input and may change, among the rows of each key."""

    keys: tuple[str, ...]
    history: timedelta
    """How long rows are held for rules that are yet to come."""
    event_time: str | None
    timed_rules: bool
    """Whether changes of rules have an event time."""
    keeps_state: ClassVar[bool] = True
    broadcast_input: ClassVar[int | None] = 1

    @property
    def awaited_inputs(self) -> int:
        return 2 if self.timed_rules else 1

    @property
    def label(self) -> str:
        keys = f" per {', '.join(self.keys)}" if self.keys else ""
        history = f", history {format_duration(self.history)}" if self.history else ""
        return f"match rules{keys}{history}"


@dataclass(frozen=True, eq=False)
class TimedOut(StreamNode):
    """The partial matches of its input whose time is over."""

    @property
    def label(self) -> str:
        return "timed out"


def one_row_schema(schema: Schema, keys: tuple[str, ...], variables: list[str]) -> Schema:
    """One row per match: its key, its number, its times, and by variable the rows that play it."""
    row = pa.struct(list(schema.arrow))
    fields = [schema.field(key) for key in keys]
    fields += [pa.field(MATCH, pa.int64()), pa.field(MATCH_START, INSTANT), pa.field(MATCH_END, INSTANT)]
    fields += [pa.field(name, pa.list_(row)) for name in variables]
    return Schema.from_arrow(pa.schema(fields))


def list_schema(schema: Schema, keys: tuple[str, ...]) -> Schema:
    """One row per match, with all its rows in order and the variable that each plays."""
    step = pa.struct([(VARIABLE, pa.string()), (IS_EXCLUDED, pa.bool_()), (ROW, pa.struct(list(schema.arrow)))])
    once = one_row_schema(schema, keys, []).arrow
    return Schema.from_arrow(pa.schema([*once, pa.field(PATH, pa.list_(step))]))


def measures_schema(schema: Schema, keys: tuple[str, ...], measures: Sequence[Measured]) -> Schema:
    """One row per match: its key, its number, the variable of its last row, and its measures."""
    fields = [schema.field(key) for key in keys]
    fields += [pa.field(MATCH, pa.int64()), pa.field(CLASSIFIER, pa.string())]
    fields += [pa.field(each.reference.column, each.reference.type) for each in measures]
    return Schema.from_arrow(pa.schema(fields))


def last_variable(variables: Sequence[str | None]) -> str | None:
    """The variable of the last row of a match, given those of its rows; the rows around it have none."""
    return next((name for name in reversed(variables) if name is not None), None)


def all_rows_schema(schema: Schema) -> Schema:
    """All rows of a match, each with the number of the match and the variable it plays."""
    added = [
        pa.field(MATCH, pa.int64()),
        pa.field(VARIABLE, pa.string()),
        pa.field(MATCH_START, INSTANT),
        pa.field(MATCH_END, INSTANT),
    ]
    return Schema.from_arrow(pa.schema([*schema.arrow, *added]))


def rule_match_schema(schema: Schema, keys: tuple[str, ...], rule: pa.DataType, version: pa.DataType) -> Schema:
    """One row per match of a rule, with the rows of the match in order."""
    row = pa.struct([(VARIABLE, pa.string()), *schema.arrow])
    once = one_row_schema(schema, keys, []).arrow
    named = [pa.field(RULE, rule), pa.field(RULE_VERSION, version)]
    return Schema.from_arrow(pa.schema([*named, *once, pa.field(MATCHED_ROWS, pa.list_(row))]))


def timed_out_schema(node: Match) -> Schema:
    """A partial match that timed out: like one row of a match, without a number."""
    given = node.inputs[0].schema
    whole = (
        list_schema(given, node.keys)
        if node.rows in (Rows.LIST, Rows.MEASURES)
        else one_row_schema(given, node.keys, node.search.variables)
    )
    return Schema.from_arrow(pa.schema([field for field in whole.arrow if field.name != MATCH]))
