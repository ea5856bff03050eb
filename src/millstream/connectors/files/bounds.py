"""Limits for one file: the bytes of a record, and the unpacked size as a multiple of the size on disk."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.records.bounds import size_text

EXPANDED_BYTES_MIN = 1 << 30  # less than this is always safe


class Unreadable(Exception):
    """From here on a file is damaged or exceeds the limits."""


@dataclass
class FileBounds:
    """The limits for one file, and how much has been unpacked so far."""

    file_bytes: int
    record_bytes_max: int
    expansion_max: int | None
    unpacked_bytes: int = 0
    allowed_with: str = "files(…, max_expansion=…)"

    def unpack(self, size_bytes: int) -> None:
        """Counts unpacked bytes; raises Unreadable above the limit."""
        self.unpacked_bytes += size_bytes
        if self.expansion_max is None or self.unpacked_bytes <= EXPANDED_BYTES_MIN:
            return
        if self.unpacked_bytes > self.expansion_max * self.file_bytes:
            raise Unreadable(
                f"it unpacks to more than {size_text(EXPANDED_BYTES_MIN)} and more than {self.expansion_max} times its "
                f"size of {size_text(self.file_bytes)}; if that is right, allow it with {self.allowed_with}"
            )
