"""Dead letters of the rows that a sink refused: durable in the job's folder before the rest of their batch is final.

So the next run after a crash finds what the sink left out of a batch that it has, even if the sink would decide
otherwise by now, and hands just that on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.connectors.file_ledger import replace_durably, unavailable_if_refused
from millstream.connectors.refusals import Refusal
from millstream.connectors.weights import one_batch
from millstream.errors import DamagedState
from millstream.operators.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET, frame_of
from millstream.plan.bundles import dead_letter_values
from millstream.plan.nodes import Write
from millstream.records import batch_to_rows
from millstream.spark.query.packing import PARTITION
from millstream.state.arrow_bytes import from_stream, to_stream

FILE = "refused.arrow"
TOPIC = "__topic"
BATCH = "__batch"


class RefusedRows:
    """Of one output, those of its newest batch."""

    def __init__(self, folder: Path, step: str) -> None:
        self._path = folder / FILE
        self._step = step

    def keep(self, batch: int, letters: pl.DataFrame) -> None:
        """Notes them, in the place of those before."""
        with unavailable_if_refused("the dead letters", self._step):
            if len(letters):
                kept = letters.with_columns(pl.lit(batch, pl.Int64).alias(BATCH))
                replace_durably(self._path, to_stream(kept, compressed=True))
            else:
                self._path.unlink(missing_ok=True)

    def of(self, batch: int) -> pl.DataFrame:
        with unavailable_if_refused("the dead letters", self._step):
            try:
                found = from_stream(self._path.read_bytes())
            except FileNotFoundError:
                return frame_of([], None)
            except (
                ValueError,
                pl.exceptions.PolarsError,
            ) as error:  # it is read only if the output has the batch already
                raise DamagedState(
                    f"which rows the output '{self._step}' refused in batch {batch} cannot be read: {error}",
                    where=str(self._path),
                ) from error
        return found.filter(pl.col(BATCH) == batch).drop(BATCH)


def letters_of(
    output: Write, frame: pl.DataFrame, table: pa.Table, refusals: Sequence[Refusal], now: int
) -> pl.DataFrame:
    """Dead letters of some rows of a batch; `frame` has what is hidden in `table`."""
    if not refusals:
        return frame_of([], None)
    places = [refusal.row for refusal in refusals]
    hidden = frame.select(pl.col("^__(offset|partition|topic|weight)$"))[places].to_dicts()
    letters = []
    for refusal, row, carried in zip(refusals, _shown(table.take(places)), hidden, strict=True):
        letters.append(
            {
                **dead_letter_values(row, f"{output.name}: {refusal.reason}", now),
                "topic": carried.get(TOPIC),
                "partition": carried.get(PARTITION),
                "offset": carried.get(OFFSET),
                TIME: None,
                WEIGHT: carried.get(WEIGHT, 1),
            }
        )
    return frame_of(letters, None)


def _shown(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python has them; a value that Python has none for as Arrow shows it."""
    try:
        return batch_to_rows(one_batch(table))
    except (OverflowError, ValueError):
        return [{name: _value(table.column(name)[row]) for name in table.column_names} for row in range(table.num_rows)]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return pa.array([scalar], scalar.type).to_string()
