"""The files of a batch appear under their names when all of them are complete, and never again.

    draft them, in workers and here; sync
    note which draft becomes which file
    rename; sync the folders; note that the batch is written

The next run after a crash continues with what was noted: the drafts of another try are not looked at. A file's name
holds the run of the job, so that nobody's files are taken for one's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from millstream.connectors.file_ledger import FileLedger, Move, Moves, unavailable_if_refused
from millstream.connectors.files import drafts_folder
from millstream.connectors.files.drafts import Draft, Drafting
from millstream.connectors.flat_rows import check_json
from millstream.connectors.refusals import Refuse, kept, refusals_of, stop, without
from millstream.errors import InvalidInput, SinkFailed, SinkUnavailable
from millstream.log.disk import sync_folder
from millstream.plan.endpoints import Files
from millstream.plan.partition_folders import NAME_BYTES_MAX
from millstream.records import Schema


class FilesSink:
    def __init__(self, place: Files, schema: Schema, *, step: str, ledger: FileLedger) -> None:
        self._step = step
        self._folder = Path(place.path).expanduser().absolute()
        self._ledger = ledger
        if place.format != "parquet":
            check_json(schema)
        if self._folder.exists() and not self._folder.is_dir():
            raise InvalidInput(
                "there is a file where the folder of files should be",
                where=str(self._folder),
                next_step="name another folder",
            )
        hidden = drafts_folder.folder_name(step, ledger.run)
        self._drafting = Drafting(
            self._folder, hidden, place.format, tuple(place.partition_by), schema, _name_bytes_max(self._folder)
        )
        self._is_shared = False
        self._own: tuple[pa.Table | None, list[Draft]] = None, []

    def shared(self) -> Drafting:
        """How others draft files of this sink, from now on."""
        self._is_shared = True
        with suppress(OSError, SinkUnavailable):  # a disk that is not there yet: `write` says so
            self._make_drafts_folder()
        return self._drafting

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        self.write_with_drafts(batch, rows, weights, [], refuse)

    def write_with_drafts(
        self,
        batch: int,
        rows: pa.Table,
        weights: pa.Array | None,
        drafts: Sequence[Sequence[Draft]],
        refuse: Refuse = stop,
    ) -> None:
        """Also rows that are files already: the drafts of each worker's task."""
        if self._ledger.has(batch):
            return
        with unavailable_if_refused(str(self._folder), self._step):
            moves = self._ledger.prepared(batch)
            if moves is None:
                refused = self._drafting.unfit(rows)
                refuse(refusals_of(refused))
                if rows.num_rows > len(refused) or drafts:
                    moves = self._moves(batch, rows, weights, drafts, refused)
                    self._ledger.prepare(batch, moves)
            if moves is not None:
                _appear(moves, self._step)
        self._ledger.record(batch)
        self._own = None, []
        self._tidy()

    def close(self) -> None:
        self._is_shared = False
        with suppress(SinkUnavailable, SinkFailed):  # who cannot read what is noted must not remove it
            if self._ledger.is_settled():
                self._tidy()

    def _make_drafts_folder(self) -> None:
        self._ledger.use(self._drafting.folder)
        hidden = self._drafting.folder
        if hidden.is_symlink():
            raise SinkFailed(
                "there is a link where the folder of drafts should be",
                where=str(hidden),
                next_step="remove the link; it was not created by this job",
            )
        if not hidden.is_dir():
            hidden.mkdir(parents=True)
            drafts_folder.mark(hidden, self._step, self._ledger.run)
            sync_folder(self._folder)
        else:
            drafts_folder.mark(hidden, self._step, self._ledger.run)

    def _moves(
        self,
        batch: int,
        rows: pa.Table,
        weights: pa.Array | None,
        drafts: Sequence[Sequence[Draft]],
        refused: Mapping[int, str],
    ) -> Moves:
        """Drafts the rows that are here, and names all files; those of workers are numbered."""
        hidden = self._drafting.folder
        if drafts:
            _check_there(hidden, self._step)
        else:
            self._make_drafts_folder()
        name, ending = f"{self._step}-{self._ledger.run}-{batch:010d}", self._drafting.format
        moves = [(draft, f"{below}/{name}.{ending}") for draft, below in self._drafted(rows, weights, refused)]
        for number, of_task in enumerate(drafts, 1):
            moves += [(draft, f"{below}/{name}-{number:04d}.{ending}") for draft, below in of_task]
        if not all((hidden / draft).exists() for draft, _ in moves):
            raise SinkFailed(
                "files that were drafted for this batch are gone",
                where=str(hidden),
                next_step="leave the hidden folder alone while the job runs; run the job again: it drafts them again",
            )
        self._make_folders(moves)
        sync_folder(hidden)
        return Moves(str(self._folder), str(hidden), tuple(moves))

    def _drafted(self, rows: pa.Table, weights: pa.Array | None, refused: Mapping[int, str]) -> list[Draft]:
        """The rows that are here as drafts. Who tries the same rows again finds those of the try before."""
        known, own = self._own
        if known is not rows or not all((self._drafting.folder / draft).exists() for draft, _ in own):
            fit = without(rows, refused)
            kept_weights = weights.filter(kept(rows.num_rows, refused)) if refused and weights is not None else weights
            self._own = rows, self._drafting.draft(fit, kept_weights) if fit.num_rows else []
        return self._own[1]

    def _make_folders(self, moves: Sequence[Move]) -> None:
        found: set[tuple[int, int]] = set()
        for below in {Path(path).parent for _, path in moves}:
            folder = self._folder / below
            folder.mkdir(parents=True, exist_ok=True)
            about = folder.stat()
            if (about.st_dev, about.st_ino) in found:
                raise SinkFailed(
                    f"the folder '{below}' is the same as another one here, and rows would be mixed up",
                    where=str(folder),
                    next_step="write to a disk that tells small letters from capitals, or make the values one spelling",
                )
            found.add((about.st_dev, about.st_ino))

    def _tidy(self) -> None:
        """Removes what tries that failed have left behind: nobody drafts between two batches."""
        with suppress(OSError):  # no use to anybody, and no harm
            drafts_folder.clear(self._drafting.folder, self._step, self._ledger.run, whole=not self._is_shared)


def _name_bytes_max(folder: Path) -> int:
    """Some file systems have shorter names than most."""
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    try:
        return min(NAME_BYTES_MAX, os.pathconf(there, "PC_NAME_MAX"))
    except (OSError, ValueError):
        return NAME_BYTES_MAX


def _appear(moves: Moves, step: str) -> None:
    """Renames drafts. The hidden folder is there until the batch is noted as written: if it is not, nor is the disk.

    Then a draft that is not there was renamed before a crash, and may have been taken away by a reader since.
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
    for below in folders:  # also of files that were there: who renamed them may have died before this
        sync_folder(folder / below)


def _check_there(hidden: Path, step: str) -> None:
    if not hidden.is_dir() or hidden.is_symlink():
        raise SinkUnavailable(
            f"the files that were drafted cannot be reached: there is no folder {hidden}",
            where=f"step '{step}'",
            next_step="see that the disk is there; the batch is tried again",
        )
