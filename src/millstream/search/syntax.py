"""Lucene's query language: text to a tree. A mistake is an error with its column in the text.

Nothing here knows the columns of documents: see `checked.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from millstream.errors import InvalidQuery

DEPTH_MAX = 50
EDITS_MAX = 2
BLANKS = " \t\r\n\u3000"
ENDS_WORD = frozenset(BLANKS + '()[]{}^~:"')
EXISTS_FIELD = "_exists_"
OPERATORS = {"AND": "AND", "&&": "AND", "OR": "OR", "||": "OR"}
ESCAPED_CODES = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
COMPARISONS = (">=", "<=", ">", "<")


class Occur(Enum):
    """The role of a clause in its query."""

    MUST = "+"
    SHOULD = ""
    MUST_NOT = "-"


@dataclass(frozen=True, slots=True)
class Query:
    """The base of all parts. `column` is where it begins, from 1; `field` is None for the default fields."""

    column: int
    field: str | None


@dataclass(frozen=True, slots=True)
class Word(Query):
    text: str


@dataclass(frozen=True, slots=True)
class Phrase(Query):
    text: str
    slop: int


@dataclass(frozen=True, slots=True)
class Wildcard(Query):
    """Text in which `*` and `?` stand for any characters; `wild` has the places where they do."""

    text: str
    wild: frozenset[int]


@dataclass(frozen=True, slots=True)
class Fuzzy(Query):
    text: str
    edits: int


@dataclass(frozen=True, slots=True)
class Regex(Query):
    text: str


@dataclass(frozen=True, slots=True)
class Range(Query):
    """A side that is None has no limit."""

    low: str | None
    high: str | None
    includes_low: bool
    includes_high: bool


@dataclass(frozen=True, slots=True)
class Exists(Query):
    """The field has a value."""


@dataclass(frozen=True, slots=True)
class Everything(Query):
    """All documents."""


@dataclass(frozen=True, slots=True)
class Boosted(Query):
    query: Query
    factor: float


@dataclass(frozen=True, slots=True)
class Clause:
    occur: Occur
    query: Query


@dataclass(frozen=True, slots=True)
class Boolean(Query):
    clauses: tuple[Clause, ...]


def parsed(text: str) -> Query:
    """Reads a query; raises InvalidQuery with the column of the mistake."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> Query:
        self._skip_blanks()
        if self._at == len(self._text):
            self._refuse("the query is empty", "write a word, or *:* for all documents")
        found = self._clauses(None)
        if self._at < len(self._text):
            self._refuse(f"'{self._text[self._at]}' has no beginning", f"remove it, or escape it: \\{self._here()}")
        return found

    # ------------------------------------------------------------ clauses

    def _clauses(self, field: str | None) -> Query:
        """Clauses up to the end or a closing parenthesis, combined as Lucene's own parser does: without precedence."""
        start = self._at + 1
        clauses: list[Clause] = []
        while True:
            self._skip_blanks()
            if self._at == len(self._text) or self._here() == ")":
                break
            operator = self._operator()
            if operator and not clauses:
                self._refuse(f"{operator} has nothing before it", "write a clause before it, or quote it", back=True)
            negated = self._modifier()
            if (operator or negated) and (second := self._operator()):
                self._refuse(f"{second} follows another operator", "remove one of them, or quote it", back=True)
            if self._at == len(self._text) or self._here() == ")":
                self._refuse("a clause is missing at the end", "write one, or remove the operator before it")
            query = self._clause(field)
            if operator == "AND" and clauses[-1].occur is Occur.SHOULD:
                clauses[-1] = Clause(Occur.MUST, clauses[-1].query)
            occur = negated or (Occur.MUST if operator == "AND" else Occur.SHOULD)
            clauses.append(Clause(occur, query))
        if len(clauses) == 1 and clauses[0].occur is not Occur.MUST_NOT:
            return clauses[0].query
        return Boolean(start, field, tuple(clauses))

    def _operator(self) -> str | None:
        self._before = self._at
        for written, name in OPERATORS.items():
            end = self._at + len(written)
            if self._text.startswith(written, self._at) and (
                not written.isalpha() or end == len(self._text) or self._text[end] in ENDS_WORD
            ):
                self._at = end
                self._skip_blanks()
                return name
        return None

    def _modifier(self) -> Occur | None:
        if self._at < len(self._text) and self._here() in "+-!":
            sign = self._here()
            self._at += 1
            self._skip_blanks()
            return Occur.MUST if sign == "+" else Occur.MUST_NOT
        end = self._at + 3
        if self._text.startswith("NOT", self._at) and (end == len(self._text) or self._text[end] in ENDS_WORD):
            self._at = end
            self._skip_blanks()
            return Occur.MUST_NOT
        return None

    def _clause(self, field: str | None) -> Query:
        start = self._at
        name = self._field_name()
        if name == "*":
            if self._text.startswith("*", self._at):
                self._at += 1
                return self._boosted(Everything(start + 1, None))
            self._refuse("a field is missing before ':'", "write *:* for all documents, or the name of a field")
        if name == EXISTS_FIELD:
            return self._boosted(Exists(start + 1, self._word()[0]))
        return self._boosted(self._value(field if name is None else name, start + 1))

    def _field_name(self) -> str | None:
        """The name before a colon; None, and nothing is read, if there is none."""
        start = self._at
        if self._here() in '("[{/':
            return None
        name, _ = self._word()
        if name and self._at < len(self._text) and self._here() == ":":
            self._at += 1
            if self._at == len(self._text) or self._here() in BLANKS:
                self._refuse(f"the field {name} has no value", f"write {name}:word, or escape the colon: \\:")
            return name
        self._at = start
        return None

    def _value(self, field: str | None, column: int) -> Query:
        here = self._here()
        if here == "(":
            return self._group(field)
        if here == '"':
            text = self._quoted()
            return Phrase(column, field, text, self._count_after_tilde(0))
        if here in "[{":
            return self._range(field, column)
        if here == "/":
            return Regex(self._at + 1, field, self._regex())
        for sign in COMPARISONS:
            if field is not None and self._text.startswith(sign, self._at):
                self._at += len(sign)
                return self._compared(field, column, sign)
        text, wild = self._word()
        if not text:
            self._refuse(f"'{here}' cannot begin a clause", f"escape it: \\{here}")
        if self._at < len(self._text) and self._here() == "~":
            if wild:
                self._refuse("a word with * or ? cannot be fuzzy", "remove the ~, or escape the wildcard")
            edits = self._count_after_tilde(EDITS_MAX)
            if edits > EDITS_MAX:
                self._refuse(f"a fuzzy word has at most {EDITS_MAX} edits", f"write {text}~{EDITS_MAX}")
            return Fuzzy(column, field, text, edits)
        if text == "*" and wild:
            return Exists(column, field) if field is not None else Everything(column, None)
        return Wildcard(column, field, text, wild) if wild else Word(column, field, text)

    def _group(self, field: str | None) -> Query:
        opened = self._at
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"parentheses are nested more than {DEPTH_MAX} deep", "simplify the query")
        self._at += 1
        found = self._clauses(field)
        if self._at == len(self._text):
            self._refuse_at(opened, "the parenthesis is not closed", "add a )")
        self._at += 1
        self._depth -= 1
        if isinstance(found, Boolean) and not found.clauses:
            self._refuse_at(opened, "there is nothing between the parentheses", "write a clause, or escape them: \\(")
        return found

    def _range(self, field: str | None, column: int) -> Query:
        opened = self._at
        includes_low = self._here() == "["
        self._at += 1
        low = self._limit(opened)
        self._skip_blanks()
        if not self._text.startswith("TO", self._at) or self._text[self._at + 2 : self._at + 3] not in tuple(BLANKS):
            self._refuse("TO is missing in the range", "write [10 TO 50]")
        self._at += 2
        high = self._limit(opened)
        self._skip_blanks()
        if self._at == len(self._text) or self._here() not in "]}":
            self._refuse_at(opened, "the range is not closed", "write [10 TO 50], or {10 TO 50} without its limits")
        includes_high = self._here() == "]"
        self._at += 1
        return Range(column, field, low, high, includes_low, includes_high)

    def _limit(self, opened: int) -> str | None:
        self._skip_blanks()
        if self._at == len(self._text):
            self._refuse_at(opened, "the range is not closed", "write [10 TO 50]")
        if self._here() == '"':
            return self._quoted()
        start = self._at
        while self._at < len(self._text) and self._here() not in BLANKS + "]}":
            self._at += 1
        text = self._text[start : self._at].replace("\\", "")
        if not text:
            self._refuse("a limit is missing in the range", "write [10 TO 50], or * for no limit")
        return None if text == "*" else text

    def _compared(self, field: str, column: int, sign: str) -> Query:
        self._skip_blanks()
        if self._at < len(self._text) and self._here() == '"':
            limit = self._quoted()
        else:
            start = self._at
            while self._at < len(self._text) and self._here() not in BLANKS + ")^":
                self._at += 1
            limit = self._text[start : self._at].replace("\\", "")
        if not limit:
            self._refuse(f"a value is missing after {sign}", f"write {field}:{sign}10")
        inclusive = sign.endswith("=")
        if sign.startswith(">"):
            return Range(column, field, limit, None, inclusive, True)
        return Range(column, field, None, limit, True, inclusive)

    def _boosted(self, query: Query) -> Query:
        digits = self._digits_after("^")
        if digits is None:
            return query
        try:
            return Boosted(query.column, query.field, query, float(digits))
        except ValueError:
            self._refuse_at(self._at - len(digits), "^ is followed by a number", "write ^2, or escape it: \\^")

    # ------------------------------------------------------------ characters

    def _word(self) -> tuple[str, frozenset[int]]:
        """A word without its escapes, and the places of its wildcards."""
        made: list[str] = []
        wild: set[int] = set()
        while self._at < len(self._text):
            here = self._here()
            if here == "\\":
                made += self._escaped()
                continue
            if here in ENDS_WORD:
                break
            if here in "*?":
                wild.add(len(made))
            made.append(here)
            self._at += 1
        return "".join(made), frozenset(wild)

    def _escaped(self) -> str:
        """The character after a backslash, or those of codes such as \\u00fc, which are UTF-16."""
        if (codes := ESCAPED_CODES.match(self._text, self._at)) is not None:
            try:
                made = bytes.fromhex(codes[0].replace("\\u", "")).decode("utf-16-be")
            except UnicodeDecodeError:
                self._refuse(f"{codes[0]} is half of a character", "write the character itself")
            self._at = codes.end()
            return made
        if self._at + 1 == len(self._text):
            self._refuse("there is nothing after the backslash", "write \\\\ for a backslash")
        self._at += 2
        return self._text[self._at - 1]

    def _quoted(self) -> str:
        opened = self._at
        self._at += 1
        made: list[str] = []
        while self._at < len(self._text) and self._here() != '"':
            if self._here() == "\\":
                made += self._escaped()
                continue
            made.append(self._here())
            self._at += 1
        if self._at == len(self._text):
            self._refuse_at(opened, "the quotation is not closed", 'add a "')
        self._at += 1
        return "".join(made)

    def _regex(self) -> str:
        opened = self._at
        self._at += 1
        made: list[str] = []
        while self._at < len(self._text) and self._here() != "/":
            if self._text.startswith("\\/", self._at):
                self._at += 1
            made.append(self._here())
            self._at += 1
        if self._at == len(self._text):
            self._refuse_at(opened, "the regular expression is not closed", "add a /, or escape the first one: \\/")
        self._at += 1
        return "".join(made)

    def _count_after_tilde(self, default: int) -> int:
        digits = self._digits_after("~")
        if digits and not digits.isdecimal():
            self._refuse_at(self._at - len(digits), "~ is followed by a whole number", "write ~2")
        return int(digits) if digits else default

    def _digits_after(self, sign: str) -> str | None:
        """The number after a sign as text; None if the sign is not here."""
        if self._at == len(self._text) or self._here() != sign:
            return None
        self._at += 1
        start = self._at
        while self._at < len(self._text) and self._here() in "0123456789.":
            self._at += 1
        return self._text[start : self._at]

    def _here(self) -> str:
        return self._text[self._at]

    def _skip_blanks(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in BLANKS:
            self._at += 1

    def _refuse(self, what: str, next_step: str, *, back: bool = False) -> NoReturn:
        self._refuse_at(self._before if back else self._at, what, next_step)

    def _refuse_at(self, at: int, what: str, next_step: str) -> NoReturn:
        raise refused(at + 1, what, next_step)


def refused(column: int, what: str, next_step: str) -> InvalidQuery:
    return InvalidQuery(f"column {column}: {what}", next_step=next_step)
