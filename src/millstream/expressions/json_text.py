"""JSON as Spark reads and writes it: its parser is more lenient than the standard, and its numbers print as Java's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa

from millstream.records import Schema

MALFORMED = object()
_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\"']+|.", re.DOTALL)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_SPECIAL = re.compile(r"[\"\\\x00-\x1f]|[\U00010000-\U0010ffff]")
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "INF": math.inf, "-INF": -math.inf,
            "+INF": math.inf, "+Infinity": math.inf}  # fmt: skip
_KINDS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class Pairs(list[tuple[str, Any]]):
    """An object, with keys that come twice."""


def _refuse(name: str) -> Any:
    raise ValueError(name)


_LENIENT = json.JSONDecoder(strict=False, object_pairs_hook=Pairs, parse_constant=_refuse)
"""For get_json_object: control characters, and no NaN."""
_STRICT = json.JSONDecoder(object_pairs_hook=Pairs)
"""For from_json: NaN, and no control characters."""


def parsed(given: str, decoder: json.JSONDecoder = _LENIENT) -> Any:
    """The first value in the text; what follows it is ignored."""
    start = given.lstrip(" \t\r\n")
    try:
        return decoder.raw_decode(start)[0]
    except (ValueError, RecursionError):
        if "'" not in start:
            return MALFORMED
    try:
        return decoder.raw_decode("".join(map(_double_quoted, _TOKEN.findall(start))))[0]
    except (ValueError, RecursionError):
        return MALFORMED


def _double_quoted(token: str) -> str:
    if not token.startswith("'") or len(token) < 2:
        return token
    return '"' + token[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'


def java_double(value: float) -> str:
    """As Double.toString: with an exponent from 10 million on and below a thousandth."""
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        mantissa = digits.lstrip("-").replace(".", "").rstrip("0")
        exponent = str(len(digits.lstrip("-").split(".")[0]) - 1)
        digits = ("-" if value < 0 else "") + mantissa[0] + "." + (mantissa[1:] or "0")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def written(value: Any) -> str:
    """A value inside of another; letters outside the BMP become two escapes."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + _SPECIAL.sub(_escaped, value) + '"'
    if isinstance(value, float):
        return java_double(value) if math.isfinite(value) else f'"{_named(value)}"'
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{written(key)}:{written(each)}" for key, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return str(value)


def _named(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _escaped(found: re.Match[str]) -> str:
    letter = found.group(0)
    if letter > "\uffff":
        pair = letter.encode("utf-16-be")
        return f"\\u{pair[:2].hex().upper()}\\u{pair[2:].hex().upper()}"
    return _ESCAPES.get(letter) or f"\\u{ord(letter):04X}"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else written(value)


def get_json_object(given: str, path: str) -> str | None:
    """What stands at a path, given as a JSON list of names and positions."""
    value = parsed(given)
    if value is MALFORMED:
        return None
    steps = json.loads(path)
    if not steps:
        return as_text(value)
    found = _at(value, steps)
    return None if found is None else as_text(found)


def _at(value: Any, steps: list[str | int]) -> Any:
    if not steps:
        return value
    first, *others = steps
    if isinstance(first, str):
        matching = [each for key, each in value if key == first] if isinstance(value, Pairs) else []
    else:
        is_array = isinstance(value, list) and not isinstance(value, Pairs)
        matching = [value[first]] if is_array and first < len(value) else []
    return next((found for each in matching if (found := _at(each, others)) is not None), None)


def json_array_length(given: str) -> int | None:
    value = parsed(given)
    return len(value) if isinstance(value, list) and not isinstance(value, Pairs) else None


def json_object_keys(given: str) -> list[str] | None:
    value = parsed(given)
    return [key for key, _ in value] if isinstance(value, Pairs) else None


# ---------------------------------------------------------------- from_json


def from_json(given: str, ddl: str) -> str | None:
    """The fields of a schema as strict JSON: a value of another type is null; text that is not JSON has no fields."""
    if not given.strip():
        return None
    value = parsed(given, _STRICT)
    if not isinstance(value, Pairs):
        return "{}"
    return json.dumps(_reader(ddl)(value), ensure_ascii=False)


class _Mismatch(Exception):
    """A value of another type than the schema's."""


@cache
def _reader(ddl: str) -> Callable[[Any], Any]:
    return _struct(pa.struct(list(Schema.of(ddl).arrow)))


def _read(kind: pa.DataType) -> Callable[[Any], Any]:
    if kind in _KINDS:
        return _whole(_KINDS[kind])
    if pa.types.is_floating(kind):
        return _floating
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_list(kind):
        return _array(_read(kind.value_type))
    if pa.types.is_struct(kind):
        return _struct(kind)
    return as_text


def _whole(bits: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise _Mismatch
        return value

    return read


def _floating(value: Any) -> str:
    """As text, so that nothing is lost on the way."""
    if isinstance(value, str):
        value = _NUMBERS.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Mismatch
    return repr(float(value)) if math.isfinite(float(value)) else _named(float(value))


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Mismatch
    return value


def _array(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list) or isinstance(value, Pairs):
            raise _Mismatch
        return [None if each is None else item(each) for each in value]

    return read


def _struct(kind: pa.DataType) -> Callable[[Any], Any]:
    readers = {field.name: _read(field.type) for field in kind}

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Pairs):
            raise _Mismatch
        found: dict[str, Any] = {}
        for key, each in value:
            reader = readers.get(key)
            if reader is not None:
                try:
                    found[key] = None if each is None else reader(each)
                except (_Mismatch, OverflowError):
                    continue
        return found

    return read
