"""Why a connection to a broker ended: whether another one may succeed decides what its bridge or its sink does."""

from __future__ import annotations

NOT_PERMITTED = ("permission", "not authorized", "not permitted", "access_refused", "security", "amq229031")
"""Words in the errors of brokers that would come again."""
TOO_LARGE = ("too large", "larger than", "bigger than", "message-size-exceeded")
"""Words in the errors of brokers about one message."""


class ConnectionLost(Exception):
    """The connection has ended, or the broker did not accept it for now: another may succeed."""


class Rejected(Exception):
    """The broker would reject the next connection, or the same request, too."""


class Declined(Exception):
    """The broker does not take a message or a transaction as it is now: others may succeed."""


def is_not_permitted(text: str) -> bool:
    return any(word in text.lower() for word in NOT_PERMITTED)


def is_too_large(text: str) -> bool:
    return any(word in text.lower() for word in TOO_LARGE)
