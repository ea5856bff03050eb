"""What a job leaves in the folder for temporary files, and who takes it away."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.spark.folder import OWNER, claim_runs, runs_of


def test_state_of_jobs_whose_folder_is_gone_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    for name in ("kept", "gone"):
        (tmp_path / name).mkdir()
        claim_runs(name, tmp_path / name)
        (runs_of(name) / "agg").mkdir()
    runs_of("unknown").mkdir()
    (tmp_path / "gone").rmdir()
    (tmp_path / "new").mkdir()
    claim_runs("new", tmp_path / "new")
    assert sorted(path.name for path in runs_of("new").parent.iterdir()) == ["kept", "new", "unknown"]
    assert (runs_of("new") / OWNER).read_text() == str(tmp_path / "new")
