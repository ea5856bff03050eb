"""A job's folder: its checkpoint, the description of its state, and a lock, since a job runs only once at a time."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from millstream.connectors.catalog import NOTE
from millstream.connectors.file_ledger import remove_drafts
from millstream.errors import DamagedState, JobChanged, JobRunning
from millstream.jobs.versions.kept_steps import CheckpointProgress, Fit, first_fit, fitted
from millstream.log.storage.disk import read_document, storage_errors, sync_folder, write_document
from millstream.plan.nodes import Write
from millstream.private_files import is_private, make_folders, open_alike, open_private, private_folder
from millstream.spark.query.batch_offsets import STOP
from millstream.spark.query.physical_plan import PhysicalPlan

DESCRIPTION = "job.json"
BEFORE_MOVE = "before_move.json"
LOCK_WAIT_S = 0.5
OWNER = ".job"
LOCK = "lock"
IDENTITY = re.compile(r"[A-Za-z0-9-]{1,100}")
SINKS = "sinks"
OUTPUTS = "outputs.json"
"""The run that wrote each output, and the identity of the output."""
STARTING_OVER = "starting_over"
REAL_TIME_CHECKPOINT = "checkpoint-real-time"
ORPHAN_S_MIN = 3600.0
RUNS = "millstream-runs-"
"""Prefix of the folder with a job's state on each executor, which is rebuilt if lost. A random identity follows, so
that no other user of the machine can create the folder first."""


@dataclass(frozen=True)
class JobDescription:
    """What stays fixed for the life of a job: how its keys are distributed, and the schema of each step's state."""

    identity: str
    groups: int
    partitions: int
    steps: dict[str, dict[str, str]] = field(default_factory=dict)
    """By step that keeps state: what it does, and the columns of each of its tables."""
    sources: dict[str, str] = field(default_factory=dict)
    """By source: the identity of its topic, which a recreated topic of the same name does not share."""
    written: dict[str, str] = field(default_factory=dict)
    """By output: the topic it is written to, if that is on the job's broker."""
    shift: int = 0
    """Added to the numbers of Spark's batches for those that outputs know. Not 0 once a savepoint was restored."""
    stages: int = 0
    """How many stages the checkpoint has, if it has more than the flow: those whose steps were dropped stay, empty."""
    dropped: dict[str, dict[str, str]] = field(default_factory=dict)
    """Steps that were dropped by an upgrade: their slots are not used again."""
    evolved: list[str] = field(default_factory=list)
    """Steps whose state may have been stored with fewer or narrower columns, before an upgrade."""
    shares_states: bool = False
    """Whether all slots of a stage share two states of Spark, so that steps can be added while it runs."""

    @property
    def stages_kept(self) -> int:
        """The number of stages in the checkpoint."""
        return max([self.stages, *(int(step.get("stage", 1)) for step in self.steps.values())])


class JobFolder:
    def __init__(self, path: Path, job: str) -> None:
        self.path = path
        self.job = job
        with storage_errors(path):
            make_folders(path)  # Spark writes into it with the permissions of its umask: others cannot enter

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def command(self, name: str) -> str:
        """A command line for this job, such as `repair`."""
        is_default = self.path.name == self.job and self.path.parent.name == "jobs"
        return f"millstream jobs {name} {self.job}" + ("" if is_default else f" --folder {self.path}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Locks the job, so that no other process runs it."""
        with storage_errors(self.path):
            lock = open_alike(self.path / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            if not _has_locked(lock):
                raise JobRunning(
                    f"the job '{self.job}' is already running",
                    where=str(self.path),
                    next_step="stop it first (Ctrl-C), or give this flow another name",
                )
            (self.path / STOP).unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)  # releases the lock, from whichever thread ends the job

    def description(self) -> JobDescription | None:
        path = self.path / DESCRIPTION
        if not path.exists():
            return None
        try:
            kept = JobDescription(**read_document(path))
            if not IDENTITY.fullmatch(kept.identity):
                raise ValueError(f"{kept.identity[:50]!r} is not a job identity")
        except (ValueError, TypeError) as error:
            raise DamagedState(
                f"the description of the job '{self.job}' cannot be read: {error}",
                where=str(path),
                next_step=f"restore the file from a copy, or rebuild the job's results: {self.command('rebuild')}",
            ) from error
        return kept

    def check(self, physical_plan: PhysicalPlan, sources: dict[str, str]) -> Fit:
        """Refuses a flow that does not fit the job's state. It runs before Spark is started, which it does not need."""
        if (self.path / BEFORE_MOVE).exists():
            raise JobChanged(
                f"the move of the job '{self.job}' to Kafka was interrupted",
                where=str(self.path),
                next_step="run it again, and it resumes where it stopped: millstream topics move …",
            )
        kept = self.description()
        if kept is None:
            return first_fit(physical_plan)
        physical_plan = replace(physical_plan, one_stage=kept.groups == 1)
        for name, identity in sources.items():
            if kept.sources.get(name, identity) != identity:
                raise JobChanged(
                    f"the source '{name}' of the flow '{self.job}' is a different topic than before, or was recreated: "
                    "the job's offsets do not apply to it",
                    where=str(self.path),
                    next_step=(
                        "give the source another name=, or write all outputs from the start: "
                        "millstream run flow.py --start-over"
                    ),
                )
        progress = self.progress()
        return (
            fitted(self.job, str(self.path), physical_plan, kept.steps, progress, kept.dropped, kept.stages_kept)
            if progress
            else first_fit(physical_plan)
        )

    def settle(
        self, physical_plan: PhysicalPlan, partitions: int, sources: dict[str, str], stages: int = 0
    ) -> JobDescription:
        """Saves and returns the description that the job continues with, or starts with if it has none yet.

        It starts with at least this many `stages`, which share states if they are given.
        """
        fit = self.check(physical_plan, sources)
        kept = self.description() or JobDescription(
            uuid.uuid4().hex, physical_plan.groups, partitions, stages=stages, shares_states=stages > 0
        )
        topics = {each.name: each.sink.broker_topic for each in physical_plan.outputs if isinstance(each, Write)}
        written = {name: topic for name, topic in topics.items() if topic is not None}
        kept = replace(kept, steps=fit.steps, sources=kept.sources | sources, written=written)
        write_document(self.path / DESCRIPTION, asdict(kept))
        return kept

    @property
    def is_starting_over(self) -> bool:
        """Whether the job was asked to start over and has not completed that."""
        return (self.path / STARTING_OVER).exists()

    @contextmanager
    def starting_over(self) -> Iterator[None]:
        """Removes everything the job kept once the body has succeeded."""
        with storage_errors(self.path):
            (self.path / STARTING_OVER).touch()
            sync_folder(self.path)
        yield
        kept = None
        with suppress(DamagedState):  # its state on this machine is left behind
            kept = self.description()
        remove_drafts(self.path / SINKS)
        with storage_errors(self.path):
            for entry in self.path.iterdir():
                if entry.name in (LOCK, STARTING_OVER):
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            sync_folder(self.path)
            (self.path / STARTING_OVER).unlink()
        if kept is not None and is_claimed(kept.identity, self.path):
            shutil.rmtree(runs_of(kept.identity), ignore_errors=True)

    def newest_batches(self) -> tuple[int, int]:
        """The newest batch that has started, and the newest that is complete; -1: none."""
        return newest_number(self.checkpoint / "offsets"), newest_number(self.checkpoint / "commits")

    def unfinished_batch(self) -> bool:
        """Whether a batch has started and is not complete."""
        started, complete = self.newest_batches()
        return started > complete

    def has_completed_since(self, when: float) -> bool:
        """Whether a batch was completed after a time, in seconds since 1970."""
        newest = self.newest_batches()[1]
        with suppress(FileNotFoundError):  # a job in its first batch has none
            return (self.checkpoint / "commits" / str(newest)).stat().st_mtime > when
        return False

    def newest_offsets(self) -> Path | None:
        """The file with the newest offsets of the job's sources, if it has started."""
        newest = newest_number(self.checkpoint / "offsets")
        return None if newest < 0 else self.checkpoint / "offsets" / str(newest)

    def progress(self) -> CheckpointProgress | None:
        newest = self.newest_offsets()
        if newest is None:
            return None
        sources: list[str] = []
        for line in newest.read_text().splitlines():
            with suppress(ValueError):  # the first line is a version, and DataFrames have offsets of Spark's own
                offset = json.loads(line)
                if isinstance(offset, dict) and isinstance(offset.get("sources"), dict):
                    sources = list(offset["sources"])
        return CheckpointProgress(int(newest.name), newest_number(self.checkpoint / "commits"), tuple(sources))

    def known_outputs(self) -> set[str]:
        """The outputs that earlier runs opened."""
        folder = self.path / SINKS
        return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()

    def remove(self) -> None:
        """Atomic: half a folder, left by a killed process, would not know what was written."""
        kept = None
        with suppress(
            DamagedState
        ):  # a damaged description does not prevent removal; its state on this machine is left
            kept = self.description()
        gone = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        self.path.rename(gone)
        remove_drafts(gone / SINKS)
        shutil.rmtree(gone, ignore_errors=True)
        if kept is not None and is_claimed(kept.identity, self.path):
            shutil.rmtree(runs_of(kept.identity), ignore_errors=True)


def _has_locked(lock: int) -> bool:
    """Whether the lock was acquired. Commands that only inspect a job hold it for a moment, so it is retried."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOCK_WAIT_S / 10)


def is_job(path: Path) -> bool:
    """Whether a folder belongs to a job: no link, and with one of the files that a job writes."""
    found = path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
    return found and any((path / name).is_file() for name in (LOCK, DESCRIPTION, NOTE))


def runs_of(identity: str) -> Path:
    """The folder with a job's state on this machine. The identity comes from a file that anyone may have edited."""
    assert IDENTITY.fullmatch(identity), identity
    return Path(tempfile.gettempdir()) / f"{RUNS}{identity}"


def is_claimed(identity: str, job: Path) -> bool:
    """Whether the state under this identity belongs to the job in this folder."""
    runs = runs_of(identity)
    try:
        return not runs.is_symlink() and (runs / OWNER).read_bytes() == os.fsencode(job.absolute())
    except OSError:
        return False


def claim_runs(identity: str, job: Path) -> None:
    """Records which job owns the state, and removes the state of jobs that were deleted or started over."""
    runs = private_folder(runs_of(identity))
    with suppress(OSError):  # no job fails because cleaning up does
        with os.fdopen(open_private(runs / OWNER, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as owner:
            owner.write(os.fsencode(job.absolute()))
        for folder in list(runs.parent.glob(f"{RUNS}*")):
            with suppress(OSError):
                if is_private(folder) and _is_orphan(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_orphan(runs: Path) -> bool:
    """Recent state may belong to a job that this process cannot see, as in a container."""
    owner = runs / OWNER
    job = Path(os.fsdecode(owner.read_bytes()))
    if time.time() - owner.stat().st_mtime < ORPHAN_S_MIN or not job.parent.exists():
        return False
    try:
        return bool(json.loads((job / DESCRIPTION).read_bytes())["identity"] != runs.name.removeprefix(RUNS))
    except FileNotFoundError:
        return True
    except (ValueError, KeyError, TypeError):
        return False


def newest_number(folder: Path) -> int:
    try:
        return max((int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1
