"""Translates errors of Kafka's client into our own: what happened, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millstream.errors import (
    AlreadyExists,
    InvalidSetting,
    KafkaUnavailable,
    MillstreamError,
    NoAccess,
    ProducerFenced,
    UnknownTopic,
)
from millstream.secrets import concealed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

INSTALL = "pip install 'millstream[kafka]'"


def client_module() -> Any:
    """confluent_kafka, or an error that says how to install it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise InvalidSetting("Kafka needs the package confluent-kafka", next_step=INSTALL) from error
    return confluent_kafka


def admin_module() -> Any:
    """confluent_kafka.admin, which has no type hints."""
    client_module()
    import confluent_kafka.admin

    return confluent_kafka.admin


@contextmanager
def translated_errors(where: str) -> Iterator[None]:
    """Turns errors of confluent-kafka into our own."""
    confluent_kafka = client_module()
    try:
        yield
    except confluent_kafka.KafkaException as error:
        # A client that rejects a setting may quote its value.
        raise translated(error.args[0], where) from (None if concealed(str(error)) != str(error) else error)


def translated(error: KafkaError, where: str) -> MillstreamError:
    code, text = error.name(), concealed(error.str())
    if code in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID", "_UNKNOWN_PARTITION"):
        return UnknownTopic(
            "the topic does not exist", where=where, next_step="create it first: millstream topics create"
        )
    if code == "TOPIC_ALREADY_EXISTS":
        return AlreadyExists("the topic already exists", where=where, next_step="choose another name")
    if code in ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "FENCED_INSTANCE_ID"):
        return ProducerFenced("a newer producer of the same name has taken over", where=where)
    if code in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
        return NoAccess(
            "Kafka refused the user or the password",
            where=where,
            next_step="check sasl.mechanism, sasl.username, sasl.password",
        )
    if code.endswith("AUTHORIZATION_FAILED"):
        return NoAccess(f"this user may not do that: {text}", where=where, next_step="ask for access on the broker")
    if code in ("_INVALID_ARG", "INVALID_CONFIG", "_INVALID_CONFIG"):
        return InvalidSetting(f"Kafka rejects a setting: {text}", where=where)
    return KafkaUnavailable(
        f"the request to Kafka failed: {text}",
        where=where,
        next_step="check that its brokers are up and reachable",
    )
