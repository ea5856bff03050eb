"""The fields of a message of Kafka's client, however odd: any client may have written it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from millstream.records.ranges import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN

if TYPE_CHECKING:
    from confluent_kafka import Message

TIME_MS_MIN, TIME_MS_MAX = -(-TIMESTAMP_US_MIN // 1000), TIMESTAMP_US_MAX // 1000
"""The range of a timestamp. Kafka's goes 300 million years further."""
BAD_HEADER = "the name of a header is not valid UTF-8"

Headers = list[tuple[str, bytes | None]]
# Only when called this way does Python notice that the client failed at a name that is not UTF-8.
_headers = methodcaller("headers")


def headers_of(messages: Sequence[Message]) -> tuple[list[Headers | None], list[int]]:
    """The headers of each message, and the positions of those with a name that cannot be decoded.

    Call it once per message: for one that cannot be decoded, the client returns broken headers the second time.
    """
    found: list[Headers | None] = []
    bad = []
    for place, message in enumerate(messages):
        try:
            found.append(_headers(message))
        except (SystemError, UnicodeDecodeError):
            found.append(None)
            bad.append(place)
    return found, bad


def times_ms(messages: Sequence[Message]) -> npt.NDArray[np.int64]:
    """As Kafka has them: none before 1970, and some beyond the range of a timestamp."""
    return np.array([message.timestamp()[1] for message in messages], np.int64)


def nearest_us(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """In microseconds, clamped to the range of a timestamp."""
    return times.clip(TIME_MS_MIN, TIME_MS_MAX) * 1000
