"""The libraries of lake formats, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from millstream.errors import InvalidInput


def deltalake_module(name: str) -> ModuleType:
    return _module(name, "Delta Lake tables need the package deltalake")


def pyiceberg_module(name: str) -> ModuleType:
    return _module(name, "Iceberg tables need the package pyiceberg")


def _module(name: str, what: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidInput(what, next_step="pip install 'millstream[lakes]'") from error
