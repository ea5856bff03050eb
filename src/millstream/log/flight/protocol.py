"""What client and server of a log over Arrow Flight agree on: questions and answers in JSON, records in Arrow.

    DoAction   a question about topics and groups; its type is the name of the question
    DoGet      the next records of one of several partitions; metadata has their offsets, and positions in the end
    DoPut      frames of one partition; the answer has their offsets

Errors travel with their class, so that both sides see the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from millstream import errors
from millstream.errors import MillstreamError, StorageError
from millstream.log.agreement.groups import TopicPartition

ERROR_PREFIX = "millstream: "
WAIT_SECONDS_MAX = 1.0
"""How long the server waits for records, so that a client that is gone does not keep a thread."""

Offsets = Mapping[TopicPartition, int]


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def decoded(content: Any) -> Any:
    return json.loads(bytes(content))


def offsets_out(offsets: Offsets) -> list[list[Any]]:
    return [[place.topic, place.partition, offset] for place, offset in offsets.items()]


def offsets_in(given: Iterable[Any]) -> dict[TopicPartition, int]:
    return {TopicPartition(str(topic), int(number)): int(offset) for topic, number, offset in given}


def places_out(places: Iterable[TopicPartition]) -> list[list[Any]]:
    return [[place.topic, place.partition] for place in places]


def places_in(given: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(str(topic), int(number)) for topic, number in given]


def error_text(error: MillstreamError) -> str:
    parts = [type(error).__name__, error.what, error.where, error.next_step]
    return ERROR_PREFIX + json.dumps(parts) + "\n"


def error_of(text: str) -> MillstreamError | None:
    """The error in the message of a Flight error, if the other side raised one of ours."""
    _, prefix, rest = text.partition(ERROR_PREFIX)
    if not prefix:
        return None
    try:
        name, what, where, next_step = json.JSONDecoder().raw_decode(rest)[0]
    except (ValueError, TypeError):
        return None
    kind = getattr(errors, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, MillstreamError)):
        kind = StorageError
    return kind(str(what), where=where, next_step=next_step)
