"""The state of a producer's records in flight, shared between its users and the storing thread."""

from __future__ import annotations

import time

from millstream import terminal
from millstream.errors import InvalidRecord, MillstreamError
from millstream.log.buffer import Buffer, Chunk

WARN_SECONDS = 10.0
logger = terminal.logger(__name__)


class Sending:
    """A producer, as seen by the storing port; see `Sender`."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.in_transaction = False
        self.is_closing = False
        self.is_discarding = False
        self._warned_at = 0.0
        self._first_failure: MillstreamError | None = None
        self._failures = 0

    def warn(self, chunk: Chunk, trouble: MillstreamError) -> None:
        if time.monotonic() - self._warned_at > WARN_SECONDS:
            self._warned_at = time.monotonic()
            logger.warning("records for topic '%s' could not be stored yet: %s", chunk.topic, trouble)

    def report(self, trouble: MillstreamError) -> None:
        self._buffer.report(trouble)

    def refuse(self, chunk: Chunk, row: int, reason: str) -> None:
        chunk.refused[row] = reason
        self.note_failure(InvalidRecord(reason, where=f"topic '{chunk.topic}'"))

    def note_failure(self, error: MillstreamError) -> None:
        """For the next flush to raise; only the first failure is kept."""
        self._first_failure = self._first_failure or error
        self._failures += 1

    def forget_failures(self) -> None:
        self._first_failure, self._failures = None, 0

    def raise_failure(self) -> None:
        first, count = self._first_failure, self._failures
        self.forget_failures()
        if first is not None:
            more = f" (and {count - 1} more failures)" if count > 1 else ""
            raise type(first)(first.what + more, where=first.where, next_step=first.next_step)
