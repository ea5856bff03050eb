"""Rows, keys and hashes for the tests of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.state.hashing import key_hashes
from millstream.state.run_files import Applied, Runs
from millstream.state.tables import NEVER, Marks

KEYS = ["user", "place"]
EMPTY = {
    "windows": pl.DataFrame(
        schema={
            "user": pl.Int64,
            "place": pl.String,
            "start": pl.Int64,
            "names": pl.List(pl.String),
            "event": pl.Int64,
            "clock": pl.Int64,
            "hold": pl.Int64,
        }
    ),
    "counters": pl.DataFrame(schema={"user": pl.Int64, "place": pl.String, "seen": pl.Int64, "nothing": pl.Null}),
}
MARKS = {
    "windows": Marks(pl.col("event"), pl.col("clock"), pl.col("hold")),
    "counters": Marks(pl.lit(None), pl.lit(None)),
}
START = (-NEVER, -NEVER)

Row = tuple[Any, ...]
Key = tuple[Any, ...]


def nothing_kept() -> Iterator[bytes]:
    raise AssertionError("the files of this version should be there")
    yield b""


def frame_of(table: str, rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=EMPTY[table].schema, orient="row")


def keys_of(keys: list[Key]) -> pl.DataFrame:
    return pl.DataFrame(keys, schema={"user": pl.Int64, "place": pl.String}, orient="row")


def counted(frame: pl.DataFrame) -> Counter[str]:
    return Counter(repr(row) for row in frame.rows())


def window(user: int | None, place: str | None = "x", start: int = 0, **more: int | None) -> Row:
    return (user, place, start, ["a", None], more.get("event"), more.get("clock"), more.get("hold"))


def put(runs: Runs, keys: list[Key], rows: list[Row]) -> Applied:
    runs.held({"windows": keys_of(keys)}, START, START)
    return runs.apply({"windows": frame_of("windows", rows)}, MARKS)


def held(runs: Runs, keys: list[Key], before: tuple[int, int] = START, now: tuple[int, int] = START) -> list[Row]:
    return runs.held({"windows": keys_of(keys)}, before, now)["windows"].rows()


def weak_hashes(frame: pl.DataFrame, columns: list[str]) -> npt.NDArray[np.uint64]:
    return key_hashes(frame, columns) % np.uint64(5)


def few_hashes(frame: pl.DataFrame, columns: list[str]) -> npt.NDArray[np.uint64]:
    return key_hashes(frame, columns)
