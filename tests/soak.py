"""The long runs of `make soak`: which tests belong to which part, and for how long each property is tried.

A property is run in rounds. A round has all its examples and a seed of its own; rounds follow
one another until the minutes given are over, so a run ends in a known time: that of the property's last round later.
The examples that Hypothesis completed are counted and printed at the end; examples it discarded are not among them.
With less than a minute per property, a round ends when its time is over, and tests that repeat something by
themselves do it less often: they ask `rounds`, or have a parameter `kills`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis.statistics import collector

import waiting

PARTS = ("properties", "transcripts", "log", "connectors", "spark", "kafka", "cluster", "benchmarks")
PART_OF_FOLDER = {
    "bridges": "connectors",
    "capture": "connectors",
    "copies": "connectors",
    "events": "log",
    "jobs": "spark",
    "tools": "kafka",
    "records": "properties",
    "supervision": "spark",
}
"""Where a folder has no part of its own name. All folders called `kafka` are of that part."""
MINUTES_HELP = "how long each property is tried (default: 1); below 1, other tests do fewer rounds too"
PROPERTY_WORDS = ("hypothesis", "mark.property")
CLUSTER_GROUPS = ("cluster", "cluster2")
"""Clusters are started one beside the other at most twice."""
KILLS_LEAST = 3
LIMIT_S = 7200.0
"""What hangs is ended: no single test takes that long."""
HERE = Path(__file__).parent


@dataclass
class Tried:
    """What became of one property."""

    rounds: int = 0
    examples: int = 0
    seconds: float = 0.0

    def note(self, statistics: dict[str, Any]) -> None:
        for phase in ("reuse", "generate"):
            cases = statistics.get(f"{phase}-phase", {}).get("test-cases", ())
            self.examples += sum(case["status"] == "valid" for case in cases)


tried_key = pytest.StashKey[dict[str, Tried]]()
TRIED = "tried"
"""The name under which a worker reports what became of a property."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak")
    group.addoption("--soak", choices=PARTS, help="run this part of the long runs, and nothing else")
    group.addoption("--soak-minutes", type=float, default=1.0, help=MINUTES_HELP)


@pytest.hookimpl(tryfirst=True)  # before properties.py reads its budget
def pytest_configure(config: pytest.Config) -> None:
    config.stash[tried_key] = {}
    if config.getoption("soak"):
        waiting.PATIENCE_S = waiting.SOAK_PATIENCE_S  # before the tests are imported
        minutes = config.getoption("soak_minutes")
        if minutes < 1:
            config.option.property_seconds = minutes * 60
    config.pluginmanager.register(Summary(config.stash[tried_key]), "soak-summary")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """How often a test repeats what it does: all rounds from one minute per property on, else that share of them."""
    share = min(1.0, request.config.getoption("soak_minutes"))

    def rounds(full: int, least: int) -> int:
        return max(least, round(full * share))

    return rounds


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A module without a test of the part is not even imported: for each part, three processes would import all."""
    part = config.getoption("soak")
    is_test = part is not None and collection_path.match("test_*.py")
    is_left_out = is_test and part not in parts_of(collection_path)
    return True if is_left_out else None


def parts_of(path: Path) -> set[str]:
    """All parts that may run a test of a module."""
    if not path.is_relative_to(HERE):
        return set(PARTS)
    text = path.read_text()
    folders = path.relative_to(HERE).parts[:-1]
    found = {
        "kafka" if "kafka" in folders else PART_OF_FOLDER.get(folders[0], folders[0]) if folders else "transcripts"
    }
    if any(word in text for word in PROPERTY_WORDS):
        found.add("properties")
    if any(f'xdist_group("{group}")' in text for group in CLUSTER_GROUPS):
        found.add("cluster")
    return found


def part_of(item: pytest.Item) -> str | None:
    """The part that runs a test; None if it is for `make test` or `make test-more` alone."""
    if item.get_closest_marker("soak") is None:
        return "properties" if item.get_closest_marker("property") else None
    if any(mark.args[0] in CLUSTER_GROUPS for mark in item.iter_markers("xdist_group")):
        return "cluster"
    folders = item.path.relative_to(HERE).parts[:-1] if item.path.is_relative_to(HERE) else ()
    if "kafka" in folders:
        return "kafka"
    part = PART_OF_FOLDER.get(folders[0], folders[0]) if folders else "transcripts"
    if part not in PARTS:
        raise pytest.UsageError(f"no part of the soak runs {item.nodeid}: name one in {__file__}")
    return part


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("soak")
    parts = [part_of(item) for item in items]  # in every run, so that a test without a part is noticed
    _check_found(items, parts)
    if part is None:
        return
    chosen = [item for item, its_part in zip(items, parts, strict=True) if its_part == part]
    config.hook.pytest_deselected(items=[item for item, its_part in zip(items, parts, strict=True) if its_part != part])
    items[:] = chosen
    for item in chosen:
        _scale_kills(item, min(1.0, config.getoption("soak_minutes")))
        limit = item.get_closest_marker("timeout")
        limit_s = max(limit.args[0] if limit else 0, LIMIT_S)
        if item.get_closest_marker("property"):
            seconds = config.getoption("soak_minutes") * 60
            _repeat(item, seconds)
            limit_s += seconds
        item.add_marker(pytest.mark.timeout(limit_s), append=False)


def _check_found(items: list[pytest.Item], parts: list[str | None]) -> None:
    """No module is left out of the part that runs one of its tests."""
    wanted = {(item.path, part) for item, part in zip(items, parts, strict=True) if part is not None}
    missed = sorted(f"{path} ({part})" for path, part in wanted if part not in parts_of(path))
    if missed:
        raise pytest.UsageError(f"the soak does not find the tests of {', '.join(missed)}: see parts_of in {__file__}")


def _scale_kills(item: pytest.Item, share: float) -> None:
    """A test with a parameter `kills` does only a share of them in a short run."""
    if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "kills" in item.callspec.params:
        kills = item.callspec.params["kills"]
        item.callspec.params["kills"] = max(min(KILLS_LEAST, kills), round(share * kills))


def _repeat(item: pytest.Item, seconds: float) -> None:
    """Has a property run again until its time is over."""
    item.runtest = _rounds(item.runtest, item.user_properties, seconds)  # type: ignore[method-assign]


def _rounds(once: Callable[[], None], reported: list[tuple[str, Any]], seconds: float) -> Callable[[], None]:
    def run() -> None:
        start, tried = time.monotonic(), Tried()
        try:
            while tried.rounds == 0 or time.monotonic() - start < seconds:
                with collector.with_value(tried.note):
                    once()
                tried.rounds += 1
        finally:
            tried.seconds = time.monotonic() - start
            reported.append((TRIED, asdict(tried)))

    return run


class Summary:
    """Collects what the workers report, since each has a memory of its own."""

    def __init__(self, tried: dict[str, Tried]) -> None:
        self._tried = tried

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if report.when == "call" and TRIED in properties:
            self._tried[report.nodeid] = Tried(**properties[TRIED])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash[tried_key]
    if not found:
        return
    terminalreporter.section(f"examples of the properties ({config.getoption('soak')})")
    for name, tried in found.items():
        terminalreporter.line(f"{tried.examples:>10,} in {tried.rounds:>4} rounds, {tried.seconds:>6.0f} s  {name}")
    total = sum(tried.examples for tried in found.values())
    terminalreporter.line(f"{total:>10,} examples of {len(found)} properties")
