"""The notebooks of the examples run from top to bottom in a kernel, and show what they describe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
SHOWS = {
    "first_steps": ["stream read_scores", "table", "flow team-scores", "rows of the last preview"],
    "running_job": ["job pumps: ended", "newest rows of write_litres", "watermark", "rows/s"],
    "patterns_of_time": ["<svg", "too late", "late pane"],
}

pytestmark = [pytest.mark.more, pytest.mark.own_processes, pytest.mark.timeout(600)]


def outputs(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            yield from cell.outputs


def executed(name: str, folder: Path) -> Any:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_a_notebook_runs_and_shows_what_it_describes(name: str, tmp_path: Path) -> None:
    notebook = executed(name, tmp_path)
    shown = [
        str(content)
        for output in outputs(notebook)
        for kind, content in output.get("data", {}).items()
        if kind in ("text/html", "image/svg+xml")
    ]
    for expected in SHOWS[name]:
        assert any(expected in content for content in shown), expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SHOWS)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert list(outputs(notebook)) == []


def test_show_replaces_one_output_of_its_cell(tmp_path: Path) -> None:
    notebook = executed("running_job", tmp_path)
    (cell,) = [cell for cell in notebook.cells if cell.source == "job.show()"]
    (output,) = cell.outputs
    assert output.output_type == "display_data"
    assert "job pumps: ended" in output.data["text/html"]
