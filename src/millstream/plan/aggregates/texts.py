"""Aggregates as text, as in Spark SQL: `sum(score)`, `approx_count_distinct(user) as users`.

A text becomes the aggregate that the function of the same name makes, so nothing behind this module knows texts.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.errors import InvalidAggregate
from millstream.expressions.expression import parsed
from millstream.plan.aggregates import approximate, conditions, picks, sampling, statistics
from millstream.plan.aggregates import basic as aggregates
from millstream.plan.aggregates.basic import Aggregate
from millstream.plan.checks import refusal
from millstream.user_lines import users_line, what_exists

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

EXPRESSIONS = ("expression", "condition", "by", "weight")
"""Parameters that are Spark SQL; all others are constants."""
OWN = {
    aggregates: "sum min max mean avg stddev std stddev_samp first last collect collect_list distinct_count "
    "count_distinct top",
    conditions: "count_if any some bool_or all bool_and",
    picks: "max_by min_by collect_set",
    statistics: "variance var_samp var_pop stddev_pop percentile median mode",
    approximate: "approx_distinct approx_set approx_intersection approx_quantiles approx_top approx_count",
    sampling: "sample bloom",
}
OTHERS = {
    "approx_top_k": "approx_top(user, 3), which has bounds",
    "count_min_sketch": "approx_count(user, sketch => true)",
}
"""Aggregates of Spark that have another result here."""


def approx_count_distinct(expression: str, error: float | None = None) -> Aggregate:
    return approximate.approx_distinct(expression, **_given(error=error))


def approx_percentile(expression: str, fractions: Any, accuracy: int | None = None) -> Aggregate:
    error = None if accuracy is None else 1 / builtins.max(1, accuracy)
    return approximate.approx_quantiles(expression, fractions, **_given(error=error))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def count(expression: str) -> Aggregate:
    """As in SQL: of the values that are not null."""
    return conditions.count_if(f"({expression}) is not null")


AS_IN_SPARK: dict[str, Callable[..., Aggregate]] = {
    "count": count,
    "array_agg": aggregates.collect,
    "every": conditions.all,
    "any_value": aggregates.first,
    "first_value": aggregates.first,
    "last_value": aggregates.last,
    "approx_count_distinct": approx_count_distinct,
    "approx_percentile": approx_percentile,
    "percentile_approx": approx_percentile,
    "hll_sketch_agg": lambda expression: approximate.approx_distinct(expression, sketch=True),
    "hll_union_agg": lambda expression: approximate.approx_distinct(expression, sketch=True, of_sketches=True),
    "theta_sketch_agg": lambda expression: approximate.approx_set(expression),
    "theta_union_agg": lambda expression: approximate.approx_set(expression, of_sketches=True),
    "theta_intersection_agg": lambda expression: approximate.approx_intersection(expression, sketch=True),
    "kll_sketch_agg_double": lambda expression: approximate.approx_quantiles(expression, 0.5, sketch=True),
    "kll_merge_agg_double": lambda expression: approximate.approx_quantiles(
        expression, 0.5, sketch=True, of_sketches=True
    ),
}
FUNCTIONS: dict[str, Callable[..., Aggregate]] = {
    name: getattr(module, name) for module, names in OWN.items() for name in names.split()
} | AS_IN_SPARK


def named(texts: Sequence[object], given: Mapping[str, object]) -> dict[str, Aggregate]:
    """The arguments of `agg`, with texts read; those without a keyword have an alias."""
    found: dict[str, Aggregate] = {}
    for text in texts:
        if not isinstance(text, str):
            raise refusal("agg takes aggregates by name", "for example .agg(total=ms.sum('score'), n=ms.count())")
        call = _call(text)
        if call.alias is None:
            raise refusal(f"'{text}' needs a name for its result", f".agg(result='{text}'), or '{text} as result'")
        if call.alias in found or call.alias in given:
            raise refusal(f"two results are named '{call.alias}'", "choose another name")
        found[call.alias] = _made(call)
    for column, each in given.items():
        if isinstance(each, Aggregate):
            found[column] = each
        elif isinstance(each, str):
            found[column] = _made(_call(each))
        else:
            raise refusal(
                f"{column}={each!r} is not an aggregate", "for example total=ms.sum('score'), or total='sum(score)'"
            )
    if not found:
        raise refusal("agg needs at least one aggregate", "for example .agg(total=ms.sum('score'), n=ms.count())")
    return found


@dataclass(frozen=True)
class _Call:
    text: str
    name: str
    arguments: list[list[Token]]
    condition: str | None
    """That of FILTER (WHERE …)."""
    alias: str | None

    def source(self, tokens: Sequence[Token]) -> str:
        return self.text[tokens[0].start : tokens[-1].end + 1]


def _call(text: str) -> _Call:
    """Takes a text apart: function(argument, …) [filter (where condition)] [as alias]."""
    from millstream.expressions.spark_sql import SparkGrammar

    parsed(text)  # says what is wrong with it, if it cannot be read
    tokens = SparkGrammar().tokenize(text)
    if len(tokens) < 3 or tokens[1].token_type.name != "L_PAREN":
        raise _not_an_aggregate(text)
    end = _closing(tokens, 1)
    rest, condition, alias = tokens[end + 1 :], None, None
    if len(rest) > 4 and rest[0].text.lower() == "filter" and rest[2].text.lower() == "where":
        last = _closing(rest, 1)
        condition = text[rest[3].start : rest[last].start].strip()
        rest = rest[last + 1 :]
    if rest and rest[0].text.lower() == "as":
        rest = rest[1:]
        alias, rest = (rest[0].text, rest[1:]) if rest else (None, rest)
    if rest:
        raise _not_an_aggregate(text)
    return _Call(text, tokens[0].text.lower(), _split(tokens[2:end]), condition, alias)


def _made(call: _Call) -> Aggregate:
    name, arguments = call.name, call.arguments
    if name == "count" and (not arguments or _is_constant(call, arguments)):
        return aggregates.count() if call.condition is None else conditions.count_if(call.condition)
    if arguments and arguments[0] and arguments[0][0].text.lower() == "distinct":
        if name != "count" or len(arguments) > 1:
            raise _refused(call, "distinct is for count(distinct column)", "use .distinct(…) before the aggregation")
        name, arguments = "distinct_count", [arguments[0][1:]]
    if name not in FUNCTIONS:
        known = OTHERS.get(name)
        next_step = f"use {known}" if known else what_exists(name, sorted(FUNCTIONS), kind="aggregates")
        raise _refused(call, f"there is no aggregate '{name}'", next_step)
    function = FUNCTIONS[name]
    parameters = inspect.signature(function)
    positional, by_name = _values(call, arguments, list(parameters.parameters))
    if call.condition is not None:
        _filter(call.condition, list(parameters.parameters), positional, by_name)
    try:
        parameters.bind(*positional, **by_name)
    except TypeError as error:
        shown = ", ".join(parameters.parameters)
        raise _refused(call, f"{name} takes other arguments: {error}", f"its parameters: {shown}") from None
    return function(*positional, **by_name)


def _values(
    call: _Call, arguments: Sequence[Sequence[Token]], parameters: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    for place, tokens in enumerate(arguments):
        if len(tokens) > 2 and tokens[1].text == "=>":
            name = tokens[0].text.lower()
            by_name[name] = _value(call, tokens[2:], name)
        else:
            positional.append(_value(call, tokens, parameters[place] if place < len(parameters) else ""))
    return positional, by_name


def _filter(condition: str, parameters: Sequence[str], positional: list[Any], by_name: dict[str, Any]) -> None:
    """Aggregates ignore rows whose value is null, or whose place in the order is."""
    for place, name in enumerate(parameters):
        if place > 0 and name != "by":
            continue
        if place < len(positional):
            positional[place] = f"if({condition}, {positional[place]}, null)"
        elif name in by_name:
            by_name[name] = f"if({condition}, {by_name[name]}, null)"


def _value(call: _Call, tokens: Sequence[Token], parameter: str) -> Any:
    text = call.source(tokens) if tokens else ""
    if not parameter or parameter in EXPRESSIONS:
        return text
    try:
        return _constant(parsed(text))
    except ValueError:
        raise _refused(
            call, f"'{text}' is not a constant", "write a number, a text, true or false, or array(…)"
        ) from None


def _constant(node: Any) -> Any:
    from sqlglot import exp

    if isinstance(node, exp.Paren | exp.Cast):  # 0.5D is a cast
        return _constant(node.this)
    if isinstance(node, exp.Neg):
        return -_constant(node.this)
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Concat):  # of a doubled quote
        return "'".join(_constant(each) for each in node.expressions)
    if isinstance(node, exp.Literal):
        text = str(node.this)
        return text if node.is_string else float(text) if any(each in text for each in ".eE") else int(text)
    if isinstance(node, exp.Anonymous) and str(node.this).lower() == "array":
        return [_constant(each) for each in node.expressions]
    raise ValueError(node)


def _is_constant(call: _Call, arguments: Sequence[Sequence[Token]]) -> bool:
    """Of count(*) and count(1)."""
    if len(arguments) != 1 or len(arguments[0]) != 1:
        return False
    text = call.source(arguments[0])
    return text == "*" or text.isdigit()


def _depth(token: Token) -> int:
    """What a token adds to the depth of brackets; a bracket in quotes is a text."""
    kind = token.token_type.name
    return (kind in ("L_PAREN", "L_BRACKET")) - (kind in ("R_PAREN", "R_BRACKET"))


def _closing(tokens: Sequence[Token], opening: int) -> int:
    """The place of the bracket that closes the one at a place; the text has been parsed, so there is one."""
    depth = 0
    for place in range(opening, len(tokens)):
        depth += _depth(tokens[place])
        if depth == 0:
            return place
    return len(tokens) - 1


def _split(tokens: Sequence[Token]) -> list[list[Token]]:
    """Arguments, which commas divide."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += _depth(token)
        if token.token_type.name == "COMMA" and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if parts != [[]] else []


def _not_an_aggregate(text: str) -> InvalidAggregate:
    return InvalidAggregate(
        f"'{text}' is not an aggregate",
        where=users_line(),
        next_step="for example total=ms.sum('score'), or total='sum(score)'; compute with results in a select(…)",
    )


def _refused(call: _Call, what: str, next_step: str) -> InvalidAggregate:
    return InvalidAggregate(f"{what}, in '{call.text}'", where=users_line(), next_step=next_step)
