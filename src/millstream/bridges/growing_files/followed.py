"""One file that grows: its next whole lines, and where they end."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from io import FileIO
from typing import Any

from millstream import terminal
from millstream.bridges.arrivals import Arrival
from millstream.bridges.growing_files.lines import whole_lines

READ_BYTES = 1 << 20
BEGINNING_BYTES = 256
logger = terminal.logger(__name__)


@dataclass
class Followed:
    """Open since it was found."""

    topic: str
    path: str
    file: FileIO
    offset: int = 0
    """After the last line that was stored."""
    is_cut: bool = False
    """Whether the line at the offset was too long: its rest is skipped."""

    @property
    def identity(self) -> str:
        found = os.fstat(self.file.fileno())
        return f"{found.st_dev}:{found.st_ino}"

    @property
    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    @property
    def progress(self) -> object:
        """Changes with everything that was read."""
        return self.offset

    def position(self) -> dict[str, Any]:
        beginning = self.beginning(min(self.offset, BEGINNING_BYTES))
        return beginning | {"offset": self.offset, "cut": self.is_cut}

    def resume(self, stored: dict[str, Any]) -> None:
        """A file of the same inode with another beginning is another file."""
        if "member" not in stored and self.is_of(stored) and self.size >= stored["offset"]:
            self.offset, self.is_cut = stored["offset"], stored["cut"]

    def is_of(self, stored: dict[str, Any]) -> bool:
        return bool(self.beginning(stored["size"])["hash"] == stored["hash"])

    def beginning(self, size: int) -> dict[str, Any]:
        content = os.pread(self.file.fileno(), size, 0)
        return {"size": size, "hash": hashlib.blake2b(content, digest_size=8).hexdigest()}

    def left(self) -> int:
        """Bytes that are there and not stored."""
        return max(0, self.size - self.offset)

    def lines(self, bytes_max: int, *, is_ended: bool) -> list[Arrival]:
        """The next whole lines; the last one without a line break only of a file that will not grow."""
        if self.size < self.offset:  # truncated, and written again
            logger.warning("%s was truncated: it is read from its beginning", self.path)
            self.offset, self.is_cut = 0, False
        content = os.pread(self.file.fileno(), max(READ_BYTES, bytes_max + 1), self.offset)
        taken = whole_lines(content, bytes_max, is_cut=self.is_cut, is_ended=is_ended)
        self.offset, self.is_cut = self.offset + taken.size, taken.is_cut
        return [self.arrival(line, bytes_max) for line in taken.lines]

    def arrival(self, line: bytes, bytes_max: int) -> Arrival:
        made = Arrival(
            self.topic, line[:bytes_max], headers=(("file", self.path.encode(errors="replace")),), origin=self.path
        )
        if len(line) > bytes_max:
            made.fault = f"the line is longer than {bytes_max:,} bytes, and was cut"
        return made

    def close(self) -> None:
        self.file.close()
