"""Sums are those of Python's own integers, however the rows were cut and folded on their way; or an error says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.errors import StepFailed
from millstream.local import LocalState
from millstream.operators.clock import Clock
from millstream.operators.elementwise import frame_of
from millstream.operators.stateful import INPUTS, PARTIALS, SENT, Stateful, stateful
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import END, moment
from properties import examples

MOST = 2**63 - 1
DIGITS = 10**38 - 1
EDGES = st.sampled_from([0, 1, -1, 5, MOST, -MOST, MOST - 1, 2**62, -(2**62), 2**32, -(2**32)])
LONGS = EDGES | st.just(-MOST - 1) | st.integers(-MOST - 1, MOST)
UNITS = (
    st.sampled_from([0, 1, -1, DIGITS, -DIGITS, 10**19, -(10**19), 10**19 - 1, DIGITS // 2])
    | st.integers(-DIGITS, DIGITS)
)  # fmt: skip
STEPS: dict[str, Callable[[Any], Any]] = {
    "groups": lambda rows: rows.group_by("k").agg(total=ms.sum("n"), mean=ms.mean("n")),
    "all rows": lambda rows: rows.group_by().agg(total=ms.sum("n"), mean=ms.mean("n")),
    "fixed": lambda rows: rows.key_by("k").window(ms.fixed("1 minute")).agg(total=ms.sum("n"), mean=ms.mean("n")),
    "sliding": lambda rows: rows.window(ms.sliding("1 minute", every="30 s")).agg(
        total=ms.sum("n"), mean=ms.mean("n")
    ),
    "sessions": lambda rows: rows.key_by("k").window(ms.sessions("9 s")).agg(total=ms.sum("n"), mean=ms.mean("n")),
    "turns": lambda rows: (
        rows.key_by("k").window(ms.everything()).trigger(ms.after_watermark(early=ms.each())).agg(
            total=ms.sum("n"), mean=ms.mean("n")
        )
    ),
}  # fmt: skip


def bundles_of(values: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[list[int | None]]]]:
    """Bundles, each in parts that come from different places."""
    part = st.lists(st.none() | values, max_size=6)
    return st.lists(st.lists(part, min_size=1, max_size=3), min_size=1, max_size=4)


class Played:
    """A step on its own, fed with parts that are folded before they reach it, or not."""

    def __init__(self, source: Node, step: Stateful, *, folded: bool) -> None:
        self._source, self._step, self._folded = source, step, folded
        self._state, self._count = LocalState(step, passes_on=False), 0

    def take(self, parts: Sequence[Sequence[Any]], watermark: int = 0, weight: int = 1) -> pl.DataFrame:
        rest, partials = [self._step.nothing[INPUTS[0]]], []
        for part in parts:
            hidden = {"at": moment(1), "__time": 1, "__weight": weight}
            frame = frame_of([{"k": "a", "n": value, **hidden} for value in part], self._source)
            early, late = None, self._step.fed(frame, self._count)
            if self._folded:
                early, late = self._step.folded(frame, self._count, 0)
            self._count += len(frame)
            rest.append(late)
            partials += [] if early is None else [early]
        given_ = {**self._step.nothing, INPUTS[0]: pl.concat(rest)}
        if partials:
            given_[PARTIALS] = self._step.joined(partials)
        self._state.take(given_, Clock(0, watermark, 0, 0))
        return self._state.sent[SENT].filter(pl.col("__weight") > 0)


def played(name: str, kind: str, bundles: Any, *, folded: bool) -> list[tuple[Any, Any]]:
    """The sums that are sent, each once, with the mean."""
    stream = ms.Flow("sums").read("rows", f"k string, n {kind}, at timestamp", "at")
    step = stateful(STEPS[name](stream).node)
    assert step is not None
    state = Played(stream.node, step, folded=folded)
    frames = [state.take(parts) for parts in bundles] + [state.take([[]], END)]
    return [row for frame in frames for row in frame.select("total", "mean").unique(maintain_order=True).rows()]


def expected(name: str, bundles: Any, largest: int, smallest: int) -> list[int | None] | int:
    """The totals that are sent, or the first one that is too large."""
    known: list[int] = []
    totals: list[int | None] = []
    for parts in bundles:
        came = [value for part in parts for value in part]
        for number, value in enumerate(came, 1):
            known += [] if value is None else [value]
            if name == "turns" or (name in ("groups", "all rows") and number == len(came)):
                totals.append(sum(known) if known else None)
    if name not in ("groups", "all rows", "turns") and any(part for parts in bundles for part in parts):
        totals.append(sum(known) if known else None)
    wrong = [total for total in totals if total is not None and not smallest <= total <= largest]
    return wrong[0] if wrong else totals


def without_repeats(totals: Sequence[Any]) -> list[Any]:
    return [total for number, total in enumerate(totals) if not number or total != totals[number - 1]]


def check(
    name: str, kind: str, bundles: Any, make: Callable[[int], Any], folded: bool, limits: tuple[int, int]
) -> None:
    made = [[[None if v is None else make(v) for v in part] for part in parts] for parts in bundles]
    right = expected(name, bundles, *limits)
    if isinstance(right, int):
        with pytest.raises(StepFailed, match=f": {make(right)} does not fit"):
            played(name, kind, made, folded=folded)
        return
    sent = played(name, kind, made, folded=folded)
    totals = [None if total is None else make(total) for total in right]
    assert without_repeats([total for total, _ in sent]) == without_repeats(totals)
    known = [float(make(v)) for parts in bundles for part in parts for v in part if v is not None]
    if known and sent:
        assert sent[-1][1] == pytest.approx(sum(known) / len(known), abs=1e-9 * max(map(abs, known)))


@pytest.mark.property
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_sums_of_longs(name: str, folded: bool) -> None:
    @examples(50)
    @given(bundles_of(LONGS))
    def looked_at(bundles: Any) -> None:
        check(name, "long", bundles, int, folded, (MOST, -MOST - 1))

    looked_at()


@pytest.mark.property
@pytest.mark.parametrize("name", STEPS)
def test_sums_of_decimals(name: str) -> None:
    @examples(25)
    @given(bundles_of(UNITS))
    def looked_at(bundles: Any) -> None:
        check(name, "decimal(38,3)", bundles, lambda units: Decimal(f"{units}e-3"), True, (DIGITS, -DIGITS))

    looked_at()
