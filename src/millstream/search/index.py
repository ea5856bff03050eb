"""Which stored queries a document might match: queries are found by a term that each of their documents must have.

A query that requires no term, such as a mere range, is a candidate for every document.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from millstream.search.conditions import PREFIX_CHARACTERS, PREFIX_MARK, Condition
from millstream.search.fields import Document, Field, Kind, Searched, field_of

Entry = TypeVar("Entry", bound=Hashable)


@dataclass
class _InField(Generic[Entry]):
    """The queries that require a term of one field."""

    field: Field
    by_term: dict[str, dict[Entry, None]] = dataclasses.field(default_factory=dict)
    prefixes: int = 0
    """How many of the terms are prefixes."""


class QueryIndex(Generic[Entry]):
    """Entries by the terms that they require; what an entry is, only the caller knows."""

    def __init__(self, searched: Searched) -> None:
        self._searched = searched
        self._fields: dict[str, _InField[Entry]] = {}
        self._always: dict[Entry, None] = {}

    def add(self, entry: Entry, condition: Condition) -> None:
        keys = condition.keys()
        if keys is None:
            self._always[entry] = None
            return
        for name, term in keys:
            if name not in self._fields:
                self._fields[name] = _InField(field_of(self._searched, name))
            here = self._fields[name]
            if term not in here.by_term:
                here.by_term[term] = {}
                here.prefixes += term.endswith(PREFIX_MARK)
            here.by_term[term][entry] = None

    def remove(self, entry: Entry, condition: Condition) -> None:
        keys = condition.keys()
        if keys is None:
            self._always.pop(entry, None)
            return
        for name, term in keys:
            here = self._fields[name]
            entries = here.by_term[term]
            entries.pop(entry, None)
            if not entries:
                del here.by_term[term]
                here.prefixes -= term.endswith(PREFIX_MARK)

    def candidates(self, document: Document) -> Iterable[Entry]:
        """The entries that a document might match, each once."""
        found = dict(self._always)
        for here in self._fields.values():
            for entries in self._in(here, document):
                found |= entries
        return found

    @staticmethod
    def _in(here: _InField[Entry], document: Document) -> Iterator[dict[Entry, None]]:
        by_term = here.by_term
        if here.field.kind is not Kind.TEXT:
            yield from (by_term[value] for value in document.values(here.field) if value in by_term)
            return
        terms = document.terms(here.field)
        # The smaller side is walked; both are hashed.
        yield from (by_term[term] for term in terms.keys() & by_term.keys())
        if here.prefixes:
            starts = {term[:PREFIX_CHARACTERS] + PREFIX_MARK for term in terms}
            yield from (by_term[start] for start in starts & by_term.keys())
