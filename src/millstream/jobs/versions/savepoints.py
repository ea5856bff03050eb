"""Savepoints: consistent copies of a job's offsets, state and plan, each under a name.

Spark never changes a checkpoint file once it is there, so a savepoint consists of links to the files of the newest
completed batch. It can be taken while the job runs. A savepoint appears under its name by one rename: there is never
half of one.

    savepoints/NAME/savepoint.json    the job, the batch, when and why it was taken
    savepoints/NAME/job.json          the steps, and how their state is distributed
    savepoints/NAME/checkpoint/       offsets, commit and state of one batch, in Spark's format
    savepoints/NAME/sources/, frames/ what the job keeps for its sources
    savepoints/NAME/flow.py           the code, if the supervisor runs the job
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millstream.errors import AlreadyExists, DamagedState, InvalidInput, NotFound
from millstream.jobs.apps.owed_batches import OwedBatches
from millstream.jobs.checkpoint_reader import Checkpoint
from millstream.jobs.job_folder import DESCRIPTION, REAL_TIME_CHECKPOINT, JobDescription, JobFolder
from millstream.jobs.modes import has_started
from millstream.jobs.repairing import checkpoint_of
from millstream.jobs.versions.swapping import complete_swap, is_swapping
from millstream.log.storage.disk import read_document, storage_errors, sync_folder, write_document
from millstream.private_files import make_folders
from millstream.spark.query.rewinding import read_rewinds
from millstream.user_lines import what_exists

FOLDER = "savepoints"
NOTE = "savepoint.json"
CODE = "flow.py"
SOURCES, FRAMES = "sources", "frames"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,149}")
DRAFT = ".draft-"
DRAFT_AGE_S_MAX = 3600.0
ATTEMPTS = 5
"""Spark may delete an old file while it is being linked; then the batch is a newer one by now."""


class _Vanished(Exception):
    """A file that the savepoint needs is not there, or is not whole."""


@dataclass(frozen=True)
class Savepoint:
    name: str
    job: str
    taken: float
    why: str
    batch: int
    """The batch that the state is of, as Spark counts."""
    clock: int
    sources: dict[str, dict[str, int]]
    """By source, the offset of the next record of each partition."""
    steps: tuple[str, ...]
    """The steps that have state in it."""
    size_bytes: int
    has_code: bool = False

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "steps": list(self.steps)}


def savepoints_folder(jobs: Path) -> Path:
    """Where the savepoints of jobs are: beside the folder that has the folders of all jobs."""
    return jobs.parent / FOLDER


class Savepoints:
    """The savepoints of all jobs on a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self, job: str | None = None) -> list[Savepoint]:
        """The newest first."""
        if not self.folder.is_dir():
            return []
        found = [self._read(entry) for entry in self.folder.iterdir() if NAME.fullmatch(entry.name)]
        return sorted(
            (each for each in found if job is None or each.job == job), key=lambda each: (-each.taken, each.name)
        )

    def get(self, name: str) -> Savepoint:
        if not NAME.fullmatch(name) or not (self.folder / name / NOTE).exists():
            known = [each.name for each in self.list()]
            raise NotFound(
                f"there is no savepoint '{name[:150]}'", next_step=what_exists(name, known, kind="savepoints")
            )
        return self._read(self.folder / name)

    def path(self, name: str) -> Path:
        return self.folder / name

    def checkpoint(self, name: str) -> Checkpoint:
        """The checkpoint of a savepoint, to be checked before it is used."""
        return _checkpoint_in(self.path(name), self.description(name))

    def description(self, name: str) -> JobDescription:
        return JobDescription(**read_document(self.path(name) / DESCRIPTION))

    def take(
        self, job: JobFolder, name: str | None = None, *, why: str = "requested", code: Path | None = None
    ) -> Savepoint:
        """Takes a savepoint of the newest completed batch of a job, whether the job runs or not."""
        name = name or self.free_name(job.job)
        check_savepoint_name(name)
        self._check_free(name)
        if has_started(job.path / REAL_TIME_CHECKPOINT):
            raise InvalidInput(
                f"the job '{job.job}' runs in real time: it keeps no state to save",
                where=str(job.path),
                next_step="its offsets are those of its checkpoint; copy its folder while it is stopped",
            )
        self._remove_old_drafts()
        draft = self.folder / f"{DRAFT}{uuid.uuid4().hex}"
        try:
            made = self._drafted(job, draft, name, why, code)
            with storage_errors(self.folder):
                self._check_free(name)
                draft.rename(self.folder / name)
                sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return made

    def remove(self, name: str) -> Savepoint:
        found = self.get(name)
        gone = self.folder / f"{DRAFT}{uuid.uuid4().hex}"
        with storage_errors(self.folder):
            self.path(name).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        return found

    # ------------------------------------------------------------ one savepoint

    def _drafted(self, job: JobFolder, draft: Path, name: str, why: str, code: Path | None) -> Savepoint:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._copied(job, draft, name, why, code)
            except _Vanished as error:
                shutil.rmtree(draft, ignore_errors=True)
                if attempt == ATTEMPTS:
                    raise DamagedState(
                        f"the checkpoint of the job '{job.job}' is incomplete: {error}",
                        where=str(job.checkpoint),
                        next_step=f"see whether it can be repaired: {job.command('repair')}",
                    ) from error
        raise AssertionError

    def _copied(self, job: JobFolder, draft: Path, name: str, why: str, code: Path | None) -> Savepoint:
        if is_swapping(job):  # a restore was interrupted
            with job.held():
                complete_swap(job)
        checkpoint = checkpoint_of(job)
        description = job.description()
        if checkpoint.complete < 0 or description is None:
            raise InvalidInput(
                f"the job '{job.job}' has not completed a batch yet, so there is nothing to save",
                where=str(job.path),
                next_step="wait until it has: millstream jobs list",
            )
        batch = checkpoint.complete
        _refuse_failed_flows(job, batch)
        with storage_errors(self.folder):
            make_folders(draft)
            for path in checkpoint.files_after(batch):
                try:
                    link(path, draft / "checkpoint" / path.relative_to(job.checkpoint))
                except FileNotFoundError:
                    raise _Vanished(f"{path} is missing") from None
            for part in (SOURCES, FRAMES):
                if (job.path / part).is_dir():
                    shutil.copytree(job.path / part, draft / part)
            if code is not None and code.is_file():
                shutil.copyfile(code, draft / CODE)
        write_document(draft / DESCRIPTION, asdict(description))
        copy = _checkpoint_in(draft, description)
        damage = copy.damage()
        if damage:
            raise _Vanished(damage[0].relative_to(draft))
        end = copy.offsets_of(batch)
        if end is None:
            raise InvalidInput(
                f"the job '{job.job}' reads Spark DataFrames, whose offsets only Spark knows",
                where=str(job.path),
                next_step="read topics or files instead, or copy the job's folder while it is stopped",
            )
        made = Savepoint(
            name=name,
            job=job.job,
            taken=time.time(),
            why=why,
            batch=batch,
            clock=int(end["clock"]),
            sources=end["sources"],
            steps=tuple(description.steps),
            size_bytes=sum(path.stat().st_size for path in draft.rglob("*") if path.is_file()),
            has_code=(draft / CODE).exists(),
        )
        write_document(draft / NOTE, made.document())
        return made

    def _read(self, folder: Path) -> Savepoint:
        try:
            found = dict(read_document(folder / NOTE))
            return Savepoint(**{**found, "steps": tuple(found["steps"])})
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise DamagedState(
                f"the savepoint '{folder.name}' cannot be read: {error}",
                where=str(folder / NOTE),
                next_step="restore the folder from a copy, or remove it and take another savepoint",
            ) from error

    # ------------------------------------------------------------ names

    def exists(self, name: str) -> bool:
        return (self.folder / name / NOTE).exists()

    def free_name(self, prefix: str) -> str:
        """A name that no savepoint has, with the time."""
        base = f"{prefix}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        names = (base if number == 1 else f"{base}-{number}" for number in range(1, 1000))
        return next(name for name in names if not (self.folder / name).exists())

    def _check_free(self, name: str) -> None:
        if (self.folder / name).exists():
            raise AlreadyExists(
                f"there is already a savepoint '{name}'",
                where=str(self.folder),
                next_step="choose another name, or leave it out",
            )

    def _remove_old_drafts(self) -> None:
        """Drafts of processes that were killed."""
        with suppress(OSError):
            for entry in self.folder.glob(f"{DRAFT}*"):
                if time.time() - entry.stat().st_mtime > DRAFT_AGE_S_MAX:
                    shutil.rmtree(entry, ignore_errors=True)


def check_savepoint_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:160]!r} cannot be the name of a savepoint",
            next_step="use up to 150 letters, digits and _.- and start with a letter or a digit",
        )


def _checkpoint_in(folder: Path, description: JobDescription) -> Checkpoint:
    return Checkpoint(folder / "checkpoint", description.stages_kept, description.partitions)


def link(path: Path, place: Path) -> None:
    """Links a file and its checksums; copies them if the file system has no links."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for each, target in ((path, place), (path.with_name(f".{path.name}.crc"), place.with_name(f".{place.name}.crc"))):
        if each is not path and not each.exists():
            continue
        try:
            os.link(each, target)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(each, target)


def copied_tree(paths: Iterable[Path], source: Path, target: Path) -> None:
    """Copies files with their checksums. Copies, not links: Spark must never write into a savepoint."""
    for path in paths:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def all_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _refuse_failed_flows(job: JobFolder, complete: int) -> None:
    """What a flow of an app still has to do after a failure is in the app's folder, not in its checkpoint."""
    rewound = [each.flow for each in read_rewinds(job.path) if each.batch >= complete]
    if failed := sorted({*rewound, *OwedBatches(job.path).flows()}):
        raise InvalidInput(
            f"the app '{job.job}' cannot be saved while flows of it have failed: {', '.join(failed)}",
            where=str(job.path),
            next_step="fix them, and take the savepoint once they run again",
        )
