"""`match_recognize`: the statement of `language.py` as steps of a flow.

A match is one row with the list of its rows in order. From that list come the values that the measures refer to: for
the whole match or, with ALL ROWS PER MATCH, for each row and those before it. The measures themselves are then ordinary
expressions over these values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millstream.errors import InvalidInput, InvalidPattern
from millstream.plan.checks import refusal
from millstream.plan.nodes import Node, Read, WithEventTime
from millstream.plan.patterns.language import ORDER_BY, PARTITION_BY, Statement, parsed
from millstream.plan.patterns.matching import Found, match
from millstream.plan.patterns.measured import Measured
from millstream.plan.patterns.node import (
    CLASSIFIER,
    IS_EXCLUDED,
    MATCH,
    PATH,
    ROW,
    VARIABLE,
    last_variable,
    measures_schema,
)
from millstream.plan.patterns.references import ALL, Reader, navigation
from millstream.plan.patterns.rules import PATTERN
from millstream.plan.steps.columns import kept
from millstream.plan.stream import Stream
from millstream.records import Schema
from millstream.user_lines import users_line

OF_ROW = "__of_row_"


class Recognized(Stream):
    """The rows of a MATCH_RECOGNIZE."""

    def __init__(self, stream: Stream, found: Found) -> None:
        super().__init__(stream.flow, stream.node)
        self._found = found

    @property
    def late(self) -> Stream:
        """The rows that arrived too late to be matched, with the reason."""
        return self._found.late

    @property
    def timed_out(self) -> Stream:
        """The partial matches whose time was over before they were complete: one row each, with the rows so far."""
        return self._found.timed_out


def recognize(stream: Stream, text: str, name: str | None) -> Recognized:
    if not isinstance(text, str):
        raise refusal(f"match_recognize takes text, not {text!r}", 'match_recognize("… pattern (A B) define B as …")')
    asked = parsed(text)
    _check_keys(stream, asked)
    _check_order(stream, asked)
    if not asked.all_rows and not asked.measures and not asked.partition_by:
        raise _refused(asked, PATTERN, "the result would have no columns", "add MEASURES …, or ALL ROWS PER MATCH")
    measures = Measures(stream.schema, asked)
    given = stream.with_columns({**measures.arguments}) if measures.arguments else stream
    around = (measures.before, measures.after)
    keyed = given.key_by(*asked.partition_by)
    # One row per match comes from the search itself, which need not make the rows of the match first.
    at_once = not asked.all_rows and not asked.timeouts
    shape, values = ("measures", measures.unfold.measured) if at_once else ("list", ())
    found = match(keyed, asked.rules, asked.skip, "preferred", shape, False, name, around, values)
    matches: Stream = found.union(found.timed_out, missing=True) if asked.timeouts else found
    unfolded = matches if at_once else matches.flat_map(measures.unfold, measures.schema)
    columns = list(stream.schema.names) if asked.all_rows else list(asked.partition_by)
    made = [(column, kept(unfolded.schema, column)) for column in columns]
    made += [(column, reader.checked(replaced, unfolded.schema)) for column, replaced, reader in measures.texts]
    return Recognized(unfolded._project(made, None, "measures"), found)


def _refused(asked: Statement, clause: str, what: str, next_step: str | None) -> InvalidPattern:
    return InvalidPattern(f"{asked.rules.places[clause]}: {what}", where=users_line(), next_step=next_step)


def _check_keys(stream: Stream, asked: Statement) -> None:
    try:
        stream.key_by(*asked.partition_by)
    except InvalidInput as error:
        raise _refused(asked, PARTITION_BY, error.what, error.next_step) from None


def _check_order(stream: Stream, asked: Statement) -> None:
    time = event_time_column(stream.node)
    if not asked.order_by or time is None:
        return
    first, *more = asked.order_by
    if first.lower() != time.lower():
        raise _refused(
            asked,
            ORDER_BY,
            f"ORDER BY {first}: rows are matched in order of event time, which is '{time}'",
            f"write ORDER BY {time}, or set another event time with with_event_time('{first}')",
        )
    if more:
        raise _refused(
            asked,
            ORDER_BY,
            f"ORDER BY {', '.join(asked.order_by)}: rows of the same instant stay in the order of the log",
            f"write ORDER BY {time}",
        )


def event_time_column(node: Node) -> str | None:
    """The column of event time, if it is one."""
    while not isinstance(node, Read | WithEventTime):
        if len(node.inputs) != 1:
            return None
        (node,) = node.inputs
    found = node.event_time
    return found if isinstance(found, str) else None


@dataclass(frozen=True)
class Unfold:
    """The function from a match to its rows: one, or all that are not excluded."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    measured: tuple[Measured, ...]
    all_rows: bool

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        path = row[PATH]
        variables, rows, end = [step[VARIABLE] for step in path], [step[ROW] for step in path], len(path)
        whole = [each for each in self.measured if each.is_final or not self.all_rows]
        final = {each.reference.column: each.value(variables, rows, end) for each in whole}
        if not self.all_rows:
            keys = {name: row[name] for name in self.keys}
            yield {**keys, MATCH: row[MATCH], CLASSIFIER: last_variable(variables), **final}
            return
        running = [each for each in self.measured if not each.is_final]
        for at, step in enumerate(path):
            if step[IS_EXCLUDED]:
                continue
            own = {name: step[ROW][name] for name in self.columns}
            values = {each.reference.column: each.value(variables, rows, at + 1) for each in running}
            yield {**own, MATCH: row[MATCH], CLASSIFIER: step[VARIABLE], **final, **values}


class Measures:
    """The measures of a statement, as expressions over what `unfold` returns."""

    def __init__(self, schema: Schema, asked: Statement) -> None:
        self.texts: list[tuple[str, str, Reader]] = []
        """Names, expressions over what `unfold` returns, and what has read them."""
        columns = tuple(schema.names) if asked.all_rows else asked.partition_by
        measured: list[Measured] = []
        self.arguments: dict[str, str] = {}
        """Columns to be computed before rows are matched."""
        names = [*asked.rules.variables, *asked.rules.subsets]
        for name, text in asked.measures:
            place = f"{asked.places[name]} of MATCH_RECOGNIZE"
            reader = _MeasureReader(schema, names, line=users_line(), place=place)
            if name.lower() in {column.lower() for column in columns}:
                raise reader.refused(f"the result has a column '{name}' already", "give the measure another name")
            reader.first = len(measured)
            self.texts.append((name, reader.replaced(text), reader))
            for reference, is_final, shift in zip(reader.references, reader.are_final, reader.shifts, strict=True):
                field = None if reference.argument is None else self._field(reference.argument.spark, schema)
                members = None if reference.variable == ALL else asked.rules.members(reference.variable or "")
                chosen = None if members is None else frozenset(members)
                measured.append(Measured(reference, chosen, field, is_final, shift))
        self.before = max([0, *(-each.shift for each in measured)])
        self.after = max([0, *(each.shift for each in measured)])
        self.unfold = Unfold(asked.partition_by, columns, tuple(measured), asked.all_rows)
        self.schema = measures_schema(schema, columns, measured)

    def _field(self, argument: str, schema: Schema) -> str:
        """The column that holds an argument."""
        plain = {name.lower(): name for name in schema.names}.get(argument.strip("`").lower())
        if plain is not None:
            return plain
        found = next((column for column, text in self.arguments.items() if text == argument), None)
        if found is None:
            found = f"{OF_ROW}{len(self.arguments)}"
            self.arguments[found] = argument
        return found


class _MeasureReader(Reader):
    """Also reads FINAL, CLASSIFIER(), MATCH_NUMBER() and columns without a variable: those of the last row."""

    first: int = 0

    def __init__(self, schema: Schema, variables: Sequence[str], *, line: str | None, place: str) -> None:
        super().__init__(schema, variables, line=line, place=place)
        self.are_final: list[bool] = []
        self.shifts: list[int] = []
        self._final = False

    def _at(self, text: str, tokens: Sequence[Any], place: int) -> tuple[int, str] | None:
        word = tokens[place].text.lower()
        words = [token.text.lower() for token in tokens[place : place + 3]]
        if place and tokens[place - 1].text == ".":
            return None
        if words[:3] == ["match_number", "(", ")"]:
            return place + 3, f"`{MATCH}`"
        if words[:3] == ["classifier", "(", ")"]:
            return place + 3, CLASSIFIER
        if words[:2] == ["match_number", "("]:
            raise self.refused("MATCH_NUMBER takes no argument", "MATCH_NUMBER(): the number of the match")
        if word == "final" and len(words) > 1 and words[1].isidentifier():
            self._final = True
            found = super()._at(text, tokens, place + 1)
            self._final = False
            if found is not None:
                return found
        found = super()._at(text, tokens, place)
        is_text = text[tokens[place].start] in "'\""
        if found is None and word in self.columns and not is_text and words[1:2] != ["("]:
            return place + 1, self._refer("last", ALL, text[tokens[place].start : tokens[place].end + 1], 0)
        return found

    def _neighbour(self, name: str, variable: str | None, argument: str, offset: int) -> str:
        """PREV and NEXT: some rows before or after a row of the match, the last one or FIRST(…) or LAST(…) of it."""
        kind, column, skipped = navigation(argument) or self.refuse_shift(name)
        made = self._refer(kind, variable or ALL, column, skipped)
        self.shifts[-1] = -offset if name == "prev" else offset
        return made

    def _refer(self, kind: str, variable: str | None, argument: str | None, offset: int) -> str:
        super()._refer(kind, variable, argument, offset)
        self.shifts.append(0)
        numbered = replace(self.references[-1], column=f"__measure_{self.first + len(self.references) - 1}")
        self.references[-1] = numbered
        self.are_final.append(self._final)
        return numbered.column
