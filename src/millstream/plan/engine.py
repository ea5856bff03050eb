"""The way from a flow to the engine that runs it, which is loaded when a flow runs: a plan needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from millstream.records import Schema

ENGINE = "millstream.jobs.flow_methods"
DESCRIPTIONS = "millstream.connectors.topic.described"
_collecting: list[tuple[Any, str, dict[str, Any]]] | None = None
_broker: str | None = None


def call(flow: Any, verb: str, settings: dict[str, Any]) -> Any:
    """Has the engine do something with a flow, unless a file of flows is only being read."""
    if _collecting is not None:
        _collecting.append((flow, verb, settings))
        return None
    return getattr(import_module(ENGINE), verb)(flow, **settings)


def schema_of_topic(place: Any, broker: str | None) -> Schema:
    """The schema that a topic has itself: on the broker that the flow is going to be run with, else on this one."""
    found: Schema = import_module(DESCRIPTIONS).schema_of_topic(place, _broker or broker)
    return found


@contextmanager
def collecting(broker: str | None = None) -> Iterator[list[tuple[Any, str, dict[str, Any]]]]:
    """Inside it flows that are told to run are only noted: `millstream run` reads a file and runs what it says."""
    global _collecting, _broker
    before = _collecting, _broker
    _collecting, _broker = [], broker
    try:
        yield _collecting
    finally:
        _collecting, _broker = before
