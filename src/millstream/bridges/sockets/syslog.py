"""Syslog messages as JSON: RFC 5424, and RFC 3164 as devices write it.

Every message can be read: one of neither form is a message without other fields. Only one without a priority, or whose
structured data is broken, is a dead letter.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import orjson

FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"),
    *("ntp", "audit", "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
SEVERITIES = ("emergency", "alert", "critical", "error", "warning", "notice", "info", "debug")
PRIORITY = re.compile(r"<(\d{1,3})>")
HEAD_5424 = re.compile(r"1 (\S+) (\S+) (\S+) (\S+) (\S+) ")
ELEMENT = re.compile(r"\[([^\s=\"\]]+)")
PARAMETER = re.compile(r' ([^\s=\"\]]+)="((?:[^"\\]|\\.)*)"', re.DOTALL)
HEAD_3164 = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2}) (\S+) ")
TAG = re.compile(r"([^\s\[\]:]{1,48})(?:\[([^\]\s]+)\])?: ?")
ESCAPED = re.compile(r'\\(["\\\]])')


class NotSyslog(ValueError):
    """A message that cannot be read; its text is the reason."""


def parsed(message: bytes, received_at: datetime) -> dict[str, Any]:
    text = message.decode(errors="replace").rstrip("\r\n\0")
    found = PRIORITY.match(text)
    priority = int(found[1]) if found else -1
    if found is None or priority > 191:
        raise NotSyslog("the message has no priority from <0> to <191>")
    body = text[found.end() :]
    made: dict[str, Any] = {
        "facility": FACILITIES[priority >> 3],
        "severity": SEVERITIES[priority & 7],
        "level": priority & 7,
    }
    head = HEAD_5424.match(body)
    made |= _rfc5424(head, body[head.end() :]) if head else _rfc3164(body, received_at)
    return {name: value for name, value in made.items() if value is not None}


def as_json(message: bytes, received_at: datetime) -> tuple[bytes, bytes | None]:
    """The value of a record, and its key: the host."""
    made = parsed(message, received_at)
    host = made.get("host")
    return orjson.dumps(made), None if host is None else str(host).encode()


def _rfc5424(head: re.Match[str], rest: str) -> dict[str, Any]:
    at, host, app, process, message_id = (None if part == "-" else part for part in head.groups())
    structured, rest = _structured(rest)
    return {
        "at": at,
        "host": host,
        "app": app,
        "process": process,
        "message_id": message_id,
        "data": structured or None,
        "message": rest.removeprefix(" ").removeprefix("\ufeff"),
    }


def _structured(text: str) -> tuple[dict[str, dict[str, str]], str]:
    if text.startswith("-"):
        return {}, text[1:]
    found: dict[str, dict[str, str]] = {}
    position = 0
    while element := ELEMENT.match(text, position):
        position = element.end()
        parameters = found.setdefault(element[1], {})
        while parameter := PARAMETER.match(text, position):
            parameters[parameter[1]] = ESCAPED.sub(r"\1", parameter[2])
            position = parameter.end()
        if text[position : position + 1] != "]":
            raise NotSyslog(f"the structured data is broken at character {position}")
        position += 1
    if not found:
        raise NotSyslog("the structured data is missing")
    return found, text[position:]


def _rfc3164(text: str, received_at: datetime) -> dict[str, Any]:
    """The time has no year and no zone: it is taken as UTC, and as the one nearest to the time of arrival."""
    made: dict[str, Any] = {}
    if head := HEAD_3164.match(text):
        at = _nearest(head[1], received_at)
        if at is not None:
            made = {"at": at.isoformat().replace("+00:00", "Z"), "host": head[2]}
            text = text[head.end() :]
    if tag := TAG.match(text):
        made |= {"app": tag[1], "process": tag[2]}
        text = text[tag.end() :]
    return made | {"message": text}


def _nearest(text: str, received_at: datetime) -> datetime | None:
    found = []
    for year in (received_at.year - 1, received_at.year, received_at.year + 1):
        try:
            found.append(datetime.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC))
        except ValueError:  # not a date, or February 29th of another year
            continue
    return min(found, key=lambda moment: abs(moment - received_at), default=None)
