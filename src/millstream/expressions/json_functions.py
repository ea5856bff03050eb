"""Spark's functions of JSON, in DuckDB; text that DuckDB's parser rejects or prints differently goes through Python."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.expressions.function_entries import INT, STRING, Function, let, literal_of, made
from millstream.expressions.lowered import Lowered, Refusal, text, type_name
from millstream.expressions.spark_types import duckdb_name, family, quoted
from millstream.records import Schema

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|\['([^'\"*\]]+)'\]")
ODD = r",\s*[\]}]|[\[:,]\s*-?(?i:nan|inf)"
"""DuckDB also takes a comma before an end, and numbers that are not finite; Spark takes other text that is not JSON."""
READABLE = ("string", "boolean")


def _odd(s: str) -> str:
    return f"NOT json_valid({s}) OR regexp_matches({s}, {text(ODD)})"


def _steps(path: str) -> list[str | int]:
    if not re.fullmatch(rf"\$(?:{_STEP.pattern})*", path):
        raise Refusal(f"the path '{path}' has more than names and positions", "write for example '$.a.b[0]'")
    return [int(at) if at else name or other for name, at, other in _STEP.findall(path)]


def get_json_object(parts: Sequence[Lowered]) -> Lowered:
    steps = _steps(literal_of(parts[1], "get_json_object", "path"))
    exact = text(json.dumps(steps))
    if not steps:
        return Lowered(f"spark_get_json_object({parts[0].sql}, {exact})", STRING)
    path = text("$" + "".join(f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in steps))

    def body(s: str) -> str:
        kind = f"json_type({s}, {path})"
        return (
            f"(CASE WHEN {_odd(s)} THEN spark_get_json_object({s}, {exact})"
            f" WHEN {kind} IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'BOOLEAN') THEN json_extract_string({s}, {path})"
            f" WHEN {kind} IS NULL THEN NULL ELSE spark_get_json_object({s}, {exact}) END)"
        )

    return Lowered(let(parts[:1], body), STRING)


def from_json(parts: Sequence[Lowered]) -> Lowered:
    ddl = literal_of(parts[1], "from_json", "schema")
    try:
        kind = pa.struct(list(Schema.of(ddl).arrow))
    except MillstreamError:
        raise Refusal(
            f"the schema '{ddl}' of from_json is not a list of columns", "write for example 'a int'"
        ) from None
    for field in kind:
        _readable(field.type, field.name)
    given = parts[0].sql
    exact = (
        f"CAST(json_transform(spark_from_json({given}, {text(ddl)}), {text(json.dumps(_structure(kind)))})"
        f" AS {duckdb_name(kind)})"
    )
    if not all(pa.types.is_primitive(field.type) or pa.types.is_string(field.type) for field in kind):
        return Lowered(exact, kind)
    names = [text(f'$."{field.name}"') for field in kind]
    if any('"' in field.name or "\\" in field.name for field in kind):
        return Lowered(exact, kind)
    listed = ", ".join(names)

    def body(s: str) -> str:
        twice = f"len(json_keys({s})) > len(list_distinct(json_keys({s})))"
        slow = f"{_odd(s)} OR json_type({s}) <> 'OBJECT' OR {twice}"
        whole = Lowered(
            f"struct_pack(kinds := json_type({s}, [{listed}]), strings := json_extract_string({s}, [{listed}]))",
            kind,
        )

        def fields(found: str) -> str:
            made = [
                f"{quoted(field.name)} := {_leaf(field, f'{found}.kinds[{at}]', f'{found}.strings[{at}]', s)}"
                for at, field in enumerate(kind, 1)
            ]
            return f"struct_pack({', '.join(made)})"

        return f"(CASE WHEN {s} IS NULL THEN NULL WHEN {slow} THEN {exact} ELSE {let([whole], fields)} END)"

    return Lowered(let(parts[:1], body), kind)


def _leaf(field: pa.Field, kind: str, string: str, whole: str) -> str:
    """A field of text that both parsers read alike: its kind there, and how it is written."""
    if pa.types.is_integer(field.type):
        return f"(CASE WHEN {kind} IN ('BIGINT', 'UBIGINT') THEN TRY_CAST({string} AS {duckdb_name(field.type)}) END)"
    if pa.types.is_boolean(field.type):
        return f"(CASE WHEN {kind} = 'BOOLEAN' THEN {string} = 'true' END)"
    if pa.types.is_floating(field.type):
        special = "'NaN', 'Infinity', '-Infinity', '+Infinity', 'INF', '-INF', '+INF'"
        number = f"CAST(replace(replace({string}, 'INF', 'Infinity'), '+', '') AS DOUBLE)"
        return (
            f"(CASE WHEN {kind} IN ('BIGINT', 'UBIGINT', 'DOUBLE') THEN TRY_CAST({string} AS DOUBLE)"
            f" WHEN {kind} = 'VARCHAR' AND {string} IN ({special}) THEN {number} END)"
        )
    other = f"spark_get_json_object({whole}, {text(json.dumps([field.name]))})"
    return (
        f"(CASE WHEN {kind} IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'BOOLEAN') THEN {string}"
        f" WHEN {kind} IS NULL OR {kind} = 'NULL' THEN NULL ELSE {other} END)"
    )


def _readable(kind: pa.DataType, name: str) -> None:
    if pa.types.is_struct(kind):
        for field in kind:
            _readable(field.type, field.name)
    elif pa.types.is_list(kind) and not pa.types.is_struct(kind.value_type):
        _readable(kind.value_type, name)
    elif family(kind) not in READABLE and not pa.types.is_integer(kind) and not pa.types.is_float64(kind):
        raise Refusal(
            f"from_json does not read '{name}' as {type_name(kind)} in a flow", "read it as string, and convert that"
        )


def _structure(kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        return {field.name: _structure(field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_structure(kind.value_type)]
    return duckdb_name(kind)


def to_json(parts: Sequence[Lowered]) -> Lowered:
    """Fields that are null are left out; items and values of maps are not."""
    if parts[0].family not in ("struct", "array", "map"):
        raise Refusal(f"to_json takes a struct, an array or a map, but got {type_name(parts[0].type)}")
    return Lowered(
        let(parts, lambda x: f"(CASE WHEN {x} IS NULL THEN NULL ELSE {_json(x, parts[0].type, 0)} END)"), STRING
    )


def _json(x: str, kind: pa.DataType, depth: int) -> str:
    """The JSON of a value that is not null."""
    each = f'"json{depth}"'
    sort = family(kind)
    if pa.types.is_floating(kind):
        raise Refusal(f"to_json prints {type_name(kind)} as Java does (1.0E10)", "cast it to a decimal")
    if sort in ("number", "boolean"):
        return f"CAST({x} AS VARCHAR)"
    if sort == "string":
        return f"CAST(to_json({x}) AS VARCHAR)"
    if sort == "date":
        return f"""('"' || CAST({x} AS VARCHAR) || '"')"""
    if sort == "timestamp":
        return f"""strftime({x}, '"%Y-%m-%dT%H:%M:%S.%gZ"')"""
    if sort == "binary":
        return f"""('"' || base64({x}) || '"')"""
    if sort == "struct":
        fields = [
            f"CASE WHEN {value} IS NOT NULL THEN {text(json.dumps(field.name, ensure_ascii=False) + ':')}"
            f" || {_json(value, field.type, depth)} END"
            for field in kind
            for value in [f"struct_extract({x}, {text(field.name)})"]
        ]
        return f"('{{' || concat_ws(',', {', '.join(fields)}) || '}}')"
    if sort == "array":
        item = f"(CASE WHEN {each} IS NULL THEN 'null' ELSE {_json(each, kind.value_type, depth + 1)} END)"
        return f"('[' || coalesce(array_to_string(list_transform({x}, lambda {each}: {item}), ','), '') || ']')"
    if sort == "map":
        key, value = f"struct_extract({each}, 'key')", f"struct_extract({each}, 'value')"
        if family(kind.key_type) not in ("string", "number", "boolean") or pa.types.is_floating(kind.key_type):
            raise Refusal(f"to_json of a map with keys of type {type_name(kind.key_type)} is not supported in a flow")
        entry = (
            f"CAST(to_json(CAST({key} AS VARCHAR)) AS VARCHAR) || ':' ||"
            f" (CASE WHEN {value} IS NULL THEN 'null' ELSE {_json(value, kind.item_type, depth + 1)} END)"
        )
        entries = f"list_transform(map_entries({x}), lambda {each}: {entry})"
        return f"('{{' || coalesce(array_to_string({entries}, ','), '') || '}}')"
    raise Refusal(f"to_json of {type_name(kind)} is not supported in a flow")


JSON: dict[str, Function] = {
    "get_json_object": Function(("string", "string"), get_json_object, note="paths of names and positions"),
    "from_json": Function(("string", "string"), from_json, note="a schema of whole numbers, doubles, booleans, "
                          "strings, structs, and arrays of all but structs"),
    "to_json": Function(("any",), to_json, note="without floating-point numbers"),
    "json_array_length": made(INT, "spark_json_array_length({0})", "string"),
    "json_object_keys": Function(
        ("string",), lambda parts: Lowered(f"spark_json_object_keys({parts[0].sql})", pa.list_(STRING))
    ),
}  # fmt: skip
