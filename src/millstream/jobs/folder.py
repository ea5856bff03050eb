"""A job's own folder: its checkpoint, what its state was made for, and a lock, since a job runs once at a time."""

from __future__ import annotations

import fcntl
import hashlib
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

import polars as pl

from millstream.connectors.catalog import NOTE
from millstream.connectors.file_ledger import remove_drafts
from millstream.errors import DamagedState, JobChanged, JobRunning
from millstream.log.disk import read_document, storage_errors, write_document
from millstream.operators.stateful import stateful
from millstream.plan.nodes import Node, Write
from millstream.plan.table_nodes import SideJoin
from millstream.private_files import is_private, make_folders, open_alike, open_private, private_folder
from millstream.spark.query.job_feed import STOP
from millstream.spark.query.physical_plan import Layout
from millstream.terminal import escaped

DESCRIPTION = "job.json"
BEFORE_MOVE = "before_move.json"
LOOKING_S = 0.5
OWNER = ".job"
LOCK = "lock"
IDENTITY = re.compile(r"[A-Za-z0-9-]{1,100}")
SINKS = "sinks"
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


def described(layout: Layout) -> dict[str, dict[str, str]]:
    found = {}
    for node in layout.chain:
        step = stateful(node, whole_rows=layout.takes_late(node))
        assert step is not None
        tables = {
            f"table {name}": ", ".join(f"{column} {kind}" for column, kind in table.schema.items())
            for name, table in step.tables().items()
        }
        stage = next(number for number, stage in enumerate(layout.stages, 1) if layout.chain.index(node) in stage)
        found[node.name] = {"does": node.label, **tables, **_fed_by(node), "stage": str(stage)}
    return found


def _fed_by(node: Node) -> dict[str, str]:
    """What a step is fed with, as far as its state depends on it.

    A row that was put there must be taken back in the same form: so what lies before a step over rows that change may
    not change. And two inputs may not change places.
    """
    found = {}
    for number, given in enumerate(node.inputs, 1):
        if given.is_changing:
            found[f"input {number}"] = ", then ".join(_way(given, set()))
        elif len(node.inputs) > 1:
            found[f"input {number}"] = _way(given, set())[0]
    return found


def _way(node: Node, known: set[Node]) -> list[str]:
    """The step that keeps state or the source before a node, by name, and what is done to its rows since.

    A union that was described before is only named: else each that is fed by another twice would double the text.
    """
    if not node.inputs or node.keeps_state or node in known:
        return [node.name]
    if len(node.inputs) > 1:
        known.add(node)
        return [f"{node.label} of ({'; '.join(', then '.join(_way(given, known)) for given in node.inputs)})"]
    label = node.label
    if isinstance(node, SideJoin):
        content = "".join(str(pl.Series(column).hash(7).sum()) for column in node.rows.columns)
        label += f" ({hashlib.sha256(content.encode()).hexdigest()[:12]})"
    return [*_way(node.inputs[0], known), label]


class JobFolder:
    def __init__(self, path: Path, job: str) -> None:
        self.path = path
        self.job = job
        with storage_errors(path):
            make_folders(path)  # what Spark writes into it has the rights of its umask: nobody else gets that far

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

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
                next_step=f"restore the file from a backup, or start over: millstream jobs forget {self.job}",
            ) from error
        return kept

    def settle(self, layout: Layout, partitions: int, sources: dict[str, str]) -> Kept:
        """What the job goes on with: what it kept, if the flow fits it, else what it begins with now."""
        if (self.path / BEFORE_MOVE).exists():
            raise JobChanged(
                f"the job '{self.job}' is on its way to Kafka: a move was cut short",
                where=str(self.path),
                next_step="call it again, and it goes on where it was: millstream topics move …",
            )
        steps = described(layout)
        kept = self.kept()
        if kept is None:
            kept = Kept(uuid.uuid4().hex, layout.groups, partitions, steps, sources)
        elif list(kept.steps.items()) != list(steps.items()):
            raise JobChanged(
                f"the flow '{self.job}' has changed, and the state it kept does not fit:\n"
                + differences(kept.steps, steps),
                where=str(self.path),
                next_step=(
                    "undo the change, or run it beside as a new job: flow.replay(into=…) makes the results anew; "
                    f"or begin anew here: millstream jobs forget {self.job}"
                ),
            )
        for name, identity in sources.items():
            if kept.sources.get(name, identity) != identity:
                raise JobChanged(
                    f"the source '{name}' of the flow '{self.job}' is another topic than before, or was made anew: "
                    "how far the job has read says nothing about it",
                    where=str(self.path),
                    next_step=f"give the source another name=, or begin anew: millstream jobs forget {self.job}",
                )
        written = {
            each.name: each.sink for each in layout.outputs if isinstance(each, Write) and isinstance(each.sink, str)
        }
        kept = replace(kept, sources=kept.sources | sources, written=written)
        write_document(self.path / DESCRIPTION, asdict(kept))
        return kept

    def begin_ledgers_anew(self) -> None:
        """Without a checkpoint batches count from 0 again: what sinks have noted of others must not hide them."""
        if _newest(self.checkpoint / "offsets") < 0:
            remove_drafts(self.path / SINKS)
            shutil.rmtree(self.path / SINKS, ignore_errors=True)

    def unfinished_batch(self) -> bool:
        """Whether a batch has begun that is not complete."""
        begun, complete = (_newest(self.checkpoint / name) for name in ("offsets", "commits"))
        return begun > complete

    def newest_offsets(self) -> Path | None:
        """The file that says how far the job has read, if it has begun."""
        newest = _newest(self.checkpoint / "offsets")
        return None if newest < 0 else self.checkpoint / "offsets" / str(newest)

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
    """Notes whose rows of state lie here, and removes those of jobs that somebody has deleted or begun anew."""
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


def _newest(folder: Path) -> int:
    try:
        return max((int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def differences(kept: dict[str, dict[str, str]], steps: dict[str, dict[str, str]]) -> str:
    """How the steps of a flow differ from those its state was kept for, line by line."""
    lines = []
    for name in dict.fromkeys([*kept, *steps]):
        before, now = kept.get(name), steps.get(name)
        if before is None or now is None:
            lines.append(f"  {'+' if before is None else '-'} {name}: {(now or before or {})['does']}")
            continue
        for part in dict.fromkeys([*before, *now]):
            if before.get(part) != now.get(part):
                lines += [f"    {name}, {part}", f"  - {before.get(part)}", f"  + {now.get(part)}"]
    if not lines:
        lines = [f"  - in this order: {', '.join(kept)}", f"  + in this order: {', '.join(steps)}"]
    return "\n".join(map(escaped, lines))
