"""Transcripts are played on every runner, and all runners must agree.

A module of transcripts has the mark `transcripts`, with the runners as its arguments, and plays with `play` of this
module. On Spark a transcript takes seconds: those marked `on_spark` are played there by `make test`, those marked
`on_spark("more")` by `make test-more`, and the others by `make soak`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from millstream import testing

_runner = ContextVar[str]("runner of transcripts")


def play(build: Any, steps: Any, **options: Any) -> Any:
    """What `millstream.testing.play` returns on the runner of the current test."""
    return testing.play(build, steps, on=_runner.get(), **options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    transcripts = metafunc.definition.get_closest_marker("transcripts")
    if transcripts is None:
        return
    marks = {"spark": _marks_on_spark(metafunc.definition.get_closest_marker("on_spark"))}
    runners = [pytest.param(runner, marks=marks.get(runner, ())) for runner in transcripts.args]
    metafunc.parametrize("_playing_on", runners, indirect=True)


def _marks_on_spark(on_spark: pytest.Mark | None) -> list[pytest.MarkDecorator]:
    if on_spark is None:
        return [pytest.mark.soak]
    return [getattr(pytest.mark, name) for name in on_spark.args]


@pytest.fixture(autouse=True)
def _playing_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sets the runner that a transcript is played on."""
    if not hasattr(request, "param"):
        yield
        return
    before = _runner.set(request.param)
    yield
    _runner.reset(before)
