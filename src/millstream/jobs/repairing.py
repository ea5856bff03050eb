"""A damaged checkpoint is refused before Spark starts, and repaired by going back to an earlier batch.

This is safe because a repeated batch has the same rows: its end offsets and its clock are in the offset log, and every
output knows which batches it has. Spark itself repeats only the newest batch; the offsets of those after it go to the
feed, which plans them as they were (`redo.json`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import DamagedState
from millstream.jobs.checkpoint_reader import Checkpoint, Damage, RecoveryPoint, flaw
from millstream.jobs.job_folder import DESCRIPTION, SINKS, JobFolder
from millstream.jobs.results.output_claims import NewestBatches
from millstream.log.storage.disk import read_document, storage_errors, sync_folder, write_document
from millstream.private_files import make_folders
from millstream.spark.query.batch_offsets import REDO, redo_entries

METADATA = "metadata"
SHOWN_MAX = 3


@dataclass(frozen=True)
class Repaired:
    damage: tuple[Damage, ...]
    recovery: RecoveryPoint
    aside: Path
    """The folder that the files were moved to."""


def check_checkpoint(folder: JobFolder, *, thorough: bool = False) -> None:
    """Raises DamagedState if Spark cannot continue from the checkpoint of a job."""
    checkpoint = checkpoint_of(folder, thorough=thorough)
    damage = damage_of(folder, checkpoint)
    if damage:
        raise damaged(folder, damage, None if _is_undescribed(folder, checkpoint) else checkpoint.recovery_point())


def damaged(folder: JobFolder, damage: Sequence[Damage], recovery: RecoveryPoint | None) -> DamagedState:
    listed = "; ".join(each.relative_to(folder.path) for each in damage[:SHOWN_MAX])
    more = f"; and {len(damage) - SHOWN_MAX} more" if len(damage) > SHOWN_MAX else ""
    rebuild = f"rebuild its results from its sources: {folder.command('rebuild')}"
    return DamagedState(
        f"the checkpoint of the job '{folder.job}' is damaged: {listed}{more}",
        where=str(damage[0].path),
        next_step=rebuild if recovery is None else f"{_offer(recovery)}: {folder.command('repair')}; or {rebuild}",
    )


def unusable(folder: JobFolder, why: str, place: Path | str | None = None) -> DamagedState:
    """The error for state of a job that cannot be repaired, in its checkpoint or next to it."""
    return DamagedState(
        why,
        where=str(place or folder.path),
        next_step=f"restore the job's folder from a copy, or rebuild its results from its sources: "
        f"{folder.command('rebuild')}",
    )


def checkpoint_of(folder: JobFolder, *, thorough: bool = False) -> Checkpoint:
    kept = folder.description()
    if kept is None:
        return Checkpoint(folder.checkpoint, 0, 0, thorough)
    return Checkpoint(folder.checkpoint, kept.stages_kept, kept.partitions, thorough)


def damage_of(folder: JobFolder, checkpoint: Checkpoint) -> list[Damage]:
    if _is_undescribed(folder, checkpoint):
        return [Damage(folder.path / DESCRIPTION, "is missing, and with it how the job's state is distributed")]
    return checkpoint.damage()


def _is_undescribed(folder: JobFolder, checkpoint: Checkpoint) -> bool:
    return checkpoint.started >= 0 and not (folder.path / DESCRIPTION).exists()


def known_batch(folder: JobFolder) -> int:
    """The newest batch whose offsets are known: no output can have a newer one."""
    return max([checkpoint_of(folder).started, *(int(entry["batch"]) for entry in redo_entries(folder.path))])


def newest_batches(folder: JobFolder) -> NewestBatches:
    """The newest batches of a job, as its outputs number them."""
    kept = folder.description()
    shift = 0 if kept is None else kept.shift
    started, complete = known_batch(folder), folder.newest_batches()[1]
    return NewestBatches(*(-1 if batch < 0 else batch + shift for batch in (started, complete)))


def has_batches_to_redo(folder: JobFolder) -> bool:
    """Whether a repaired job has not caught up with its earlier progress."""
    return known_batch(folder) > checkpoint_of(folder).started


def check_ledgers(folder: JobFolder, outputs: Iterable[str]) -> None:
    """Raises DamagedState if the ledger of an output cannot be read. Before the first batch there are none."""
    if checkpoint_of(folder).started < 0:
        return
    for path in (path for name in outputs for path in sorted((folder.path / SINKS / name).glob("*.json"))):
        why = flaw(path, _as_ledger)
        if why is not None:
            raise unusable(
                folder, f"the batches of the output '{path.parent.name}' are unknown: its ledger {why}", path
            )


def remove_damaged_ledgers(folder: JobFolder) -> None:
    """Before a job starts over: the output itself records which run wrote it."""
    for path in sorted((folder.path / SINKS).glob("*/*.json")):
        if flaw(path, _as_ledger) is not None:
            path.unlink()


def _as_ledger(path: Path) -> None:
    if not isinstance(read_document(path)["run"], str):
        raise ValueError("it has no run")


def repair(folder: JobFolder) -> Repaired | None:
    """Goes back to the newest batch that can be repeated; None if nothing is damaged. The caller holds the lock."""
    checkpoint = checkpoint_of(folder, thorough=True)
    damage = damage_of(folder, checkpoint)
    if not damage:
        return None
    recovery = None if _is_undescribed(folder, checkpoint) else checkpoint.recovery_point()
    if recovery is None:
        raise damaged(folder, damage, None)
    _record_redone(folder, checkpoint, recovery)
    aside = set_aside(folder, _in_order(checkpoint, recovery.unused))
    if any(each.path.name == METADATA for each in damage):
        _renew_id(folder, aside)
    return Repaired(tuple(damage), recovery, aside)


def set_aside(folder: JobFolder, paths: Sequence[Path]) -> Path:
    """Moves files and folders, one after the other, into a new folder inside the job's folder."""
    aside = folder.path / f"aside-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.monotonic_ns() % 10**6:06d}"
    with storage_errors(folder.path):
        make_folders(aside)
        for path in paths:
            _move(path, aside / path.relative_to(folder.path))
    return aside


def _move(path: Path, place: Path) -> None:
    """Moves a file together with its checksums."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for each in (path, path.with_name(f".{path.name}.crc")):
        if each.exists():
            each.rename(place.with_name(each.name))
    sync_folder(path.parent)


def _in_order(checkpoint: Checkpoint, paths: Sequence[Path]) -> list[Path]:
    """State first, offsets last, the newest first: an interrupted repair can be repeated."""
    folders = ("state", "commits", "offsets")

    def rank(path: Path) -> tuple[int, int]:
        digits = path.name.partition(".")[0]
        return folders.index(path.relative_to(checkpoint.path).parts[0]), -int(digits) if digits.isdigit() else 0

    return sorted(paths, key=rank)


def _record_redone(folder: JobFolder, checkpoint: Checkpoint, recovery: RecoveryPoint) -> None:
    entries = [entry for entry in redo_entries(folder.path) if entry["batch"] > checkpoint.started]
    for batch in reversed(recovery.redone):
        before, end = checkpoint.offsets_of(batch - 1), checkpoint.offsets_of(batch)
        assert before is not None
        assert end is not None
        entries.insert(0, {"batch": batch, "after": before["clock"], "end": end})
    write_document(folder.path / REDO, {"batches": entries})


def _renew_id(folder: JobFolder, aside: Path) -> None:
    """Writes a new query id, which appears only in Spark's own reports."""
    path = folder.checkpoint / METADATA
    _move(path, aside / path.relative_to(folder.path))
    write_document(path, {"id": str(uuid.uuid4())})


def _offer(point: RecoveryPoint) -> str:
    if point.redone:
        return f"go back to batch {point.batch} and repeat it and the {len(point.redone)} after it"
    return f"continue with batch {point.batch} from the intact files"
