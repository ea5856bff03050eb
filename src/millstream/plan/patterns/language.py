"""MATCH_RECOGNIZE as text: SQL's language of patterns, read into the same model as the fluent API.

The clauses come in the order of the standard; each is read completely or rejected, and nothing is skipped. Expressions
are kept as text: the reader of Spark SQL checks them later, where the columns are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from millstream.errors import InvalidInput
from millstream.plan.patterns.cursor import Token
from millstream.plan.patterns.pattern_text import PatternParser
from millstream.plan.patterns.references import AGGREGATES, NAVIGATIONS, NEIGHBOURS
from millstream.plan.patterns.rules import PATTERN, Rules
from millstream.plan.patterns.terms import Absence, Term, all_terms, variables_of
from millstream.records import duration
from millstream.user_lines import what_exists

CLAUSES = (
    "PARTITION BY, ORDER BY, MEASURES, ONE ROW or ALL ROWS PER MATCH, AFTER MATCH SKIP, PATTERN, WITHIN, SUBSET, "
    "DEFINE, SHOW TIMEOUT MATCHES"
)
AFTER_MEASURES = (("AS",), ("ONE", "ROW"), ("ALL", "ROWS"), ("AFTER", "MATCH"), ("PATTERN", "("))
MISPLACED = (
    ("PARTITION", "BY"),
    ("ORDER", "BY"),
    ("ONE", "ROW"),
    ("ALL", "ROWS"),
    ("AFTER", "MATCH"),
    ("PATTERN", "("),
    ("WITHIN", "INTERVAL"),
)
"""The words of clauses that no condition can contain."""
OPERATORS = ("AND", "OR", "NOT", "IN", "IS", "LIKE", "ILIKE", "RLIKE", "BETWEEN", "DIV", "AS")
"""Words behind an operand: what stands before them is a column, even if it is named running or final."""
RUNNING_OR_FINAL = (*NAVIGATIONS, *NEIGHBOURS, *AGGREGATES)
PARTITION_BY, ORDER_BY = "PARTITION BY", "ORDER BY"
"""Names of clauses among the places of a text."""


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
    """Where the condition of each variable stands in the text, and the clauses PATTERN, PARTITION_BY and ORDER_BY."""


def parsed(text: str) -> Statement:
    """Reads the clauses between the parentheses of MATCH_RECOGNIZE, or all of MATCH_RECOGNIZE (…)."""
    return _Parser(text).statement()


class _Parser(PatternParser):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.defined: dict[str, str] = {}

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
        self.defined[PATTERN] = self.place(begins)
        texts = {name: f"{place} of MATCH_RECOGNIZE" for name, place in self.defined.items()}
        rules = Rules(term, conditions, within, None, subsets, lines, texts)
        return Statement(rules, partition, order, measures, all_rows, skip[0], timeouts, places, self.defined)

    def _partition(self) -> tuple[str, ...]:
        if not self.took("PARTITION"):
            return ()
        self.take("BY", example="PARTITION BY account")
        self.defined[PARTITION_BY] = self.place(self.token.start)
        names = self._names("a column", "PARTITION BY account, region")
        self._check_column("PARTITION BY")
        return names

    def _check_column(self, clause: str) -> None:
        """Refuses what goes on behind the name of a column."""
        if self.token.kind not in ("word", "end") and self.token.text != ")":
            self.fail(
                f"{clause} takes names of columns, {self._found()}",
                "make it a column first: with_column('name', '…'), and use that",
            )

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
        self.defined[ORDER_BY] = self.place(self.token.start)
        names = [self.name("a column", example)]
        self._ascending()
        while self.took(","):
            names.append(self.name("a column", example))
            self._ascending()
        self._check_column("ORDER BY")
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
            if name.lower() in {known.lower() for known in places}:
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
            self.fail("matches without rows are not emitted", "remove SHOW EMPTY MATCHES")
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
            limit = duration(text)
        except InvalidInput as error:
            self.fail(error.what, example, start)
        if not limit:
            self.fail("the limit must be longer than 0", example, start)
        return limit

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
        text = self._expression(self._condition_ends, example)
        for token, following in zip(self.tokens[start : self.at], self.tokens[start + 1 : self.at + 1], strict=False):
            if token.word == "FINAL" and following.kind == "word" and following.word not in OPERATORS:
                self.fail("a condition knows only the rows so far", "remove FINAL: it is for MEASURES", token.start)
            if token.word == "MATCH_NUMBER" and following.text == "(":
                self.fail("a match has no number before it is found", "MATCH_NUMBER() is for MEASURES", token.start)
        return text

    def _condition_ends(self) -> bool:
        if self._following(1).word == "AS" and self.token.kind in ("word", "quoted"):
            self.fail(f"a comma is missing before '{self.token.text}'", "DEFINE A AS price > 1, B AS price < 1")
        if self.words_ahead("SHOW", "TIMEOUT") or any(self.words_ahead(*words) for words in MISPLACED):
            return True
        following = self._following(1)
        return (
            (self.token.word == "WITHIN" and following.kind in ("number", "string"))
            or (self.token.word in ("SUBSET", "MEASURES", "DEFINE") and following.kind in ("word", "quoted"))
        ) and following.word not in OPERATORS

    def _following(self, count: int) -> Token:
        ahead = self.at + count
        return self.tokens[ahead] if ahead < len(self.tokens) else Token("end", "", len(self.source), len(self.source))

    def _expression(self, ends: Callable[[], bool], example: str) -> str:
        """The text up to a comma, a closing parenthesis, or what ends it. RUNNING is the default, so it is left out."""
        start, depth, pieces = self.token.start, 0, []
        last = start
        while self.token.kind != "end":
            text = self.token.text
            if depth == 0 and (text in (",", ")", ";") or ends()):
                break
            depth += (text in ("(", "[")) - (text in (")", "]"))
            depth += (self.token.word == "CASE") - (self.token.word == "END")
            if self.token.word in ("RUNNING", "FINAL") and self._is_of_rows() and self.token.word == "RUNNING":
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

    def _is_of_rows(self) -> bool:
        """Whether RUNNING or FINAL stands here, before what looks at rows; False if it is the name of a column."""
        following, then = self._following(1), self._following(2)
        if following.kind not in ("word", "quoted") or following.word in OPERATORS:
            return False
        is_of_rows = then.text == "." or (then.text == "(" and following.text.lower() in RUNNING_OR_FINAL)
        if not is_of_rows:
            word = self.token.word
            self.fail(
                f"{word} stands before FIRST, LAST, PREV, NEXT or an aggregate, not before '{following.text}'",
                f"remove {word}, or write {word} LAST(…)",
            )
        return True

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
        if not variables_of(term):
            self.fail("the pattern matches no row, at most the empty match", "add a variable: PATTERN (A B+ C)", start)
        return term, start
