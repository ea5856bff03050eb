"""A function of the user's is called once per batch; again only if it, or its process, did not come to an end."""

from __future__ import annotations

import pyarrow as pa

from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.weights import with_weights
from millstream.errors import MillstreamError, SinkFailed
from millstream.plan.endpoints import Foreach


class ForeachSink:
    def __init__(self, place: Foreach, *, step: str, ledger: FileLedger) -> None:
        self._place = place
        self._step = step
        self._ledger = ledger

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if self._ledger.has(batch):
            return
        if rows.num_rows:
            try:
                self._place.function(with_weights(rows, weights), batch)
            except MillstreamError:  # the function may know that trying again helps, and raise SinkUnavailable
                raise
            except Exception as error:
                raise SinkFailed(
                    f"{self._place} failed with {type(error).__name__}: {error}",
                    where=f"step '{self._step}', batch {batch}, {rows.num_rows} rows" + _line_of(error),
                    next_step="fix the function; the batch comes again. Raise SinkUnavailable to have it tried later",
                ) from error
        self._ledger.record(batch)

    def close(self) -> None:
        """The function holds what it holds."""


def _line_of(error: Exception) -> str:
    """The line in the user's code where it went wrong: the first below the call."""
    trace = error.__traceback__
    below = trace.tb_next if trace is not None else None
    return f", {below.tb_frame.f_code.co_filename}:{below.tb_lineno}" if below is not None else ""
