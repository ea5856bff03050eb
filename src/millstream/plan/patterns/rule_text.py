"""A rule that comes as a row of a table: MATCH_RECOGNIZE as text and a filter, read where the rows are processed.

Reading a rule needs no Spark, so a condition that only Spark can evaluate is refused. Whatever is wrong with a rule is
an error with the line and the column in its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NoReturn

from millstream.errors import InvalidInput, InvalidPattern
from millstream.expressions.expression import Expression, lowered_expression
from millstream.plan.patterns.checked import Search, refuse_lookahead, search
from millstream.plan.patterns.language import Statement, parsed
from millstream.plan.patterns.matching import skip_of
from millstream.plan.patterns.node import MatchRules, Skip
from millstream.plan.patterns.references import Reader
from millstream.plan.patterns.rules import PATTERN
from millstream.plan.patterns.terms import Anchor, all_terms, needed_variables
from millstream.records import Schema

ID, VERSION, FILTER, TEXT, WEIGHT = "id", "version", "filter", "pattern", "weight"
"""The columns of a table of rules; the last one is that of its changes."""
RULES_CACHED = 20_000


@dataclass(frozen=True)
class RuleInput:
    """The rows that rules are for."""

    schema: Schema
    keys: tuple[str, ...]
    event_time: str | None


def rule_input(node: MatchRules) -> RuleInput:
    return RuleInput(node.inputs[0].schema, node.keys, node.event_time)


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule, read and checked."""

    filter: Expression | None
    """Which rows it looks at; None: all of them."""
    search: Search
    skip: Skip

    @property
    def within(self) -> int:
        limit = self.search.within
        assert limit is not None
        return limit

    @property
    def lookback(self) -> int:
        return self.search.lookback

    @cached_property
    def needed_conditions(self) -> tuple[int, ...]:
        """The numbers of the conditions that some row must satisfy for a match."""
        needed = needed_variables(self.search.rules.term)
        given = self.search.rules.conditions
        asked = enumerate(self.search.automaton.asked)
        return tuple(number for number, each in asked if each.name in needed and each.text == given.get(each.name))


@lru_cache(RULES_CACHED)
def rule_of(given: RuleInput, filter_text: str | None, text: str) -> Rule:
    """Reads a rule. Its expressions are translated once in a process, however many rules share them."""
    asked = parsed(text)
    _check_clauses(asked, given)
    if asked.rules.within is None:
        _refuse(
            asked, "a rule needs a limit of time", "write PATTERN (…) WITHIN INTERVAL '1' HOUR: rows are held so long"
        )
    if any(isinstance(term, Anchor) for term in all_terms(asked.rules.term)):
        _refuse(asked, "^ and $ are not for rules", "a rule that is added later does not see the first row of a key")
    rules = replace(asked.rules, lines=asked.defined, places={})
    try:
        made = search(rules, given.schema, every=False, reading=RuleReader)
        refuse_lookahead(made, "the rows of a rule are decided at its watermark, whether another follows or not")
    except InvalidInput as error:
        is_known = error.where in asked.defined.values()
        raise _placed(error, error.where if is_known and error.where else asked.defined[PATTERN]) from None
    try:
        looks_at = None if filter_text is None else _lowered(filter_text, given.schema)
        if looks_at is not None and looks_at.uses_clock:
            raise InvalidPattern("it uses the clock", next_step="compare with a column of the rows")
    except InvalidInput as error:
        raise InvalidPattern(f"the filter: {error.what}", next_step=error.next_step) from None
    return Rule(looks_at, made, skip_of(asked.skip, rules))


@lru_cache(RULES_CACHED)
def _lowered(text: str, schema: Schema, *, boolean: bool = True) -> Expression:
    try:
        return lowered_expression(text, schema, boolean=boolean)
    except RecursionError:  # one rule must not stop the others
        raise InvalidPattern("the expression is nested too deeply", next_step="make it simpler") from None


class RuleReader(Reader):
    """Reads the conditions of a rule; its errors begin with their place in the text."""

    def _expression(self, text: str, schema: Schema, *, boolean: bool = False) -> Expression:
        try:
            made = _lowered(text, schema, boolean=boolean)
        except InvalidInput as error:
            raise self.refused(*self._in_words(error)) from None
        if made.uses_clock:
            raise self.refused(f"'{text}' uses the clock", "compare with a column of the rows")
        return made

    def refused(self, what: str, next_step: str) -> InvalidPattern:
        return InvalidPattern(f"{self.line}: {what}" if self.line else what, next_step=next_step)


def _placed(error: InvalidInput, place: str) -> InvalidPattern:
    what = error.what if error.what.startswith("line ") else f"{place}: {error.what}"
    return InvalidPattern(what, next_step=error.next_step)


def _refuse(asked: Statement, what: str, next_step: str) -> NoReturn:
    raise InvalidPattern(f"{asked.defined[PATTERN]}: {what}", next_step=next_step)


def _check_clauses(asked: Statement, given: RuleInput) -> None:
    """The key, the order and the columns of the result are the same for all rules."""
    if asked.partition_by and {name.lower() for name in asked.partition_by} != {name.lower() for name in given.keys}:
        keys = ", ".join(given.keys) or "no column"
        _refuse(asked, f"PARTITION BY differs from the key of the stream, {keys}", "remove PARTITION BY")
    if asked.order_by and [name.lower() for name in asked.order_by] != [(given.event_time or "").lower()]:
        _refuse(asked, "rows are matched in order of event time", "remove ORDER BY")
    if asked.measures:
        _refuse(asked, "a rule has no MEASURES", "compute them of the column rows of the result: rows[0].price")
    if asked.all_rows:
        _refuse(asked, "a match of a rule is one row", "remove ALL ROWS PER MATCH: its rows are in the column rows")
    if asked.timeouts:
        _refuse(asked, "partial matches of rules are not reported", "remove SHOW TIMEOUT MATCHES")


@dataclass(frozen=True)
class CheckedRules:
    """The function that checks each change of a table of rules: one that is wrong raises, and is a dead letter."""

    given: RuleInput

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            if row[ID] is None or row[VERSION] is None or row[TEXT] is None:
                raise InvalidPattern("a rule needs an id, a version and a pattern", next_step="fill in these columns")
            rule_of(self.given, row[FILTER], row[TEXT])
        except InvalidInput as error:
            if row[WEIGHT] < 0:  # it was never in force, and its dead letter has been sent
                return
            where = f"rule {row[ID]!r}, version {row[VERSION]!r}"
            raise InvalidPattern(error.what, where=where, next_step=error.next_step) from None
        yield {name: row[name] for name in (ID, VERSION, FILTER, TEXT, WEIGHT)}
