"""Functions that DuckDB calls back into Python for, because it has no equivalent: for few rows, or for few letters.

Each takes and returns one value; null in, null out.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.expressions import json_text
from millstream.expressions.java_sort import sorted_places
from millstream.expressions.timestamp_text import micros_of

if TYPE_CHECKING:
    import duckdb


PREFIX = "spark_"
"""How the names of these functions start."""


def _initcap(given: str) -> str:
    """Words are separated by spaces only."""
    return " ".join(word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in given.split(" "))


def _levenshtein(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        corner, row[0] = row[0], at
        for place, against in enumerate(other, 1):
            corner, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, corner + (letter != against))
    return row[-1]


SOUNDS = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "01230127022455012623017202", strict=True))


def _soundex(given: str) -> str:
    """As Spark: what does not start with a letter is returned as it is; H and W (7) do not separate equal sounds."""
    first = given[:1]
    if not ("a" <= first <= "z" or "A" <= first <= "Z"):
        return given
    made, last = first.upper(), SOUNDS[first.upper()]
    for letter in given[1:]:
        sound = SOUNDS.get(letter.upper()) if letter.isascii() else None
        if sound is None:
            last = "0"
        elif sound != "7":
            if sound not in ("0", last):
                made += sound
                if len(made) == 4:
                    break
            last = sound
    return made.ljust(4, "0")


def _sha(bits: int) -> Callable[[bytes], str]:
    return lambda given: hashlib.new(f"sha{bits}", given).hexdigest()


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...], str, pa.DataType]] = {
    "spark_upper": (str.upper, ("VARCHAR",), "VARCHAR", pa.string()),
    "spark_lower": (str.lower, ("VARCHAR",), "VARCHAR", pa.string()),
    "spark_initcap": (_initcap, ("VARCHAR",), "VARCHAR", pa.string()),
    "spark_soundex": (_soundex, ("VARCHAR",), "VARCHAR", pa.string()),
    "spark_levenshtein": (_levenshtein, ("VARCHAR", "VARCHAR"), "INTEGER", pa.int32()),
    "spark_timestamp_micros": (micros_of, ("VARCHAR",), "BIGINT", pa.int64()),
    "spark_crc32": (zlib.crc32, ("BLOB",), "BIGINT", pa.int64()),
    "spark_sha224": (_sha(224), ("BLOB",), "VARCHAR", pa.string()),
    "spark_sha384": (_sha(384), ("BLOB",), "VARCHAR", pa.string()),
    "spark_get_json_object": (json_text.get_json_object, ("VARCHAR", "VARCHAR"), "VARCHAR", pa.string()),
    "spark_from_json": (json_text.from_json, ("VARCHAR", "VARCHAR"), "VARCHAR", pa.string()),
    "spark_json_array_length": (json_text.json_array_length, ("VARCHAR",), "INTEGER", pa.int32()),
    "spark_json_object_keys": (json_text.json_object_keys, ("VARCHAR",), "VARCHAR[]", pa.list_(pa.string())),
    "spark_sorted_places": (sorted_places, ("INTEGER[][]", "INTEGER[]"), "INTEGER[]", pa.list_(pa.int32())),
    "spark_sha512": (_sha(512), ("BLOB",), "VARCHAR", pa.string()),
}


def register(connection: duckdb.DuckDBPyConnection) -> None:
    from duckdb.func import FunctionNullHandling, PythonUDFType

    for name, (function, takes, returns, kind) in FUNCTIONS.items():
        called = _of_one(function, kind) if len(takes) == 1 else _of_two(function, kind)
        parameters: list[Any] = list(takes)
        connection.create_function(
            name, called, parameters, returns, type=PythonUDFType.ARROW, null_handling=FunctionNullHandling.SPECIAL
        )


def _of_one(function: Callable[..., Any], kind: pa.DataType) -> Callable[[pa.ChunkedArray], pa.Array]:
    """DuckDB counts the parameters, so there is one function for each number of them."""

    def called(column: pa.ChunkedArray) -> pa.Array:
        return pa.array([None if value is None else function(value) for value in column.to_pylist()], kind)

    return called


def _of_two(function: Callable[..., Any], kind: pa.DataType) -> Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.Array]:
    def called(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return pa.array([None if a is None or b is None else function(a, b) for a, b in pairs], kind)

    return called
