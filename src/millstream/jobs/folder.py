"""A job's own folder: its checkpoint, what its state was made for, and a lock, since a job runs once at a time."""

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
from millstream.jobs.kept_steps import Fit, Progress, first_fit, fitted
from millstream.log.disk import read_document, storage_errors, sync_folder, write_document
from millstream.plan.nodes import Write
from millstream.private_files import is_private, make_folders, open_alike, open_private, private_folder
from millstream.spark.query.job_feed import STOP
from millstream.spark.query.physical_plan import Layout

DESCRIPTION = "job.json"
BEFORE_MOVE = "before_move.json"
LOOKING_S = 0.5
OWNER = ".job"
LOCK = "lock"
IDENTITY = re.compile(r"[A-Za-z0-9-]{1,100}")
SINKS = "sinks"
OUTPUTS = "outputs.json"
"""Which run has written each output, and which topic that was."""
STARTING_OVER = "starting_over"
REAL_TIME_CHECKPOINT = "checkpoint-real-time"
ORPHAN_S_MIN = 3600.0
RUNS = "millstream-runs-"
"""How a folder is named that holds the state of one job beside each executor, rebuilt if it is lost. The job's random
identity follows, so that no other user of the machine can make the folder first."""


@dataclass(frozen=True)
class Kept:
    """What stays as it is while a job lives: how its keys are spread, and the shape of each step's state."""

    identity: str
    groups: int
    partitions: int
    steps: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the name of a step that keeps state: what it does, and the columns of each of its tables."""
    sources: dict[str, str] = field(default_factory=dict)
    """By the name of a source: which topic it is, and not only what that is called."""
    written: dict[str, str] = field(default_factory=dict)
    """By the name of an output: the topic it is written to, if it is one of the job's broker."""


class JobFolder:
    def __init__(self, path: Path, job: str) -> None:
        self.path = path
        self.job = job
        with storage_errors(path):
            make_folders(path)  # what Spark writes into it has the rights of its umask: nobody else gets that far

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def command(self, name: str) -> str:
        """The command line that does something with this job."""
        is_default = self.path.name == self.job and self.path.parent.name == "jobs"
        return f"millstream jobs {name} {self.job}" + ("" if is_default else f" --folder {self.path}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else runs the job meanwhile."""
        with storage_errors(self.path):
            lock = open_alike(self.path / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            if not _taken(lock):
                raise JobRunning(
                    f"the job '{self.job}' runs already",
                    where=str(self.path),
                    next_step="stop the other one (Ctrl-C), or give this flow another name",
                )
            (self.path / STOP).unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)  # and so let go of: any thread may end a job

    def kept(self) -> Kept | None:
        path = self.path / DESCRIPTION
        if not path.exists():
            return None
        try:
            kept = Kept(**read_document(path))
            if not IDENTITY.fullmatch(kept.identity):
                raise ValueError(f"{kept.identity[:50]!r} is not the identity of a job")
        except (ValueError, TypeError) as error:
            raise DamagedState(
                f"what the job '{self.job}' has kept cannot be read: {error}",
                where=str(path),
                next_step=f"restore the file from a copy, or rebuild the job's results: {self.command('rebuild')}",
            ) from error
        return kept

    def check(self, layout: Layout, sources: dict[str, str]) -> Fit:
        """Refuses a flow that does not fit what the job kept. It needs no Spark, and so comes before it is started."""
        if (self.path / BEFORE_MOVE).exists():
            raise JobChanged(
                f"the job '{self.job}' is on its way to Kafka: a move was cut short",
                where=str(self.path),
                next_step="call it again, and it goes on where it was: millstream topics move …",
            )
        kept = self.kept()
        if kept is None:
            return first_fit(layout)
        for name, identity in sources.items():
            if kept.sources.get(name, identity) != identity:
                raise JobChanged(
                    f"the source '{name}' of the flow '{self.job}' is another topic than before, or was created again: "
                    "how far the job has read says nothing about it",
                    where=str(self.path),
                    next_step=(
                        "give the source another name=, or write all outputs from the start: "
                        "millstream run flow.py --start-over"
                    ),
                )
        progress = self._progress()
        return fitted(self.job, str(self.path), layout, kept.steps, progress) if progress else first_fit(layout)

    def settle(self, layout: Layout, partitions: int, sources: dict[str, str]) -> Kept:
        """What the job goes on with: what it kept, if the flow fits it, else what it begins with now."""
        fit = self.check(layout, sources)
        kept = self.kept() or Kept(uuid.uuid4().hex, layout.groups, partitions)
        written = {
            each.name: each.sink for each in layout.outputs if isinstance(each, Write) and isinstance(each.sink, str)
        }
        kept = replace(kept, steps=fit.steps, sources=kept.sources | sources, written=written)
        write_document(self.path / DESCRIPTION, asdict(kept))
        return kept

    @property
    def is_starting_over(self) -> bool:
        """Whether the job was told to start over and did not complete it."""
        return (self.path / STARTING_OVER).exists()

    @contextmanager
    def starting_over(self) -> Iterator[None]:
        """After what is done inside it, all that the job has kept is removed."""
        with storage_errors(self.path):
            (self.path / STARTING_OVER).touch()
            sync_folder(self.path)
        yield
        kept = None
        with suppress(DamagedState):  # its rows of state are left
            kept = self.kept()
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
        """The newest batch that has begun, and the newest that is complete; -1: none."""
        return newest_number(self.checkpoint / "offsets"), newest_number(self.checkpoint / "commits")

    def unfinished_batch(self) -> bool:
        """Whether a batch has begun that is not complete."""
        begun, complete = self.newest_batches()
        return begun > complete

    def newest_offsets(self) -> Path | None:
        """The file that says how far the job has read, if it has begun."""
        newest = newest_number(self.checkpoint / "offsets")
        return None if newest < 0 else self.checkpoint / "offsets" / str(newest)

    def _progress(self) -> Progress | None:
        newest = self.newest_offsets()
        if newest is None:
            return None
        sources: list[str] = []
        for line in newest.read_text().splitlines():
            with suppress(ValueError):  # the first line is a version, and that of a DataFrame is Spark's own
                offset = json.loads(line)
                if isinstance(offset, dict) and isinstance(offset.get("sources"), dict):
                    sources = list(offset["sources"])
        return Progress(int(newest.name), newest_number(self.checkpoint / "commits"), tuple(sources))

    def known_outputs(self) -> set[str]:
        """The outputs that were opened before."""
        folder = self.path / SINKS
        return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()

    def remove(self) -> None:
        """At once: a half of it, left by a process that died meanwhile, would not know what was written."""
        kept = None
        with suppress(DamagedState):  # a job whose note is damaged can be removed too; its rows of state are left
            kept = self.kept()
        gone = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        self.path.rename(gone)
        remove_drafts(gone / SINKS)
        shutil.rmtree(gone, ignore_errors=True)
        if kept is not None and is_claimed(kept.identity, self.path):
            shutil.rmtree(runs_of(kept.identity), ignore_errors=True)


def _taken(lock: int) -> bool:
    """Whether a lock could be taken; who only looks at a job holds it for a moment."""
    deadline = time.monotonic() + LOOKING_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOKING_S / 10)


def is_job(path: Path) -> bool:
    """Whether a folder is that of a job: a real one, with one of the files that a job leaves in it."""
    found = path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
    return found and any((path / name).is_file() for name in (LOCK, DESCRIPTION, NOTE))


def runs_of(identity: str) -> Path:
    """Where the rows of state of a job lie on this machine. The identity stands in a file that somebody may edit."""
    assert IDENTITY.fullmatch(identity), identity
    return Path(tempfile.gettempdir()) / f"{RUNS}{identity}"


def is_claimed(identity: str, job: Path) -> bool:
    """Whether the rows of state that lie under this identity are those of the job in this folder."""
    runs = runs_of(identity)
    try:
        return not runs.is_symlink() and (runs / OWNER).read_bytes() == os.fsencode(job.absolute())
    except OSError:
        return False


def claim_runs(identity: str, job: Path) -> None:
    """Notes whose rows of state lie here, and removes those of jobs that somebody has deleted or started over."""
    runs = private_folder(runs_of(identity))
    with suppress(OSError):  # no job fails for want of tidiness
        with os.fdopen(open_private(runs / OWNER, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as owner:
            owner.write(os.fsencode(job.absolute()))
        for folder in list(runs.parent.glob(f"{RUNS}*")):
            with suppress(OSError):
                if is_private(folder) and _is_orphan(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_orphan(runs: Path) -> bool:
    """What was started a short while ago may belong to a job that this process cannot see, as in a container."""
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
