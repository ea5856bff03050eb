"""The events in the body of a request: a JSON array or lines of JSON hold many, anything else is one.

Values stay the bytes that were sent: nothing is parsed but the ends of each event, its id and its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.bridges.arrivals import Arrival
from millstream.errors import InvalidInput

EVENTS_MAX = 100_000
LINES = ("application/x-ndjson", "application/jsonl", "application/json-lines")
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_anything = msgspec.json.Decoder()


class TooLarge(InvalidInput):
    """A body or an event above the limit."""


@dataclass(frozen=True)
class EventFormat:
    """What is read from a body besides the events themselves."""

    id_field: str | None = None
    """The field of an event with its id."""
    key_field: str | None = None
    """The field of an event with its key."""
    event_bytes_max: int = 1 << 20

    def events(self, topic: str, body: bytes, content_type: bytes, id: str | None, origin: str) -> list[Arrival]:
        """`id` is that of the request: its events are numbered. Raises TooLarge."""
        kind = content_type.split(b";", 1)[0].strip().lower().decode("latin-1")
        if not body:
            return [Arrival(topic, body, id=id, origin=origin, fault="the body is empty")]
        try:
            values = _values(body, kind)
        except msgspec.DecodeError as error:
            return [Arrival(topic, body, id=id, origin=origin, fault=f"the body is not JSON: {error}")]
        if len(values) > EVENTS_MAX:
            raise TooLarge(f"the body has more than {EVENTS_MAX:,} events", next_step="send them in several requests")
        if id is None or len(values) == 1:
            return [self._event(topic, value, id, origin) for value in values]
        return [self._event(topic, value, f"{id}/{number}", origin) for number, value in enumerate(values)]

    def _event(self, topic: str, value: bytes, id: str | None, origin: str) -> Arrival:
        if len(value) > self.event_bytes_max:
            raise TooLarge(
                f"an event is larger than {self.event_bytes_max:,} bytes",
                next_step="send a smaller one",
            )
        arrival = Arrival(topic, value, id=id, origin=origin)
        if self.id_field is None and self.key_field is None:
            return arrival
        try:
            found = _anything.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            arrival.fault = f"the event is not JSON: {error}"
            return arrival
        if self.id_field is not None:
            own = _text(found, self.id_field)
            if own is None:
                arrival.fault = f"the event has no field '{self.id_field}' with its id"
            else:
                arrival.id = own
        if self.key_field is not None:
            key = _text(found, self.key_field)
            arrival.key = None if key is None else key.encode(errors="surrogatepass")
        return arrival


def _values(body: bytes, kind: str) -> Sequence[bytes]:
    if kind in LINES:
        return [line.strip() for line in body.split(b"\n") if line.strip()] or [body]
    if kind == "application/json" or kind.endswith("+json"):
        if body.lstrip()[:1] == b"[":
            return [bytes(value) for value in _raw_list.decode(body)]
        _anything.decode(body)  # a body that is cut off must not look like an event
    return [body]


def _text(event: Any, name: str) -> str | None:
    value = event.get(name) if isinstance(event, dict) else None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)
