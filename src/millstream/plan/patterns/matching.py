"""`match` of a keyed stream, and the stream of its matches."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from millstream.expressions.column_texts import ColumnsLike, ExpressionLike
from millstream.plan.checks import check_stream, refusal, without_event_time
from millstream.plan.patterns.checked import refuse_lookahead, search
from millstream.plan.patterns.measured import Measured
from millstream.plan.patterns.measures import measured
from millstream.plan.patterns.node import (
    MATCH,
    MATCH_END,
    MATCH_START,
    VARIABLE,
    Match,
    Matches,
    Rows,
    Skip,
    SkipTo,
    TimedOut,
    all_rows_schema,
    list_schema,
    measures_schema,
    one_row_schema,
    timed_out_schema,
)
from millstream.plan.patterns.pattern import Pattern, refused
from millstream.plan.patterns.rules import Rules
from millstream.plan.steps.choosing import flat
from millstream.plan.stream import Stream
from millstream.user_lines import AtUsersLine, users_line, what_exists

if TYPE_CHECKING:
    from millstream.plan.steps.keyed import Keyed

Choice = TypeVar("Choice", bound=Enum)
SKIPS = "'none', 'to next', 'past last', 'to first NAME', 'to last NAME'"


class Found(Stream):
    """The matches of a pattern. With one row per match, `select` may name the rows of a variable: "order.id"."""

    node: Match

    def select(self, *columns: ColumnsLike, name: str | None = None, **made: ExpressionLike) -> Stream:
        """Measures of each match: a column, "order.id" (of the last row of `order`), or name='sum(order.amount)'.

        `first(a.x)`, `last(a.x, 1)`, `sum`, `avg`, `min`, `max` and `count` are over the rows of a variable; `match`,
        `match_start` and `match_end` are the number and the times of the match.
        """
        if self.node.rows is not Rows.ONE:
            return super().select(*columns, name=name, **made)
        return self._project(measured(self.node, flat(columns), made), name, "select")

    @property
    def timed_out(self) -> Stream:
        """The partial matches whose time was over before they were complete: one row each, with the rows so far."""
        if not self.node.search.rules.has_limit:
            raise refusal("partial matches time out only if the pattern has a limit", "call within(…) in the pattern")
        return self._side(self.node, TimedOut, "timed_out", timed_out_schema(self.node))


def match(
    keyed: Keyed,
    pattern: Pattern | Rules,
    skip: str,
    matches: str,
    rows: str,
    early: bool,
    name: str | None,
    around: tuple[int, int] = (0, 0),
    measures: Sequence[Measured] = (),
) -> Found:
    """Checks the arguments of `match` and builds its step. A list of rows also has those `around` a match."""
    stream = keyed.stream
    rules = pattern.rules if isinstance(pattern, Pattern) else pattern
    if not isinstance(rules, Rules):
        raise refused(f"match takes a pattern, not {pattern!r}", "match(ms.pattern('a', …).followed_by('b', …))")
    check_stream(stream, "match", "aggregate or join it as it is")
    check_rows(stream)
    which = _choice(Matches, "matches", matches)
    shape = _choice(Rows, "rows", rows)
    if not isinstance(early, bool):
        raise refusal(f"early is True or False, not {early!r}", "True: matches are emitted before the watermark")
    made = search(rules, stream.schema, every=which is Matches.EVERY)
    if early:
        refuse_lookahead(made, "with early=True a match is emitted before the row after it is known")
    strategy = skip_of(skip, rules)
    added = [MATCH, MATCH_START, MATCH_END]
    taken, own = (
        ([*keyed.keys, *added], made.variables)
        if shape is Rows.ONE
        else (list(stream.schema.names), [*added, VARIABLE])
    )
    lower = {column.lower() for column in taken}
    for column in own:
        if column.lower() in lower:
            raise refusal(
                f"the result would have two columns named '{column}'",
                "give the variable another name" if shape is Rows.ONE else f"rename it: rename({column}='…')",
            )
    with AtUsersLine():
        columns = {
            Rows.ONE: lambda: one_row_schema(stream.schema, keyed.keys, made.variables),
            Rows.ALL: lambda: all_rows_schema(stream.schema),
            Rows.LIST: lambda: list_schema(stream.schema, keyed.keys),
            Rows.MEASURES: lambda: measures_schema(stream.schema, keyed.keys, measures),
        }[shape]()
    node = Match(
        "",
        columns,
        (stream.node,),
        users_line(),
        keyed.keys,
        made,
        strategy,
        which,
        shape,
        early,
        *around,
        tuple(measures),
    )
    return Found(stream.flow, stream.flow.named(node, "match", name))


def check_rows(stream: Stream) -> None:
    """Refuses rows that may be retracted, and rows without event time."""
    if stream.node.is_changing:
        raise refusal(
            f"match needs rows that are never retracted, but those of '{stream.node.name}' may be",
            "use .discarding() or .accumulating() in the aggregation before",
        )
    source = without_event_time(stream.node)
    if source is not None:
        raise refusal(
            f"match needs event time, but the rows of '{source.name}' have none", "set it with read(…, event_time='…')"
        )


def _choice(kind: type[Choice], what: str, given: object) -> Choice:
    choices = [choice.value for choice in kind]
    if given not in choices:
        raise refusal(f"{what}={given!r} is unknown", what_exists(given, choices, kind="choices"))
    return kind(given)


def skip_of(text: str, rules: Rules) -> Skip:
    """A skip strategy, from its words."""
    for to in SkipTo:
        if text == to.value and to not in (SkipTo.FIRST_OF, SkipTo.LAST_OF):
            return Skip(to)
        if isinstance(text, str) and to in (SkipTo.FIRST_OF, SkipTo.LAST_OF) and text.startswith(f"{to.value} "):
            name = text.removeprefix(f"{to.value} ").strip()
            known = [*rules.variables, *rules.subsets]
            if name not in known:
                raise refused(f"there is no variable '{name}' to skip to", what_exists(name, known, kind="variables"))
            return Skip(to, rules.members(name))
    raise refused(f"skip={text!r} is unknown", f"one of {SKIPS}")
