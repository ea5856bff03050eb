"""The keywords of `Flow.run`, `start` and `replay` are the fields of their settings, and nothing else is accepted."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.plan.on_spark.engine import collecting
from millstream.plan.run_settings import ReplaySettings, RunSettings, Settings

METHODS = [(ms.Flow.run, RunSettings), (ms.Flow.start, Settings), (ms.Flow.replay, ReplaySettings)]


@pytest.mark.parametrize(("method", "settings"), METHODS, ids=["run", "start", "replay"])
def test_a_method_takes_every_setting_by_keyword(method: object, settings: type[Settings]) -> None:
    owner, *keywords = inspect.signature(method).parameters.values()  # type: ignore[arg-type]
    assert owner.name == "self"
    assert [each.name for each in keywords] == [each.name for each in fields(settings)]
    assert {each.kind for each in keywords} == {inspect.Parameter.KEYWORD_ONLY}
    for keyword, field in zip(keywords, fields(settings), strict=True):
        assert keyword.annotation == field.type
        if field.default is not MISSING:
            assert keyword.default == field.default
    assert inspect.signature(method).return_annotation == "Job"  # type: ignore[arg-type]


def test_only_given_settings_reach_the_engine() -> None:
    """Goal: options of `millstream run` win over defaults but not over what a file says, so defaults are not passed."""
    flow = ms.Flow("totals", log="data")
    with collecting() as calls:
        flow.run(until="caught up")
        flow.start(tick_s=0.5, broker="other")
    assert [(verb, settings) for _, verb, settings in calls] == [
        ("run", {"broker": "data", "until": "caught up"}),
        ("start", {"broker": "other", "tick_s": 0.5}),
    ]


def test_an_unknown_setting_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput, match="there is no setting 'batchrows'") as error:
        RunSettings.of({"batchrows": 3})
    assert "batch_rows" in str(error.value)
    with pytest.raises(InvalidInput, match="there is no setting 'follow'"):
        Settings.of({"follow": True})


def test_show_is_progress() -> None:
    assert RunSettings.of({"show": False}).progress is False
    assert Settings.of({"show": True}).progress is True
    assert RunSettings.of({}).progress == "auto"
    with pytest.raises(InvalidInput, match="show is True or False, not 'none'"):
        RunSettings.of({"show": "none"})


def test_a_setting_is_not_positional() -> None:
    with pytest.raises(TypeError):
        ms.Flow("totals").run("caught up")  # type: ignore[misc]


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="has no time zone"):
        Settings.of({"since": "2026-01-01T00:00:00"})
    found = Settings.of({"since": "2026-01-01T00:00:00Z"}).since_instant
    assert found is not None
    assert found.isoformat() == "2026-01-01T00:00:00+00:00"


def test_public_types_can_be_imported_without_loading_spark() -> None:
    """Goal: `import millstream` and building a flow stay quick. Method: ask a fresh interpreter what it loaded."""
    source = (
        "import sys, millstream as ms; ms.Flow('a'), ms.Stream, ms.Table, ms.Key, ms.errors.MillstreamError; "
        "print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_public_name_exists() -> None:
    missing = [name for name in ms.__all__ if not hasattr(ms, name)]
    assert not missing
    assert inspect.isclass(ms.Job)
    assert sorted(ms.__all__) == ms.__all__, Path(ms.__file__)


@pytest.mark.parametrize(
    ("old", "new"), [("delta", "delta_window"), ("never", "at_expiry"), ("foreach", "foreach_batch")]
)
def test_a_name_that_was_renamed_gives_the_new_one(old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=f"use millstream.{new}"):
        getattr(ms, old)
    assert callable(getattr(ms, new))
