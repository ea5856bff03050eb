"""A compressed file or an archive: every line of every file in it, with a position that can be resumed.

The position is the number of the member, and how many bytes of it were stored as whole lines. What cannot be unpacked
any further is a dead letter, and what was read before it stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millstream.bridges.arrivals import Arrival
from millstream.bridges.growing_files.followed import READ_BYTES, Followed
from millstream.bridges.growing_files.lines import whole_lines
from millstream.bridges.growing_files.unpacking import MALFORMED, UNPACKED_BYTES_MAX, Member, Refused, members

SETTLED_SECONDS = 2.0
"""A file that was not written to for so long is complete, if nothing else says so."""
BEGINNING_BYTES = 256


@dataclass
class Packed(Followed):
    """`offset` is in the present member, unpacked."""

    unpacked_bytes_max: int = UNPACKED_BYTES_MAX
    _number: int = 0
    """Of the present member."""
    _done: list[int] | None = None
    """The file's size and time when everything in it was stored, or refused."""
    _members: Iterator[Member] | None = None
    _member: Member | None = None
    _next_number: int = 0
    """Of the member that comes next from the iterator."""
    _buffer: bytes = b""
    """What was unpacked after the offset."""
    _is_at_end: bool = False
    """Whether the buffer has the rest of its member."""
    _seen: tuple[list[int], float] = field(default_factory=lambda: ([], 0.0))

    @property
    def progress(self) -> object:
        return self._number, self.offset, self._done

    def position(self) -> dict[str, Any]:
        beginning = self.beginning(min(self.size, BEGINNING_BYTES))
        return beginning | {"offset": self.offset, "cut": self.is_cut, "member": self._number, "done": self._done}

    def resume(self, stored: dict[str, Any]) -> None:
        if "member" in stored and self.is_of(stored):
            self.offset, self.is_cut = stored["offset"], stored["cut"]
            self._number, self._done = stored["member"], stored["done"]

    def left(self) -> int:
        """The whole file, packed: nobody knows how much of it is left."""
        return 0 if self._done == self._stamp() else self.size

    def lines(self, bytes_max: int, *, is_ended: bool) -> list[Arrival]:
        stamp = self._stamp()
        if self._done is not None:
            if stamp == self._done:
                return []
            self._done = None  # it goes on: more may follow what was stored
            self._begin_again()
        if not self.size or not (is_ended or self._members or self._is_settled(stamp)):
            return []
        try:
            return self._next_lines(bytes_max)
        except MALFORMED as error:
            return self._refused(error, bytes_max)
        except OSError as error:
            if error.errno is not None:  # of the disk, and not of what the file has
                raise
            return self._refused(error, bytes_max)

    def _stamp(self) -> list[int]:
        status = os.fstat(self.file.fileno())
        return [status.st_size, status.st_mtime_ns]

    def _is_settled(self, stamp: list[int]) -> bool:
        now = time.monotonic()
        if self._seen[0] != stamp:
            self._seen = (stamp, now)
        return now - self._seen[1] >= SETTLED_SECONDS

    def _begin_again(self) -> None:
        """Unpacks from the beginning of the file: up to the position, nothing is stored."""
        self._members, self._member, self._next_number = None, None, 0
        self._buffer, self._is_at_end = b"", False

    def _next_lines(self, bytes_max: int) -> list[Arrival]:
        """Of the present member, or nothing and the next member."""
        member = self._opened()
        if member is None:
            self._end()
            return []
        if member.fault is not None:
            self._end_member()
            return [self._arrival(b"", 0, member.fault, member.name)]
        size = max(READ_BYTES, bytes_max + 1)
        while len(self._buffer) < size and not self._is_at_end:
            found = member.read(size - len(self._buffer))
            self._buffer += found
            self._is_at_end = not found
        taken = whole_lines(self._buffer, bytes_max, is_cut=self.is_cut, is_ended=self._is_at_end)
        self._buffer = self._buffer[taken.size :]
        self.offset, self.is_cut = self.offset + taken.size, taken.is_cut
        if not taken.size and self._is_at_end:
            if member.name is None:
                self._end()  # here: more of it may follow
            else:
                self._end_member()
        return [self._arrival(line, bytes_max, member=member.name) for line in taken.lines]

    def _opened(self) -> Member | None:
        """The present member, from the offset on; None after the last one."""
        if self._member is None:
            if self._members is None:
                self.file.seek(0)
                self._members = members(self.file, self.path, self.unpacked_bytes_max)
            while self._next_number <= self._number:
                found = next(self._members, None)
                if found is None:
                    return None
                self._member = found
                self._next_number += 1
            left = self.offset
            while left and self._member is not None and (skipped := self._member.read(min(left, READ_BYTES))):
                left -= len(skipped)
        return self._member

    def _end(self) -> None:
        self._done = self._stamp()
        self._begin_again()

    def _end_member(self) -> None:
        self._number, self.offset, self.is_cut = self._number + 1, 0, False
        self._member, self._buffer, self._is_at_end = None, b"", False

    def _refused(self, error: Exception, bytes_max: int) -> list[Arrival]:
        """With what was unpacked after the last whole line. It is tried again when the file changes."""
        name, rest = None if self._member is None else self._member.name, self._buffer[:bytes_max]
        self._end()
        text = str(error) if isinstance(error, Refused) else f"it cannot be unpacked: {error or type(error).__name__}"
        return [self._arrival(rest, bytes_max, text, name)]

    def _arrival(self, line: bytes, bytes_max: int, fault: str | None = None, member: str | None = None) -> Arrival:
        made = self.arrival(line, bytes_max)
        made.fault = made.fault if fault is None else fault
        if member is not None:
            made.headers += (("member", member.encode(errors="replace")),)
            made.origin = f"{self.path}: {member}"
        return made

    def close(self) -> None:
        with suppress(Exception):  # of what was not read to its end
            self._begin_again()
        super().close()
