"""Passwords and keys: used where they are needed, and never shown or stored.

A secret is sent to another process as a number. The process that made it gives its workers what the numbers stand for
in their environment (`delivery`), so it stands in no plan, no log and no checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from typing import Any

from millstream.errors import InvalidSetting

VARIABLE = "MILLSTREAM_SECRETS"
SHOWN = "…"
NAMES = re.compile(
    r"password|secret|token|jaas|\.pem$|passphrase|user\.info|oauthbearer\.config|private", re.IGNORECASE
)


class Secret:
    """A text that shows as `…`."""

    __slots__ = ("_value", "number")

    def __init__(self, value: str, number: str | None = None) -> None:
        self._value = value
        self.number = number or uuid.uuid4().hex
        _KNOWN[self.number] = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return SHOWN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.number,)


_KNOWN: dict[str, str] = {}


def _received(number: str) -> Secret:
    value = _KNOWN.get(number)
    if value is None:
        value = json.loads(os.environ.get(VARIABLE, "{}")).get(number)
    if value is None:
        raise InvalidSetting(
            "a password or key was sent by its number, and this process was not given what the number stands for",
            where=f"process {os.getpid()}, variable {VARIABLE}",
            next_step="make the source where the session was made: ms.kafka(…, settings=…) in a flow, or "
            "kafka://host:9092?settings=FILE with a file that every machine has",
        )
    return Secret(value, number)


def delivery() -> dict[str, str]:
    """What the environment of a worker must have besides, so that secrets sent there mean something."""
    return {VARIABLE: json.dumps(_KNOWN)} if _KNOWN else {}


def is_secret(name: str) -> bool:
    """Whether the value of a setting of this name must not be shown."""
    return NAMES.search(name) is not None


def hidden(settings: Mapping[str, str | Secret]) -> dict[str, str | Secret]:
    """Settings whose secret values are."""
    return {
        name: Secret(value) if isinstance(value, str) and is_secret(name) else value for name, value in settings.items()
    }


def revealed(settings: Mapping[str, str | Secret]) -> dict[str, str]:
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in settings.items()}
