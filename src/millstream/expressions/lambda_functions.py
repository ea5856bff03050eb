"""Spark's higher-order functions, in DuckDB: the body of `x -> …` is lowered with x bound to an item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa
from sqlglot import Expr, exp

from millstream.expressions.array_functions import any_null, sort, where
from millstream.expressions.function_entries import BOOLEAN, INT, let
from millstream.expressions.java_sort import CONTRADICTION, NULL_COMPARISON
from millstream.expressions.lowered import Lowered, Refusal, failing, text, type_name
from millstream.expressions.map_functions import key_type
from millstream.expressions.spark_types import duckdb_name


class Visitor(Protocol):
    """What lowers a part of an expression, and knows the variables around it."""

    variables: dict[str, Lowered]

    def visit(self, node: Expr) -> Lowered: ...
    def fresh(self) -> str: ...


def higher_order(name: str, visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    lower, least, most = FUNCTIONS[name]
    if not least <= len(nodes) <= most:
        raise Refusal(
            f"{name} takes {least if least == most else f'{least} or {most}'} arguments, but got {len(nodes)}"
        )
    return lower(visitor, nodes)


def _body(visitor: Visitor, node: Expr, *values: Lowered) -> Lowered:
    """The body of a function, with its parameters standing for these values; the last of them may be left out."""
    if not isinstance(node, exp.Lambda):
        raise Refusal(f"'{node.sql(dialect='spark')}' is not a function", "write for example x -> x + 1")
    names = [each.name.lower() for each in node.expressions]
    if len(names) > len(values) or len(set(names)) < len(names):
        raise Refusal(f"the function '{node.sql(dialect='spark')}' has the wrong parameters")
    around = visitor.variables
    visitor.variables = {**around, **dict(zip(names, values, strict=False))}
    try:
        return visitor.visit(node.this)
    finally:
        visitor.variables = around


def _takes(node: Expr, count: int) -> None:
    if isinstance(node, exp.Lambda) and len(node.expressions) != count:
        raise Refusal(f"the function '{node.sql(dialect='spark')}' must have {count} parameters")


def _array(visitor: Visitor, node: Expr, name: str) -> Lowered:
    part = visitor.visit(node)
    if part.family != "array":
        raise Refusal(f"{name} takes an array, but got {type_name(part.type)}")
    return part


def _map(visitor: Visitor, node: Expr, name: str) -> Lowered:
    part = visitor.visit(node)
    if part.family != "map":
        raise Refusal(f"{name} takes a map, but got {type_name(part.type)}")
    return part


def _condition(body: Lowered) -> Lowered:
    if body.family == "null":
        return Lowered("CAST(NULL AS BOOLEAN)", BOOLEAN)
    if body.family != "boolean":
        raise Refusal(f"the function must be true or false, but is {type_name(body.type)}", "compare with something")
    return body


def _typed(body: Lowered) -> Lowered:
    if body.family == "null":
        raise Refusal("the function is always null and has no type", "write cast(null as …)")
    return body


# ---------------------------------------------------------------- arrays


def _each(visitor: Visitor, array: Lowered, node: Expr) -> tuple[str, Lowered]:
    """The parameters in DuckDB, and the body: of an item, and of its position from 0 if the function takes two."""
    item, at = visitor.fresh(), visitor.fresh()
    position = Lowered(f"CAST({at} - 1 AS INTEGER)", INT)
    body = _body(visitor, node, Lowered(item, array.type.value_type), position)
    both = isinstance(node, exp.Lambda) and len(node.expressions) == 2
    return (f"{item}, {at}" if both else item), body


def _transform(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    array = _array(visitor, nodes[0], "transform")
    names, body = _each(visitor, array, nodes[1])
    kind = pa.list_(_typed(body).type)
    return Lowered(f"list_transform({array.sql}, lambda {names}: {body.sql})", kind, array.fails or body.fails)


def _filter(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    array = _array(visitor, nodes[0], "filter")
    names, body = _each(visitor, array, nodes[1])
    made = f"list_filter({array.sql}, lambda {names}: {_condition(body).sql})"
    return Lowered(made, array.type, array.fails or body.fails)


def _quantified(name: str, decides: str, otherwise: str) -> Lower:
    """exists and forall: decided by one item; else null if some condition was null."""

    def lower(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
        _takes(nodes[1], 1)
        array = _array(visitor, nodes[0], name)
        item = visitor.fresh()
        if _condition(_body(visitor, nodes[1], Lowered(item, array.type.value_type))).fails:
            return _in_order(visitor, array, nodes[1], decides, otherwise)
        body = _condition(_body(visitor, nodes[1], Lowered(item, array.type.value_type)))
        rank = f"(CASE WHEN {body.sql} IS {decides} THEN 2 WHEN {body.sql} IS NULL THEN 1 ELSE 0 END)"
        most = f"list_max(list_transform({{0}}, lambda {item}: {rank}))"
        made = let(
            [array],
            lambda a: (
                f"(CASE WHEN {a} IS NULL THEN NULL ELSE (CASE {most.replace('{0}', a)}"
                f" WHEN 2 THEN {decides} WHEN 1 THEN NULL ELSE {otherwise} END) END)"
            ),
        )
        return Lowered(made, BOOLEAN, array.fails)

    return lower


def _in_order(visitor: Visitor, array: Lowered, node: Expr, decides: str, otherwise: str) -> Lowered:
    """The same item by item: what stands behind the one that decides is not evaluated, and so cannot fail."""

    def step(state: Lowered, item: Lowered) -> Lowered:
        body = _condition(_body(visitor, node, item)).sql
        word = "OR" if decides == "TRUE" else "AND"
        return Lowered(
            f"(CASE WHEN {state.sql} IS {decides} THEN {decides} ELSE ({state.sql} {word} {body}) END)", BOOLEAN
        )

    return _folded(visitor, array, Lowered(otherwise, BOOLEAN), step)


def _folded(visitor: Visitor, array: Lowered, zero: Lowered, step: Callable[[Lowered, Lowered], Lowered]) -> Lowered:
    """DuckDB reduces a list to a value of the type of its items: both are put into one struct."""
    one, other = visitor.fresh(), visitor.fresh()
    kinds = duckdb_name(zero.type), duckdb_name(array.type.value_type)
    wide = visitor.fresh()
    items = (
        f"list_transform({array.sql}, lambda {wide}: struct_pack(state := CAST(NULL AS {kinds[0]}), item := {wide}))"
    )
    next_state = step(
        Lowered(f"struct_extract({one}, 'state')", zero.type),
        Lowered(f"struct_extract({other}, 'item')", array.type.value_type),
    )
    nothing = f"CAST(NULL AS {kinds[1]})"
    made = (
        f"struct_extract(list_reduce({items}, lambda {one}, {other}:"
        f" struct_pack(state := CAST({next_state.sql} AS {kinds[0]}), item := {nothing}),"
        f" struct_pack(state := CAST({zero.sql} AS {kinds[0]}), item := {nothing})), 'state')"
    )
    return Lowered(made, zero.type, fails=True)


def _aggregate(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    _takes(nodes[2], 2)
    array, zero = _array(visitor, nodes[0], "aggregate"), _typed(visitor.visit(nodes[1]))

    def step(state: Lowered, item: Lowered) -> Lowered:
        body = _body(visitor, nodes[2], state, item)
        if body.type != zero.type:
            raise Refusal(
                f"aggregate starts with {type_name(zero.type)}, but its function returns {type_name(body.type)}",
                "cast one of them",
            )
        return body

    made = _folded(visitor, array, zero, step)
    if len(nodes) == 3:
        return made
    _takes(nodes[3], 1)
    end = visitor.fresh()
    finish = _typed(_body(visitor, nodes[3], Lowered(end, zero.type)))
    # an array that is null has no end; but the last function may turn a null state into something
    done = let(
        [array],
        lambda a: (
            f"(CASE WHEN {a} IS NULL THEN NULL ELSE"
            f" list_extract(list_transform(list_value({made.sql}), lambda {end}: {finish.sql}), 1) END)"
        ),
    )
    return Lowered(done, finish.type, fails=True)


def _zip_with(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    _takes(nodes[2], 2)
    arrays = [_array(visitor, node, "zip_with") for node in nodes[:2]]
    both = visitor.fresh()
    items = [Lowered(f"{both}[{at}]", array.type.value_type) for at, array in enumerate(arrays, 1)]
    body = _typed(_body(visitor, nodes[2], *items))
    made = let(
        arrays,
        lambda a, b: (
            f"(CASE WHEN {any_null(a, b)} THEN NULL ELSE"
            f" list_transform(list_zip({a}, {b}), lambda {both}: {body.sql}) END)"
        ),
    )
    return Lowered(made, pa.list_(body.type), any(part.fails for part in (*arrays, body)))


def _array_sort(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    """Every item is compared with every other one, and Python sorts them by these signs as Java does.

    A comparison that fails is an error only if Java makes it.
    """
    array = _array(visitor, nodes[0], "array_sort")
    if len(nodes) == 1:
        return sort([array])
    _takes(nodes[1], 2)
    one, other, place = visitor.fresh(), visitor.fresh(), visitor.fresh()
    item = array.type.value_type
    body = _body(visitor, nodes[1], Lowered(one, item), Lowered(other, item))
    if body.type != INT:
        raise Refusal(
            f"the function of array_sort must return an int, but returns {type_name(body.type)}",
            "return -1, 0 or 1: case when l < r then -1 when l > r then 1 else 0 end",
        )
    if VOLATILE in body.sql:
        raise Refusal("the function of array_sort may fail, and would be called for more items than on Spark")
    sign = f"TRY({body.sql})" if body.fails else body.sql

    def body_of(a: str) -> str:
        signs = f"list_transform({a}, lambda {one}: list_transform({a}, lambda {other}: {sign}))"
        same = f"list_transform({a}, lambda {one}: {where(a, one)})"
        places = Lowered(f"spark_sorted_places({signs}, {same})", pa.list_(INT))
        return let([places], lambda p: _in_order_of(a, p, place))

    return Lowered(let([array], body_of), array.type, fails=True)


def _in_order_of(array: str, places: str, place: str) -> str:
    made = f"list_transform({places}, lambda {place}: {array}[{place}])"
    made = failing(f"{places}[1] = {NULL_COMPARISON}", "a comparison of array_sort is null, or failed", made)
    return failing(f"{places}[1] = {CONTRADICTION}", "the comparisons of array_sort contradict one another", made)


# ---------------------------------------------------------------- maps


def _entry(visitor: Visitor, node: Expr, given: Lowered) -> tuple[str, Lowered]:
    _takes(node, 2)
    entry = visitor.fresh()
    parts = [
        Lowered(f"struct_extract({entry}, {text(name)})", kind)
        for name, kind in (("key", given.type.key_type), ("value", given.type.item_type))
    ]
    return entry, _body(visitor, node, *parts)


def _map_filter(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    given = _map(visitor, nodes[0], "map_filter")
    entry, body = _entry(visitor, nodes[1], given)
    made = let(
        [given],
        lambda m: (
            f"(CASE WHEN {m} IS NULL THEN NULL ELSE"
            f" map_from_entries(list_filter(map_entries({m}), lambda {entry}: {_condition(body).sql})) END)"
        ),
    )
    return Lowered(made, given.type, given.fails or body.fails)


def _transform_values(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    given = _map(visitor, nodes[0], "transform_values")
    entry, body = _entry(visitor, nodes[1], given)
    kind = pa.map_(given.type.key_type, _typed(body).type)
    return _mapped(
        given, kind, "map_keys({0})", f"list_transform(map_entries({{0}}), lambda {entry}: {body.sql})", body
    )


def _transform_keys(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    given = _map(visitor, nodes[0], "transform_keys")
    entry, body = _entry(visitor, nodes[1], given)
    kind = pa.map_(key_type(_typed(body).type), given.type.item_type)
    keys = f"list_transform(map_entries({{0}}), lambda {entry}: {body.sql})"
    made = _mapped(given, kind, keys, "map_values({0})", body)
    return Lowered(made.sql, made.type, fails=True)


def _map_zip_with(visitor: Visitor, nodes: Sequence[Expr]) -> Lowered:
    """Keys are those of the first map, then the others of the second, as Spark has them."""
    _takes(nodes[2], 3)
    maps = [_map(visitor, node, "map_zip_with") for node in nodes[:2]]
    kind = maps[0].type.key_type
    if kind != maps[1].type.key_type or kind in FRACTIONS or pa.types.is_nested(kind):
        raise Refusal(f"map_zip_with takes maps with equal keys of a plain type, but got {type_name(maps[1].type)}")
    key, other, entry = visitor.fresh(), visitor.fresh(), visitor.fresh()
    types = {"key": kind, "one": maps[0].type.item_type, "other": maps[1].type.item_type}
    body = _typed(
        _body(visitor, nodes[2], *(Lowered(f"struct_extract({entry}, {text(n)})", t) for n, t in types.items()))
    )

    def zipped(a: str, b: str) -> str:
        rest = f"list_filter(map_keys({b}), lambda {other}: NOT list_contains(map_keys({a}), {other}))"
        pair = f"struct_pack(key := {key}, one := {a}[{key}], other := {b}[{key}])"
        entries = f"list_transform(list_concat(map_keys({a}), {rest}), lambda {key}: {pair})"
        value = f"struct_pack(key := struct_extract({entry}, 'key'), value := {body.sql})"
        made = f"map_from_entries(list_transform({entries}, lambda {entry}: {value}))"
        return f"(CASE WHEN {any_null(a, b)} THEN NULL ELSE {made} END)"

    made_type = pa.map_(kind, body.type)
    fails = any(part.fails for part in (*maps, body))
    return Lowered(f"CAST({let(maps, zipped)} AS {duckdb_name(made_type)})", made_type, fails)


def _mapped(given: Lowered, kind: pa.DataType, keys: str, values: str, body: Lowered) -> Lowered:
    made = let(
        [given],
        lambda m: (
            f"(CASE WHEN {m} IS NULL THEN NULL ELSE map({keys.replace('{0}', m)}, {values.replace('{0}', m)}) END)"
        ),
    )
    return Lowered(f"CAST({made} AS {duckdb_name(kind)})", kind, given.fails or body.fails)


FRACTIONS = (pa.float32(), pa.float64())
"""Keys of which several are equal to one another in Spark: NaN, and zero of both signs."""
VOLATILE = "error("
"""DuckDB does not allow it in TRY."""
Lower = Callable[[Visitor, Sequence[Expr]], Lowered]
FUNCTIONS: dict[str, tuple[Lower, int, int]] = {
    "transform": (_transform, 2, 2),
    "filter": (_filter, 2, 2),
    "exists": (_quantified("exists", "TRUE", "FALSE"), 2, 2),
    "forall": (_quantified("forall", "FALSE", "TRUE"), 2, 2),
    "aggregate": (_aggregate, 3, 4),
    "reduce": (_aggregate, 3, 4),
    "zip_with": (_zip_with, 3, 3),
    "array_sort": (_array_sort, 1, 2),
    "map_filter": (_map_filter, 2, 2),
    "map_zip_with": (_map_zip_with, 3, 3),
    "transform_keys": (_transform_keys, 2, 2),
    "transform_values": (_transform_values, 2, 2),
}
"""With the least and the most arguments."""
