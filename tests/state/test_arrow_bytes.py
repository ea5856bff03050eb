"""A frame comes back from its bytes as it was."""

from __future__ import annotations

import polars as pl
import pytest

from millstream.state.arrow_bytes import from_stream, to_stream

FRAME = pl.DataFrame(
    {
        "whole": pl.Series([1, None, -3], dtype=pl.Int64),
        "narrow": pl.Series([1, 2, None], dtype=pl.UInt8),
        "wide": pl.Series([1 << 100, None, -1], dtype=pl.Int128),
        "text": ["a", None, "a text that is longer than a view holds"],
        "bytes": [b"a", None, b""],
        "time": pl.Series([1, None, 3], dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
        "span": pl.Series([1, None, 3], dtype=pl.Int64).cast(pl.Duration("us")),
        "money": pl.Series(["1.20", None, "3.40"]).cast(pl.Decimal(10, 2)),
        "list": [["x"], [], None],
        "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}],
        "kind": pl.Series(["early", None, "late"], dtype=pl.Enum(["early", "late"])),
        "nothing": pl.Series([None] * 3, dtype=pl.Null),
    }
)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("name", [*FRAME.columns, "all", "all but wide"])
@pytest.mark.parametrize("rows", [3, 0])
def test_every_type_comes_back(name: str, compressed: bool, rows: int) -> None:
    frame = FRAME if name == "all" else FRAME.drop("wide") if name == "all but wide" else FRAME.select(name)
    frame = frame.head(rows)
    back = from_stream(to_stream(frame, compressed=compressed))
    assert back.schema == frame.schema
    assert back.equals(frame, null_equal=True)


def test_a_slice_does_not_drag_the_rest_along() -> None:
    frame = pl.DataFrame({"text": ["x" * 1000] * 1000})
    assert len(to_stream(frame[5:6])) < 3000
