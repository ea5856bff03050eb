"""Detects writer schemas with which a few bytes can expand without limit, before any of them are decoded.

fastavro recurses on the C stack, so deeply nested data crashes the process instead of raising, and an array of items
that take no bytes can have any length. Records whose schema allows either are measured first, without building anything
and without recursion; all others go to fastavro directly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from millstream.records.bounds import CONTAINERS_MAX, NESTING_MAX, size_text, too_many_containers, valid_text
from millstream.records.columns import Refused

SCHEMA_BYTES_MAX = 1 << 20
SCHEMA_TYPES_MAX = 50_000
SCHEMA_JSON_NESTING_MAX = 400
FREE_VALUES_MAX = 1_000  # values of zero encoded bytes in one record
DECIMAL_BYTES_MAX = 1_000  # turning bytes into a decimal takes quadratic time
MEASURED_FROM_DECIMALS_BYTES = 8 << 10
MEASURED_FROM_CONTAINERS_BYTES = 1 << 20

NESTED_TOO_DEEPLY = f"it is nested more than {NESTING_MAX} levels deep"
_WIDTHS = {"boolean": 1, "float": 4, "double": 8}
_VARINTS = ("int", "long", "enum")
_TEXTS = ("bytes", "string")
_MANY = ("array", "map")
_CONTAINERS = ("record", *_MANY)


class UnusableSchema(Exception):
    """No record can be read safely with this schema; the message says why."""


@dataclass(eq=False, slots=True)
class _Type:
    kind: str
    parts: list[_Type] = field(default_factory=list)
    width: int = 0  # encoded bytes, if the same for every value
    free: int | None = None  # the number of values, if it takes no bytes at all
    decimal: bool = False


class Shape:
    """The shape of one schema: above which size records must be measured, and how."""

    def __init__(self, parsed: Any) -> None:
        """`parsed` is a schema parsed by fastavro, with full names."""
        try:
            self._top = _Compiler().type(parsed, 0)
        except (KeyError, TypeError, AttributeError) as error:  # fastavro does not check everything
            raise UnusableSchema(f"it is not complete: {valid_text(str(error)[:200])}") from None
        everything, self.recursive = _from_leaves([self._top], lambda each: each.parts)
        records, is_endless = _from_leaves(everything, lambda each: each.parts if each.kind == "record" else [])
        if is_endless:
            raise UnusableSchema("a record always contains itself, so that no data can have an end")
        for each in records:
            if each.kind == "record" and all(part.free is not None for part in each.parts):
                each.free = min(1 + sum(part.free or 0 for part in each.parts), FREE_VALUES_MAX + 1)
        if not self.recursive and _depth(everything) > NESTING_MAX:
            raise UnusableSchema(NESTED_TOO_DEEPLY)
        self.measured_from_bytes = self._measured_from(everything)
        self.takes_no_bytes = self._top.free is not None

    def _measured_from(self, types: Iterable[_Type]) -> int | None:
        found: list[int] = []
        for each in types:
            if self.recursive or (each.kind in _CONTAINERS and any(part.free is not None for part in each.parts)):
                return 0
            if each.decimal:
                found.append(MEASURED_FROM_DECIMALS_BYTES)
            if each.kind in _MANY and _holds_containers(each.parts[0]):
                found.append(MEASURED_FROM_CONTAINERS_BYTES)
        return min(found, default=None)

    def measures(self, size_bytes: int) -> bool:
        """Whether a record of this size must be checked."""
        return self.measured_from_bytes is not None and size_bytes >= self.measured_from_bytes

    def check(self, data: bytes, at: int = 0) -> None:
        """Raises Refused for a record that must not be decoded, EOFError if its bytes end too early."""
        _measure(self._top, data, at)


# ---------------------------------------------------------------- the schema


@dataclass(frozen=True, eq=False)
class Writer:
    """A writer's schema as fastavro reads with it, and its shape."""

    parsed: Any
    shape: Shape


@lru_cache(maxsize=64)
def writer_of(text: str) -> Writer:
    """Parses the JSON text of an untrusted schema. Raises UnusableSchema."""
    import fastavro

    if len(text) > SCHEMA_BYTES_MAX:
        raise UnusableSchema(f"it has {size_text(len(text))}, more than {size_text(SCHEMA_BYTES_MAX)}")
    try:
        found = json.loads(text)
    except RecursionError:
        raise UnusableSchema(NESTED_TOO_DEEPLY) from None
    except ValueError as error:
        raise UnusableSchema(f"it is not JSON: {error}") from None
    _check_json_nesting(found)
    if isinstance(found, dict) and any(str(key).startswith("__") for key in found):
        raise UnusableSchema("it has properties that start with '__', which are reserved for parsed schemas")
    try:
        parsed = fastavro.parse_schema(found)
    except Exception as refusal:  # the schema is untrusted, and parsers raise anything
        raise UnusableSchema(f"it is not an Avro schema: {valid_text(str(refusal)[:200])}") from None
    return Writer(parsed, Shape(parsed))


def _check_json_nesting(value: Any) -> None:
    level, depth = [value], 0
    while level := [part for each in level for part in _json_parts(each)]:
        depth += 1
        if depth > SCHEMA_JSON_NESTING_MAX:
            raise UnusableSchema(NESTED_TOO_DEEPLY)


def _json_parts(of: Any) -> Iterable[Any]:
    if isinstance(of, dict):
        return of.values()
    return of if isinstance(of, list) else ()


class _Compiler:
    def __init__(self) -> None:
        self._named: dict[str, _Type] = {}
        self._count = 0

    def type(self, schema: Any, depth: int) -> _Type:
        self._count += 1
        if self._count > SCHEMA_TYPES_MAX:
            raise UnusableSchema(f"it has more than {SCHEMA_TYPES_MAX:,} types")
        if depth > NESTING_MAX:
            raise UnusableSchema(NESTED_TOO_DEEPLY)
        if isinstance(schema, list):
            return _Type("union", [self.type(each, depth + 1) for each in schema])
        if isinstance(schema, str):
            return self._named[schema] if schema in self._named else _simple(schema, {})
        kind = schema["type"]
        if kind in ("record", "error"):
            made = self._named[schema["name"]] = _Type("record")
            made.parts += [self.type(each["type"], depth + 1) for each in schema["fields"]]
            return made
        if kind in _MANY:
            return _Type(kind, [self.type(schema["items" if kind == "array" else "values"], depth + 1)])
        made = _simple(kind, schema)
        if kind in ("enum", "fixed"):
            self._named[schema["name"]] = made
        return made


def _simple(kind: str, schema: dict[str, Any]) -> _Type:
    decimal = schema.get("logicalType") == "decimal"
    if kind == "null":
        return _Type(kind, free=1)
    if kind == "fixed":
        size = schema["size"]
        if type(size) is not int or size < 0:
            raise UnusableSchema(f"the size of a 'fixed' is {size!a:.40}")
        return _Type(kind, width=size, free=None if size else 1, decimal=decimal)
    if kind in _WIDTHS:
        return _Type("fixed", width=_WIDTHS[kind])
    if kind in _VARINTS:
        return _Type("varint")
    if kind in _TEXTS:
        return _Type("bytes", decimal=decimal)
    raise UnusableSchema(f"there is no type {kind!a:.40}")


def _from_leaves(tops: Iterable[_Type], parts: Callable[[_Type], list[_Type]]) -> tuple[list[_Type], bool]:
    """The reachable types, parts before wholes, and whether a type contains itself."""
    ordered: list[_Type] = []
    open_, done = set[int](), set[int]()
    has_cycle = False
    for top in tops:
        path = [] if id(top) in done else [(top, iter(parts(top)))]
        open_.add(id(top))
        while path:
            one, rest = path[-1]
            below = next(rest, None)
            if below is None:
                path.pop()
                open_.discard(id(one))
                done.add(id(one))
                ordered.append(one)
            elif id(below) in done:
                continue
            elif id(below) in open_:
                has_cycle = True
            else:
                open_.add(id(below))
                path.append((below, iter(parts(below))))
    return ordered, has_cycle


def _depth(ordered: list[_Type]) -> int:
    depths: dict[int, int] = {}
    for each in ordered:
        depths[id(each)] = 1 + max((depths[id(part)] for part in each.parts), default=-1)
    return depths[id(ordered[-1])]


def _holds_containers(of: _Type) -> bool:
    return of.kind in _CONTAINERS or (of.kind == "union" and any(map(_holds_containers, of.parts)))


# ---------------------------------------------------------------- a record


def _measure(top: _Type, data: bytes, at: int) -> None:
    end = len(data)
    free = containers = 0
    # For each open type: how many items remain (array, map) or which part is next (record), and its depth.
    path: list[list[Any]] = [[_Type("record", [top]), 0, 0]]
    while path:
        frame = path[-1]
        one, count, depth = frame
        if one.kind == "record":
            if count == len(one.parts):
                path.pop()
                continue
            frame[1] = count + 1
            below = one.parts[count]
        else:
            below = one.parts[0]
            if count == 0:
                count, at = _block(data, at)
                if count == 0:
                    path.pop()
                elif one.kind == "map" or (below.free is None and not below.width):
                    if count > end - at:
                        raise EOFError
                    frame[1] = count
                elif below.free is not None:
                    free += count * below.free
                    _check_free(free)
                else:
                    _check_decimal(below.width, below.decimal)
                    at += count * below.width
                continue
            frame[1] = count - 1
            if one.kind == "map":
                at = _text(data, at, False)
        depth += 1
        while below.kind == "union":
            number, at = _varint(data, at)
            if not 0 <= number < len(below.parts):
                raise Refused("not an Avro record of the writer's schema")
            below, depth = below.parts[number], depth + 1
        if depth > NESTING_MAX:
            raise Refused(f"nested more than {NESTING_MAX} levels deep")
        if below.free is not None:
            free += below.free
            _check_free(free)
        elif below.kind in _CONTAINERS:
            containers += 1
            if containers > CONTAINERS_MAX:
                raise too_many_containers()
            path.append([below, 0, depth])
        elif below.width:
            _check_decimal(below.width, below.decimal)
            at += below.width
        elif below.kind == "varint":
            _, at = _varint(data, at)
        else:
            at = _text(data, at, below.decimal)
        if at > end:
            raise EOFError


def _check_free(count: int) -> None:
    if count > FREE_VALUES_MAX:
        raise Refused(f"more than {FREE_VALUES_MAX:,} values that take no bytes")


def _check_decimal(size: int, is_decimal: bool) -> None:
    if is_decimal and size > DECIMAL_BYTES_MAX:
        raise Refused(f"a decimal of more than {DECIMAL_BYTES_MAX:,} bytes")


def _text(data: bytes, at: int, is_decimal: bool) -> int:
    size, at = _varint(data, at)
    if not 0 <= size <= len(data) - at:
        raise EOFError
    _check_decimal(size, is_decimal)
    return at + size


def _block(data: bytes, at: int) -> tuple[int, int]:
    """The number of items that follow; a negative number is followed by their size in bytes."""
    count, at = _varint(data, at)
    if count < 0:
        _, at = _varint(data, at)
    return abs(count), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise EOFError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise Refused("not an Avro record of the writer's schema")
