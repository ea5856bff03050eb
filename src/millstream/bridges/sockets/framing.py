"""Messages in a stream of bytes: lines, or messages with their length in front (RFC 6587)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LENGTH_DIGITS_MAX = 9


@dataclass(frozen=True)
class Piece:
    """A message, or the beginning of one that is too large, or that cannot be delimited."""

    content: bytes
    fault: str | None = None


@dataclass
class Lines:
    """Messages that end with a line break. A carriage return before it is dropped."""

    bytes_max: int
    _rest: bytearray = field(default_factory=bytearray)
    _is_cut: bool = False

    def feed(self, received: bytes) -> Iterator[Piece]:
        self._rest += received
        *lines, rest = self._rest.split(b"\n")
        for line in lines:
            if not self._is_cut:
                yield self._piece(bytes(line))
            self._is_cut = False
        self._rest = rest
        if len(rest) > self.bytes_max:
            if not self._is_cut:
                yield self._piece(bytes(rest))
            self._rest, self._is_cut = bytearray(), True  # the rest of this line is not another one

    def end(self) -> Iterator[Piece]:
        """The last line need not end with a line break."""
        if self._rest and not self._is_cut:
            yield self._piece(bytes(self._rest))

    def _piece(self, line: bytes) -> Piece:
        if len(line) > self.bytes_max:
            return Piece(line[: self.bytes_max], f"the message is longer than {self.bytes_max:,} bytes, and was cut")
        return Piece(line.removesuffix(b"\r"))


@dataclass
class Counted:
    """Syslog over TCP: `LENGTH SP MESSAGE`, or lines if the stream does not begin with a digit."""

    bytes_max: int
    _rest: bytearray = field(default_factory=bytearray)
    _lines: Lines | None = None

    def feed(self, received: bytes) -> Iterator[Piece]:
        if self._lines is None and not self._rest and received[:1] and not received[:1].isdigit():
            self._lines = Lines(self.bytes_max)
        if self._lines is not None:
            yield from self._lines.feed(received)
            return
        self._rest += received
        while self._rest:
            digits, space, _ = self._rest[: LENGTH_DIGITS_MAX + 1].partition(b" ")
            if not space and len(digits) <= LENGTH_DIGITS_MAX:
                return
            if not (space and digits.isdigit()) or int(digits) > self.bytes_max:
                fault = f"a message has no length, or one above {self.bytes_max:,} bytes: the rest is dropped"
                yield Piece(bytes(self._rest[: self.bytes_max]), fault)
                raise Unframed(fault)
            start = len(digits) + 1
            if len(self._rest) < start + int(digits):
                return
            yield Piece(bytes(self._rest[start : start + int(digits)]))
            del self._rest[: start + int(digits)]

    def end(self) -> Iterator[Piece]:
        if self._lines is not None:
            yield from self._lines.end()
        elif self._rest:
            yield Piece(bytes(self._rest), "the connection ended in the middle of the message")


class Unframed(Exception):
    """Where the next message begins cannot be known: the connection must be closed."""
