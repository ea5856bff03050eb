"""The rows of a pattern's input and the matches found in them, step by step: everything that a figure of them shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from millstream.plan.flow import Flow
from millstream.plan.nodes import Node
from millstream.plan.patterns.matching import Found
from millstream.plan.patterns.node import MATCH, MATCH_END, PATH, ROW, VARIABLE, Match, Rows, list_schema
from millstream.reference import Bundle, Row, micros
from millstream.testing.scene import Key, short


class Kind(Enum):
    MATCH = "match"
    RETRACTED = "retracted match"
    TIMED_OUT = "partial match whose time was over"


@dataclass(frozen=True)
class Given:
    """A row of the input."""

    key: Key
    time: int | None
    label: str
    is_late: bool


@dataclass(frozen=True)
class Part:
    """A row of a match: its time, and the variable that it plays."""

    time: int
    variable: str


@dataclass(frozen=True)
class Spotted:
    """A match as it was emitted."""

    key: Key
    step: int
    kind: Kind
    parts: tuple[Part, ...]
    end: int


class MatchRecording:
    def __init__(self, flow: Flow, node: Match) -> None:
        self.node = node
        found = Found(flow, node)
        self._late = found.late.node
        self._timed_out = found.timed_out.node if node.search.rules.has_limit else None
        self.given: list[Given] = []
        self.spotted: list[Spotted] = []
        self._times: dict[str, int] = {}
        """By the values of a row, its event time."""
        self._steps = 0

    @property
    def nodes(self) -> tuple[Node, ...]:
        more = () if self._timed_out is None else (self._timed_out,)
        return (self.node.inputs[0], self.node, self._late, *more)

    def note(self, sent: Mapping[Node, Bundle], partitions: Mapping[str, int]) -> None:
        late = [self._values(row.values) for row in sent[self._late].rows]
        for row in sent[self.node.inputs[0]].rows:
            values = self._values(row.values)
            self.given.append(Given(self._key(row), row.time, self._label(row), values in late))
            if row.time is not None:
                self._times[values] = row.time
        self.spotted += self._matches(sent[self.node].rows)
        if self._timed_out is not None:
            for row in sent[self._timed_out].rows:
                self.spotted.append(self._spotted(row, self._parts(row), Kind.TIMED_OUT))
        self._steps += 1

    def _matches(self, rows: Sequence[Row]) -> Iterator[Spotted]:
        if self.node.rows is not Rows.ALL:
            for row in rows:
                yield self._spotted(row, self._parts(row), _kind(row))
            return
        together: dict[Any, list[Row]] = {}
        for row in rows:
            together.setdefault((self._key(row), row.values[MATCH], row.weight), []).append(row)
        for each in together.values():
            parts = [Part(self._times[self._values(row.values)], row.values[VARIABLE]) for row in each]
            yield self._spotted(each[0], parts, _kind(each[0]))

    def _spotted(self, row: Row, parts: list[Part], kind: Kind) -> Spotted:
        ordered = tuple(sorted(parts, key=lambda part: part.time))
        return Spotted(self._key(row), self._steps, kind, ordered, micros(row.values[MATCH_END]))

    def _parts(self, row: Row) -> list[Part]:
        """From one row per match: a list for each variable, or one for all."""
        if self.node.rows is Rows.LIST:
            played = [(step[VARIABLE], step[ROW]) for step in row.values[PATH] if step[VARIABLE] is not None]
        else:
            names = self.node.search.variables
            played = [(name, each) for name in names for each in row.values[name]]
        return [Part(self._times[self._values(values)], variable) for variable, values in played]

    def _values(self, values: Mapping[str, Any]) -> str:
        """What tells a row from others."""
        return repr([values[name] for name in self.node.inputs[0].schema.names])

    def _key(self, row: Row) -> Key:
        return tuple(row.values[name] for name in self.node.keys)

    def _label(self, row: Row) -> str:
        """The first column that is neither key nor time."""
        names = [name for name in self.node.inputs[0].schema.names if name not in self.node.keys]
        shown = next((name for name in names if not hasattr(row.values[name], "tzinfo")), None)
        return "" if shown is None else short(row.values[shown])


def _kind(row: Row) -> Kind:
    return Kind.MATCH if row.weight > 0 else Kind.RETRACTED


def with_rows(node: Match) -> Match:
    """The same search, with the rows of its matches."""
    if node.rows is not Rows.MEASURES:
        return node
    return replace(node, rows=Rows.LIST, schema=list_schema(node.inputs[0].schema, node.keys))
