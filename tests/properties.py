"""Tests of random examples (Hypothesis) are properties: they get the mark by themselves, and may have a budget of time.

`make test` and `make test-more` give each property some seconds: once they are over no further example is generated,
and a failure found until then is shrunk and reported as usual. Without a budget, as in `make soak` with a minute or
more for each, a property tries all its examples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.internal.conjecture.engine import ConjectureRunner

settings.register_profile(
    "default", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("default")


def examples(count: int, **options: Any) -> settings:
    """The settings of a property that tries `count` examples."""
    return settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck), **options
    )


class Budget:
    """Ends the generation of examples once the seconds of the running test are over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = float("inf")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        is_long = item.get_closest_marker("soak") is not None  # chooses by itself how many examples it tries
        self._deadline = float("inf") if is_long else time.monotonic() + self._seconds
        return (yield)

    def limit(self, patch: pytest.MonkeyPatch) -> None:
        # Hypothesis has no setting for this; this is where it decides to go on, for functions and state machines.
        decide = ConjectureRunner.should_generate_more

        def in_time(runner: ConjectureRunner) -> bool:
            none_yet = runner.valid_test_cases == 0
            return decide(runner) and (none_yet or time.monotonic() < self._deadline)

        patch.setattr(ConjectureRunner, "should_generate_more", in_time)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("properties")
    group.addoption("--property-seconds", type=float, help="how long to generate examples (default: until all ran)")


def pytest_configure(config: pytest.Config) -> None:
    seconds = config.getoption("property_seconds")
    if seconds is not None:
        budget, patch = Budget(seconds), pytest.MonkeyPatch()
        budget.limit(patch)
        config.pluginmanager.register(budget, "budget of properties")
        config.add_cleanup(patch.undo)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
            item.add_marker(pytest.mark.property)
