"""Frames of STOMP 1.2 as bytes. A body that is longer than wanted is skipped, and only its beginning is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HEAD_BYTES_MAX = 1 << 20
BEAT = b"\n"
UNESCAPED = {"CONNECT", "CONNECTED"}
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"}
MEANINGS = {"\\": "\\", "n": "\n", "r": "\r", "c": ":"}


class BrokenFrame(Exception):
    """What came is not STOMP."""


class Frame(NamedTuple):
    command: str
    headers: Mapping[str, str]
    body: bytes = b""


def encoded(command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """With a `content-length` among the headers, the body may have any bytes; else none that is zero."""
    escape = _same if command in UNESCAPED else _escaped
    lines = "".join(f"{escape(name)}:{escape(value)}\n" for name, value in headers.items())
    return b"%s\n%s\n%s\0" % (command.encode(), lines.encode(errors="replace"), body)


class Decoder:
    def __init__(self, body_bytes_max: int) -> None:
        self._kept_max = body_bytes_max + 1  # one more shows that it was longer
        self._buffer = bytearray()
        self._head: Frame | None = None
        self._body = bytearray()
        self._missing: int | None = None
        """Bytes of the body that have not come yet, if its length is given."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now."""
        self._buffer += data
        made = []
        while (frame := self._next()) is not None:
            made.append(frame)
        return made

    def _next(self) -> Frame | None:
        if self._head is None and not self._begin():
            return None
        assert self._head is not None
        if not self._read_body():
            return None
        made = self._head._replace(body=bytes(self._body))
        self._head, self._body = None, bytearray()
        return made

    def _begin(self) -> bool:
        """Whether the command and the headers are there."""
        while self._buffer[:1] == b"\n" or self._buffer[:1] == b"\r":  # heartbeats
            del self._buffer[:1]
        end = self._buffer.find(b"\n\n")
        end_with_returns = self._buffer.find(b"\r\n\r\n")
        if end < 0 or 0 <= end_with_returns < end:
            end, size = end_with_returns, 4
        else:
            size = 2
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise BrokenFrame("the headers of a frame do not end")
            return False
        self._head = _head(self._buffer[:end].decode(errors="replace"))
        del self._buffer[: end + size]
        length = self._head.headers.get("content-length")
        if length is not None and not length.isdecimal():
            raise BrokenFrame(f"the length of a frame is not a number: {length}")
        self._missing = None if length is None else int(length)
        return True

    def _read_body(self) -> bool:
        """Whether it is complete."""
        if self._missing is None:
            end = self._buffer.find(b"\0")
            self._keep(len(self._buffer) if end < 0 else end)
            if end < 0:
                return False
        else:
            size = min(self._missing, len(self._buffer))
            self._keep(size)
            self._missing -= size
            if self._missing or not self._buffer:
                return False
            if self._buffer[0]:
                raise BrokenFrame("a frame is longer than its length")
        del self._buffer[:1]
        return True

    def _keep(self, size: int) -> None:
        room = max(self._kept_max - len(self._body), 0)
        self._body += self._buffer[: min(size, room)]
        del self._buffer[:size]


def _head(text: str) -> Frame:
    command, *lines = text.replace("\r\n", "\n").split("\n")
    meaning = _same if command in UNESCAPED else _meant
    headers: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator:
            raise BrokenFrame(f"a header of {command[:20]} has no value")
        headers.setdefault(meaning(name), meaning(value))  # the first one counts
    return Frame(command, headers)


def _same(text: str) -> str:
    return text


def _escaped(text: str) -> str:
    return "".join(ESCAPES.get(each, each) for each in text)


def _meant(text: str) -> str:
    if "\\" not in text:
        return text
    made, rest = [], iter(text)
    for each in rest:
        if each == "\\":
            following = next(rest, "")
            if following not in MEANINGS or not following:
                raise BrokenFrame("a header has an escape that does not exist")
            made.append(MEANINGS[following])
        else:
            made.append(each)
    return "".join(made)
