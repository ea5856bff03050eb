"""`millstream init`: the project it creates passes its own test and runs on Spark as it is."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .conftest import COMMAND, Run


@pytest.fixture
def project(ms: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    done = ms("init", "team-scores")
    assert done.code == 0, done.err
    return tmp_path / "team-scores"


def test_a_new_project_passes_its_own_test(project: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"] == "team-scores"


@pytest.mark.more
@pytest.mark.own_processes
def test_a_new_project_runs_as_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLSTREAM_BROKER")
    monkeypatch.setenv("MILLSTREAM_MASTER", "local[1]")
    command = [*COMMAND, "run", "flow.py", "--until", "caught up"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    found = sorted([words[0], words[-4]] for words in rows if words and words[0] in ("red", "blue"))
    assert found == [["blue", "4"], ["blue", "6"], ["red", "12"]]  # a row ends with the players and the event time


def test_a_folder_in_use_is_left_alone(ms: Run, project: Path) -> None:
    before = (project / "flow.py").read_text()
    (project / "flow.py").write_text("mine")
    done = ms("init", "team-scores")
    assert done.code == 4
    assert "already exists" in done.err
    assert (project / "flow.py").read_text() == "mine" != before


@pytest.mark.parametrize("name", ["a/b", "..", "-x", "team scores", "", "über"])
def test_a_name_that_cannot_be_one_is_refused(
    ms: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ms("init", "--", name).code == 2
    assert not list(tmp_path.iterdir())
