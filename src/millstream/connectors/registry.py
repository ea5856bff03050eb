"""Connectors by name: built-in ones, and those that other packages provide as entry points."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from millstream.errors import InvalidInput, MillstreamError
from millstream.plan.endpoints import Endpoint
from millstream.user_lines import users_line, what_exists

if TYPE_CHECKING:
    from millstream.connectors.catalog import Remembered
    from millstream.connectors.connector import Connector
    from millstream.connectors.lookups import Lookup

GROUP = "millstream.connectors"
BUILT_IN = {
    "amqp": "millstream.bridges.amqp.sink:amqp",
    "amqp1": "millstream.bridges.amqp1.sink:amqp1",
    "captured": "millstream.capture.topics:captured",
    "console": "millstream.connectors.console:console",
    "debezium": "millstream.capture.debezium:debezium",
    "delta_table": "millstream.connectors.lakes.endpoints:delta_table",
    "discard": "millstream.connectors.discard:discard",
    "files": "millstream.connectors.files.endpoint:files",
    "foreach_batch": "millstream.connectors.foreach:foreach_batch",
    "generate": "millstream.connectors.generated:generate",
    "http_rows": "millstream.copies.endpoints:http_rows",
    "iceberg": "millstream.connectors.lakes.endpoints:iceberg",
    "kinesis": "millstream.bridges.aws.sinks:kinesis",
    "kafka": "millstream.connectors.kafka.endpoint:kafka",
    "key_files": "millstream.copies.endpoints:key_files",
    "mariadb_changes": "millstream.capture.endpoints:mariadb_changes",
    "memory": "millstream.connectors.memory:memory",
    "mqtt": "millstream.bridges.mqtt.sink:mqtt",
    "nanomsg": "millstream.bridges.peers.nanomsg_sink:nanomsg",
    "opensearch": "millstream.copies.endpoints:opensearch",
    "postgres": "millstream.connectors.databases.endpoints:postgres",
    "postgres_changes": "millstream.capture.endpoints:postgres_changes",
    "push": "millstream.bridges.http.push_sink:push",
    "queue": "millstream.connectors.topic.queue_endpoint:queue",
    "rate": "millstream.connectors.rate:rate",
    "redis": "millstream.copies.endpoints:redis",
    "rotating_file": "millstream.connectors.files.rotating:rotating_file",
    "search_index": "millstream.copies.endpoints:search_index",
    "socket": "millstream.connectors.socket_lines:socket",
    "sns": "millstream.bridges.aws.sinks:sns",
    "sqlite": "millstream.connectors.databases.endpoints:sqlite",
    "sqlite_changes": "millstream.capture.endpoints:sqlite_changes",
    "sqs": "millstream.bridges.aws.sinks:sqs",
    "stomp": "millstream.bridges.stomp.sink:stomp",
    "topic": "millstream.connectors.topic.endpoint:topic",
    "topics": "millstream.connectors.topic.several_endpoint:topics",
    "two_phase": "millstream.connectors.databases.two_phase:two_phase",
    "webhook": "millstream.bridges.http.webhook_sink:webhook",
    "zeromq": "millstream.bridges.peers.zeromq_sink:zeromq",
}
LOOKUP_GROUP = "millstream.lookups"
LOOKUPS = {
    "postgres": "millstream.connectors.databases.lookups:PostgresTable",
    "sqlite": "millstream.connectors.databases.lookups:SqliteTable",
}


def connector(name: str, *arguments: Any, **settings: Any) -> Connector:
    """A source or sink by the name of its connector: `ms.connector("files", "data/in")` is `ms.files("data/in")`.

    Other packages provide connectors as entry points of the group "millstream.connectors".
    """
    from millstream.connectors.connector import Connector

    factory = _registered(name, "connector", BUILT_IN, GROUP)
    try:
        inspect.signature(factory).bind(*arguments, **settings)
    except TypeError as error:
        raise InvalidInput(
            f"the connector '{name}' does not take these arguments: {error}",
            where=users_line(),
            next_step=f"it takes {inspect.signature(factory)}",
        ) from None
    made = factory(*arguments, **settings)
    if not isinstance(made, Connector):
        raise InvalidInput(f"the connector '{name}' returned {made!r}", next_step="it must return a Connector")
    return made


def endpoint_of(given: Any) -> Endpoint:
    """A source or sink as given by the user: the name of a topic, or an endpoint."""
    if isinstance(given, str):
        made: Endpoint = _loaded(BUILT_IN["topic"])(given)
        return made
    if isinstance(given, list | tuple):
        several: Endpoint = _loaded("millstream.connectors.topic.several_endpoint:named_topics")(given)
        return several
    if isinstance(given, Endpoint):
        return given
    known = ", ".join(f"ms.{name}(…)" for name in BUILT_IN if name != "topic")
    raise InvalidInput(
        f"{given!r} is not a topic name, source or sink",
        where=users_line(),
        next_step=f"use a topic name, or one of {known}",
    )


def connector_of(given: Any) -> Connector:
    from millstream.connectors.connector import Connector

    found = endpoint_of(given)
    if not isinstance(found, Connector):
        raise InvalidInput(f"{found!r} is not a connector", where=users_line(), next_step="see connectors.md")
    return found


def open_lookup(table: Remembered, address: str | None) -> Lookup:
    """Opens a table that a job wrote, by the name of the connector. `address` replaces the one that was recorded."""
    opened: Lookup = _registered(table.kind, "lookup", LOOKUPS, LOOKUP_GROUP)(table, address)
    return opened


def _registered(name: str, what: str, built_in: Mapping[str, str], group: str) -> Callable[..., Any]:
    if name in built_in:
        return _loaded(built_in[name])
    found: dict[str, EntryPoint] = {}
    for each in entry_points(group=group):
        if found.setdefault(each.name, each).value != each.value and each.name == name:
            raise InvalidInput(
                f"two packages have a {what} '{name}': {found[name].value} and {each.value}",
                where=users_line(),
                next_step="uninstall one of them",
            )
    if name not in found:
        raise InvalidInput(
            f"there is no {what} '{name}'",
            where=users_line(),
            next_step=f"install its package; {what_exists(name, [*built_in, *found], kind=f'{what}s')}",
        )
    try:
        made: Callable[..., Any] = found[name].load()
    except MillstreamError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"the {what} '{name}' cannot be loaded: {type(error).__name__}: {error}",
            where=f"entry point {found[name].value}",
            next_step="install its package's dependencies, or fix the package",
        ) from error
    return made


def _loaded(home: str) -> Callable[..., Any]:
    module, _, name = home.partition(":")
    made: Callable[..., Any] = getattr(import_module(module), name)
    return made
