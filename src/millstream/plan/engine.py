"""The way from a flow to the engine that runs it, which is loaded when a flow runs: a plan needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

ENGINE = "millstream.spark.front"
_collecting: list[tuple[Any, str, dict[str, Any]]] | None = None


def call(flow: Any, verb: str, settings: dict[str, Any]) -> Any:
    """Has the engine do something with a flow, unless a file of flows is only being read."""
    if _collecting is not None:
        _collecting.append((flow, verb, settings))
        return None
    return getattr(import_module(ENGINE), verb)(flow, **settings)


@contextmanager
def collecting() -> Iterator[list[tuple[Any, str, dict[str, Any]]]]:
    """Inside it flows that are told to run are only noted: `millstream run` reads a file and runs what it says."""
    global _collecting
    before, _collecting = _collecting, []
    try:
        yield _collecting
    finally:
        _collecting = before
