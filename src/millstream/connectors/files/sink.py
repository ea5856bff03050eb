"""The files of a batch become visible when all of them are complete, exactly once.

    write drafts, in workers and here; sync
    record which draft becomes which file
    rename; sync the folders; record that the batch is written

After a crash, the next run completes the recorded renames: the drafts of other attempts are ignored. File names
contain the run of the job, so that files of other runs are never mistaken for its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.connectors.file_ledger import Move, Moves, unavailable_if_refused
from millstream.connectors.files import drafts_folder
from millstream.connectors.files.drafts import Draft, Drafting
from millstream.connectors.flat_rows import check_json
from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.sink import DRIVER_SHARD, Prepared, TwoPhaseSink
from millstream.errors import InvalidInput, SinkFailed, SinkUnavailable
from millstream.log.storage.disk import sync_folder
from millstream.plan.steps.partition_folders import NAME_BYTES_MAX

if TYPE_CHECKING:
    from millstream.connectors.connector import Writing
    from millstream.connectors.files.endpoint import Files


class FilesSink(TwoPhaseSink):
    def __init__(self, endpoint: Files, writing: Writing) -> None:
        self._step = writing.step
        self._folder = Path(endpoint.path).expanduser().absolute()
        self._ledger = writing.ledger
        if endpoint.format != "parquet":
            check_json(writing.schema)
        if self._folder.exists() and not self._folder.is_dir():
            raise InvalidInput(
                "the path is a file, not a folder",
                where=str(self._folder),
                next_step="use another folder",
            )
        hidden = drafts_folder.folder_name(writing.step, writing.run)
        self._drafting = Drafting(
            self._folder,
            hidden,
            endpoint.format,
            tuple(endpoint.partition_by),
            writing.schema,
            _name_bytes_max(self._folder),
        )
        self._is_shared = False
        self._own: tuple[pa.Table | None, Prepared] = None, Prepared(None)

    def preparer(self) -> Drafting:
        self._is_shared = True
        with suppress(OSError, SinkUnavailable):  # an unmounted disk: `write` reports it
            self._make_drafts_folder()
        return self._drafting

    def is_decided(self, batch: int) -> bool:
        return self._ledger.has(batch) or self._ledger.prepared(batch) is not None

    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared:
        """A retry with the same rows returns the drafts of the first attempt."""
        known, own = self._own
        if known is not rows or not all((self._drafting.folder / draft).exists() for draft, _ in _drafts_of(own)):
            with unavailable_if_refused(str(self._folder), self._step):
                if rows.num_rows:
                    self._make_drafts_folder()
                self._own = rows, self._drafting.drafted(shard, rows, weights)
        return self._own[1]

    def write_prepared(
        self, batch: int, rows: pa.Table, weights: pa.Array | None, receipts: Sequence[Any], refuse: Refuse = stop
    ) -> None:
        """Waits for an unmounted disk instead of creating a folder at its mount point."""
        if receipts and not self.is_decided(batch):
            _check_there(self._drafting.folder, self._step)
        super().write_prepared(batch, rows, weights, receipts, refuse)

    def commit(self, batch: int, receipts: Sequence[Any]) -> None:
        if self._ledger.has(batch):
            return
        with unavailable_if_refused(str(self._folder), self._step):
            moves = self._ledger.prepared(batch)
            if moves is None and any(receipt["drafts"] for receipt in receipts):
                moves = self._moves(batch, receipts)
                self._ledger.prepare(batch, moves)
            if moves is not None:
                _appear(moves, self._step)
        self._ledger.record(batch)
        self._own = None, Prepared(None)
        self._tidy()

    def close(self) -> None:
        self._is_shared = False
        with suppress(SinkUnavailable, SinkFailed):  # an unreadable record must not be removed
            if self._ledger.is_settled():
                self._tidy()

    def _make_drafts_folder(self) -> None:
        self._ledger.use(self._drafting.folder)
        hidden = self._drafting.folder
        if hidden.is_symlink():
            raise SinkFailed(
                "the folder of drafts is a symbolic link",
                where=str(hidden),
                next_step="remove the link; it was not created by this job",
            )
        if not hidden.is_dir():
            hidden.mkdir(parents=True)
            drafts_folder.mark(hidden, self._step, self._ledger.run)
            sync_folder(self._folder)
        else:
            drafts_folder.mark(hidden, self._step, self._ledger.run)

    def _moves(self, batch: int, receipts: Sequence[Any]) -> Moves:
        """Assigns file names to all drafts; those of tasks are numbered."""
        hidden = self._drafting.folder
        _check_there(hidden, self._step)
        name, ending = f"{self._step}-{self._ledger.run}-{batch:010d}", self._drafting.format
        moves: list[Move] = []
        numbers = count(1)
        for receipt in receipts:
            number = "" if receipt["shard"] == DRIVER_SHARD else f"-{next(numbers):04d}"
            moves += [(draft, f"{below}/{name}{number}.{ending}") for draft, below in receipt["drafts"]]
        if not all((hidden / draft).exists() for draft, _ in moves):
            raise SinkFailed(
                "drafts of this batch are missing",
                where=str(hidden),
                next_step="do not touch the hidden folder while the job runs; run the job again to rewrite them",
            )
        self._make_folders(moves)
        sync_folder(hidden)
        return Moves(str(self._folder), str(hidden), tuple(moves))

    def _make_folders(self, moves: Sequence[Move]) -> None:
        found: set[tuple[int, int]] = set()
        for below in {Path(path).parent for _, path in moves}:
            folder = self._folder / below
            folder.mkdir(parents=True, exist_ok=True)
            about = folder.stat()
            if (about.st_dev, about.st_ino) in found:
                raise SinkFailed(
                    f"the folder '{below}' is the same as another one on this disk, so their rows would be mixed",
                    where=str(folder),
                    next_step="write to a case-sensitive file system, or use one spelling of the values",
                )
            found.add((about.st_dev, about.st_ino))

    def _tidy(self) -> None:
        """Removes leftovers of failed attempts: no drafts are written between two batches."""
        with suppress(OSError):  # leftovers are harmless
            drafts_folder.clear(self._drafting.folder, self._step, self._ledger.run, whole=not self._is_shared)


def _drafts_of(prepared: Prepared) -> Sequence[Draft]:
    return prepared.receipt["drafts"] if prepared.receipt else ()


def _name_bytes_max(folder: Path) -> int:
    """Some file systems have a lower limit for names."""
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    try:
        return min(NAME_BYTES_MAX, os.pathconf(there, "PC_NAME_MAX"))
    except (OSError, ValueError):
        return NAME_BYTES_MAX


def _appear(moves: Moves, step: str) -> None:
    """Renames drafts. The hidden folder exists until the batch is recorded: if it is missing, so is the disk.

    Otherwise a missing draft was renamed before a crash, and a reader may have moved the file since.
    """
    folder, hidden = Path(moves.folder), Path(moves.hidden)
    if moves.moves:
        _check_there(hidden, step)
    folders: set[Path] = set()
    for draft, path in moves.moves:
        becomes = folder / path
        becomes.parent.mkdir(parents=True, exist_ok=True)
        if (hidden / draft).exists():
            (hidden / draft).rename(becomes)
        folders.update(Path(path).parents)
    for below in folders:  # also for files that existed: the process that renamed them may have died before this
        sync_folder(folder / below)


def _check_there(hidden: Path, step: str) -> None:
    if not hidden.is_dir() or hidden.is_symlink():
        raise SinkUnavailable(
            f"the drafts cannot be reached: there is no folder {hidden}",
            where=f"step '{step}'",
            next_step="check that the disk is mounted; the batch is retried",
        )
