"""Dead letters of the rows that a sink refused, durable in the job's folder before the rest of their batch commits.

So after a crash the next run sends the same dead letters, even if the sink would now decide differently.
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
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET, frame_of
from millstream.plan.nodes import Write
from millstream.plan.time.bundles import dead_letter_values
from millstream.records import batch_to_rows
from millstream.spark.query.packing import PARTITION, TOPIC
from millstream.state.arrow_bytes import from_stream, to_stream

FILE = "refused.arrow"
BATCH = "__batch"
NONE = frame_of([], None)


class RefusedRows:
    """The dead letters of one output, of its newest batch."""

    def __init__(self, folder: Path, step: str) -> None:
        self._path = folder / FILE
        self._step = step

    def keep(self, batch: int, dead_letters: pl.DataFrame) -> None:
        """Replaces the dead letters of the previous batch."""
        with unavailable_if_refused("the dead letters", self._step):
            if len(dead_letters):
                kept = dead_letters.with_columns(pl.lit(batch, pl.Int64).alias(BATCH))
                replace_durably(self._path, to_stream(kept, compressed=True))
            else:
                self._path.unlink(missing_ok=True)

    def of(self, batch: int) -> pl.DataFrame:
        with unavailable_if_refused("the dead letters", self._step):
            try:
                found = from_stream(self._path.read_bytes())
            except FileNotFoundError:
                return NONE
            except (
                ValueError,
                pl.exceptions.PolarsError,
            ) as error:  # it is read only if the output has the batch already
                raise DamagedState(
                    f"the rows that the output '{self._step}' refused in batch {batch} cannot be read: {error}",
                    where=str(self._path),
                ) from error
        return found.filter(pl.col(BATCH) == batch).drop(BATCH)


def dead_letters_of(
    output: Write, frame: pl.DataFrame, table: pa.Table, refusals: Sequence[Refusal], now: int
) -> pl.DataFrame:
    """Dead letters of the refused rows of a batch; `frame` has the internal columns that `table` lacks."""
    if not refusals:
        return NONE
    rows = [refusal.row for refusal in refusals]
    hidden = frame.select(pl.col("^__(offset|partition|topic|weight)$"))[rows].to_dicts()
    dead_letters = []
    for refusal, row, carried in zip(refusals, _shown(table.take(rows)), hidden, strict=True):
        dead_letters.append(
            {
                **dead_letter_values(row, f"{output.name}: {refusal.reason}", now),
                "topic": carried.get(TOPIC),
                "partition": carried.get(PARTITION),
                "offset": carried.get(OFFSET),
                TIME: None,
                WEIGHT: carried.get(WEIGHT, 1),
            }
        )
    return frame_of(dead_letters, None)


def _shown(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python values; a value that Python cannot represent, as Arrow prints it."""
    try:
        return batch_to_rows(one_batch(table))
    except (OverflowError, ValueError):
        return [{name: _value(table.column(name)[row]) for name in table.column_names} for row in range(table.num_rows)]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return pa.array([scalar], scalar.type).to_string()
