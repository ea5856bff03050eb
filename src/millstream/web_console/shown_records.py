"""Records of a topic as pages show them: JSON, of a bounded size, with masked columns hidden."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.log import Broker, Record
from millstream.records import DEAD_LETTER_SCHEMA, Schema
from millstream.supervision.mask import Mask

SHOWN_CHARACTERS_MAX = 10_000
LETTER = frozenset(DEAD_LETTER_SCHEMA.names)
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class ShownRecords:
    """The records of one topic."""

    topic: str
    schema: Schema | None
    mask: Mask

    @classmethod
    def of(cls, log: Broker, topic: str, mask: Mask) -> ShownRecords:
        return cls(topic, log.topic(topic).settings.schema, mask)

    @property
    def visible(self) -> list[str]:
        """The columns without masked ones, nor any in them."""
        assert self.schema is not None
        return [each.name for each in self.schema.arrow if not _is_masked(each, self.mask)]

    def searched(self, expression: str) -> Schema:
        """The columns that an expression may use."""
        if self.schema is None:
            raise InvalidInput(
                f"the topic '{self.topic}' has no schema, so its records have no columns", next_step="search for a text"
            )
        masked = next((each for each in WORD.findall(expression) if self.mask.hides(each)), None)
        if masked is not None:
            raise InvalidInput(f"the column '{masked}' is masked", next_step="search by another column")
        return Schema.from_arrow(pa.schema([self.schema.arrow.field(name) for name in self.visible]))

    def document(self, record: Record) -> dict[str, Any]:
        return {
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp.isoformat(),
            "key": self.key(record),
            "value": cut(self.value(record)),
            "headers": [
                [name, self.mask.sign(shown(value)) if self.mask.hides(name) else self._echoless(record, shown(value))]
                for name, value in record.headers
            ],
        }

    def value(self, record: Record) -> Any:
        if not isinstance(record.value, dict):
            return self.mask.unread(self.topic, self.mask.row(plain(record.value)))
        row = plain(record.value)
        return self.mask.letter(row, row["topic"]) if row.keys() >= LETTER else self.mask.row(row)

    def key(self, record: Record) -> str | None:
        """Of a deleted row only the key is known: it is hidden if the topic has masked columns."""
        if record.key is None:
            return None
        key = shown(record.key)
        if record.value is None and self._has_masked:
            return str(self.mask.sign(key))
        return self._echoless(record, key)

    def _echoless(self, record: Record, text: str) -> str:
        return self.mask.text(self.mask.key(text, plain(record.value)) or "")

    @property
    def _has_masked(self) -> bool:
        if self.schema is None:
            return self.topic in self.mask.unreadable
        return len(self.visible) < len(self.schema.arrow)


def _is_masked(column: pa.Field, mask: Mask) -> bool:
    if mask.hides(column.name):
        return True
    kind = column.type
    return any(_is_masked(kind.field(number), mask) for number in range(kind.num_fields))


def plain(value: Any) -> Any:
    """A value as JSON has it. What JSON does not have is text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, float) or (value == value and abs(value) != float("inf")) else str(value)
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"0x{value.hex()}"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if not isinstance(value, timedelta) else f"{value.total_seconds():g} s"


def shown(value: Any) -> str:
    made = plain(value)
    return made if isinstance(made, str) else str(made)


def cut(value: Any) -> Any:
    """A value that a page can show; a longer one is its beginning."""
    text = shown(value)
    return value if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}… ({len(text):,} characters)"
