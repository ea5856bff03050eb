"""The bridge from a flow to its engine, which is imported when a flow runs: a plan does not need Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa

from millstream.expressions.expression import ANALYZER, Expression
from millstream.plan.endpoints import Endpoint
from millstream.records import Schema

ENGINE = "millstream.jobs.flow_methods"
FRAME_FUNCTIONS = "millstream.spark.frame_functions"
STATIC_COLUMNS = "millstream.spark.static_columns"
QUEUES = "millstream.connectors.topic.queue_endpoint"
CONNECTORS = "millstream.connectors.registry"
_collecting: list[tuple[Any, str, dict[str, Any]]] | None = None
_broker: str | None = None


def call(flow: Any, verb: str, settings: dict[str, Any]) -> Any:
    """Runs a flow with the engine, or only records the call while flows are being collected from a file."""
    if _collecting is not None:
        _collecting.append((flow, verb, settings))
        return None
    return getattr(import_module(ENGINE), verb)(flow, **settings)


def endpoint_of(given: Any) -> Endpoint:
    """A source or sink as an endpoint: given as the name of a topic, or as an endpoint of some connector."""
    found: Endpoint = import_module(CONNECTORS).endpoint_of(given)
    return found


def inner_queue(topic: str, limits: dict[str, Any]) -> Endpoint:
    """A queue inside a flow."""
    found: Endpoint = import_module(QUEUES).inner_queue(topic, limits)
    return found


def result_schema(function: Callable[[Any], Any], schema: Schema) -> Schema:
    """The columns that a function of a Spark DataFrame makes of a stream's."""
    found: Schema = import_module(FRAME_FUNCTIONS).result_schema(function, schema)
    return found


def name_of(column: Any, schema: Schema) -> str:
    """The name that Spark gives to a Column of PySpark."""
    return str(import_module(ANALYZER).name_of(column, schema))


def and_none(conditions: Sequence[str], taken: Sequence[str]) -> Any:
    """`checks.and_none` as a Column, where one of the conditions is a Column."""
    return import_module(ANALYZER).and_none(conditions, taken)


def dataframe_of(rows: pa.Table) -> Any:
    """Rows as a Spark DataFrame, in the driver of a running job."""
    return import_module(FRAME_FUNCTIONS).dataframe_of(rows)


def evaluated(rows: pa.Table, made: Expression) -> pa.ChunkedArray:
    """An expression over static rows, by Spark."""
    found: pa.ChunkedArray = import_module(STATIC_COLUMNS).evaluated(rows, made)
    return found


def own_schema(source: Endpoint, broker: str | None) -> Schema:
    """The schema that a source knows itself: on the broker the flow will run with, else on this one."""
    return source.own_schema(_broker or broker)


@contextmanager
def collecting(broker: str | None = None) -> Iterator[list[tuple[Any, str, dict[str, Any]]]]:
    """Records calls that would run a flow instead of running it: `millstream run` collects the flows of a file."""
    global _collecting, _broker
    before = _collecting, _broker
    _collecting, _broker = [], broker
    try:
        yield _collecting
    finally:
        _collecting, _broker = before
