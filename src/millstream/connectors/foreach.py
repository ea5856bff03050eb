"""Calls a user's function once per batch; again only if it failed or its process died."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa

from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.sink import Sink
from millstream.connectors.weights import with_weights
from millstream.errors import MillstreamError, SinkFailed
from millstream.plan.batches import as_frame
from millstream.plan.on_spark import engine
from millstream.user_lines import what_exists

Kind = Literal["arrow", "pandas", "polars", "spark"]
KINDS = get_args(Kind)


@dataclass(frozen=True)
class ForeachBatch(Connector):
    function: Callable[[Any, int], Any]
    batch: str = "arrow"
    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"foreach {getattr(self.function, '__name__', 'function').strip('<>')}"

    def open_sink(self, writing: Writing) -> Sink:
        return ForeachBatchSink(self, step=writing.step, ledger=writing.ledger)

    def __str__(self) -> str:
        return f"foreach_batch({getattr(self.function, '__name__', type(self.function).__name__)})"


def foreach_batch(function: Callable[[Any, int], Any], *, batch: Kind = "arrow") -> ForeachBatch:
    """A sink that calls `function(rows, batch)` with the rows and the number of every batch that has rows.

    The rows are an Arrow table, or what `batch` says: "pandas", "polars", or "spark" for a DataFrame of Spark, as in
    PySpark's `foreachBatch`.
    """
    if not callable(function):
        raise arguments.refused(
            f"foreach_batch takes a function, not {function!r}",
            "for example foreach_batch(lambda rows, batch: print(rows))",
        )
    if batch not in KINDS:
        raise arguments.refused(f"batch={batch!r} is unknown", what_exists(batch, KINDS, kind="kinds"))
    return ForeachBatch(function, batch)


class ForeachBatchSink(Sink):
    def __init__(self, endpoint: ForeachBatch, *, step: str, ledger: FileLedger) -> None:
        self._endpoint = endpoint
        self._step = step
        self._ledger = ledger

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if self._ledger.has(batch):
            return
        if rows.num_rows:
            try:
                self._endpoint.function(self._given(with_weights(rows, weights)), batch)
            except MillstreamError:  # the function may raise SinkUnavailable to ask for a retry
                raise
            except Exception as error:
                raise SinkFailed(
                    f"{self._endpoint} failed with {type(error).__name__}: {error}",
                    where=f"step '{self._step}', batch {batch}, {rows.num_rows} rows" + _line_of(error),
                    next_step="fix the function; the batch is replayed. Raise SinkUnavailable to retry it later",
                ) from error
        self._ledger.record(batch)

    def _given(self, rows: pa.Table) -> Any:
        kind = self._endpoint.batch
        return engine.dataframe_of(rows) if kind == "spark" else as_frame(rows, kind)


def _line_of(error: Exception) -> str:
    """The line of the error in the user's code: the first frame below the call."""
    trace = error.__traceback__
    below = trace.tb_next if trace is not None else None
    return f", {below.tb_frame.f_code.co_filename}:{below.tb_lineno}" if below is not None else ""
