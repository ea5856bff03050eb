"""Puts the definitions of named types that an Avro schema refers to into the schema itself, at their first use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from millstream.records.codecs.avro_shape import SCHEMA_BYTES_MAX
from millstream.records.columns import Refused

_NAMED = ("record", "error", "enum", "fixed")
_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def self_contained(text: str, others: Sequence[str]) -> str:
    """The schema with the definitions of `others`, wherever it first names them."""
    if sum(map(len, [text, *others])) > SCHEMA_BYTES_MAX:
        raise Refused("the schemas are too large together")
    known: dict[str, Any] = {}
    for other in others:
        _collect(json.loads(other), "", known)
    return json.dumps(_filled(json.loads(text), "", known, set()))


def _full_name(type: dict[str, Any], namespace: str) -> str:
    name = str(type["name"])
    if "." in name:
        return name
    own = type.get("namespace", namespace)
    return f"{own}.{name}" if own else name


def _collect(type: Any, namespace: str, known: dict[str, Any]) -> None:
    """The named types of a schema, with their full names."""
    if isinstance(type, list):
        for each in type:
            _collect(each, namespace, known)
    elif isinstance(type, dict):
        if type.get("type") in _NAMED and "name" in type:
            full = _full_name(type, namespace)
            known.setdefault(full, {**type, "name": full})
            namespace = full.rpartition(".")[0]
        for member in type.get("fields", ()):
            _collect(member.get("type"), namespace, known)
        for part in ("items", "values", "type"):
            if isinstance(type.get(part), (dict, list)):
                _collect(type[part], namespace, known)


def _filled(type: Any, namespace: str, known: dict[str, Any], defined: set[str]) -> Any:
    if isinstance(type, list):
        return [_filled(each, namespace, known, defined) for each in type]
    if isinstance(type, str):
        full = type if "." in type or not namespace else f"{namespace}.{type}"
        for name in (full, type):
            if type not in _PRIMITIVE and name not in defined and name in known:
                return _filled(known[name], "", known, defined)
        return full if full in defined else type
    if not isinstance(type, dict):
        return type
    made = dict(type)
    if made.get("type") in _NAMED and "name" in made:
        full = _full_name(made, namespace)
        if full in defined:
            return full
        defined.add(full)
        made["name"] = full
        made.pop("namespace", None)
        namespace = full.rpartition(".")[0]
        if "fields" in made:
            made["fields"] = [
                {**member, "type": _filled(member.get("type"), namespace, known, defined)} for member in made["fields"]
            ]
        return made
    for part in ("items", "values", "type"):
        if part in made:
            made[part] = _filled(made[part], namespace, known, defined)
    return made
