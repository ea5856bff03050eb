"""What a query can ask of a document: its columns, and the fields inside of them, each with a kind.

A field is a path such as `author.name`. Where it leads through a list, the field has several values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from millstream.records import Schema
from millstream.search.analysis import STANDARD, VALUES_GAP, terms_of, words_of
from millstream.user_lines import what_exists


class Kind(Enum):
    """How the values of a field are compared."""

    TEXT = "text"
    """By its terms."""
    KEYWORD = "a string"
    """As a whole."""
    NUMBER = "a number"
    FLOAT = "a floating-point number"
    TIME = "a timestamp"
    DATE = "a date"
    BOOLEAN = "a boolean"


@dataclass(frozen=True)
class Searched:
    """The documents of a step: their columns, those that are searched as text, and the analysers of these."""

    schema: Schema
    text: tuple[str, ...]
    analysers: tuple[tuple[str, str], ...] = ()

    def analyser(self, field: str) -> str:
        return dict(self.analysers).get(field, STANDARD)


@dataclass(frozen=True)
class Field:
    name: str
    path: tuple[str, ...]
    kind: Kind
    analyser: str = STANDARD


class MapKey(str):
    """A part of a path that is the key of a map."""

    __slots__ = ()


class NoSuchField(Exception):
    """The name of a field leads nowhere. Its text is what to do next."""


def field_of(searched: Searched, name: str) -> Field:
    """The field with a name; raises NoSuchField."""
    path = (name,) if name in searched.schema.names else tuple(name.split("."))
    if path[0] not in searched.schema.names:
        raise NoSuchField(what_exists(name, searched.schema.names))
    kind = _element(searched.schema.field(path[0]).type)
    steps: list[str] = [path[0]]
    for part in path[1:]:
        if pa.types.is_map(kind) and len(steps) == 1 and kind != searched.schema.field(path[0]).type:
            raise NoSuchField("it is a list of maps, which cannot be searched: use a condition (where=)")
        steps.append(MapKey(part) if pa.types.is_map(kind) else part)
        kind = _element(_inside(kind, part))
    if name in searched.text:
        return Field(name, tuple(steps), Kind.TEXT, searched.analyser(name))
    return Field(name, tuple(steps), _kind(kind, name))


def _inside(kind: pa.DataType, part: str) -> pa.DataType:
    if pa.types.is_map(kind):
        return kind.item_type
    if not pa.types.is_struct(kind):
        raise NoSuchField(f"it has no fields, because it is {kind}")
    names = [kind.field(number).name for number in range(kind.num_fields)]
    if part not in names:
        raise NoSuchField(what_exists(part, names, kind="fields"))
    return kind.field(part).type


def _element(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind


def _kind(kind: pa.DataType, name: str) -> Kind:
    if pa.types.is_string(kind):
        return Kind.KEYWORD
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return Kind.NUMBER
    if pa.types.is_floating(kind):
        return Kind.FLOAT
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return Kind.TIME
    if pa.types.is_date(kind):
        return Kind.DATE
    if pa.types.is_boolean(kind):
        return Kind.BOOLEAN
    raise NoSuchField(f"its type is {kind}: name a field inside of it, such as {name}.x, or use a condition (where=)")


def is_text(schema: Schema, name: str) -> bool:
    """Whether a field holds strings; raises NoSuchField."""
    return field_of(Searched(schema, ()), name).kind is Kind.KEYWORD


def leaves(value: Any, path: Sequence[str]) -> Iterable[Any]:
    """The values at a path inside a value, without nulls."""
    if value is None:
        return
    if path and isinstance(path[0], MapKey):
        yield from leaves(_of_map(value, path[0]), path[1:])
    elif isinstance(value, list):
        for element in value:
            yield from leaves(element, path)
    elif path:
        yield from leaves(value.get(path[0]), path[1:])
    else:
        yield value


def _of_map(value: Any, key: str) -> Any:
    """The value of a key. A map is a dict, or in columns of polars a list of keys and values."""
    if isinstance(value, Mapping):
        return value.get(key)
    pairs = (tuple(pair.values()) if isinstance(pair, Mapping) else pair for pair in value)
    return next((item for name, item in pairs if name == key), None)


class Document:
    """The fields of one document, each read when a query first asks for it."""

    __slots__ = ("_places", "_row", "_terms", "_values", "_words")

    def __init__(self, row: Mapping[str, Any], words: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """`words` has the words of text fields, by field: a list for each of its values."""
        self._row = row
        self._words = words
        self._terms: dict[str, dict[str, None]] = {}
        self._places: dict[str, dict[str, list[int]]] = {}
        self._values: dict[str, list[Any]] = {}

    def words(self, field: Field) -> Sequence[Sequence[str]]:
        return self._words[field.name]

    def terms(self, field: Field) -> dict[str, None]:
        """The terms of a text field, each once."""
        found = self._terms.get(field.name)
        if found is None:
            found = {}
            for words in self._words[field.name]:
                found |= dict.fromkeys(terms_of(words, field.analyser))
            self._terms[field.name] = found
        return found

    def places(self, field: Field) -> dict[str, list[int]]:
        """By term of a text field, its positions."""
        found = self._places.get(field.name)
        if found is None:
            found, start = {}, 0
            for words in self._words[field.name]:
                for place, term in enumerate(terms_of(words, field.analyser), start):
                    found.setdefault(term, []).append(place)
                start += len(words) + VALUES_GAP
            self._places[field.name] = found
        return found

    def values(self, field: Field) -> list[Any]:
        """The values of a field that is not null."""
        found = self._values.get(field.name)
        if found is None:
            found = self._values[field.name] = list(leaves(self._row[field.path[0]], field.path[1:]))
        return found


def documents(rows: Sequence[Mapping[str, Any]], text: Sequence[Field]) -> list[Document]:
    """Rows as documents. The words of all rows are found together, which is faster."""
    words: list[dict[str, list[list[str]]]] = [{} for _ in rows]
    for field in text:
        head, rest = field.path[0], field.path[1:]
        if rest:
            texts = [list(leaves(row[head], rest)) for row in rows]
        else:
            texts = [[value] if isinstance(value := row[head], str) else list(leaves(value, ())) for row in rows]
        flat = iter(words_of([each for several in texts for each in several]))
        for number, several in enumerate(texts):
            words[number][field.name] = [next(flat) for _ in several]
    return [Document(row, each) for row, each in zip(rows, words, strict=True)]
