"""Schema text is parsed exactly as Spark parses its DDL, and every type round-trips."""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

import pyarrow as pa

from millstream.errors import InvalidSchema
from millstream.records.variants import VARIANT

SIMPLE_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
TIME_UNITS = {"timestamp_seconds": 1_000_000, "timestamp_millis": 1_000, "timestamp_micros": 1}
"""Timestamp columns by the unit of their JSON numbers, in microseconds. It is metadata of the field, not its type."""
UNIT = b"json unit"
DECIMAL_NAMES = ("decimal", "dec", "numeric")
TEXT_WITH_LENGTH_NAMES = ("varchar", "char", "character")
NESTED_NAMES = ("array", "map", "struct")
INTERVAL_WORDS = ("day", "to", "second")
KNOWN_NAMES = (*SIMPLE_TYPES, *TIME_UNITS, "decimal(p,s)", "varchar(n)", "char(n)", "array<…>", "map<…, …>",
               "struct<…>", "interval day to second")  # fmt: skip

DECIMAL_DIGITS_MAX = 38
NESTING_MAX = 64  # the parser recurses per level; hostile text must not reach Python's limit

# The names in which types are written: of several spellings, the one Spark itself prints.
_PREFERRED = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date",
              "timestamp", "timestamp_ntz")  # fmt: skip
_NAME_OF: dict[pa.DataType, str] = {SIMPLE_TYPES[name]: name for name in _PREFERRED}
_NAME_OF[pa.duration("us")] = "interval day to second"
_NAME_OF[VARIANT] = "variant"  # only written: no source has such a column

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>\w+)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<mark>[<>(),:])
      | (?P<end>$)
    )""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_fields(text: str) -> list[pa.Field]:
    """The columns of a schema text such as `user string, score int NOT NULL`."""
    reader = _Reader(text)
    if reader.peek().kind == "end":
        raise InvalidSchema("the schema is empty", next_step='name at least one column: "user string, score int"')
    fields = reader.fields(depth=0, closing=None)
    refuse_clashing_names(fields, inside=None)
    return fields


def format_fields(fields: list[pa.Field]) -> str:
    return ", ".join(_format_field(field, " ") for field in fields)


def format_type(dtype: pa.DataType) -> str:
    """The text of one type; raises InvalidSchema for an Arrow type that has none."""
    if dtype in _NAME_OF:
        return _NAME_OF[dtype]
    if pa.types.is_decimal128(dtype):
        return f"decimal({dtype.precision},{dtype.scale})"
    if pa.types.is_list(dtype):
        return f"array<{format_type(dtype.value_type)}>"
    if pa.types.is_map(dtype):
        return f"map<{format_type(dtype.key_type)},{format_type(dtype.item_type)}>"
    if pa.types.is_struct(dtype):
        return f"struct<{','.join(_format_field(field, ':') for field in dtype)}>"
    raise InvalidSchema(f"the Arrow type {dtype} is not supported in a schema", next_step=_known_types())


def refuse_clashing_names(fields: list[pa.Field], *, inside: str | None) -> None:
    """Rejects empty names and names that Spark, which ignores case, could not distinguish."""
    owner = f"struct '{inside}'" if inside else "schema"
    seen: dict[str, str] = {}
    for field in fields:
        if not field.name:
            raise InvalidSchema(f"the {owner} has a column without a name", next_step="give every column a name")
        earlier = seen.get(field.name.lower())
        if earlier is not None:
            how = "appears twice" if earlier == field.name else f"clashes with '{earlier}': Spark ignores case in names"
            raise InvalidSchema(f"the column '{field.name}' of the {owner} {how}", next_step="rename one of them")
        seen[field.name.lower()] = field.name


def _format_field(field: pa.Field, between: str) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{between}{time_unit(field) or format_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


def time_unit(field: pa.Field) -> str | None:
    """The name in TIME_UNITS that a timestamp column was declared with."""
    unit = (field.metadata or {}).get(UNIT)
    return unit.decode() if unit is not None and pa.types.is_timestamp(field.type) else None


def _known_types() -> str:
    return "known types: " + ", ".join(KNOWN_NAMES)


class _Reader:
    """Reads tokens left to right with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.ahead: _Token | None = None
        self.unit: str | None = None
        """The unit of the type that was read last, if it has one."""

    def peek(self) -> _Token:
        if self.ahead is None:
            match = _TOKEN.match(self.text, self.position)
            if match is None:
                at = len(self.text) - len(self.text[self.position :].lstrip())
                raise self.refusal(
                    "this character is not allowed here", at, next_step="put special names in backticks: `a-b`"
                )
            kind = match.lastgroup or "end"
            self.position = match.end()
            self.ahead = _Token(kind, match[kind], match.start(kind))
        return self.ahead

    def take(self) -> _Token:
        token = self.peek()
        self.ahead = None
        return token

    def refusal(self, what: str, at: int, *, next_step: str | None = None) -> InvalidSchema:
        rest = self.text[at : at + 24]
        near = f"at '{rest}{'…' if len(self.text) > at + 24 else ''}'" if rest else "at its end"
        return InvalidSchema(what, where=f"character {at + 1} of the schema text, {near}", next_step=next_step)

    def expect(self, mark: str, after: str) -> _Token:
        token = self.take()
        if token.text.lower() != mark or token.kind == "quoted":
            raise self.refusal(f"expected '{mark}' {after}, found {_found(token)}", token.at)
        return token

    def word_is(self, *words: str) -> bool:
        token = self.peek()
        return token.kind == "word" and token.text.lower() in words

    # ------------------------------------------------------------ the grammar, from the outside in

    def fields(self, depth: int, closing: str | None) -> list[pa.Field]:
        found = [self.field(depth)]
        while self.peek().text == ",":
            self.take()
            found.append(self.field(depth))
        token = self.take()
        if closing is None and token.kind != "end":
            raise self.refusal(f"expected ',' or the end after '{found[-1].name}', found {_found(token)}", token.at)
        if closing is not None and token.text != closing:
            raise self.refusal(f"expected ',' or '{closing}' after '{found[-1].name}', found {_found(token)}", token.at)
        return found

    def field(self, depth: int) -> pa.Field:
        name = self.name()
        if self.peek().text == ":":
            self.take()
        dtype = self.type(f"after the name '{name}'", depth, name)
        unit, self.unit = self.unit, None
        nullable = True
        if self.word_is("not"):
            self.take()
            self.expect("null", "after NOT")
            nullable = False
        if self.word_is("comment"):
            self.take()
            token = self.take()
            if token.kind != "text":
                raise self.refusal(f"expected a quoted string after COMMENT, found {_found(token)}", token.at)
        return pa.field(name, dtype, nullable=nullable, metadata=None if unit is None else {UNIT: unit})

    def name(self) -> str:
        token = self.take()
        if token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
            if not name:
                raise self.refusal("a column name is empty", token.at)
            return name
        if token.kind != "word":
            raise self.refusal(f"expected a column name, found {_found(token)}", token.at)
        if token.text.isdigit():
            raise self.refusal(f"expected a column name, found the number {token.text}", token.at,
                        next_step=f"put it in backticks: `{token.text}`")  # fmt: skip
        return token.text

    def type(self, place: str, depth: int, name: str) -> pa.DataType:
        token = self.take()
        if depth > NESTING_MAX:
            raise self.refusal(f"types are nested more than {NESTING_MAX} levels deep", token.at)
        if token.kind != "word":
            raise self.refusal(f"expected a type {place}, found {_found(token)}", token.at, next_step=_known_types())
        kind = token.text.lower()
        if kind in SIMPLE_TYPES:
            return SIMPLE_TYPES[kind]
        if kind in TIME_UNITS:
            if not place.startswith("after the name"):
                raise self.refusal(
                    f"{kind} is the type of a column or of a struct's field, not {place}",
                    token.at,
                    next_step="use bigint, and convert it with an expression such as transform(…, timestamp_millis)",
                )
            self.unit = kind
            return SIMPLE_TYPES["timestamp"]
        if kind in DECIMAL_NAMES:
            return self.decimal(token)
        if kind in TEXT_WITH_LENGTH_NAMES:
            self.numbers(token, at_most=1, needed=True)
            return pa.string()
        if kind == "interval":
            for word in INTERVAL_WORDS:
                self.expect(word, "in 'interval day to second'")
            return pa.duration("us")
        if kind in NESTED_NAMES:
            return self.nested(kind, depth, name)
        close = difflib.get_close_matches(
            kind, [*SIMPLE_TYPES, *TIME_UNITS, *DECIMAL_NAMES, *NESTED_NAMES, "varchar"], n=1
        )
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise self.refusal(f"unknown type '{token.text}' {place}", token.at, next_step=hint + _known_types())

    def nested(self, kind: str, depth: int, name: str) -> pa.DataType:
        self.expect("<", f"after {kind}")
        if kind == "struct":
            fields = self.fields(depth + 1, closing=">")
            refuse_clashing_names(fields, inside=name)
            return pa.struct(fields)
        first = self.type(f"inside {kind}<…>", depth + 1, name)
        if kind == "array":
            self.expect(">", "after the type of the array's elements")
            return pa.list_(first)
        self.expect(",", "between the types of the map's keys and values")
        second = self.type("for the map's values", depth + 1, name)
        self.expect(">", "after the type of the map's values")
        return pa.map_(first, second)

    def decimal(self, token: _Token) -> pa.DataType:
        numbers = self.numbers(token, at_most=2, needed=False)
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])
        if not 1 <= precision <= DECIMAL_DIGITS_MAX:
            raise self.refusal(f"a decimal must have 1 to {DECIMAL_DIGITS_MAX} digits, not {precision}", token.at)
        if scale > precision:
            raise self.refusal(f"decimal({precision},{scale}) has more decimal places than digits", token.at)
        return pa.decimal128(precision, scale)

    def numbers(self, token: _Token, *, at_most: int, needed: bool) -> list[int]:
        if self.peek().text != "(":
            if needed:
                raise self.refusal(f"expected a length after {token.text}, as in {token.text}(20)", self.peek().at)
            return []
        self.take()
        found: list[int] = []
        while True:
            number = self.take()
            if number.kind != "word" or not re.fullmatch(r"[0-9]{1,9}", number.text):
                raise self.refusal(f"expected a number in {token.text}(…), found {_found(number)}", number.at)
            found.append(int(number.text))
            mark = self.take()
            if mark.text == ")":
                return found
            if mark.text != "," or len(found) == at_most:
                raise self.refusal(f"expected ')' after {token.text}({found[-1]}, found {_found(mark)}", mark.at)


def _found(token: _Token) -> str:
    return "the end of the text" if token.kind == "end" else f"'{token.text}'"
