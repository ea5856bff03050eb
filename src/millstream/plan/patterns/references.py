"""What a condition takes from other rows: `first(a.x)`, `sum(a.x)`, `prev(x)`, and `a.x` for the last row of `a`.

Each reference is replaced by a column, so that what remains is an ordinary expression over the row in question and the
values of its references. The argument of a reference is an expression over a single row: it can be computed for all
rows at once, before any matching.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

import pyarrow as pa

from millstream.errors import ExpressionFailed, InvalidInput, InvalidPattern
from millstream.expressions.expression import Expression, expression
from millstream.expressions.lowered import type_name
from millstream.plan.aggregates.basic import Aggregate, Max, Mean, Min, Sum, rank
from millstream.records import Schema
from millstream.user_lines import what_exists

NAVIGATIONS = ("first", "last")
NEIGHBOURS = ("prev", "next")
PLAYS = "classifier"
"""The function that names the variable of a row."""
AGGREGATES = ("sum", "avg", "mean", "min", "max", "count")
OVER_VALUES: dict[str, Aggregate] = {
    "sum": Sum("x"),
    "avg": Mean("x"),
    "mean": Mean("x"),
    "min": Min("x"),
    "max": Max("x"),
}
"""Those that not all types have, as what they are elsewhere in a flow."""
COLUMN = "__of_"
"""The prefix of the columns that stand for references."""
ALL = ""
"""The variable of a reference to all rows of the match."""
NAVIGATION = re.compile(r"(first|last)\s*\((.*?)(?:,\s*(\d+)\s*)?\)", re.IGNORECASE | re.DOTALL)
DIGITS = 100
"""More than any sum of decimals has, so that none is rounded."""
WITHIN_EXPRESSION = re.compile(r"\.? Line \d+, Col: \d+\.?")


@dataclass(frozen=True)
class Reference:
    """A value from other rows."""

    kind: str
    variable: str | None
    """Whose rows; ALL for all rows of the match; None for the neighbours of the row in question."""
    argument: Expression | None
    """Over one row; None to count rows, or for the variable that a row plays."""
    offset: int
    column: str
    """The column that stands for it."""
    back: int = 0
    """How many rows of the key before the row of the variable: PREV(A.x), PREV(FIRST(A.x), 2). After it: below 0."""

    @property
    def rows_before(self) -> int:
        """How many rows before a row its value is taken from; after it: below 0."""
        if self.variable is not None:
            return self.back
        return -self.offset if self.kind == "next" else self.offset

    @property
    def is_classifier(self) -> bool:
        """Whether it is the variable that a row plays."""
        return self.argument is None and self.kind in NAVIGATIONS

    @property
    def depends_on_path(self) -> bool:
        return self.variable is not None

    @cached_property
    def type(self) -> pa.DataType:
        if self.is_classifier:
            return pa.string()
        if self.kind == "count" or self.argument is None:
            return pa.int64()
        made = OVER_VALUES.get(self.kind)
        return self.argument.type if made is None else made.result_type(self.argument.type)

    def of(self, values: Sequence[Any]) -> Any:
        """Its value, given those of its argument over the rows of its variable, in order; for a count, the rows; for
        a classifier, their variables."""
        if self.kind == "first":
            return values[self.offset] if self.offset < len(values) else None
        if self.kind == "last":
            return values[-1 - self.offset] if self.offset < len(values) else None
        known = [value for value in values if value is not None]
        if self.kind == "count":
            return len(values) if self.argument is None else len(known)
        if not known:
            return None
        if self.kind == "sum":
            return self._fitting(_total(known))
        if self.kind in ("avg", "mean"):
            return float(_total(known)) / len(known)
        return min(known, key=rank) if self.kind == "min" else max(known, key=rank)

    def _fitting(self, total: Any) -> Any:
        """A sum, unless it is too large for the type of the sum."""
        kind = self.type
        limit = 1 << 63 if pa.types.is_integer(kind) else None
        if pa.types.is_decimal(kind):
            limit = 10 ** (kind.precision - kind.scale)
        if limit is not None and not -limit <= total < limit:
            raise ExpressionFailed(
                f"the sum of '{self.argument}' over the rows of a match does not fit {type_name(kind)}",
                next_step="sum up doubles: sum(cast(a.x as double))",
            )
        return total


def _total(values: Sequence[Any]) -> Any:
    with localcontext(prec=DIGITS) if isinstance(values[0], Decimal) else nullcontext():
        return sum(values[1:], values[0])


@dataclass(frozen=True)
class Condition:
    """A condition of a variable, an absence or an `until`, as an expression over a row and its references."""

    name: str | None
    """The variable it is for."""
    text: str
    expression: Expression
    references: tuple[Reference, ...]
    counts_row: bool
    """Whether the row in question counts among the rows of the variable."""
    of_row: Expression | None = None
    """What it asks of the row alone: if this is not true, neither is the condition. None: nothing."""

    @cached_property
    def depends_on_path(self) -> bool:
        return any(reference.depends_on_path for reference in self.references)

    @cached_property
    def lookback(self) -> int:
        """How many rows before the one in question it may look at."""
        return max([0, *(each.rows_before for each in self.references)])

    @cached_property
    def lookahead(self) -> int:
        """How many rows after the one in question it may look at."""
        return max([0, *(-each.rows_before for each in self.references)])


class Reader:
    """Finds the references in an expression."""

    def __init__(
        self,
        schema: Schema,
        variables: Collection[str],
        *,
        known: Collection[str] | None = None,
        line: str | None = None,
        own: str | None = None,
        absent: Collection[str] = (),
        place: str | None = None,
    ) -> None:
        """`known` are the variables that can have rows by then, `absent` those that never have; `own` is the one that
        the row in question plays; `place` is where the expression stands in a text, and begins its errors."""
        self.absent, self.place = absent, place
        self._written: dict[str, str] = {}
        """By column that stands for a reference, how it is written."""
        self.schema, self.line, self.own = schema, line, own
        self.variables = {name.lower(): name for name in variables}
        self.known = None if known is None else {name.lower() for name in known}
        self.columns = {name.lower() for name in schema.names}
        self.references: list[Reference] = []

    def condition(self, text: str, *, counts_row: bool) -> Condition:
        replaced = self.replaced(text)
        fields = [*self.schema.arrow, *(pa.field(each.column, each.type) for each in self.references)]
        made = self._expression(replaced, Schema.from_arrow(pa.schema(fields)), boolean=True)
        parts = [part for part in _parts(replaced) if COLUMN not in part] if self.references else []
        of_row = (
            self._expression(" and ".join(f"({part})" for part in parts), self.schema, boolean=True) if parts else None
        )
        return Condition(self.own, text, made, tuple(self.references), counts_row, of_row)

    def _expression(self, text: str, schema: Schema, *, boolean: bool = False) -> Expression:
        made = self.checked(text, schema, boolean=boolean)
        if made.needs_spark or made.uses_clock:
            reason = made.reason or "it uses the clock"
            raise self.refused(
                f"'{self._shown(text)}' cannot be evaluated while rows are matched: {reason}",
                "make it a column first: with_column('name', '…'), and use that",
            )
        return made

    def checked(self, text: str, schema: Schema, *, boolean: bool = False) -> Expression:
        """An expression with columns in place of references; its errors show what the user wrote."""
        try:
            return expression(text, schema, boolean=boolean)
        except RecursionError:
            raise self.refused("the expression is nested too deeply", "compute a part of it as a column") from None
        except InvalidInput as error:
            what, next_step = self._in_words(error)
            if self.place is not None:  # a place within the expression would be taken for one in the whole text
                what = f"{self.place}: {WITHIN_EXPRESSION.sub('', what)}"
            raise type(error)(what, where=self.line or error.where, next_step=next_step) from None

    def _in_words(self, error: InvalidInput) -> tuple[str, str]:
        """What an error says, with references as they are written."""
        hint, listed, _ = (error.next_step or "").partition("columns that exist: ")
        next_step = hint + (f"{listed}{', '.join(self.schema.names)}" if listed else "")
        return self._shown(error.what), self._shown(next_step)

    def _shown(self, text: str) -> str:
        """The text with references as they are written."""
        for column, written in reversed(self._written.items()):
            text = text.replace(column, written)
        return text

    def replaced(self, text: str) -> str:
        """The text with a column in place of each reference."""
        from sqlglot.errors import TokenError

        from millstream.expressions.spark_sql import SparkGrammar

        try:
            tokens = SparkGrammar().tokenize(text)
        except TokenError:
            raise self.refused(f"'{text}' has a quote that is not closed", "add the missing quote") from None
        made, end, place = "", 0, 0
        while place < len(tokens):
            found = self._at(text, tokens, place)
            if found is None:
                place += 1
                continue
            after, replacement = found
            made += text[end : tokens[place].start] + replacement
            end = tokens[after - 1].end + 1
            if replacement in {each.column for each in self.references}:
                self._written[replacement] = text[tokens[place].start : end]
            place = after
        return made + text[end:]

    def _at(self, text: str, tokens: Sequence[Any], place: int) -> tuple[int, str] | None:
        """The reference that begins with a token: where it ends, and what replaces it."""
        if place and tokens[place - 1].text == ".":
            return None
        name = tokens[place].text.lower()
        is_plain = text[tokens[place].start] not in "'\"`"
        following = tokens[place + 1].text if place + 1 < len(tokens) else ""
        if is_plain and following == "(" and name == PLAYS:
            after, variable = self._classifier(tokens, place)
            return after, self._classified(variable)
        if is_plain and following == "(" and name in (*NAVIGATIONS, *NEIGHBOURS, *AGGREGATES):
            return self._call(text, tokens, place, name)
        if following == "." and text[tokens[place].start] == '"' and name in self.variables:
            raise self.refused(f'"{name}" is a text in Spark SQL', f"write `{tokens[place].text}`.…")
        if following == "." and text[tokens[place].start] not in "'\"":
            variable = self._variable(tokens[place].text)
            if variable is None:
                return None
            field = tokens[place + 2]
            column = text[field.start : field.end + 1]
            if variable == self.own:
                return place + 3, column
            return place + 3, self._refer("last", variable, column, 0)
        return None

    def _call(self, text: str, tokens: Sequence[Any], place: int, name: str) -> tuple[int, str] | None:
        depth, end, commas = 0, place + 1, []
        for end in range(place + 1, len(tokens)):
            depth += (tokens[end].text in "([") - (tokens[end].text in ")]")
            if depth == 1 and tokens[end].text == ",":
                commas.append(end)
            if not depth:
                break
        inside = range(place + 2, commas[0] if commas else end)
        offset = 1 if name in NEIGHBOURS else 0
        if commas:
            number = "".join(token.text for token in tokens[commas[0] + 1 : end])
            if name in AGGREGATES:
                return None  # a function of the same name with several arguments, such as max(a, b): not a reference
            if len(commas) > 1:
                raise self.refused(f"{name}(…) takes a column and an offset", f"write {name}(x, 1)")
            if not number.isdigit():
                raise self.refused(f"the offset of {name} is a whole number, not '{number}'", f"write {name}(…, 1)")
            offset = int(number)
        variables, argument, last = set(), "", None
        if len(inside) > 1 and tokens[inside[0]].text.lower() == "distinct" and name in AGGREGATES:
            raise self.refused(f"{name}(distinct …) is not possible", f"leave distinct out: {name}(…)")
        if name in NAVIGATIONS and len(inside) > 2 and [tokens[at].text.lower() for at in inside[:2]] == [PLAYS, "("]:
            after, of = self._classifier(tokens, inside[0])
            if after != inside[-1] + 1:
                raise self.refused(f"{name}(classifier() …) takes nothing else", f"write {name}(classifier(), 1)")
            return end + 1, self._refer(name, of or ALL, None, offset)
        self._check_nested(name, [tokens[at].text.lower() for at in inside])
        for at in inside:
            token = tokens[at]
            followed = tokens[at + 1].text if at + 1 < end else ""
            before = tokens[at - 1].text
            variable = self._variable(token.text) if followed == "." and before != "." else None
            if name == "count" and len(inside) == 1:
                if token.text == "*":
                    return end + 1, self._refer("count", ALL, None, 0)
                variable = self.variables.get(token.text.lower())
                if variable is not None and token.text.lower() not in self.columns:
                    return end + 1, self._refer("count", self._checked(variable), None, 0)
                variable = None
            if variable is not None:
                variables.add(variable)
            elif not (token.text == "." and last is not None and self._variable(last.text, quiet=True) is not None):
                gap = text[last.end + 1 : token.start] if last is not None and last.text != "." else ""
                argument += gap + text[token.start : token.end + 1]
            last = token
        if len(variables) > 1:
            raise self.refused(
                f"{name}(…) takes the rows of one variable, not of {', '.join(sorted(variables))}",
                f"write {name}(…) once for each",
            )
        if name in NEIGHBOURS:
            return end + 1, self._neighbour(name, next(iter(variables), None), argument, offset)
        return end + 1, self._refer(name, next(iter(variables), ALL), argument, offset)

    def _check_nested(self, name: str, inside: Sequence[str]) -> None:
        """Refuses what an argument cannot be. Only PREV and NEXT look from FIRST(…) or LAST(…)."""
        if not inside:
            raise self.refused(f"{name}() needs an argument", f"write {name}(a.x)")
        refused = (*NEIGHBOURS, *AGGREGATES, *(() if name in NEIGHBOURS else NAVIGATIONS))
        for word, following in pairwise(inside):
            if following == "(" and word == PLAYS:
                raise self.refused(
                    f"{name}({word}(…)) is not possible", "the variable of the row before is last(classifier(), 1)"
                )
            if following == "(" and word in refused:
                raise self.refused(
                    f"{name}({word}(…)) is not possible",
                    "only PREV and NEXT take another row's value: PREV(FIRST(a.x)), PREV(LAST(a.x, 1), 2)",
                )

    def _neighbour(self, name: str, variable: str | None, argument: str, offset: int) -> str:
        """What replaces prev(…) or next(…)."""
        inside = NAVIGATION.fullmatch(argument)
        if inside is None and variable in (None, self.own):
            return self._refer(name, None, argument, offset)
        kind, column, skipped = navigation(argument) or self.refuse_shift(name)
        made = self._refer(kind, variable or ALL, column, skipped)
        self.references[-1] = replace(self.references[-1], back=-offset if name == "next" else offset)
        return made

    def _classifier(self, tokens: Sequence[Any], place: int) -> tuple[int, str | None]:
        """Reads classifier() or classifier(a): where it ends, and whose last row it is about; None: of any."""
        words = [token.text for token in tokens[place + 2 : place + 4]]
        if words[:1] == [")"]:
            return place + 3, None
        variable = self.variables.get(words[0].lower()) if words else None
        if variable is None or words[1:] != [")"]:
            raise self.refused(
                "CLASSIFIER takes no argument, or a variable",
                what_exists(words[0] if words else "", self.variables.values(), kind="variables"),
            )
        return place + 4, self._checked(variable)

    def _classified(self, variable: str | None) -> str:
        """What replaces classifier(): in a condition, the row in question plays the variable it is for."""
        if variable is not None and variable != self.own:
            return self._refer("last", variable, None, 0)
        if self.own is None:
            raise self.refused("the row in question plays no variable here", "write last(classifier())")
        return "'" + self.own.replace("'", "\\'") + "'"

    def refuse_shift(self, name: str) -> NoReturn:
        raise self.refused(f"{name.upper()} looks from one row", f"{name.upper()}(LAST(a.x), 1)")

    def _variable(self, name: str, *, quiet: bool = False) -> str | None:
        """The variable of a qualified name; None if it is a column with fields."""
        found = self.variables.get(name.lower())
        if found is None:
            if name.lower() in self.columns or quiet:
                return None
            raise self.refused(
                f"there is no variable '{name}'", what_exists(name, self.variables.values(), kind="variables")
            )
        return found if quiet else self._checked(found)

    def _checked(self, variable: str) -> str:
        if self.known is not None and variable.lower() not in self.known and variable != self.own:
            which = "until" if self.own is None else f"the condition of '{self.own}'"
            if variable in self.absent:
                raise self.refused(
                    f"{which} looks at rows of '{variable}', which must not occur", "compare with another variable"
                )
            raise self.refused(
                f"{which} looks ahead: '{variable}' does not come before it in the pattern",
                "compare them in the condition of the one that comes last",
            )
        return variable

    def _refer(self, kind: str, variable: str | None, argument: str | None, offset: int) -> str:
        made = None if argument is None else self._expression(argument, self.schema)
        if made is not None and kind in OVER_VALUES:
            try:
                OVER_VALUES[kind].check("input", made.type)
            except TypeError as needed:
                raise self.refused(
                    f"{kind} needs {needed}, but '{argument}' is {type_name(made.type)}",
                    "use another column, or convert it with an expression such as cast(… as double)",
                ) from None
        column = f"{COLUMN}{len(self.references)}"
        self.references.append(Reference(kind, variable, made, offset, column))
        return column

    def refused(self, what: str, next_step: str) -> InvalidPattern:
        what = what if self.place is None else f"{self.place}: {what}"
        return InvalidPattern(what, where=self.line, next_step=next_step)


def navigation(argument: str) -> tuple[str, str, int] | None:
    """Of what PREV and NEXT look from: FIRST or LAST, a column, and an offset. None: it is not one row."""
    inside = NAVIGATION.fullmatch(argument)
    if inside is None:
        return "last", argument, 0
    depth = 0
    for letter in inside[2]:  # first(x) + last(y) is not FIRST of something
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            return None
    return inside[1].lower(), inside[2], int(inside[3] or 0)


def _parts(text: str) -> list[str]:
    """The conditions that a condition joins with AND; itself if there is any doubt."""
    from millstream.expressions.spark_sql import SparkGrammar

    tokens = SparkGrammar().tokenize(text)
    words = [token.text.lower() for token in tokens]
    depth, start, parts = 0, 0, []
    for token, word in zip(tokens, words, strict=True):
        depth += (word in ("(", "[", "case")) - (word in (")", "]", "end"))
        if depth == 0 and text[token.start] not in "'\"`" and word in ("or", "between"):
            return [text]
        if depth == 0 and word == "and" and text[token.start] not in "'\"`":
            parts.append(text[start : token.start])
            start = token.end + 1
    return [*parts, text[start:]]
