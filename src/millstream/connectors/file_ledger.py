"""The newest batch of a step, in a file of the job's folder: replaced atomically, durable when `record` returns.

The file also identifies the folder's run. Every run numbers its batches from 0: a run that starts over in a new folder
must not be mistaken for one that resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millstream.connectors.files import drafts_folder
from millstream.errors import SinkFailed, SinkUnavailable
from millstream.log.storage.disk import sync_folder
from millstream.private_files import create_alike, make_folders

DRAFTS = "drafts"
Move = tuple[str, str]
"""A draft, and the file it becomes."""


@dataclass(frozen=True)
class Moves:
    """The pending renames of a batch: which draft in a hidden folder becomes which file."""

    folder: str
    hidden: str
    moves: tuple[Move, ...]


@contextmanager
def unavailable_if_refused(what: str, step: str) -> Iterator[None]:
    """Errors of the operating system may be temporary: a full disk, an unmounted folder, missing permissions."""
    try:
        yield
    except OSError as error:
        raise SinkUnavailable(
            f"{what} cannot be written: {error.strerror or error}",
            where=f"step '{step}'" + (f", {error.filename}" if error.filename else ""),
            next_step="check that the folder exists, is writable and has free space; the batch is retried",
        ) from error


def replace_durably(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never a part; the draft's name is hidden."""
    draft = path.with_name(f".{path.name}.tmp")
    with os.fdopen(create_alike(draft), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


class FileLedger:
    def __init__(self, folder: Path, step: str) -> None:
        self.step = step
        self.path = Path(folder) / file_name(step)
        self._known: dict[str, Any] | None = None
        if "run" not in self._content():
            self._write({"run": f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"})

    @property
    def run(self) -> str:
        """Identifies this run of the job; later runs sort after it."""
        return str(self._content()["run"])

    def has(self, batch: int) -> bool:
        newest = self._content().get("batch")
        return newest is not None and batch <= int(newest)

    def newest(self) -> int | None:
        """The newest batch that was written or is pending."""
        content = self._content()
        noted = [content.get("batch"), content.get("writing", {}).get("batch")]
        return max((int(batch) for batch in noted if batch is not None), default=None)

    def prepare(self, batch: int, moves: Moves) -> None:
        """Records the pending renames of a batch, so that they are completed after a crash."""
        self._write({**self._content(), "writing": {"batch": batch, **asdict(moves)}})

    def prepared(self, batch: int) -> Moves | None:
        writing = self._content().get("writing")
        if writing is None or writing["batch"] != batch:
            return None
        moves = Moves(writing["folder"], writing["hidden"], tuple((draft, path) for draft, path in writing["moves"]))
        self._check(moves)
        return moves

    def _check(self, moves: Moves) -> None:
        """Only allows renames of this run's drafts, to file names of this run."""
        hidden, own = Path(moves.hidden), f"{self.step}-{self.run}-"
        if hidden != Path(moves.folder) / drafts_folder.folder_name(self.step, self.run):
            raise self._damaged(f"it names {hidden} as the folder of its drafts")
        for draft, path in moves.moves:
            if not drafts_folder.DRAFT.fullmatch(draft):
                raise self._damaged(f"it names {draft!r} as a draft")
            if not drafts_folder.is_below(path) or not Path(path).name.startswith(own):
                raise self._damaged(f"it names {path!r} as a file of this step")

    def is_settled(self) -> bool:
        """Whether no renames are pending."""
        return "writing" not in self._content()

    def use(self, drafts: Path) -> None:
        """Records the folder of the drafts, for the process that removes the ledger."""
        if self._content().get(DRAFTS) != str(drafts):
            self._write({**self._content(), DRAFTS: str(drafts)})

    def record(self, batch: int) -> None:
        self._write({**{key: value for key, value in self._content().items() if key != "writing"}, "batch": batch})

    def _content(self) -> dict[str, Any]:
        if self._known is None:
            with unavailable_if_refused("the ledger", self.step):
                try:
                    known = json.loads(self.path.read_bytes())
                except FileNotFoundError:
                    known = {}
                except ValueError as error:
                    raise self._damaged(str(error)) from error
            if not isinstance(known, dict):
                raise self._damaged("it is not a JSON object")
            if "run" in known and not drafts_folder.RUN.fullmatch(str(known["run"])):
                raise self._damaged(f"it names {known['run']!r} as its run")
            self._known = known
        return self._known

    def _damaged(self, why: str) -> SinkFailed:
        return SinkFailed(
            f"the ledger of step '{self.step}' cannot be read: {why}",
            where=str(self.path),
            next_step="restore the file from a backup; it records which batches were written",
        )

    def _write(self, content: dict[str, Any]) -> None:
        self._known = None  # whatever fails below, the file has the truth
        with unavailable_if_refused("the ledger", self.step):
            make_folders(self.path.parent)
            replace_durably(self.path, json.dumps(content).encode())
        self._known = content


def file_name(step: str) -> str:
    """The file name of a step's ledger. The digest distinguishes names on case-insensitive file systems."""
    digest = hashlib.sha256(step.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', step)[:100]}-{digest}.json"


def remove_drafts(folder: Path) -> None:
    """Removes the drafts of all sinks with ledgers in a folder: no run will use them.

    A folder named by a ledger is removed only if it belongs to the ledger's own step and run.
    """
    for path in folder.rglob("*.json"):
        with suppress(OSError, ValueError, TypeError, AttributeError):  # leftovers are harmless
            content = json.loads(path.read_bytes())
            drafts, run = Path(content[DRAFTS]) if DRAFTS in content else None, str(content.get("run"))
            if drafts is None or not drafts.is_absolute():
                continue
            step = drafts.name.removeprefix(drafts_folder.PREFIX).removesuffix(f"-{run}")
            if file_name(step) == path.name:
                drafts_folder.clear(drafts, step, run, whole=True)
