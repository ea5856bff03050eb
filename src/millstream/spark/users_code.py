"""The user's functions travel as they are: a worker need not be able to import the file that they stand in."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from pyspark import cloudpickle

INSTALLED = tuple({str(Path(path).resolve()) for path in sysconfig.get_paths().values()})
OURS = str(Path(__file__).parent.parent.resolve())


def ship(nodes: list[Any]) -> None:
    """Has the modules of the functions in a plan travel by value, if they are the user's own."""
    for function in (found for node in nodes for found in _functions(node, 0)):
        module = sys.modules.get(function.__module__)
        if module is not None and _is_users(module):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _functions(value: Any, depth: int) -> Iterator[FunctionType]:
    if isinstance(value, FunctionType):
        yield value
    elif depth > 4:
        return
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _functions(part, depth + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name != "inputs":
                yield from _functions(getattr(value, field.name), depth + 1)


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return False  # travels by value anyway, or cannot
    path = str(Path(file).resolve())
    return not path.startswith((*INSTALLED, OURS))
