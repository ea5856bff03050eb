"""Which events no stream keeps any more: decided for the whole store, as of one moment.

The newest event of a stream always stays, however old it is: the version of the stream is known from it. So do the
store's own rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa


class Limited(NamedTuple):
    """A stream that keeps only some of its events."""

    stream: str
    version: int
    keep_last: int | None
    keep_us: int | None


class Expired:
    """What may be removed; `before_us`: events recorded later stay, so that repeated appends are recognized."""

    def __init__(self, limited: Iterable[Limited], now_us: int, before_us: int) -> None:
        self._now_us = now_us
        self._before_us = before_us
        kinds = {"stream": pl.String, "newest": pl.Int64, "keep_last": pl.Int64, "keep_us": pl.Int64}
        self._limits = pl.DataFrame(list(limited), schema=kinds, orient="row")

    def among(self, values: pa.StructArray) -> npt.NDArray[np.bool_]:
        """Which of these events have expired; `values` are those of the topic."""
        columns = _columns(values, "stream", "version", "at")
        version, at_us = pl.col("version"), pl.col("at").cast(pl.Int64)
        beyond_last = version <= pl.col("newest") - pl.col("keep_last")
        beyond_age = at_us < self._now_us - pl.col("keep_us")
        expired = (beyond_last.fill_null(False) | beyond_age.fill_null(False)) & (version < pl.col("newest"))
        found = columns.join(self._limits, on="stream", how="left", maintain_order="left").select(
            (expired & (at_us < self._before_us)).fill_null(False)
        )
        return found.to_series().to_numpy()


class Removed:
    """What was removed, for the index."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        """The newest removed version of each stream."""
        self.count = 0
        self._ids: list[tuple[pl.Series, npt.NDArray[np.int64]]] = []

    def add(self, positions: npt.NDArray[np.int64], values: pa.StructArray) -> None:
        columns = _columns(values, "stream", "version", "id")
        for stream, version in columns.group_by("stream").agg(pl.col("version").max()).iter_rows():
            self.versions[stream] = max(version, self.versions.get(stream, 0))
        self.count += len(positions)
        self._ids.append((columns["id"], positions))

    def ids(self) -> Iterator[tuple[str, int]]:
        """The ids of the events, each with its position."""
        for ids, positions in self._ids:
            yield from zip(ids.to_list(), positions.tolist(), strict=True)


def _columns(values: pa.StructArray, *names: str) -> pl.DataFrame:
    places = [values.type.get_field_index(name) for name in names]
    fields = values.flatten()
    return pl.DataFrame({name: pl.from_arrow(fields[place]) for name, place in zip(names, places, strict=True)})
