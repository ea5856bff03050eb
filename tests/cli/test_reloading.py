"""An app takes the flows that its file has now. None runs here: tests/supervision/test_reload.py has one that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.job_commands.reloading import _reload
from millstream.cli.job_commands.run import chosen_flow
from millstream.errors import InvalidInput, MillstreamError, NotFound

HEAD = """import millstream as ms
bounds = {"least": 1}
def over(name, least):
    flow = ms.Flow(name)
    rows = flow.read("scores", "user string, n int")
    rows.map(lambda row: {**row, "n": row["n"] + least}, schema=rows.schema).write(name)
    return flow
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "app.py"
    made.write_text(HEAD + "both = ms.app([over('a', 1), over('b', 2)], name='both')\n")
    return made


def test_flows_that_are_new_are_added_and_those_that_are_gone_removed(file: Path) -> None:
    app, _ = chosen_flow(file, None, None)
    assert _reload(app, file, None) == {"added": [], "removed": [], "changed": []}
    kept = app.flows[0]  # type: ignore[attr-defined]
    file.write_text("# Another line.\n" + HEAD + "both = ms.app([over('c', 1), over('a', 1)], name='both')\n")
    assert _reload(app, file, None) == {"added": ["c"], "removed": ["b"], "changed": []}
    assert [flow.name for flow in app.flows] == ["c", "a"]  # type: ignore[attr-defined]
    assert app.flows[1] is kept  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new"),
    [('row["n"] + least', 'row["n"] - least'), ("over('b', 2)", "over('b', 3)"), ("n int", "n int, m int")],
    ids=["the code of a function", "what a function refers to", "columns"],
)
def test_a_flow_that_has_changed_is_named_and_stays(file: Path, old: str, new: str) -> None:
    app, _ = chosen_flow(file, None, None)
    before = app.flows  # type: ignore[attr-defined]
    file.write_text(file.read_text().replace(old, new))
    assert "b" in _reload(app, file, None)["changed"]
    assert app.flows == before  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("1 / 0\n", InvalidInput, "ZeroDivisionError"),
        (HEAD + "both = over('both', 1)\n", InvalidInput, "'both' is no app in the file any more"),
        (HEAD + "other = ms.app([over('a', 1)], name='other')\n", NotFound, "has no flow 'both'"),
    ],
)
def test_a_file_without_the_app_changes_nothing(file: Path, text: str, kind: type[MillstreamError], what: str) -> None:
    app, _ = chosen_flow(file, None, None)
    file.write_text(text)
    with pytest.raises(kind, match=what):
        _reload(app, file, None)
    assert [flow.name for flow in app.flows] == ["a", "b"]  # type: ignore[attr-defined]


def test_a_single_flow_cannot_be_reloaded(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text(HEAD + "flow = over('a', 1)\n")
    with pytest.raises(InvalidInput, match="'a' is a single flow"):
        _reload(chosen_flow(file, None, None)[0], file, None)
