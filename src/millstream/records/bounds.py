"""Limits on the size of a record, enforced before memory is allocated for it.

Records are untrusted bytes, and a few of them can expand to gigabytes: an empty list takes one byte in Avro and 64 in
Python. So sizes, counts and nesting are checked on the bytes, before parsing.
"""

from __future__ import annotations

from millstream.records.columns import Refused

RECORD_BYTES_MAX = 64 << 20
CONTAINERS_MAX = 1_000_000  # objects, records, arrays and maps in one record; each takes up to 240 bytes in Python
CHUNK_BYTES = 1 << 20  # of values whose Python objects exist at the same time
NESTING_MAX = 200  # in Avro; a level takes about 1 kB of the stack, and threads may have 512 kB


def size_text(size_bytes: int) -> str:
    """For messages: the largest unit that keeps the number readable."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} bytes"


def valid_text(text: str) -> str:
    """Untrusted text, for a message: JSON may contain lone surrogates, which cannot be stored."""
    return text.encode(errors="replace").decode()


def too_large(size_bytes: int, size_bytes_max: int) -> str:
    return f"the record has {size_text(size_bytes)}, more than the limit of {size_text(size_bytes_max)}"


def too_many_containers() -> Refused:
    return Refused(f"the record has more than {CONTAINERS_MAX:,} arrays and objects")
