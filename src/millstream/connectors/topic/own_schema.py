"""The schema of a topic, looked up on its broker while a flow is being built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millstream.errors import InvalidPlan, MillstreamError, NotFound
from millstream.log import ADDRESS_VARIABLE, Broker, EmbeddedLog, chosen_address, connect
from millstream.records import Schema
from millstream.user_lines import users_line

RAW_SCHEMAS = {"string": Schema.of("value string"), "bytes": Schema.of("value binary")}
"""The columns of values that are read as they are, by format."""
GIVE_ONE = "give the schema: read(source, 'user string, at timestamp')"


def schema_in_format(topic: str, broker: str | None, format: str | None) -> Schema:
    """The schema of a topic that is read in this format; None if the format is not given."""
    if format in RAW_SCHEMAS:
        return RAW_SCHEMAS[format]
    if format is not None:
        raise no_schema(topic, f"its values are {format}, which does not describe their columns")
    return schema_of_topic(topic, broker)


def schema_of_topic(topic: str, broker: str | None, opened: Callable[[str], Broker] | None = None) -> Schema:
    """`broker` is the address of the log; default: MILLSTREAM_BROKER, else `.millstream` here. Creates nothing."""
    address = chosen_address(broker or None)
    try:
        with (opened or _existing)(address) as log:
            schema = log.topic(topic).settings.schema
            where = str(log.path) if isinstance(log, EmbeddedLog) else address
    except MillstreamError as error:
        if isinstance(error, InvalidPlan):
            raise
        step = f"{GIVE_ONE}; or name the log that has the topic: Flow(…, log=…), {ADDRESS_VARIABLE} or run --log"
        raise no_schema(topic, f"its own cannot be looked up: {error.what}", step) from error
    if schema is None:
        raise no_schema(topic, f"it has none of its own (its values in {where} are bytes)")
    return schema


def existing_topics(broker: str | None) -> list[str]:
    """The topics of the log, looked up while a flow is being built."""
    with _existing(chosen_address(broker or None)) as log:
        return log.topics()


def no_schema(topic: str, why: str, next_step: str = GIVE_ONE) -> InvalidPlan:
    return InvalidPlan(f"topic '{topic}' needs a schema: {why}", where=users_line(), next_step=next_step)


def _existing(address: str) -> Broker:
    if not address.startswith("kafka://"):
        folder = Path(address.removeprefix("file://")).expanduser()
        if not (folder / "millstream.json").exists():  # opening it would create one
            raise NotFound(f"there is no log in '{folder}'")
    return connect(address)
