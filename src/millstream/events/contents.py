"""Events as rows and rows as events: JSON, encrypted personal fields, and old formats brought up to date."""

from __future__ import annotations

from typing import Any

import orjson

from millstream.errors import InvalidInput
from millstream.events.event import Event, Recorded, checked_text
from millstream.events.keys import Keys
from millstream.events.layout import PERSONAL, Row
from millstream.events.plain import as_json
from millstream.events.upcasters import Upcasters


class Contents:
    def __init__(self, upcasters: Upcasters, keys: Keys | None) -> None:
        self._upcasters = upcasters
        self._keys = keys

    def row(self, stream: str, event: Event) -> Row:
        if not isinstance(event, Event):
            raise InvalidInput(
                f"{event!r:.100} is not an event",
                where=f"stream '{stream}'",
                next_step='append events: millstream.Event("ItemAdded", {"item": "tea"})',
            )
        data = event.data if isinstance(event.data, dict) else dict(event.data)
        if PERSONAL in data:
            raise InvalidInput(
                f"'{PERSONAL}' cannot be a field of an event: the store keeps encrypted fields there",
                where=f"event '{event.type}'",
                next_step="give the field another name",
            )
        if event.personal:
            data = self._sealed(event, dict(data))
        return Row(
            stream,
            None,
            event.type,
            self._upcasters.current_format(event.type),
            event.id,
            as_json(data, event.type).decode(),
            None if event.metadata is None else as_json(event.metadata, event.type, "metadata").decode(),
            0,
        )

    def _sealed(self, event: Event, data: dict[str, Any]) -> dict[str, Any]:
        subject = checked_text(event.subject, "subject of personal data")
        missing = [name for name in event.personal if name not in data]
        if missing:
            raise InvalidInput(f"there is no field '{missing[0]}' in the data", where=f"event '{event.type}'")
        fields = {name: data.pop(name) for name in event.personal}
        as_json(fields, event.type)
        return {**data, PERSONAL: self._kept_keys().seal(subject, fields)}

    def _kept_keys(self) -> Keys:
        if self._keys is None:
            raise InvalidInput(
                "the store has no keys for personal data",
                next_step='name a file for them, outside of the log: event_store(…, keys="keys.sqlite")',
            )
        return self._keys

    def recorded(self, position: int, row: Row) -> Recorded:
        data: dict[str, Any] = orjson.loads(row.data)
        sealed = data.pop(PERSONAL, None)
        subject, forgotten = None, False
        if sealed is not None:
            subject = sealed["subject"]
            found = self._kept_keys().unseal(sealed)
            forgotten = found is None
            data |= dict.fromkeys(sealed["fields"]) if found is None else found
        data = self._upcasters.apply(row, position, data)
        metadata = None if row.metadata is None else orjson.loads(row.metadata)
        return Recorded(
            row.stream, row.version or 0, position, row.type, data, metadata, row.id, row.at, subject, forgotten
        )

    def forget(self, subject: str) -> bool:
        return self._kept_keys().forget(checked_text(subject, "subject of personal data"))

    def close(self) -> None:
        if self._keys is not None:
            self._keys.close()
