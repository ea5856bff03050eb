"""PATTERN of MATCH_RECOGNIZE: the text of a pattern, read into terms."""

from __future__ import annotations

from datetime import timedelta

from millstream.plan.patterns.cursor import Cursor
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
)

QUANTIFIERS = {"?": (0, 1), "*": (0, None), "+": (1, None)}
BEHIND_PATTERN = ("WITHIN", "SUBSET", "DEFINE")
PARTS = "a variable, ( ), PERMUTE( ), {- -}, [^B], ^ or $"
NESTED_MAX = 50
PERMUTED_MAX = 8
REPEATED_MAX = 10_000


class PatternParser(Cursor):
    """The grammar inside the parentheses of PATTERN."""

    depth: int = 0
    """How many groups are open."""

    def _alternatives(self) -> Term:
        self.depth += 1
        if self.depth > NESTED_MAX:
            self.fail(f"at most {NESTED_MAX} groups can be nested", "remove parentheses, or use fewer groups")
        parts = [self._sequence()]
        while self.took("|"):
            parts.append(self._sequence())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _sequence(self) -> Term:
        parts: list[Term] = []
        while self.token.kind != "end" and self.token.text not in (")", "|", "-}", ","):
            if self.token.word in BEHIND_PATTERN:
                break
            parts.append(self._repeated())
        if not parts:
            self.fail(f"a part of a pattern is expected here, {self._found()}", f"{PARTS}; () is the empty pattern")
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
        start = self.token.start
        if self.took("(", ")"):
            return Sequence(())
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
            parts = [self._alternatives()]
            while self.took(","):
                parts.append(self._alternatives())
            self.take(")", example="PERMUTE(A, B, C)")
            if len(parts) > PERMUTED_MAX:
                self.fail(f"PERMUTE takes at most {PERMUTED_MAX} parts", "write the orders that can occur", start)
            return AnyOrder(tuple(parts))
        if self.token.kind not in ("word", "quoted"):
            self.fail(f"a part of a pattern is expected here, {self._found()}", PARTS)
        return Variable(self.name("a variable", PARTS))

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
