"""The fluent way to write a pattern: stages one after another, each shaped by the calls behind it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from millstream.errors import InvalidPattern
from millstream.plan.patterns.rules import Rules
from millstream.plan.patterns.terms import (
    Absence,
    Alternatives,
    AnyOrder,
    Contiguity,
    Greed,
    Link,
    Repeat,
    Sequence,
    Term,
    Variable,
)
from millstream.records import duration
from millstream.user_lines import AtUsersLine, users_line

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def refused(what: str, next_step: str, line: str | None = None) -> InvalidPattern:
    return InvalidPattern(what, where=line or users_line(), next_step=next_step)


@dataclass(frozen=True)
class Stage:
    """One stage of a pattern."""

    contiguity: Contiguity
    part: Term
    low: int | None = None
    """None: just once."""
    high: int | None = None
    is_optional: bool = False
    greed: Greed = Greed.ANY
    inner: Contiguity = Contiguity.FOLLOWED_BY
    until: str | None = None

    @property
    def term(self) -> Term:
        if self.low is None:
            return self.part if not self.is_optional else Repeat(self.part, 0, 1, self.greed, self.inner)
        if self.is_optional and self.low > 1:
            repeated = Repeat(self.part, self.low, self.high, self.greed, self.inner, self.until)
            return Repeat(repeated, 0, 1, self.greed, self.inner)
        low = 0 if self.is_optional else self.low
        return Repeat(self.part, low, self.high, self.greed, self.inner, self.until)


@dataclass(frozen=True)
class Pattern:
    """A sequence of rows to look for, made with `ms.pattern`. Each call returns a new pattern.

    `next`, `followed_by` and the like add a stage; `one_or_more`, `optional` and the like shape the last one. In place
    of a name, a stage takes another pattern: a group.
    """

    stages: tuple[Stage, ...]
    conditions: tuple[tuple[str, str | None, str | None], ...] = ()
    """Names, their conditions, and where they were written."""
    limit: timedelta | None = None
    limit_between_neighbours: timedelta | None = None

    # ------------------------------------------------------------ stages

    def next(self, name: str | Pattern, where: str | None = None) -> Pattern:
        """The very next row satisfies a condition."""
        return self._then(Contiguity.NEXT, name, where)

    def followed_by(self, name: str | Pattern, where: str | None = None) -> Pattern:
        """The next row that satisfies a condition; others may lie between."""
        return self._then(Contiguity.FOLLOWED_BY, name, where)

    def followed_by_any(self, name: str | Pattern, where: str | None = None) -> Pattern:
        """Any later row that satisfies a condition: one match for each of them."""
        return self._then(Contiguity.FOLLOWED_BY_ANY, name, where)

    def not_next(self, name: str, where: str | None = None) -> Pattern:
        """The very next row does not satisfy a condition. It is not part of the match."""
        return self._without(Contiguity.NEXT, name, where)

    def not_followed_by(self, name: str, where: str | None = None) -> Pattern:
        """No row satisfies a condition before the next stage; at the end, until the limit of `within` is over."""
        return self._without(Contiguity.FOLLOWED_BY, name, where)

    def _then(self, contiguity: Contiguity, name: str | Pattern, where: str | None) -> Pattern:
        part, conditions = _part(name, where)
        return replace(
            self,
            stages=(*self.stages, Stage(contiguity, part)),
            conditions=_merged(self.conditions, conditions),
        )

    def _without(self, contiguity: Contiguity, name: str, where: str | None) -> Pattern:
        if isinstance(name, Pattern):
            raise refused("the absence of a group cannot be matched", "name one variable with a condition")
        _, conditions = _part(name, where)
        if name in {known for known, *_ in self.conditions}:
            raise refused(f"the name '{name}' is taken", "give the absence a name of its own")
        stage = Stage(contiguity, Absence(name, contiguity))
        return replace(self, stages=(*self.stages, stage), conditions=_merged(self.conditions, conditions))

    # ------------------------------------------------------------ shaping the last stage

    def one_or_more(self) -> Pattern:
        """The last stage occurs once or several times."""
        return self._times(1, None)

    def times(self, low: int, high: int | None = None) -> Pattern:
        """The last stage occurs a number of times, or from `low` to `high` times."""
        high = low if high is None else high
        _check_count(low)
        _check_count(high)
        if high < max(low, 1):
            raise refused(f"times({low}, {high}) can never happen", "the second number is at least the first, and 1")
        return self._times(low, high)

    def times_or_more(self, low: int) -> Pattern:
        """The last stage occurs at least `low` times."""
        _check_count(low)
        return self._times(low, None)

    def _times(self, low: int, high: int | None) -> Pattern:
        if self._last.low is not None:
            raise refused("the last stage already has a number of times", "put it into a group: ms.pattern(…)")
        return self._shaped(low=low, high=high)

    def optional(self) -> Pattern:
        """The last stage may be missing."""
        return self._shaped(is_optional=True)

    def greedy(self) -> Pattern:
        """The last stage takes as many rows as it can, before the next one takes any."""
        return self._shaped(greed=Greed.GREEDY)

    def reluctant(self) -> Pattern:
        """The last stage takes as few rows as it can. For `matches="preferred"`."""
        return self._shaped(greed=Greed.RELUCTANT)

    def consecutive(self) -> Pattern:
        """Within the last stage, no other rows may lie between its rows."""
        return self._shaped(inner=Contiguity.NEXT)

    def combinations(self) -> Pattern:
        """Within the last stage, rows that satisfy it may be skipped too: every combination is a match."""
        return self._shaped(inner=Contiguity.FOLLOWED_BY_ANY)

    def until(self, where: str) -> Pattern:
        """Ends the repetition of the last stage at the first row that satisfies a condition."""
        if self._last.low is None or self._last.high is not None:
            raise refused("until ends a repetition, but the last stage has none without an end", "use one_or_more()")
        _check_condition(where)
        return self._shaped(until=where)

    @property
    def _last(self) -> Stage:
        return self.stages[-1]

    def _shaped(self, **changes: object) -> Pattern:
        if isinstance(self._last.part, Absence):
            raise refused(
                f"'{self._last.part.name}' must not occur, so it cannot be repeated or optional",
                "shape the stage before it, or use followed_by(…)",
            )
        made = replace(self._last, **changes)  # type: ignore[arg-type]
        if isinstance(made.part, AnyOrder) and made.low is None and "inner" in changes:
            made = replace(made, part=replace(made.part, inner=made.inner))
        return replace(self, stages=(*self.stages[:-1], made))

    # ------------------------------------------------------------ the whole

    def within(
        self, limit: str | timedelta, *, between: Literal["first and last", "neighbours"] = "first and last"
    ) -> Pattern:
        """Limits the time from the first row of a match to its last, or between neighbouring rows."""
        with AtUsersLine():
            length = duration(limit, what="limit")
        if not length:
            raise refused("the limit of time must be longer than 0", "for example within('10 minutes')")
        if between not in ("first and last", "neighbours"):
            raise refused(f"between={between!r} is unknown", "it is 'first and last' or 'neighbours'")
        if between == "neighbours":
            return replace(self, limit_between_neighbours=length)
        return replace(self, limit=length)

    @property
    def term(self) -> Term:
        if len(self.stages) == 1 and not isinstance(self.stages[0].part, Absence):
            return self.stages[0].term
        return Sequence(tuple(Link(stage.contiguity, stage.term) for stage in self.stages))

    @property
    def rules(self) -> Rules:
        """The pattern as the matchers need it."""
        return Rules(
            self.term,
            {name: where for name, where, _ in self.conditions},
            self.limit,
            self.limit_between_neighbours,
            lines={name: line for name, _, line in self.conditions},
        )

    def __str__(self) -> str:
        return str(self.rules)


def pattern(name: str | Pattern, where: str | None = None) -> Pattern:
    """The first stage of a pattern: a name for its rows, and the condition (Spark SQL) that they satisfy."""
    part, conditions = _part(name, where)
    return Pattern((Stage(Contiguity.NEXT, part),), conditions)


def alternatives(*patterns: Pattern) -> Pattern:
    """One of several patterns, to be used as a stage. For the preferred match, earlier ones come first."""
    parts, conditions = _several("alternatives", patterns)
    return Pattern((Stage(Contiguity.NEXT, Alternatives(parts)),), conditions)


def any_order(*patterns: Pattern) -> Pattern:
    """All of several patterns, in any order, as a stage. Other rows may lie between, unless it is `consecutive`."""
    parts, conditions = _several("any_order", patterns)
    if len(parts) > 8:
        raise refused(f"any_order takes at most 8 patterns, not {len(parts)}", "match some of them in a fixed order")
    return Pattern((Stage(Contiguity.NEXT, AnyOrder(parts, Contiguity.FOLLOWED_BY)),), conditions)


def _several(
    verb: str, patterns: tuple[Pattern, ...]
) -> tuple[tuple[Term, ...], tuple[tuple[str, str | None, str | None], ...]]:
    if len(patterns) < 2:
        raise refused(f"{verb} takes at least two patterns", f"{verb}(ms.pattern('a', …), ms.pattern('b', …))")
    conditions: tuple[tuple[str, str | None, str | None], ...] = ()
    for each in patterns:
        if not isinstance(each, Pattern):
            raise refused(f"{verb} takes patterns, not {each!r}", f"{verb}(ms.pattern('a', …), ms.pattern('b', …))")
        _check_group(each)
        conditions = _merged(conditions, each.conditions)
    return tuple(each.term for each in patterns), conditions


def _part(name: str | Pattern, where: str | None) -> tuple[Term, tuple[tuple[str, str | None, str | None], ...]]:
    if isinstance(name, Pattern):
        if where is not None:
            raise refused("a group has no condition of its own", "give the conditions to its stages")
        _check_group(name)
        return name.term, name.conditions
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refused(f"{name!r} is not a name for a stage", "use letters, digits and _, as in 'small_payment'")
    if where is not None:
        _check_condition(where)
    return Variable(name), ((name, where, users_line()),)


def _check_group(group: Pattern) -> None:
    if group.limit is not None or group.limit_between_neighbours is not None:
        raise refused("a group has no limit of time of its own", "call within(…) for the whole pattern")


def _check_condition(where: object) -> None:
    if not isinstance(where, str) or not where.strip():
        raise refused(f"a condition is Spark SQL text, not {where!r}", "for example \"kind = 'order'\"")


def _check_count(number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise refused(f"the number of times is a whole number from 0, not {number!r}", "for example times(2, 4)")


def _merged(
    known: tuple[tuple[str, str | None, str | None], ...], new: tuple[tuple[str, str | None, str | None], ...]
) -> tuple[tuple[str, str | None, str | None], ...]:
    """All names, each once. A name that occurs again without a condition is the same variable."""
    found = {name.lower(): (name, where) for name, where, _ in known}
    made = list(known)
    for name, where, line in new:
        before = found.get(name.lower())
        if before is None:
            made.append((name, where, line))
            found[name.lower()] = (name, where)
        elif before[0] != name or where not in (None, before[1]):
            raise refused(
                f"two stages are named '{name}', with different conditions",
                "choose another name, or leave the condition out to mean the same variable",
            )
    return tuple(made)
