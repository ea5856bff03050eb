"""The budget of a property ends the generation of its examples, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROPERTIES = """
from pathlib import Path
import time
import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from properties import examples

def note(name):
    with (Path(__file__).parent / name).open("a") as file:
        file.write("x")

@examples(5)
@given(st.integers())
def test_few(n):
    note("few")

@examples(1_000_000)
@given(st.integers())
def test_many(n):
    note("many")
    time.sleep(0.01)

class Machine(RuleBasedStateMachine):
    @rule()
    def step(self):
        time.sleep(0.01)

    def teardown(self):
        note("machines")

@pytest.mark.property
def test_machine():
    run_state_machine_as_test(Machine, settings=examples(1_000_000))

@pytest.mark.property
def test_fails_though_its_time_is_over_at_once():
    time.sleep(0.5)

    @examples(100)
    @given(st.integers())
    def check(n):
        assert n != 0

    check()
"""


def test_no_example_is_generated_once_the_time_is_over_but_each_property_has_one(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  property\n")
    (tmp_path / "test_budget.py").write_text(PROPERTIES)
    command = [sys.executable, "-m", "pytest", "-p", "properties", "--property-seconds=0.5"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert "1 failed, 3 passed" in done.stdout
    assert "FAILED test_budget.py::test_fails_though_its_time_is_over_at_once" in done.stdout
    tried = {name: len((tmp_path / name).read_text()) for name in ("few", "many", "machines")}
    assert tried["few"] == 5
    assert 1 <= tried["many"] < 1000
    assert 1 <= tried["machines"] < 1000
