"""Default names of steps: a step is named after its source, what it does, and a digest of its definition and inputs.

State is stored by name. A name therefore depends on the step and its inputs, never on the step's position in the file:
other steps can be added, removed and reordered without changing it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from types import CodeType
from typing import Any

from millstream.plan.nodes import Node

DIGEST = re.compile(r"-[0-9a-f]{6}(_\d+)?$")
READ = "read_"
PLAIN = (str, bytes, int, float, bool, type(None))


def plain(kind: str) -> str:
    """A kind of step, such as "split big", as part of a name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", kind).strip("_").lower() or "step"


def default_name(node: Node, kind: str) -> str:
    """For example scores.agg-1f6b0c, for a step whose first input comes from the source read_scores."""
    definition = [type(node).__name__, kind, node.label, *_lambdas(node), *(given.name for given in node.inputs)]
    digest = hashlib.sha256("\n".join(definition).encode()).hexdigest()[:6]
    return f"{_source_of(node)}.{plain(kind)}-{digest}"


def is_default(name: str) -> bool:
    """Whether a name looks like a default name."""
    return DIGEST.search(name) is not None


def without_digest(name: str) -> str:
    return DIGEST.sub("", name)


def _source_of(node: Node) -> str:
    while node.inputs:
        node = node.inputs[0]
    return node.name.removeprefix(READ)


def _lambdas(node: Node) -> Iterator[str]:
    """Functions are identified by name, so that their bodies may change; a lambda has no name, so its code counts."""
    for each in fields(node):
        value = getattr(node, each.name)
        if callable(value) and getattr(value, "__name__", "") == "<lambda>":
            yield _content(value)


def _content(function: Callable[..., Any]) -> str:
    held = [*_cells(function), *(function.__defaults__ or ())]
    return repr((_code(function.__code__), [value for value in held if isinstance(value, PLAIN)]))


def _cells(function: Callable[..., Any]) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents


def _code(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_names, code.co_varnames, [_constant(each) for each in code.co_consts]


def _constant(value: Any) -> str:
    """The same text in every process, unlike the order of a set."""
    if isinstance(value, CodeType):
        return repr(_code(value))
    if isinstance(value, tuple | frozenset):
        parts = [_constant(each) for each in value]
        return repr(parts if isinstance(value, tuple) else sorted(parts))
    return repr(value)
