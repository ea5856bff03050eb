"""Branches of a stream by condition, as plain conditions on its rows: so they mean the same on every runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from millstream.expressions.column_texts import ColumnText, ExpressionLike, as_text
from millstream.expressions.expression import expression
from millstream.plan.checks import NAME, and_none, refusal
from millstream.plan.on_spark import engine

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

Match = Literal["first", "all"]
EXAMPLES = {
    "split": "for example split({'big': 'n > 100'}, rest='small')",
    "route": "for example route(big='n > 100', even='n % 2 = 0', match='all')",
}


def branches_of(
    stream: Stream, kind: str, conditions: Mapping[str, ExpressionLike], rest: str | None, match: str
) -> dict[str, Stream]:
    """`kind` is the step's name in errors and plans."""
    if not isinstance(conditions, Mapping) or not conditions:
        raise refusal(f"{kind} takes branches by name", EXAMPLES[kind])
    if match not in get_args(Match):
        raise refusal(f"match={match!r} is unknown", 'match="first" for one branch per row, match="all" for all')
    for branch in (*conditions, *([] if rest is None else [rest])):
        if not isinstance(branch, str) or not NAME.fullmatch(branch):
            raise refusal(f"{branch!r} is not a valid name for a branch", "use letters, digits and . _ -")
    if rest in conditions:
        raise refusal(f"there are two branches named '{rest}'", f"taken: {', '.join(conditions)}")
    for condition in conditions.values():
        expression(condition, stream.schema, boolean=True)
    given = {branch: as_text(condition) for branch, condition in conditions.items()}
    joined = engine.and_none if any(isinstance(each, ColumnText) for each in given.values()) else _as_text
    taken: list[str] = []
    made = {}
    for branch, condition in given.items():
        before = taken if match == "first" else []
        made[branch] = stream._where(joined([condition], before), None, f"{kind} {branch}")
        taken.append(condition)
    if rest is not None:
        made[rest] = stream._where(joined([], taken), None, f"{kind} {rest}")
    return made


def _as_text(conditions: Sequence[str], taken: Sequence[str]) -> str:
    return and_none([f"({each})" for each in conditions], taken)
