"""Branches of a stream by condition, as plain conditions on its rows: so they mean the same on every runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

from millstream.expressions.expression import expression
from millstream.plan.checks import NAME, and_none, refusal

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

Match = Literal["first", "all"]
EXAMPLES = {
    "split": "for example split({'big': 'n > 100'}, rest='small')",
    "route": "for example route(big='n > 100', even='n % 2 = 0', match='all')",
}


def branches_of(
    stream: Stream, kind: str, conditions: Mapping[str, str], rest: str | None, match: str
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
        if expression(condition, stream.schema, boolean=True).native is not None:
            raise refusal(f"{kind} takes conditions as text, not Columns", "write them as Spark SQL, or use where(…)")
    taken: list[str] = []
    made = {}
    for branch, condition in conditions.items():
        before = taken if match == "first" else []
        made[branch] = stream._where(and_none([f"({condition})"], before), None, f"{kind} {branch}")
        taken.append(condition)
    if rest is not None:
        made[rest] = stream._where(and_none([], taken), None, f"{kind} {rest}")
    return made
