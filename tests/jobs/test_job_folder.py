"""What a job leaves in other folders, and who takes it away."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

import millstream as ms
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.files.drafts import Drafting
from millstream.connectors.opening import open_sink
from millstream.errors import DamagedLog, DamagedState, UntrustedFolder
from millstream.jobs.job_folder import DESCRIPTION, ORPHAN_S_MIN, OWNER, RUNS, JobFolder, claim_runs, is_job, runs_of
from millstream.records import Schema


def begun(job: Path, identity: str, *, long_ago: bool = True) -> None:
    job.mkdir(parents=True, exist_ok=True)
    (job / DESCRIPTION).write_text(json.dumps({"identity": identity}))
    claim_runs(identity, job)
    (runs_of(identity) / "agg").mkdir()
    if long_ago:
        os.utime(runs_of(identity) / OWNER, (0, 0))


def test_state_of_deleted_or_restarted_jobs_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    jobs = tmp_path / "jobs"
    for name in ("kept", "gone", "rebuilt", "damaged", os.fsdecode(b"\xff")):
        begun(jobs / name, f"{os.fsencode(name).hex()}-1")
    begun(tmp_path / "away/job", "away")
    begun(jobs / "young", "young", long_ago=False)
    runs_of("unknown").mkdir()
    for gone in (jobs / "gone", jobs / "young", tmp_path / "away/job"):
        (gone / DESCRIPTION).unlink()
        gone.rmdir()
    (tmp_path / "away").rmdir()  # as if it were not mounted
    (jobs / "damaged" / DESCRIPTION).write_text("{")
    begun(jobs / "rebuilt", "rebuilt-2")
    claim_runs("new", tmp_path)
    left = {path.name.removeprefix(RUNS) for path in runs_of("new").parent.iterdir()}
    assert ORPHAN_S_MIN > 0
    assert left == {"6b657074-1", "64616d61676564-1", "ff-1", "away", "young", "unknown", "rebuilt-2", "new"}


def test_a_folder_that_another_user_made_first_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runs_of("planted").mkdir()
    runs_of("planted").chmod(0o777)
    with pytest.raises(UntrustedFolder, match="can be changed by other users"):
        claim_runs("planted", tmp_path / "job")
    assert list(runs_of("planted").iterdir()) == []


def test_a_planted_link_in_place_of_the_owners_note_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    runs_of("planted").mkdir(mode=0o700)
    (runs_of("planted") / OWNER).symlink_to(precious)
    claim_runs("planted", tmp_path / "job")
    assert precious.read_text() == "as it was"


def test_folders_of_other_users_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    begun(tmp_path / "jobs" / "gone", "gone")
    shutil.rmtree(tmp_path / "jobs" / "gone")
    runs_of("gone").chmod(0o777)
    claim_runs("new", tmp_path / "jobs" / "new")
    assert runs_of("gone").exists()


def test_drafts_go_with_the_job_that_made_them(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "job", "job")

    def start_over() -> None:
        with job.starting_over():
            pass

    for forgotten in (start_over, job.remove):
        own = job.path / "sinks" / "w"
        own.mkdir(parents=True)
        place = ms.files(tmp_path / "out")
        sink = open_sink(place, Schema.of("n int"), job="job", step="w", broker=tmp_path / "log", folder=own)
        drafting = sink.preparer()
        assert isinstance(drafting, Drafting)
        drafting.draft(drafting.schema.arrow.empty_table(), None)
        assert len(list((tmp_path / "out").glob(".drafts-*/*.tmp"))) == 1
        forgotten()
        assert list((tmp_path / "out").iterdir()) == []


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_job_folder_is_for_its_owner_alone_unless_its_log_is_shared(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o2770)
        for parent, folder_mode, file_mode in (("own", 0o700, 0o600), ("shared", 0o2770, 0o660)):
            job = JobFolder(tmp_path / parent / "jobs" / "job", "job")
            ledger = FileLedger(job.path / "sinks" / "w", "w")
            ledger.record(1)
            with job.held():
                pass
            assert {mode_of(path) for path in (job.path, job.path.parent, ledger.path.parent)} == {folder_mode}
            assert {mode_of(path) for path in (job.path / "lock", ledger.path)} == {file_mode}
        (tmp_path / "prepared").mkdir()
        (tmp_path / "prepared").chmod(0o775)
        assert mode_of(JobFolder(tmp_path / "prepared", "job").path) == 0o775  # the user's own decision
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"identity": 7}', json.dumps({"identity": "../../precious", "groups": 1, "partitions": 1})]
)
def test_a_description_of_a_job_never_leads_to_another_folder(tmp_path: Path, content: str) -> None:
    job = JobFolder(tmp_path / "job", "job")
    (job.path / DESCRIPTION).write_text(content)
    with pytest.raises(DamagedState, match=r"job\.json"):
        job.description()


def test_a_ledger_never_has_another_folder_removed_than_one_of_drafts(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    job = JobFolder(tmp_path / "job", "job")
    FileLedger(job.path / "sinks" / "w", "w").use(tmp_path / "precious")
    job.remove()
    assert (tmp_path / "precious").exists()


def test_a_link_in_place_of_a_jobs_lock_is_not_followed(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "job", "job")
    (job.path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(DamagedLog, match="symbolic link"), job.held():
        pass
    assert not (tmp_path / "precious").exists()


# ---------------------------------------------------------------- notes that somebody has edited


def drafted(folder: Path, job: Path, step: str = "w") -> tuple[Path, Path]:
    """The drafts and the ledger of a job that died while it wrote files."""
    own = job / "sinks" / step
    own.mkdir(parents=True)
    place = ms.files(folder)
    sink = open_sink(place, Schema.of("n int"), job="job", step=step, broker=job / "log", folder=own)
    drafting = sink.preparer()
    assert isinstance(drafting, Drafting)
    drafting.draft(drafting.schema.arrow.empty_table(), None)
    return drafting.folder, next(own.glob("*.json"))


def edit(ledger: Path, **changes: object) -> None:
    ledger.write_text(json.dumps({**json.loads(ledger.read_text()), **changes}))


@pytest.mark.parametrize("how", ["other folder", "link", "other name", "no marker", "other run", "up"])
def test_a_ledger_that_was_edited_deletes_nothing_of_others(tmp_path: Path, how: str) -> None:
    job = JobFolder(tmp_path / "job", "job")
    drafts, ledger = drafted(tmp_path / "out", job.path)
    precious = tmp_path / "precious" / ("photos" if how in ("other folder", "up") else drafts.name)
    precious.mkdir(parents=True)
    (precious / "photo").write_bytes(b"kept")
    (precious / f"{'a' * 32}.tmp").write_bytes(b"kept")
    if how == "link":
        link = tmp_path / "elsewhere" / drafts.name
        link.parent.mkdir()
        link.symlink_to(precious)
        (precious / ".millstream-drafts").write_bytes((drafts / ".millstream-drafts").read_bytes())
        edit(ledger, drafts=str(link))
    elif how == "other run":  # the drafts of a job that runs
        precious, _ = drafted(tmp_path / "out", tmp_path / "other")
        (precious / "photo").write_bytes(b"kept")
        edit(ledger, drafts=str(precious))
    elif how == "up":
        edit(ledger, drafts=f"{drafts}/../../precious/photos", run="../../precious/photos")
    else:
        edit(ledger, drafts=str(precious))
    kept = sorted(path.name for path in precious.iterdir())
    job.remove()
    assert sorted(path.name for path in precious.iterdir()) == kept
    assert not job.path.exists()


def test_what_a_user_has_put_beside_drafts_stays(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "job", "job")
    drafts, _ = drafted(tmp_path / "out", job.path)
    (drafts / "notes.txt").write_text("kept")
    job.remove()
    assert [path.name for path in drafts.iterdir() if path.name != ".millstream-drafts"] == ["notes.txt"]


@pytest.mark.parametrize("identity", ["../../precious", "/precious", "", ".."])
def test_a_jobs_identity_cannot_point_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "precious").mkdir()
    job = JobFolder(tmp_path / "jobs" / "job", "job")
    begun(tmp_path / "jobs" / "other", "other")
    described = {"identity": str(tmp_path) + identity if identity == "/precious" else identity}
    (job.path / DESCRIPTION).write_text(json.dumps({**described, "groups": 4, "partitions": 2}))
    with pytest.raises(DamagedState, match="cannot be read"):
        job.description()
    job.remove()
    assert (tmp_path / "precious").exists()
    assert runs_of("other").exists()


def test_the_state_of_another_job_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    begun(tmp_path / "jobs" / "other", "other")
    job = JobFolder(tmp_path / "jobs" / "job", "job")
    (job.path / DESCRIPTION).write_text(json.dumps({"identity": "other", "groups": 4, "partitions": 2}))
    job.remove()
    assert runs_of("other").exists()


def test_only_folders_of_jobs_are_listed(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").touch()
    job = JobFolder(tmp_path / "job", "job")
    with job.held():
        pass
    (tmp_path / "link").symlink_to(job.path)
    assert [path.name for path in sorted(tmp_path.iterdir()) if is_job(path)] == ["job"]
