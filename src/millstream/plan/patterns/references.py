"""What a condition takes from other rows: `first(a.x)`, `sum(a.x)`, `prev(x)`, and `a.x` for the last row of `a`.

Each reference is replaced by a column, so that what remains is an ordinary expression over the row in question and the
values of its references. The argument of a reference is an expression over a single row: it can be computed for all
rows at once, before any matching.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from millstream.errors import InvalidPattern
from millstream.expressions.expression import Expression, expression
from millstream.plan.aggregates import sum as sum_of
from millstream.records import Schema
from millstream.user_lines import what_exists

NAVIGATIONS = ("first", "last")
NEIGHBOURS = ("prev", "next")
AGGREGATES = ("sum", "avg", "mean", "min", "max", "count")
COLUMN = "__of_"
"""The prefix of the columns that stand for references."""
ALL = ""
"""The variable of a reference to all rows of the match."""


@dataclass(frozen=True)
class Reference:
    """A value from other rows."""

    kind: str
    variable: str | None
    """Whose rows; ALL for all rows of the match; None for the neighbours of the row in question."""
    argument: Expression | None
    """Over one row; None to count rows."""
    offset: int
    column: str
    """The column that stands for it."""

    @property
    def depends_on_path(self) -> bool:
        return self.variable is not None

    @cached_property
    def type(self) -> pa.DataType:
        if self.kind == "count" or self.argument is None:
            return pa.int64()
        if self.kind in ("avg", "mean"):
            return pa.float64()
        return sum_of("x").result_type(self.argument.type) if self.kind == "sum" else self.argument.type

    def of(self, values: Sequence[Any]) -> Any:
        """Its value, given those of its argument over the rows of its variable, in order; for a count, the rows."""
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
            return sum(known[1:], known[0])
        if self.kind in ("avg", "mean"):
            return float(sum(known)) / len(known)
        return min(known) if self.kind == "min" else max(known)


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
        return max((each.offset for each in self.references if each.kind == "prev"), default=0)


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
    ) -> None:
        """`known` are the variables that can have rows by then, `absent` those that never have; `own` is the one that
        the row in question plays."""
        self.absent = absent
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
        made = expression(text, schema, boolean=boolean)
        if made.needs_spark or made.uses_clock:
            raise self.refused(
                f"'{text}' cannot be evaluated while rows are matched: {made.reason or 'it uses the clock'}",
                "make it a column first: with_column('name', '…'), and use that",
            )
        return made

    def replaced(self, text: str) -> str:
        """The text with a column in place of each reference."""
        from millstream.expressions.spark_sql import SparkGrammar

        tokens = SparkGrammar().tokenize(text)
        made, end, place = "", 0, 0
        while place < len(tokens):
            found = self._at(text, tokens, place)
            if found is None:
                place += 1
                continue
            after, replacement = found
            made += text[end : tokens[place].start] + replacement
            end, place = tokens[after - 1].end + 1, after
        return made + text[end:]

    def _at(self, text: str, tokens: Sequence[Any], place: int) -> tuple[int, str] | None:
        """The reference that begins with a token: where it ends, and what replaces it."""
        if place and tokens[place - 1].text == ".":
            return None
        name = tokens[place].text.lower()
        is_plain = text[tokens[place].start] not in "'\"`"
        following = tokens[place + 1].text if place + 1 < len(tokens) else ""
        if is_plain and following == "(" and name in (*NAVIGATIONS, *NEIGHBOURS, *AGGREGATES):
            return self._call(text, tokens, place, name)
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
            if name in AGGREGATES or len(commas) > 1:
                return None  # a function of the same name with several arguments, such as max(a, b): not a reference
            if not number.isdigit():
                raise self.refused(f"the offset of {name} is a whole number, not '{number}'", f"write {name}(…, 1)")
            offset = int(number)
        variables, argument, last = set(), "", None
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

    def _neighbour(self, name: str, variable: str | None, argument: str, offset: int) -> str:
        """What replaces prev(…) or next(…)."""
        if name == "next" and offset:
            raise self.refused(
                "next(…) looks ahead: the row after is not known when a condition is evaluated",
                "put the condition on the next stage, and compare with prev(…)",
            )
        if variable is not None:
            raise self.refused(f"{name}(…) looks at the rows before this one", f"write {name}(column)")
        return self._refer(name, None, argument, offset)

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
                f"{which} looks ahead: '{variable}' comes later in the pattern",
                f"put the comparison into the condition of '{variable}'",
            )
        return variable

    def _refer(self, kind: str, variable: str | None, argument: str | None, offset: int) -> str:
        made = None if argument is None else self._expression(argument, self.schema)
        column = f"{COLUMN}{len(self.references)}"
        self.references.append(Reference(kind, variable, made, offset, column))
        return column

    def refused(self, what: str, next_step: str) -> InvalidPattern:
        return InvalidPattern(what, where=self.line, next_step=next_step)


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
