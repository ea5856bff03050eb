"""MATCH_RECOGNIZE as text: SQL's language of patterns, read into the same model as the fluent API.

The clauses come in the order of the standard; each is read completely or rejected, and nothing is skipped. Expressions
are kept as text: the reader of Spark SQL checks them later, where the columns are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, NoReturn

from millstream.errors import InvalidInput, InvalidPattern
from millstream.plan.patterns.rules import Rules
from millstream.plan.patterns.terms import (
    Absence,
    Alternatives,
    Anchor,
    AnyOrder,
    Contiguity,
    Edge,
    Excluded,
    Greed,
    Link,
    Repeat,
    Sequence,
    Term,
    Variable,
    all_terms,
    variables_of,
)
from millstream.records import duration
from millstream.user_lines import users_line, what_exists

TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<string>'(?:[^'\\]|\\.|'')*')
      | (?P<quoted>`(?:[^`]|``)*`|"(?:[^"]|"")*")
      | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<symbol>\{-|-\}|[<>!=]=|<>|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)
CLAUSES = (
    "PARTITION BY, ORDER BY, MEASURES, ONE ROW or ALL ROWS PER MATCH, AFTER MATCH SKIP, PATTERN, WITHIN, SUBSET, DEFINE"
)
QUANTIFIERS = {"?": (0, 1), "*": (0, None), "+": (1, None)}
AFTER_MEASURES = (("AS",), ("ONE", "ROW"), ("ALL", "ROWS"), ("AFTER", "MATCH"), ("PATTERN", "("))
BEHIND_PATTERN = ("WITHIN", "SUBSET", "DEFINE")
PATTERN = "()"
PERMUTED_MAX = 8
REPEATED_MAX = 10_000


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """In capitals if it is a word; quoted names are none."""
        return self.text.upper() if self.kind == "word" else ""


@dataclass(frozen=True)
class Statement:
    """What a MATCH_RECOGNIZE asks for."""

    rules: Rules
    partition_by: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    measures: tuple[tuple[str, str], ...] = ()
    """Names and expressions."""
    all_rows: bool = False
    skip: str = "past last"
    timeouts: bool = False
    """Whether partial matches whose time was over are wanted as well."""
    places: dict[str, str] = field(default_factory=dict, compare=False)
    """Where each measure stands in the text."""
    defined: dict[str, str] = field(default_factory=dict, compare=False)
    """Where the condition of each variable stands in the text, and under PATTERN the pattern."""


def parsed(text: str) -> Statement:
    """Reads the clauses between the parentheses of MATCH_RECOGNIZE, or all of MATCH_RECOGNIZE (…)."""
    return _Parser(text).statement()


class _Parser:
    def __init__(self, text: str) -> None:
        self.source = text
        self.line = users_line()
        self.tokens = [
            Token(found.lastgroup or "", found[0], found.start(), found.end())
            for found in TOKEN.finditer(text)
            if found.lastgroup != "space"
        ]
        self.at = 0
        self.defined: dict[str, str] = {}

    # ------------------------------------------------------------ tokens

    @property
    def token(self) -> Token:
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        return Token("end", "", len(self.source), len(self.source))

    def words_ahead(self, *words: str) -> bool:
        ahead = self.tokens[self.at : self.at + len(words)]
        return [token.word or token.text for token in ahead] == list(words)

    def took(self, *words: str) -> bool:
        """Whether these words stand here; they are then read."""
        if not self.words_ahead(*words):
            return False
        self.at += len(words)
        return True

    def take(self, *words: str, example: str) -> None:
        for word in words:
            if not self.took(word):
                self.fail(f"{word} is expected here, {self._found()}", example)

    def name(self, what: str, example: str) -> str:
        token = self.token
        if token.kind not in ("word", "quoted"):
            self.fail(f"{what} is expected here, {self._found()}", example)
        self.at += 1
        return token.text if token.kind == "word" else token.text[1:-1].replace(token.text[0] * 2, token.text[0])

    def place(self, start: int) -> str:
        before = self.source[:start]
        return f"line {before.count(chr(10)) + 1}, column {start - (before.rfind(chr(10)) + 1) + 1}"

    def _found(self) -> str:
        return "but the text ends" if self.token.kind == "end" else f"not '{self.token.text}'"

    def fail(self, what: str, next_step: str, start: int | None = None) -> NoReturn:
        at = self.place(self.token.start if start is None else start)
        raise InvalidPattern(f"{at} of MATCH_RECOGNIZE: {what}", where=self.line, next_step=next_step)

    # ------------------------------------------------------------ clauses

    def statement(self) -> Statement:
        wrapped = self.took("MATCH_RECOGNIZE")
        if wrapped:
            self.take("(", example="MATCH_RECOGNIZE (PARTITION BY … PATTERN (…) DEFINE …)")
        partition = self._partition()
        order = self._order()
        measures, places = self._measures()
        all_rows = self._rows_per_match()
        skip = self._skip()
        term, begins = self._pattern()
        within = self._within()
        subsets = self._subsets(term)
        conditions = self._define(term, subsets)
        timeouts = self.took("SHOW", "TIMEOUT", "MATCHES")
        if wrapped:
            self.take(")", example="close the parenthesis of MATCH_RECOGNIZE (…)")
        if self.token.kind != "end":
            self.fail(f"'{self.token.text}' does not belong here", f"the clauses are, in this order: {CLAUSES}")
        self._check_absence(term, within, begins)
        if timeouts and within is None:
            self.fail("SHOW TIMEOUT MATCHES needs a limit", "write PATTERN (…) WITHIN INTERVAL '1' HOUR", begins)
        skip = self._checked_skip(skip, term, subsets)
        lines = dict.fromkeys(conditions, self.line)
        rules = Rules(term, conditions, within, None, subsets, lines)
        defined = {PATTERN: self.place(begins), **self.defined}
        return Statement(rules, partition, order, measures, all_rows, skip[0], timeouts, places, defined)

    def _partition(self) -> tuple[str, ...]:
        if not self.took("PARTITION"):
            return ()
        self.take("BY", example="PARTITION BY account")
        return self._names("a column", "PARTITION BY account, region")

    def _names(self, what: str, example: str) -> tuple[str, ...]:
        names = [self.name(what, example)]
        while self.took(","):
            names.append(self.name(what, example))
        return tuple(names)

    def _order(self) -> tuple[str, ...]:
        example = "ORDER BY at: the event time of the stream"
        if not self.took("ORDER"):
            return ()
        self.take("BY", example=example)
        names = [self.name("a column", example)]
        self._ascending()
        while self.took(","):
            names.append(self.name("a column", example))
            self._ascending()
        return tuple(names)

    def _ascending(self) -> None:
        if self.words_ahead("DESC") or self.words_ahead("NULLS"):
            self.fail("rows are matched in ascending order of event time", f"remove {self.token.text}")
        self.took("ASC")

    def _measures(self) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
        if not self.took("MEASURES"):
            return (), {}
        example = "MEASURES A.price AS start_price, LAST(B.price) AS lowest"
        measures: list[tuple[str, str]] = []
        places: dict[str, str] = {}
        while True:
            start = self.token.start
            text = self._expression(self._measure_ends, example)
            self.take("AS", example=example)
            name = self.name("a name", example)
            if name in places:
                self.fail(f"there are two measures named '{name}'", "give one of them another name", start)
            measures.append((name, text))
            places[name] = self.place(start)
            if not self.took(","):
                return tuple(measures), places

    def _measure_ends(self) -> bool:
        return any(self.words_ahead(*words) for words in AFTER_MEASURES)

    def _rows_per_match(self) -> bool:
        example = "ONE ROW PER MATCH, or ALL ROWS PER MATCH"
        if self.took("ONE"):
            self.take("ROW", "PER", "MATCH", example=example)
            return False
        if not self.took("ALL"):
            return False
        self.take("ROWS", "PER", "MATCH", example=example)
        if self.words_ahead("WITH", "UNMATCHED"):
            self.fail(
                "rows without a match are not emitted", "remove WITH UNMATCHED ROWS, and keep the stream itself beside"
            )
        if self.words_ahead("SHOW", "EMPTY"):
            self.fail("an empty match has no rows to emit", "remove SHOW EMPTY MATCHES")
        if self.took("OMIT"):
            self.take("EMPTY", "MATCHES", example="ALL ROWS PER MATCH OMIT EMPTY MATCHES")
        return True

    def _skip(self) -> tuple[str, int] | None:
        start = self.token.start
        if not self.took("AFTER"):
            return None
        example = "AFTER MATCH SKIP PAST LAST ROW, TO NEXT ROW, TO FIRST A, TO LAST A or TO A"
        self.take("MATCH", "SKIP", example=example)
        if self.took("PAST"):
            self.take("LAST", "ROW", example=example)
            return "past last", start
        self.take("TO", example=example)
        if self.took("NEXT"):
            self.take("ROW", example=example)
            return "to next", start
        kind = "first" if self.took("FIRST") else "last"
        if kind == "last":
            self.took("LAST")
        return f"to {kind} {self.name('a variable', example)}", start

    def _checked_skip(
        self, skip: tuple[str, int] | None, term: Term, subsets: dict[str, tuple[str, ...]]
    ) -> tuple[str, int]:
        if skip is None:
            return "past last", 0
        written, start = skip
        if written in ("past last", "to next"):
            return skip
        *kind, name = written.split(" ")
        found = self._known([name], [*variables_of(term), *subsets], start)[0]
        return " ".join([*kind, found]), start

    def _within(self) -> timedelta | None:
        if not self.took("WITHIN"):
            return None
        example = "WITHIN INTERVAL '1' HOUR, or WITHIN 30 MINUTES"
        self.took("INTERVAL")
        start, token = self.token.start, self.token
        if token.kind not in ("string", "number"):
            self.fail(f"a length of time is expected here, {self._found()}", example)
        self.at += 1
        text = token.text.strip("'")
        if self.token.word and self.token.word not in ("SUBSET", "DEFINE", "SHOW"):
            text += f" {self.token.text.lower()}"
            self.at += 1
        try:
            return duration(text)
        except InvalidInput as error:
            self.fail(str(error).splitlines()[0], example, start)

    def _subsets(self, term: Term) -> dict[str, tuple[str, ...]]:
        if not self.took("SUBSET"):
            return {}
        example = "SUBSET moves = (up, down)"
        subsets: dict[str, tuple[str, ...]] = {}
        while True:
            start = self.token.start
            name = self.name("a name", example)
            if name.lower() in {each.lower() for each in [*variables_of(term), *subsets]}:
                self.fail(f"'{name}' is already a variable", "give the subset another name", start)
            self.take("=", "(", example=example)
            members = self.token.start
            subsets[name] = tuple(self._known(self._names("a variable", example), variables_of(term), members))
            self.take(")", example=example)
            if not self.took(","):
                return subsets

    def _define(self, term: Term, subsets: dict[str, tuple[str, ...]]) -> dict[str, str | None]:
        if not self.took("DEFINE"):
            self.fail(
                f"DEFINE is expected here, {self._found()}",
                f"DEFINE A AS price > 10; the clauses are, in this order: {CLAUSES}",
            )
        example = "DEFINE B AS price < PREV(price)"
        absent = [each.name for each in all_terms(term) if isinstance(each, Absence)]
        known = [*variables_of(term), *absent]
        conditions: dict[str, str | None] = {}
        while True:
            start = self.token.start
            written = self.name("a variable", example)
            if written.lower() in {name.lower() for name in subsets}:
                self.fail(f"'{written}' is a subset", "define the variables it stands for", start)
            (name,) = self._known([written], known, start)
            if name in conditions:
                self.fail(f"'{name}' is defined twice", "join the conditions with AND", start)
            self.take("AS", example=example)
            self.defined[name] = self.place(self.token.start)
            conditions[name] = self._condition(name, example)
            if not self.took(","):
                break
        for name in absent:
            if name not in conditions:
                self.fail(f"[^{name}] needs a condition", f"DEFINE {name} AS …")
        return conditions

    def _known(self, names: tuple[str, ...] | list[str], known: list[str], start: int) -> list[str]:
        """The names as the pattern spells them."""
        spelled = {name.lower(): name for name in known}
        for name in names:
            if name.lower() not in spelled:
                self.fail(f"there is no variable '{name}'", what_exists(name, known, kind="variables"), start)
        return [spelled[name.lower()] for name in names]

    # ------------------------------------------------------------ expressions

    def _condition(self, name: str, example: str) -> str:
        start = self.at
        text = self._expression(lambda: self.words_ahead("SHOW", "TIMEOUT"), example)
        for token, following in zip(self.tokens[start : self.at], self.tokens[start + 1 : self.at + 1], strict=False):
            if token.word == "FINAL" and following.kind == "word":
                self.fail("a condition knows only the rows so far", "remove FINAL: it is for MEASURES", token.start)
            if token.word == "CLASSIFIER" and following.text == "(":
                self.fail(f"the row in question plays '{name}'", "CLASSIFIER() is for MEASURES", token.start)
        return text

    def _expression(self, ends: Callable[[], bool], example: str) -> str:
        """The text up to a comma, a closing parenthesis, or what ends it. RUNNING is the default, so it is left out."""
        start, depth, pieces = self.token.start, 0, []
        last = start
        while self.token.kind != "end":
            text = self.token.text
            if depth == 0 and (text in (",", ")") or ends()):
                break
            depth += (text in ("(", "[")) - (text in (")", "]"))
            depth += (self.token.word == "CASE") - (self.token.word == "END")
            if self.token.word == "RUNNING" and self.at + 1 < len(self.tokens) and self.tokens[self.at + 1].word:
                pieces.append(self.source[last : self.token.start])
                last = self.tokens[self.at + 1].start
            self.at += 1
        if depth > 0:
            self.fail("the expression is not closed", "add the missing ) or END", start)
        end = self.tokens[self.at - 1].end if self.at else start
        made = ("".join(pieces) + self.source[last:end]).strip() if end > start else ""
        if not made:
            self.fail(f"an expression is expected here, {self._found()}", example)
        return made

    # ------------------------------------------------------------ the pattern

    def _pattern(self) -> tuple[Term, int]:
        if not self.took("PATTERN"):
            self.fail(
                f"PATTERN is expected here, {self._found()}",
                f"PATTERN (A B+ C); the clauses are, in this order: {CLAUSES}",
            )
        start = self.token.start
        self.take("(", example="PATTERN (A B+ C)")
        term = self._alternatives()
        self.take(")", example="close the parenthesis of PATTERN (…)")
        return term, start

    def _alternatives(self) -> Term:
        parts = [self._sequence()]
        while self.took("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _sequence(self) -> Term:
        parts: list[Term] = []
        while self.token.kind != "end" and self.token.text not in (")", "|", "-}", ","):
            if self.token.word in BEHIND_PATTERN:
                break
            parts.append(self._repeated())
        if len(parts) == 1:
            return parts[0]
        return Sequence(tuple(Link(Contiguity.NEXT, part) for part in parts))

    def _repeated(self) -> Term:
        start = self.token.start
        part = self._part()
        bounds = self._quantifier()
        if bounds is None:
            return part
        if isinstance(part, Anchor | Absence):
            self.fail(f"{part} cannot be repeated", "put the quantifier behind a variable or a group", start)
        greed = Greed.RELUCTANT if self.took("?") else Greed.GREEDY
        return Repeat(part, *bounds, greed)

    def _quantifier(self) -> tuple[int, int | None] | None:
        start = self.token.start
        for sign, bounds in QUANTIFIERS.items():
            if self.took(sign):
                return bounds
        if not self.took("{"):
            return None
        example = "A{3}, A{2,}, A{,4} or A{2,4}"
        low = self._count()
        high = low
        if self.took(","):
            high = self._count()
        elif low is None:
            self.fail(f"a number is expected here, {self._found()}", example)
        self.take("}", example=example)
        if high is not None and (high < (low or 0) or high == 0):
            self.fail("the upper number is at least 1, and not below the lower one", example, start)
        if max(low or 0, high or 0) > REPEATED_MAX:
            self.fail(f"at most {REPEATED_MAX:,} repetitions are possible", "use a smaller number, or A+", start)
        return low or 0, high

    def _count(self) -> int | None:
        if self.token.kind != "number" or not self.token.text.isdigit():
            return None
        self.at += 1
        return int(self.tokens[self.at - 1].text)

    def _part(self) -> Term:
        example = "a variable, ( ), PERMUTE( ), {- -}, [^B], ^ or $"
        start = self.token.start
        if self.took("("):
            inside = self._alternatives()
            self.take(")", example="close the group with )")
            return inside
        if self.took("{-"):
            inside = self._alternatives()
            self.take("-}", example="close the exclusion with -}")
            return Excluded(inside)
        if self.took("["):
            self.take("^", example="[^B]: no row that satisfies B")
            name = self.name("a variable", "[^B]: no row that satisfies B")
            self.take("]", example="[^B]: no row that satisfies B")
            return Absence(name, Contiguity.FOLLOWED_BY)
        if self.took("^"):
            return Anchor(Edge.START)
        if self.took("$"):
            return Anchor(Edge.END)
        if self.token.word == "PERMUTE" and self.words_ahead("PERMUTE", "("):
            self.at += 2
            parts = [self._sequence()]
            while self.took(","):
                parts.append(self._sequence())
            self.take(")", example="PERMUTE(A, B, C)")
            if len(parts) > PERMUTED_MAX:
                self.fail(f"PERMUTE takes at most {PERMUTED_MAX} parts", "write the orders that can occur", start)
            return AnyOrder(tuple(parts))
        if self.token.kind not in ("word", "quoted"):
            self.fail(f"a part of a pattern is expected here, {self._found()}", example)
        return Variable(self.name("a variable", example))

    def _check_absence(self, term: Term, within: timedelta | None, start: int) -> None:
        absent = [each for each in all_terms(term) if isinstance(each, Absence)]
        if not absent:
            return
        last = term.links[-1].term if isinstance(term, Sequence) and term.links else None
        if len(absent) > 1 or absent[0] is not last:
            self.fail(
                f"{absent[0]} stands at the end of a pattern",
                "within it, define a variable with the opposite condition and write it as N*",
                start,
            )
        if within is None:
            self.fail(f"{last} at the end needs a limit", "write PATTERN (…) WITHIN INTERVAL '1' HOUR", start)
