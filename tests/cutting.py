"""Rows cut into bundles, for tests that the cuts make no difference."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from millstream.testing import Add, Watermark


def cut(rows: list[dict[str, Any]], cuts: list[int], to: str) -> list[Any]:
    """Bundles of rows for an input, each with the watermark of its last row behind it or not."""
    places = sorted({0, len(rows), *(each % (len(rows) + 1) for each in cuts)})
    steps: list[Any] = []
    for number, (start, stop) in enumerate(pairwise(places)):
        steps.append(Add(rows[start:stop], to=to))
        if number % 2 or number == len(places) - 2:
            steps.append(Watermark(rows[stop - 1]["at"]))
    return [*steps, Watermark(None)]
