"""What is done about a damaged checkpoint: it is refused before Spark starts, and repaired by going back.

Going back is right because a batch that is done again has the same rows: how far it reads and its clock are in the
offset log, and every output knows which batches it has. Spark itself does only the newest batch again; the offsets of
those after it are handed to the feed, which plans them as they were (`redo.json`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import DamagedState
from millstream.jobs.checkpoint import Checkpoint, Damage, WayBack, flaw
from millstream.jobs.folder import DESCRIPTION, SINKS, JobFolder
from millstream.log.disk import read_document, storage_errors, sync_folder, write_document
from millstream.private_files import make_folders
from millstream.spark.query.job_feed import REDO, redo_entries

METADATA = "metadata"
SHOWN_MAX = 3


@dataclass(frozen=True)
class Repaired:
    damage: tuple[Damage, ...]
    way: WayBack
    aside: Path
    """Where the files lie that were taken out of the checkpoint."""


def check_checkpoint(folder: JobFolder, *, thorough: bool = False) -> None:
    """Raises DamagedState if Spark cannot go on with the checkpoint of a job."""
    checkpoint = checkpoint_of(folder, thorough=thorough)
    damage = damage_of(folder, checkpoint)
    if damage:
        raise damaged(folder, damage, None if _is_undescribed(folder, checkpoint) else checkpoint.way_back())


def damaged(folder: JobFolder, damage: Sequence[Damage], way: WayBack | None) -> DamagedState:
    listed = "; ".join(each.below(folder.path) for each in damage[:SHOWN_MAX])
    more = f"; and {len(damage) - SHOWN_MAX} more" if len(damage) > SHOWN_MAX else ""
    rebuild = f"rebuild its results from its sources: {folder.command('rebuild')}"
    return DamagedState(
        f"the checkpoint of the job '{folder.job}' is damaged: {listed}{more}",
        where=str(damage[0].path),
        next_step=rebuild if way is None else f"{_offer(way)}: {folder.command('repair')}; or {rebuild}",
    )


def unusable(folder: JobFolder, why: str, place: Path | str | None = None) -> DamagedState:
    """Of what the job kept beside the checkpoint, or in it and as Spark wrote it, and still cannot go on with."""
    return DamagedState(
        why,
        where=str(place or folder.path),
        next_step=f"restore the job's folder from a copy, or rebuild its results from its sources: "
        f"{folder.command('rebuild')}",
    )


def checkpoint_of(folder: JobFolder, *, thorough: bool = False) -> Checkpoint:
    kept = folder.kept()
    stages = 0 if kept is None else max((int(step.get("stage", 1)) for step in kept.steps.values()), default=0)
    return Checkpoint(folder.checkpoint, stages, 0 if kept is None else kept.partitions, thorough)


def damage_of(folder: JobFolder, checkpoint: Checkpoint) -> list[Damage]:
    if _is_undescribed(folder, checkpoint):
        return [Damage(folder.path / DESCRIPTION, "is missing, and says how the job's state is spread")]
    return checkpoint.damage()


def _is_undescribed(folder: JobFolder, checkpoint: Checkpoint) -> bool:
    return checkpoint.begun >= 0 and not (folder.path / DESCRIPTION).exists()


def known_batch(folder: JobFolder) -> int:
    """The newest batch whose offsets are known: no output can have a newer one."""
    return max([checkpoint_of(folder).begun, *(int(entry["batch"]) for entry in redo_entries(folder.path))])


def has_batches_to_redo(folder: JobFolder) -> bool:
    """Whether a repaired job has not come again as far as it was."""
    return known_batch(folder) > checkpoint_of(folder).begun


def check_ledgers(folder: JobFolder, outputs: Iterable[str]) -> None:
    """Raises DamagedState if it cannot be read which batches an output of a job has. Before the first it has none."""
    if checkpoint_of(folder).begun < 0:
        return
    for path in (path for name in outputs for path in sorted((folder.path / SINKS / name).glob("*.json"))):
        why = flaw(path, _as_ledger)
        if why is not None:
            raise unusable(
                folder, f"which batches the output '{path.parent.name}' has cannot be known: its ledger {why}", path
            )


def remove_damaged_ledgers(folder: JobFolder) -> None:
    """Before a job starts over: which run wrote an output, the output itself knows."""
    for path in sorted((folder.path / SINKS).glob("*/*.json")):
        if flaw(path, _as_ledger) is not None:
            path.unlink()


def _as_ledger(path: Path) -> None:
    if not isinstance(read_document(path)["run"], str):
        raise ValueError("it names no run")


def repair(folder: JobFolder) -> Repaired | None:
    """Goes back to the newest batch that can be done again; None if nothing is damaged. Hold the folder meanwhile."""
    checkpoint = checkpoint_of(folder, thorough=True)
    damage = damage_of(folder, checkpoint)
    if not damage:
        return None
    way = None if _is_undescribed(folder, checkpoint) else checkpoint.way_back()
    if way is None:
        raise damaged(folder, damage, None)
    _note_redone(folder, checkpoint, way)
    aside = set_aside(folder, _in_order(checkpoint, way.unused))
    if any(each.path.name == METADATA for each in damage):
        _name_again(folder, aside)
    return Repaired(tuple(damage), way, aside)


def set_aside(folder: JobFolder, paths: Sequence[Path]) -> Path:
    """Takes files and folders out of a job's folder, one after the other, into a new folder in it."""
    aside = folder.path / f"aside-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.monotonic_ns() % 10**6:06d}"
    with storage_errors(folder.path):
        make_folders(aside)
        for path in paths:
            _move(path, aside / path.relative_to(folder.path))
    return aside


def _move(path: Path, place: Path) -> None:
    """With its checksums."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for each in (path, path.with_name(f".{path.name}.crc")):
        if each.exists():
            each.rename(place.with_name(each.name))
    sync_folder(path.parent)


def _in_order(checkpoint: Checkpoint, paths: Sequence[Path]) -> list[Path]:
    """Whatever stops it half way, the same repair is still possible: state first, offsets last, the newest first."""
    folders = ("state", "commits", "offsets")

    def rank(path: Path) -> tuple[int, int]:
        digits = path.name.partition(".")[0]
        return folders.index(path.relative_to(checkpoint.path).parts[0]), -int(digits) if digits.isdigit() else 0

    return sorted(paths, key=rank)


def _note_redone(folder: JobFolder, checkpoint: Checkpoint, way: WayBack) -> None:
    entries = [entry for entry in redo_entries(folder.path) if entry["batch"] > checkpoint.begun]
    for batch in reversed(way.redone):
        before, end = checkpoint.offsets_of(batch - 1), checkpoint.offsets_of(batch)
        assert before is not None
        assert end is not None
        entries.insert(0, {"batch": batch, "after": before["clock"], "end": end})
    write_document(folder.path / REDO, {"batches": entries})


def _name_again(folder: JobFolder, aside: Path) -> None:
    """The query's id names it in Spark's own reports, and nothing depends on it."""
    path = folder.checkpoint / METADATA
    _move(path, aside / path.relative_to(folder.path))
    write_document(path, {"id": str(uuid.uuid4())})


def _offer(way: WayBack) -> str:
    if way.redone:
        return f"go back to batch {way.batch} and do it and the {len(way.redone)} after it again, as they were"
    return f"go on with batch {way.batch} from the files that are whole"
