"""Highlighted fragments: the parts of a document's text that a query has matched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.search.analysis import VALUES_GAP, words_of
from millstream.search.conditions import Condition
from millstream.search.fields import Document, Field

AROUND = 60
"""How many characters before and after a match are shown."""
FRAGMENTS_MAX = 3
"""Of each field."""
OPENING, CLOSING, GAP = "<em>", "</em>", "…"


def fragments(condition: Condition, document: Document, text: Sequence[Field]) -> list[dict[str, str]]:
    """The fragments of each field that has matched, in the order of the fields."""
    places: dict[str, set[int]] = {}
    for field, place in condition.places(document):
        places.setdefault(field.name, set()).add(place)
    found = []
    for field in text:
        if field.name in places:
            shown = _of_field(document.values(field), places[field.name])
            found += [{"field": field.name, "fragment": each} for each in shown]
    return found


def _of_field(values: Sequence[str], places: set[int]) -> list[str]:
    made: list[str] = []
    start = 0
    for text, words in zip(values, words_of(values), strict=True):
        spans = [span for place, span in enumerate(_spans(text, words), start) if place in places]
        made += _shown(text, spans)
        start += len(words) + VALUES_GAP
    return made[:FRAGMENTS_MAX]


def _spans(text: str, words: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Where each word of a text begins and ends."""
    end = 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        yield start, end


def _shown(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Matches that are near one another share a fragment."""
    groups: list[list[tuple[int, int]]] = []
    for span in spans:
        if groups and span[0] - groups[-1][-1][1] <= AROUND:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_marked(text, group) for group in groups]


def _marked(text: str, spans: Sequence[tuple[int, int]]) -> str:
    first, last = _whole_words(text, spans[0][0] - AROUND, spans[-1][1] + AROUND, spans)
    pieces = [GAP if first > 0 else ""]
    at = first
    for start, end in spans:
        pieces += [text[at:start], OPENING, text[start:end], CLOSING]
        at = end
    return "".join([*pieces, text[at:last], GAP if last < len(text) else ""])


def _whole_words(text: str, first: int, last: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The limits of a fragment, moved inwards to blanks if there are any."""
    if first > 0:
        blank = text.find(" ", first, spans[0][0])
        first = first if blank < 0 else blank + 1
    if last < len(text):
        blank = text.rfind(" ", spans[-1][1], last)
        last = last if blank < 0 else blank
    return max(first, 0), min(last, len(text))
