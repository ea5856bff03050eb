"""A start position as text: 'earliest', 'latest', an offset, or a time with its zone."""

from __future__ import annotations

from datetime import datetime

from millstream.errors import InvalidInput

FORMS = "earliest, latest, an offset, or a time as in 2025-06-01T12:00:00Z"


def read_start(text: str) -> str | int | datetime:
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"'{text}' is not a start position", next_step=f"give {FORMS}") from None
    if moment.tzinfo is None:
        raise InvalidInput(
            f"the time '{text}' has no time zone",
            next_step="add Z for UTC or an offset, as in 2025-06-01T12:00:00Z or …+02:00",
        )
    return moment
