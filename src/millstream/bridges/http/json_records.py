"""Records as JSON, in both directions: values that are JSON stay the bytes they are."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import orjson

from millstream.errors import InvalidInput
from millstream.log import Record

OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z
FIELDS = {"value", "value_base64", "key", "key_base64", "headers", "partition"}
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


# ---------------------------------------------------------------- records to JSON


def as_json(record: Record) -> dict[str, Any]:
    """A value of bytes is embedded if it is JSON, and given as `value_base64` if not."""
    made: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    made["timestamp"] = record.timestamp
    made |= _named("key", record.key)
    if isinstance(record.value, bytes):
        made |= {"value": orjson.Fragment(record.value)} if _is_json(record.value) else _encoded("value", record.value)
    else:
        made["value"] = record.value
    if record.headers:
        made["headers"] = [[name, value.decode(errors="replace")] for name, value in record.headers]
    return made


def written(document: Any) -> bytes:
    return orjson.dumps(document, default=_plain, option=OPTIONS)


def _named(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return _encoded(name, value)


def _encoded(name: str, value: bytes) -> dict[str, Any]:
    return {f"{name}_base64": base64.b64encode(value).decode()}


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


def _plain(value: Any) -> Any:
    """What JSON has no type for: bytes as base64, other values as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal | datetime):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return str(value)


# ---------------------------------------------------------------- JSON to records


class Sent(NamedTuple):
    """A record to be produced."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int | None


def read_records(body: bytes) -> list[Sent]:
    """A body is one record, or an array of records: objects with a value, and maybe a key, headers and a partition."""
    try:
        items = _raw_list.decode(body) if body.lstrip()[:1] == b"[" else [msgspec.Raw(body)]
        return [_sent(_raw_object.decode(item)) for item in items]
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"the body has no records: {error}", next_step='send [{"key": "ann", "value": {"score": 1}}]'
        ) from error


def _sent(given: Mapping[str, msgspec.Raw]) -> Sent:
    if unknown := given.keys() - FIELDS:
        raise InvalidInput(
            f"a record has no field {sorted(unknown)[0][:50]!r}", next_step=f"it may have {', '.join(sorted(FIELDS))}"
        )
    if ("value" in given) == ("value_base64" in given):
        raise InvalidInput("a record needs either value or value_base64", next_step="a value of null is a tombstone")
    headers = msgspec.json.decode(given.get("headers", b"{}"), type=dict[str, str])
    return Sent(
        _bytes(given, "value", lambda raw: bytes(raw)),
        _bytes(given, "key", lambda raw: msgspec.json.decode(raw, type=str).encode()),
        tuple((name, value.encode()) for name, value in headers.items()),
        msgspec.json.decode(given.get("partition", b"null"), type=int | None),
    )


def _bytes(given: Mapping[str, msgspec.Raw], name: str, read: Any) -> bytes | None:
    raw = given.get(name)
    if raw is not None:
        return None if bytes(raw) == b"null" else read(raw)
    encoded = given.get(f"{name}_base64")
    if encoded is None:
        return None
    try:
        return base64.b64decode(msgspec.json.decode(encoded, type=str), validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"{name}_base64 is not base64: {error}", next_step="encode the bytes again") from error
