"""Sends the user's functions and classes by value: a worker need not be able to import the file that defines them."""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from pyspark import cloudpickle

INSTALLED = tuple({str(Path(path).resolve()) for path in sysconfig.get_paths().values()})
LIBRARIES = ("site-packages", "dist-packages")
OURS = str(Path(__file__).resolve().parents[2])
DEPTH_MAX = 4
MODULES_MAX = 2_000


def ship(nodes: Iterable[Any]) -> None:
    """Registers the user's own modules of the functions and classes in a plan to be pickled by value."""
    for defined in (found for node in nodes for found in _definitions(node, 0)):
        module = sys.modules.get(defined.__module__)
        if module is not None and _is_users(module):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _definitions(value: Any, depth: int) -> Iterator[FunctionType | type]:
    """The functions in a part of a plan, and the classes of its values: a connector may be the user's own."""
    if isinstance(value, FunctionType):
        yield value
    elif depth > DEPTH_MAX:
        return
    elif isinstance(value, MethodType):
        yield from _definitions(value.__func__, depth + 1)
    elif isinstance(value, partial):
        yield from _definitions(value.func, depth + 1)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _definitions(part, depth + 1)
    elif not isinstance(value, type):
        yield type(value)
        for field in fields(value) if is_dataclass(value) else ():
            if field.name != "inputs":
                yield from _definitions(getattr(value, field.name), depth + 1)


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return False  # is pickled by value anyway, or cannot be
    return _is_users_file(Path(file))


def _is_users_file(file: Path) -> bool:
    path = file.resolve()
    return not str(path).startswith((*INSTALLED, OURS)) and not any(part in LIBRARIES for part in path.parts)


# ---------------------------------------------------------------- the modules that they import


def modules(nodes: Iterable[Any]) -> dict[str, Path]:
    """The user's own modules that the functions and classes of a plan may import, by their path in a zip.

    Imports are read from the file that defines a function, from the files it imports, and so on; of a package all files
    are included.
    """
    files = {file for node in nodes for found in _definitions(node, 0) for file in _file_of(found)}
    pending = [file for file in files if file.is_file() and _is_users_file(file)]
    scanned: set[Path] = set()
    found: dict[str, Path] = {}
    names = {name for file in pending for name in _own_name(file)}
    while pending or names:
        while pending:
            file = pending.pop()
            if file not in scanned:
                scanned.add(file)
                names |= _imported(file)
        for name in names:
            more = _files_of(name) if name not in found else {}
            found |= more
            pending += [file for file in more.values() if file.suffix == ".py" and file not in scanned]
        names = set()
        if len(found) > MODULES_MAX:
            break  # not a sensible package: functions are still pickled by value
    return dict(sorted(found.items()))


def _file_of(defined: FunctionType | type) -> Iterator[Path]:
    if isinstance(defined, FunctionType):
        yield Path(defined.__code__.co_filename)
    elif file := getattr(sys.modules.get(defined.__module__), "__file__", None):
        yield Path(file)


def _own_name(file: Path) -> Iterator[str]:
    """The module that a file was imported as, if any: its classes are pickled by that name."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and getattr(module, "__file__", None) == str(file):
            yield name.partition(".")[0]


def _imported(file: Path) -> set[str]:
    """The top-level names of all imports in a file."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    return {name.partition(".")[0] for name in names}


def _files_of(name: str) -> dict[str, Path]:
    """The files of a module or package, if it is the user's own."""
    spec = None
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.has_location or not _is_users_file(Path(spec.origin)):
        return {}
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        return {origin.name: origin} if origin.suffix == ".py" else {}
    folder = origin.parent
    inside = (file for file in folder.rglob("*") if file.is_file() and not {"__pycache__", ".git"} & {*file.parts})
    return {str(Path(name) / file.relative_to(folder)): file for file in inside}
