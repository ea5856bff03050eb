"""The data of events as JSON: what JSON has no text for is refused, never changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import orjson

from millstream.errors import InvalidInput


def as_json(content: Any, type: str, what: str = "data") -> bytes:
    """The data or the metadata of an event of a type."""
    try:
        made = orjson.dumps(content)
        # NaN and infinity become null. There is no null in most data, so nothing to look for.
        if b"null" in made and (found := _not_finite(content, "")) is not None:
            raise TypeError(f"{found[1]!r} at '{found[0].lstrip('.')}' is not a number in JSON")
    except TypeError as error:
        raise InvalidInput(
            f"the {what} of an event must be JSON: {error}",
            where=f"event '{type}'",
            next_step="use text, finite numbers, booleans, dates, lists and mappings with text as keys",
        ) from error
    return made


def _not_finite(content: Any, place: str) -> tuple[str, float] | None:
    """The first number that is not finite, and where it is."""
    if isinstance(content, float):
        return None if content - content == 0 else (place, content)
    parts: Iterable[tuple[object, Any]] = ()
    if isinstance(content, Mapping):
        parts = content.items()
    elif isinstance(content, list | tuple):
        parts = enumerate(content)
    elif isinstance(content, Enum):
        return _not_finite(content.value, place)
    elif dataclasses.is_dataclass(content) and not isinstance(content, type):
        parts = ((field.name, getattr(content, field.name)) for field in dataclasses.fields(content))
    for name, value in parts:
        if (found := _not_finite(value, f"{place}.{name}")) is not None:
            return found
    return None
