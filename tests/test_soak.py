"""The long runs run what they claim to: examples are counted as they are, and every long test belongs to one part."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import soak

HERE = Path(__file__).parent
COUNTED = """
from pathlib import Path
import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from properties import examples

def note(name):
    with (Path(__file__).parent / name).open("a") as file:
        file.write("x")

@examples(7)
@given(st.integers())
def test_numbers(n):
    assume(n % 2 == 0)
    note("numbers")

class Machine(RuleBasedStateMachine):
    @rule()
    def step(self):
        pass

    def teardown(self):
        note("machines")

@pytest.mark.property
def test_machine():
    run_state_machine_as_test(Machine, settings=examples(5, stateful_step_count=3))

def test_that_is_no_property():
    note("others")

@examples(7)
@given(st.integers())
def test_fails_in_a_later_round(n):
    note("rounds")
    assert len((Path(__file__).parent / "rounds").read_text()) < 10
"""


SLOW = """
import time
from pathlib import Path
from hypothesis import given, strategies as st
from properties import examples

@examples(600)
@given(st.integers())
def test_slow(n):
    with (Path(__file__).parent / "slow").open("a") as file:
        file.write("x")
    time.sleep(0.1)
"""


def soaked(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  soak\n  property\n")
    (folder / "test_counted.py").write_text(COUNTED)
    return run(folder, "--soak=properties", "--soak-minutes=0.02", *options)


def run(folder: Path, *options: str, tests: Path = HERE) -> subprocess.CompletedProcess[str]:
    """Pytest in a folder of its own, with the plugins of these tests or of a copy of them."""
    command = [sys.executable, "-m", "pytest", "-p", "properties", "-p", "soak", *options]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)


@pytest.mark.more
def test_examples_are_counted_as_they_ran(tmp_path: Path) -> None:
    """The tests note each example they look at: the summary has the same numbers, for several rounds."""
    done = soaked(tmp_path, "-k", "numbers or machine")
    assert done.returncode == 0, done.stdout
    for name, test in (("numbers", "test_numbers"), ("machines", "test_machine")):
        looked_at = len((tmp_path / name).read_text())
        ((examples, rounds),) = re.findall(rf"([\d,]+) in +(\d+) rounds, .*::{test}\n", done.stdout)
        assert int(examples.replace(",", "")) == looked_at
        assert int(rounds) > 1


@pytest.mark.more
def test_only_properties_run_and_a_failure_in_any_round_fails(tmp_path: Path) -> None:
    done = soaked(tmp_path, "-k", "others or later or property")
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert "in    1 rounds" in done.stdout
    assert not (tmp_path / "others").exists()


def test_make_runs_every_part() -> None:
    printed = subprocess.run(["make", "-n", "soak"], cwd=HERE.parent, capture_output=True, text=True, check=True)
    assert set(soak.PARTS) <= set(re.findall(r"\w+", printed.stdout))


def test_a_short_run_ends_a_property_when_its_time_is_over(tmp_path: Path) -> None:
    """All examples of this one would take a minute."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  soak\n  property\n")
    (tmp_path / "test_slow.py").write_text(SLOW)
    done = run(tmp_path, "--soak=properties", "--soak-minutes=0.02")
    assert done.returncode == 0, done.stdout
    assert 1 <= len((tmp_path / "slow").read_text()) < 300


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("log/test_model.py", {"log", "properties"}),
        ("jobs/kafka/test_on_cluster.py", {"kafka", "cluster"}),
        ("test_semantics.py", {"transcripts"}),
        ("bridges/doors/test_suite.py", {"connectors"}),
    ],
)
def test_a_part_imports_only_modules_that_may_have_its_tests(file: str, parts: set[str]) -> None:
    assert soak.parts_of(HERE / file) == parts


def test_a_module_that_its_part_would_leave_out_is_an_error(tmp_path: Path) -> None:
    """As one that imports its properties from another module, and does not name them."""
    folder = tmp_path / "tests"
    (folder / "log").mkdir(parents=True)
    for name in ("soak.py", "properties.py", "waiting.py"):
        (folder / name).write_text((HERE / name).read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  soak\n  property\n")
    (folder / "others.py").write_text("import pytest\n@pytest.mark.property\ndef test_hidden():\n    pass\n")
    (folder / "log" / "test_hiding.py").write_text("from others import test_hidden\n")
    done = run(folder, tests=folder)
    assert done.returncode != 0
    assert re.search(r"does not find the tests of \S*test_hiding\.py \(properties\)", done.stdout + done.stderr)
    (folder / "log" / "test_hiding.py").write_text("from others import test_hidden  # mark.property\n")
    assert run(folder, tests=folder).returncode == 0
