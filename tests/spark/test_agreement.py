"""Spark sends, step by step, what the columnar operators send in this process, for random flows and long scripts.

An example takes Spark up to a minute, so a short run tries fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.plan.time.windows import Window
from properties import examples
from test_runners_agree import (
    AGGREGATES,
    built,
    check,
    chosen_aggregates,
    flows,
    scripts,
    time_windows,
    windows,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.property,
    pytest.mark.usefixtures("spark"),
    pytest.mark.timeout(3600),
]
long_scripts = st.lists(scripts(), min_size=4, max_size=8).map(lambda parts: [step for part in parts for step in part])


def test_a_windowed_aggregation(rounds: Callable[[int, int], int]) -> None:
    @examples(rounds(40, 4))
    @given(windows, flows, chosen_aggregates, long_scripts)
    def agrees(window: Window, options: dict[str, Any], names: list[str], steps: list[Any]) -> None:
        def build(stream: Any) -> Any:
            panes = built(stream, window, options).agg(**{name: AGGREGATES[name] for name in names})
            return {"panes": panes, "late": panes.late}

        check(build, steps, runners=("local", "spark"))

    agrees()


def test_one_aggregation_behind_another(rounds: Callable[[int, int], int]) -> None:
    @examples(rounds(20, 2))
    @given(time_windows, flows, time_windows, flows, long_scripts)
    def agrees(window: Window, options: dict[str, Any], second: Window, more: dict[str, Any], steps: list[Any]) -> None:
        more = {**more, "keyed": more["keyed"] and options["keyed"]}  # panes of a stream without keys have no key

        def build(stream: Any) -> Any:
            panes = built(stream, window, options).agg(total=ms.sum("v"), high=ms.max("v"))
            return {
                "panes": panes,
                "second": built(panes, second, more).agg(n=ms.count(), high=ms.max("total"), sums=ms.sum("high")),
            }

        check(build, steps, runners=("local", "spark"))

    agrees()
