"""A server continues only what the log has: the newest transaction of the log is in the server's change log, too.

A database that was restored from a copy writes other transactions at the places of those that it has lost. Its slot is
as old as the copy, so the server sends them again from there: then the newest of the log has to be among them.
"""

from __future__ import annotations

from millstream.capture.ports import Position
from millstream.capture.postgres.connections import text_of
from millstream.capture.postgres.pgoutput import Begin
from millstream.errors import OffsetLost

ANOTHER_NAME = "capture the tables under another name, into other topics: they start with a new snapshot"
LAST, STORED = "last", "stored"
"""Of a position: the newest transaction or message, and up to where the log has what there was."""
MESSAGE_ID = "message"


def note(position: Position, lsn: int, id: str, end_lsn: int) -> None:
    """The log has this transaction or message when the position is stored."""
    position[LAST] = {"lsn": lsn, "id": id}
    position[STORED] = max(position[STORED], end_lsn)
    position["lsn"] = max(position["lsn"], end_lsn)


def id_of(transaction: Begin) -> str:
    return f"{transaction.xid} {transaction.at_us}"


class History:
    def __init__(self, position: Position, confirmed: int, where: str) -> None:
        """`confirmed` is from where on the server sends."""
        last = position.get(LAST)
        self._expected = last if last is not None and last["lsn"] >= confirmed else None
        self._where = where

    @property
    def is_proven(self) -> bool:
        return self._expected is None

    def sent(self, lsn: int, id: str) -> None:
        """The server has sent a transaction or a message."""
        if self._expected is None or lsn < self._expected["lsn"]:
            return
        if (lsn, id) != (self._expected["lsn"], self._expected["id"]):
            self._raise(self._expected["lsn"])
        self._expected = None

    def reached(self, lsn: int) -> None:
        """The server has sent everything before this place."""
        if self._expected is not None and lsn > self._expected["lsn"]:
            self._raise(self._expected["lsn"])

    def _raise(self, lsn: int) -> None:
        raise OffsetLost(
            f"the log has a transaction at {text_of(lsn)} that the server does not have: the database was restored "
            "from an older copy, or a standby that lacked it has taken over",
            where=self._where,
            next_step=ANOTHER_NAME,
        )
