"""Renders a record as one line: its value as it would be piped, or all of it as JSON or as columns of text."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import orjson
import pyarrow as pa

from millstream.records import DEAD_LETTER_SCHEMA, Schema, codec, rows_to_batch
from millstream.terminal import escaped_bytes, is_terminal

if TYPE_CHECKING:
    from millstream.log import Batch, Message

RecordFormat = Literal["value", "json", "full"]


@dataclass(frozen=True)
class Rendering:
    """`schema` is the topic's; with one, a value is printed as the JSON of its row."""

    schema: Schema | None
    format: RecordFormat = "value"
    with_key: bool = False
    separator: str = "\t"
    null: str = "null"
    escapes: bool = field(default_factory=lambda: is_terminal(sys.stdout))
    """Whether control characters in contents are escaped."""

    def batch(self, batch: Batch) -> list[bytes]:
        columns = batch.columns
        values = self._values(columns.column("value"))
        keys = columns.column("key").to_pylist()
        if self.format == "value":
            return [self._line(key, value) for key, value in zip(keys, values, strict=True)]
        times = columns.column("timestamp").cast(pa.int64()).to_pylist()
        headers = columns.column("headers").to_pylist()
        rows = zip(batch.offsets.tolist(), times, keys, values, headers, strict=True)
        return [self._whole(batch.topic, batch.partition, *row, {}) for row in rows]

    def message(self, message: Message) -> bytes:
        record = message.record
        value = self.value(message)
        if self.format == "value":
            return self._line(record.key, value)
        us = None if record.timestamp is None else round(record.timestamp.timestamp() * 1_000_000)
        extra = {"tries": message.tries}
        return self._whole(record.topic, record.partition, record.offset, us, record.key, value, record.headers, extra)

    def value(self, message: Message) -> bytes | None:
        """The value of a queue's message as bytes."""
        value = message.record.value
        if self.schema is None or value is None:
            return value  # type: ignore[no-any-return]
        [encoded] = _rows(rows_to_batch([value], self.schema)[0], self.schema)
        return encoded

    def _values(self, column: pa.Array) -> list[bytes | None]:
        if self.schema is None:
            held: list[bytes | None] = column.to_pylist()
            return held
        present = column.drop_null()
        rows = pa.RecordBatch.from_arrays(present.flatten(), schema=pa.schema(list(column.type)))
        each = iter(_rows(rows, self.schema))
        return [next(each) if valid else None for valid in column.is_valid().to_pylist()]

    def _line(self, key: bytes | None, value: bytes | None) -> bytes:
        text = self._shown(value)
        return self._shown(key) + self.separator.encode() + text if self.with_key else text

    def _shown(self, content: bytes | None) -> bytes:
        if content is None:
            return self.null.encode()
        return escaped_bytes(content) if self.escapes else content

    def _whole(
        self,
        topic: str,
        partition: int,
        offset: int,
        time_us: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes]] | None,
        extra: dict[str, Any],
    ) -> bytes:
        moment = None if time_us is None else _iso(time_us)
        if self.format == "full":
            marks = " ".join(f"{name}={content.decode(errors='replace')}" for name, content in headers or ())
            place = b"%b/%d\t%d\t%b" % (self._shown(topic.encode()), partition, offset, str(moment).encode())
            texts = [self._shown(part) for part in (key, value, *([marks.encode()] if marks else []))]
            return b"\t".join([place, *texts])
        held = orjson.Fragment(value) if self.schema is not None and value is not None else _readable(value)
        document = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": moment,
            "key": _readable(key),
            "value": held,
            "headers": [[name, _readable(content)] for name, content in headers or ()],
            **extra,
        }
        return self._shown(orjson.dumps(document))


class OutputClosed(BrokenPipeError):
    """The reader of the output closed it after so many lines had been written in full."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.lines = lines


def write_lines(lines: Sequence[bytes]) -> None:
    """Returns when the lines have left this process."""
    if not lines:
        sys.stdout.buffer.flush()
        return
    sys.stdout.flush()
    text = b"\n".join(lines) + b"\n"
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a real file
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return
    written = 0
    try:
        with memoryview(text) as rest:
            while written < len(text):
                written += os.write(descriptor, rest[written:])
    except BrokenPipeError:
        ends = accumulate(len(line) + 1 for line in lines)
        raise OutputClosed(sum(end <= written for end in ends)) from None


def _rows(rows: pa.RecordBatch, schema: Schema) -> list[bytes]:
    """Rows as JSON. The `value` of a dead letter is its original text; `value_base64` if the bytes are not text."""
    if schema != DEAD_LETTER_SCHEMA:
        encoded: list[bytes] = codec("json", schema).encode(rows).to_pylist()
        return encoded
    rest = Schema.of(pa.schema([field for field in schema.arrow if field.name != "value"]))
    others = codec("json", rest).encode(rows.drop_columns(["value"])).to_pylist()
    return [
        orjson.dumps(_dead_letter_value(value))[:-1] + b"," + other[1:]
        for value, other in zip(rows.column("value").to_pylist(), others, strict=True)
    ]


def _dead_letter_value(content: bytes | None) -> dict[str, str | None]:
    shown = _readable(content)
    return {"value_base64": shown["base64"]} if isinstance(shown, dict) else {"value": shown}


def _readable(content: bytes | None) -> Any:
    """Text if the bytes are UTF-8, else {"base64": …}."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _iso(time_us: int) -> str:
    seconds, us = divmod(time_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=us).isoformat().replace("+00:00", "Z")
