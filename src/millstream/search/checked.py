"""A query that was read, for documents of certain columns: fields must exist, and values must fit their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NoReturn

import polars as pl

from millstream.search import syntax
from millstream.search.analysis import analysed
from millstream.search.conditions import (
    Anything,
    Combined,
    Condition,
    HasField,
    HasPhrase,
    HasTerm,
    HasValue,
    InRange,
    Nothing,
    TermLike,
    TermNear,
    Weighted,
)
from millstream.search.fields import Field, Kind, NoSuchField, Searched, field_of
from millstream.search.syntax import Occur, refused

QUERIES_CACHED = 200_000
LAST: dict[Kind, Any] = {Kind.DATE: date.max, Kind.TIME: datetime.max.replace(tzinfo=UTC)}
YEAR_OR_MONTH = re.compile("([0-9]{4})(?:-([0-9]{2}))?")
BOOLEANS = {"true": True, "false": False}
LUCENE_ONLY = re.compile(r'(?<!\\)[#@&<>~"]')
ESCAPED = re.compile(r'\\([#@&<>~"])')
STARS_MAX = 2
"""Words with more of `*` are matched by automata, as regular expressions are: backtracking could take forever."""
FUZZY_CHARACTERS_MAX = 100


@lru_cache(QUERIES_CACHED)
def condition_of(text: str, searched: Searched) -> Condition:
    """Reads a query; raises InvalidQuery with the column of the mistake."""
    return _Checker(searched).made(syntax.parsed(text))


class _Checker:
    def __init__(self, searched: Searched) -> None:
        self._searched = searched

    def made(self, query: syntax.Query) -> Condition:
        if isinstance(query, syntax.Boolean):
            return self._combined(query)
        if isinstance(query, syntax.Boosted):
            return Weighted(self.made(query.query), query.factor)
        if isinstance(query, syntax.Everything):
            return Anything()
        names = [query.field] if query.field is not None else self._searched.text
        made = [self._in_field(query, self._field(name, query)) for name in names]
        return made[0] if len(made) == 1 else Combined(should=tuple(made))

    def _combined(self, query: syntax.Boolean) -> Condition:
        parts: dict[Occur, list[Condition]] = {occur: [] for occur in Occur}
        for clause in query.clauses:
            parts[clause.occur].append(self.made(clause.query))
        must, should, must_not = (tuple(parts[occur]) for occur in (Occur.MUST, Occur.SHOULD, Occur.MUST_NOT))
        return Combined(must, should, must_not)

    def _field(self, name: str, query: syntax.Query) -> Field:
        try:
            return field_of(self._searched, name)
        except NoSuchField as error:
            raise refused(query.column, f"there is no field '{name}' to search", str(error)) from None

    def _in_field(self, query: syntax.Query, field: Field) -> Condition:
        if isinstance(query, syntax.Exists):
            return HasField(field)
        if isinstance(query, syntax.Range):
            return self._range(query, field)
        if isinstance(query, syntax.Word | syntax.Phrase):
            slop = query.slop if isinstance(query, syntax.Phrase) else 0
            if field.kind is Kind.TEXT:
                return _phrase(field, analysed(query.text, field.analyser), slop)
            return self._valued(query, field, query.text)
        if field.kind not in (Kind.TEXT, Kind.KEYWORD):
            kind = type(query).__name__.lower()
            raise refused(
                query.column, f"'{field.name}' is {field.kind.value}, which has no {kind} queries", "use a range"
            )
        if isinstance(query, syntax.Wildcard):
            return _wildcard(query, field)
        if isinstance(query, syntax.Fuzzy):
            return self._fuzzy(query, field)
        assert isinstance(query, syntax.Regex)
        return _regex(query, field)

    def _fuzzy(self, query: syntax.Fuzzy, field: Field) -> Condition:
        terms = analysed(query.text, field.analyser) if field.kind is Kind.TEXT else [query.text]
        if len(terms) != 1:
            raise refused(query.column, f"'{query.text}' is not one word", "write ~ after a single word")
        if len(terms[0]) > FUZZY_CHARACTERS_MAX:
            raise refused(query.column, "the fuzzy word is too long", f"at most {FUZZY_CHARACTERS_MAX} characters")
        return TermNear(field, terms[0], query.edits)

    def _valued(self, query: syntax.Query, field: Field, text: str) -> Condition:
        if field.kind in (Kind.TIME, Kind.DATE):  # a date without a time is the whole day
            return self._range(syntax.Range(query.column, field.name, text, text, True, True), field)
        return HasValue(field, _value(query, field, text))

    def _range(self, query: syntax.Range, field: Field) -> Condition:
        if field.kind is Kind.BOOLEAN:
            raise refused(query.column, f"'{field.name}' is a boolean, which has no ranges", f"{field.name}:true")
        low, includes_low = _limit(query, field, query.low, query.includes_low, is_low=True)
        high, includes_high = _limit(query, field, query.high, query.includes_high, is_low=False)
        return InRange(field, low, high, includes_low, includes_high)


def _phrase(field: Field, terms: Sequence[str], slop: int) -> Condition:
    if not terms:
        return Nothing()
    return HasTerm(field, terms[0]) if len(terms) == 1 else HasPhrase(field, tuple(terms), slop)


def _wildcard(query: syntax.Wildcard, field: Field) -> Condition:
    """The pattern of a word with wildcards. It is not stemmed, since a part of a word has no stem."""
    pieces = []
    text = query.text.lower() if field.kind is Kind.TEXT else query.text
    if len(text) != len(query.text):  # some letters become two in lower case
        raise refused(query.column, f"'{query.text}' has letters without a lower case of one letter", "write it lower")
    for place, character in enumerate(text):
        is_wild = place in query.wild
        pieces.append({"*": ".*", "?": "."}[character] if is_wild else re.escape(character))
    pattern, prefix = "".join(pieces), text[: min(query.wild)]
    if pieces.count(".*") > STARS_MAX:
        return TermLike(field, pattern, None, prefix)
    return TermLike(field, pattern, re.compile(pattern, re.DOTALL), prefix)


def _regex(query: syntax.Regex, field: Field) -> Condition:
    if (found := LUCENE_ONLY.search(query.text)) is not None:
        column = query.column + found.start() + 1
        raise refused(
            column, f"'{found[0]}' is an operator of Lucene that is not supported", f"escape it: \\{found[0]}"
        )
    made = TermLike(field, ESCAPED.sub(r"\1", query.text))
    try:
        made.fitting(["a"])
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("error: ")[2].partition("error: ")[2].splitlines()[0]
        raise refused(query.column, f"the regular expression cannot be read: {reason}", "correct it") from None
    return made


def _value(query: syntax.Query, field: Field, text: str) -> Any:
    try:
        if field.kind is Kind.FLOAT:
            return float(text)
        if field.kind is Kind.NUMBER:
            number = Decimal(text)
            if not number.is_finite():
                raise ValueError(text)
            return int(number) if number == number.to_integral_value() and abs(number.adjusted()) < 40 else number
        if field.kind is Kind.BOOLEAN:
            return BOOLEANS[text.lower()]
        if field.kind is Kind.DATE:
            return date.fromisoformat(text)
        if field.kind is Kind.TIME:
            moment = datetime.fromisoformat(text)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, KeyError, InvalidOperation, OverflowError):
        _refuse_value(query, field, text)
    return text.lower() if field.kind is Kind.TEXT else text


def _refuse_value(query: syntax.Query, field: Field, text: str) -> NoReturn:
    examples = {
        Kind.NUMBER: "10, or -5",
        Kind.FLOAT: "10, or -0.5",
        Kind.BOOLEAN: "true, or false",
        Kind.DATE: "2026-01-31",
        Kind.TIME: '2026-01-31, or "2026-01-31T12:00:00Z"',
    }
    raise refused(
        query.column, f"'{text}' is not {field.kind.value}, as '{field.name}' is", f"write {examples[field.kind]}"
    )


def _limit(query: syntax.Query, field: Field, text: str | None, includes: bool, *, is_low: bool) -> tuple[Any, bool]:
    """A limit of a range, and whether it is in the range itself. A year, a month and a day are in it as a whole."""
    if text is None:
        return None, includes
    if field.kind not in (Kind.TIME, Kind.DATE) or len(text) > len("2026-01-31"):
        return _value(query, field, text), includes
    try:
        first, after = _period(text)
    except ValueError:
        _refuse_value(query, field, text)
    limit = first if includes == is_low else after
    if limit is None:  # the end of time
        return (LAST[field.kind], False) if is_low else (None, True)
    made = limit if field.kind is Kind.DATE else datetime.combine(limit, time(), UTC)
    return made, is_low


def _period(text: str) -> tuple[date, date | None]:
    """The first day of a year, a month or a day, and the first one after it, None at the end of time."""
    if (found := YEAR_OR_MONTH.fullmatch(text)) is not None:
        first = date(int(found[1]), int(found[2] or 1), 1)
        months = first.year * 12 + first.month - 1 + (1 if found[2] else 12)
        year, month = divmod(months, 12)
        return first, None if year > MAXYEAR else date(year, month + 1, 1)
    first = date.fromisoformat(text)
    return first, None if first == date.max else first + timedelta(days=1)
