"""How far the slots of captures are behind, and how much of the change log the server keeps for them.

A slot of a capture that does not run keeps the change log for good, until the disk of the server is full. So this is to
be watched from outside of the capture.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.capture.postgres.connections import connect, explained
from millstream.errors import StorageError
from millstream.postgres_address import without_password

PREFIX = "millstream_"
STATEMENT_MS_MAX = 10_000
"""A server that hangs must not block who watches it."""
_SLOTS = """
SELECT slot_name, active, coalesce(wal_status, 'lost'), coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0),
  coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)
FROM pg_replication_slots WHERE database = current_database() AND starts_with(slot_name, %s) ORDER BY slot_name
"""


@dataclass(frozen=True)
class Slot:
    name: str
    """Of the slot: that of the capture, with a prefix."""
    is_active: bool
    """Whether a capture is reading it."""
    status: str
    """`reserved` or `extended` if the server has what the slot needs; `unreserved` or `lost` if it may be gone."""
    retained_bytes: int
    """How much of the change log the server keeps for the slot."""
    lag_bytes: int
    """How much of it the log does not have yet."""

    @property
    def is_lost(self) -> bool:
        """Whether changes that the capture needs are gone, or may be soon."""
        return self.status in ("unreserved", "lost")


def slots(dsn: str) -> list[Slot]:
    """The slots of captures of a database."""
    with explained(dsn), connect(dsn) as db:
        db.execute(f"SET statement_timeout = {STATEMENT_MS_MAX}")
        found = db.execute(_SLOTS, (PREFIX,)).fetchall()
    return [Slot(name, active, status, int(retained), int(lag)) for name, active, status, retained, lag in found]


def check(dsn: str, found: list[Slot], limit_bytes: int) -> None:
    """Raises if the server keeps more than a limit for a slot, or no longer has what a slot needs."""
    for slot in found:
        if slot.is_lost:
            raise StorageError(
                f"the slot '{slot.name}' has lost changes, or is about to: its status is '{slot.status}'",
                where=without_password(dsn),
                next_step="start the capture at once; if it reports that changes are lost, capture under another name",
            )
        if slot.retained_bytes > limit_bytes:
            raise StorageError(
                f"the server keeps {slot.retained_bytes:,} bytes of its change log for the slot '{slot.name}', "
                f"more than the limit of {limit_bytes:,}",
                where=without_password(dsn),
                next_step="start the capture, or find out why it is slow; drop one that is not needed with --remove",
            )
