"""Functions that make several rows of one: each is an `explode` of an array, of structs if it makes several columns.

So they run wherever the array does: without Spark, or in Spark's own engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.expressions.lowered import Lowered, Mistake, Refusal, type_name
from millstream.expressions.spark_functions import GENERATORS
from millstream.expressions.spark_types import duckdb_name

if TYPE_CHECKING:
    import sqlglot

EXPLODE, OUTER = "explode", "_outer"
STRUCT = "__generated"
"""The column of structs whose fields are the generated columns."""


def exploded_argument(tree: sqlglot.Expr) -> sqlglot.Expr | None:
    """The array of an `explode` that is the whole expression; None if it is another expression."""
    from sqlglot import exp

    is_explode = isinstance(tree, exp.Anonymous) and tree.name.lower().removesuffix(OUTER) == EXPLODE
    return tree.expressions[0] if is_explode and len(tree.expressions) == 1 else None


def exploded(array: Lowered, tree: sqlglot.Expr) -> Lowered:
    """The array that rows are made of, with the type of its elements; a row of `explode_outer` has at least one."""
    if not pa.types.is_list(array.type):
        raise Refusal(f"the function {tree.name.lower()} makes several columns of it")
    element = array.type.value_type
    if tree.name.lower() == EXPLODE:
        return Lowered(array.sql, element, array.fails)
    nothing = f"CAST([NULL] AS {duckdb_name(array.type)})"
    return Lowered(f"(CASE WHEN len({array.sql}) > 0 THEN {array.sql} ELSE {nothing} END)", element, array.fails)


@dataclass(frozen=True)
class Call:
    """A call such as `posexplode(xs) as (pos, x)`: its arguments as texts, and the names after AS."""

    name: str
    arguments: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Generated:
    """What a call makes: rows of `rows`, if it makes several, then columns of each."""

    rows: str | None
    columns: tuple[tuple[str, str], ...]


def call_of(text: str) -> Call | None:
    """A call of a function that makes rows, alone or with names; None if the text is something else."""
    from sqlglot.errors import TokenError

    from millstream.expressions.spark_sql import SparkGrammar

    if not any(name in text.lower() for name in GENERATORS):
        return None
    try:
        tokens = SparkGrammar().tokenize(text)
    except TokenError:
        return None
    if len(tokens) < 3 or tokens[0].text.lower() not in GENERATORS or tokens[1].text != "(":
        return None
    depth, starts, ends, last = 0, [tokens[1].end + 1], [], 0
    for last, token in enumerate(tokens[1:], 1):  # noqa: B007
        is_sign = text[token.start] not in "'\"`"
        depth += is_sign and token.text in ("(", "[")
        depth -= is_sign and token.text in (")", "]")
        if is_sign and depth == 1 and token.text == ",":
            ends.append(token.start)
            starts.append(token.end + 1)
        if depth == 0:
            ends.append(token.start)
            break
    else:
        return None
    named = [token.text for token in tokens[last + 1 :] if token.text not in ("(", ")", ",")]
    if named and named[0].lower() == "as":
        named = named[1:]
    arguments = [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return Call(tokens[0].text.lower(), tuple(arguments), tuple(named))


def generated(call: Call, kind: pa.DataType | None) -> Generated:
    """The rows and columns of a call, given the type of its first argument; raises Mistake."""
    function = call.name.removesuffix(OUTER)
    rows, names, values = _MAKES[function](call, kind)
    if call.names and len(call.names) != len(names):
        raise Mistake(
            f"{call.name} makes {len(names)} column{'s' if len(names) > 1 else ''}, but {len(call.names)} are named",
            f"name each: {call.name}(…) as ({', '.join(names)})",
        )
    explode = EXPLODE + (OUTER if call.name.endswith(OUTER) else "")
    made = None if rows is None else f"{explode}({rows})"
    return Generated(made, tuple(zip(call.names or names, values, strict=True)))


Makes = tuple[str | None, list[str], list[str]]
"""The array, the names of the columns, and each as an expression over a row."""


def _fields(rows: str, names: Sequence[str]) -> Makes:
    return rows, list(names), [f"{STRUCT}.`{name}`" for name in names]


def _explode(call: Call, kind: pa.DataType | None) -> Makes:
    if kind is not None and pa.types.is_map(kind):
        return _fields(f"map_entries({call.arguments[0]})", ["key", "value"])
    return call.arguments[0], ["col"], [STRUCT]


def _posexplode(call: Call, kind: pa.DataType | None) -> Makes:
    (given,) = call.arguments
    if kind is not None and pa.types.is_map(kind):
        made = "(__x, __i) -> named_struct('pos', __i, 'key', __x.key, 'value', __x.value)"
        return _fields(f"transform(map_entries({given}), {made})", ["pos", "key", "value"])
    return _fields(f"transform({given}, (__x, __i) -> named_struct('pos', __i, 'col', __x))", ["pos", "col"])


def _inline(call: Call, kind: pa.DataType | None) -> Makes:
    if kind is None or not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        given = "nothing" if kind is None else type_name(kind)
        raise Mistake(f"{call.name} takes an array of structs, not {given}", "use explode(…) for other arrays")
    return _fields(call.arguments[0], [field.name for field in kind.value_type])


def _stack(call: Call, kind: pa.DataType | None) -> Makes:
    count, *values = call.arguments
    if not count.isdigit() or not int(count) or not values:
        raise Mistake(
            "stack takes a number of rows and values", "for example stack(2, 'a', a, 'b', b) as (name, value)"
        )
    width = -(-len(values) // int(count))
    values += ["null"] * (width * int(count) - len(values))
    names = [f"col{number}" for number in range(width)]
    rows = []
    for first in range(0, len(values), width):
        pairs = [f"'{name}', {value}" for name, value in zip(names, values[first : first + width], strict=True)]
        rows.append(f"named_struct({', '.join(pairs)})")
    return _fields(f"array({', '.join(rows)})", names)


def _json_tuple(call: Call, kind: pa.DataType | None) -> Makes:
    """It makes one row, with a column for each field."""
    body, *fields = call.arguments
    if not fields or not all(len(field) > 2 and field[0] == field[-1] == "'" for field in fields):
        raise Mistake("json_tuple takes a text and names of fields", "for example json_tuple(body, 'user') as (user)")
    paths = [f"get_json_object({body}, '$[\\'{field[1:-1]}\\']')" for field in fields]
    return None, [f"c{number}" for number in range(len(fields))], paths


_MAKES: dict[str, Any] = {
    EXPLODE: _explode,
    "posexplode": _posexplode,
    "inline": _inline,
    "stack": _stack,
    "json_tuple": _json_tuple,
}
