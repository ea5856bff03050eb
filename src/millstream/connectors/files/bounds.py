"""How much one file may become: a record of it in bytes, and all of it as a multiple of its size on disk."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.records.bounds import size_text

EXPANDED_BYTES_MIN = 1 << 30  # less than this is no danger, whatever it was packed into


class Unreadable(Exception):
    """From here on a file is damaged, or more than the bounds allow."""


@dataclass
class FileBounds:
    """The bounds for one file, and how much of it has been unpacked so far."""

    file_bytes: int
    record_bytes_max: int
    expansion_max: int | None
    unpacked_bytes: int = 0
    allowed_with: str = "files(…, max_expansion=…)"

    def unpack(self, size_bytes: int) -> None:
        """Counts; raises Unreadable when it is too much altogether."""
        self.unpacked_bytes += size_bytes
        if self.expansion_max is None or self.unpacked_bytes <= EXPANDED_BYTES_MIN:
            return
        if self.unpacked_bytes > self.expansion_max * self.file_bytes:
            raise Unreadable(
                f"it unpacks to more than {size_text(EXPANDED_BYTES_MIN)} and more than {self.expansion_max} times its "
                f"size of {size_text(self.file_bytes)}; if that is right, allow it with {self.allowed_with}"
            )
