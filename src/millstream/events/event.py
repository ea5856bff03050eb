"""An event is recorded once and never changes: a type, JSON data, and an id that identifies a repeated append."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from millstream.errors import InvalidInput

TEXT_CHARACTERS_MAX = 1000
_chance = random.Random()  # of our own: an application may seed the shared one
os.register_at_fork(after_in_child=_chance.seed)


def new_id() -> str:
    """A unique id that sorts by time: an index of such ids grows at its end, wherever its other entries are."""
    return f"{time.time_ns() // 1000:014x}-{_chance.getrandbits(64):016x}"


def checked_text(text: object, what: str) -> str:
    """Names of streams, events and subjects are keys of an index: short, and text."""
    if not isinstance(text, str) or not 0 < len(text) <= TEXT_CHARACTERS_MAX or "\0" in text or not _is_utf8(text):
        raise InvalidInput(
            f"{text!r:.100} is not a {what}", next_step=f"use text of 1 to {TEXT_CHARACTERS_MAX} characters"
        )
    return text


def _is_utf8(text: str) -> bool:
    """Half of a surrogate pair is not. If that were found later, the appends of others would fail, too."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Event:
    """An event to append: what happened, as JSON data.

    `personal` names the fields of `data` that are encrypted with the key of `subject`, the person they are about.
    """

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    id: str = field(default_factory=new_id)
    subject: str | None = None
    personal: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if checked_text(self.type, "type of an event").startswith("$"):
            raise InvalidInput(
                f"'{self.type}' is not a type of an event", next_step="types that begin with '$' are the store's own"
            )
        checked_text(self.id, "id of an event")
        if type(self.data) is not dict and not isinstance(self.data, Mapping):
            raise InvalidInput(
                f"the data of an event must be a mapping, not {type(self.data).__name__}",
                where=f"event '{self.type}'",
                next_step='give its fields by name: Event("ItemAdded", {"item": "tea"})',
            )
        if self.personal != ():
            object.__setattr__(self, "personal", _fields(self.personal))
        if self.personal and self.subject is None:
            raise InvalidInput(
                "personal fields need a subject: the person whose key encrypts them",
                where=f"event '{self.type}'",
                next_step='Event(…, subject="user-7", personal=["email"])',
            )


def _fields(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event as it was recorded: in which stream, as which version, and where in the store."""

    stream: str
    version: int
    position: int
    type: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any] | None
    id: str
    at: datetime
    subject: str | None = None
    is_forgotten: bool = False
    """Whether the key of its subject was deleted; its personal fields are then None."""


@dataclass(frozen=True, slots=True)
class Append:
    """Events for one stream, for `append_together` and `append_each`."""

    stream: str
    events: Iterable[Event]
    expected_version: int | None = None
    """The version that the stream must have, 0 for a new one; None for any."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append has recorded: the version of the stream after it, and the position of its last event."""

    stream: str
    version: int
    position: int
    is_repeated: bool = False
    """Whether an earlier append has already recorded these events."""
