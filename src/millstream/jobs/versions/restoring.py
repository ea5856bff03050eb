"""Restores a savepoint into its own job or into another one.

In its own job, outputs already have the results of later batches. These batches are repeated to rebuild the state, with
the numbers that the outputs know, so none is written a second time. Another job starts with outputs of its own, right
behind the savepoint.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from millstream.connectors.topic import dropped, taken
from millstream.connectors.topic.taken import TakenRecords
from millstream.errors import AlreadyExists, DamagedState, InvalidInput
from millstream.jobs.apps.owed_batches import OWED
from millstream.jobs.checkpoint_reader import Checkpoint
from millstream.jobs.job_folder import BEFORE_MOVE, DESCRIPTION, JobDescription, JobFolder
from millstream.jobs.repairing import checkpoint_of
from millstream.jobs.versions.savepoints import FRAMES, SOURCES, Savepoint, Savepoints, all_files, copied_tree
from millstream.jobs.versions.swapping import complete_swap, swap
from millstream.log.storage.disk import write_document
from millstream.spark.query.batch_offsets import REACHED, REDO, redo_entries
from millstream.spark.query.rewinding import REWINDS

CATCH_UP_ROWS = 200_000
"""About as many rows of all sources are read again in one batch."""


@dataclass(frozen=True)
class Restored:
    savepoint: Savepoint
    job: str
    batches: int
    """How many batches read again what came after the savepoint."""
    records: int
    """How many records that is."""


@dataclass(frozen=True)
class _Reached:
    """The ends of the newest batches that a job's outputs have, numbered as the outputs do."""

    number: int
    end: Mapping[str, Any]
    begun: Mapping[str, Any] | None
    """The end of the batch after it, which some outputs may have."""


def restore(
    savepoints: Savepoints, name: str, job: JobFolder, when_checked: Callable[[], object] = lambda: None
) -> Restored:
    """Restores a savepoint into a job that does not run. The caller holds the job."""
    complete_swap(job)
    savepoint = savepoints.get(name)
    copy = savepoints.checkpoint(name)
    why = [each.relative_to(savepoints.path(name)) for each in copy.damage()]
    if not why and copy.complete != savepoint.batch:
        why = [f"batch {savepoint.batch} is not complete"]
    if why:
        raise DamagedState(
            f"the savepoint '{name}' is damaged: {why[0]}",
            where=str(savepoints.path(name)),
            next_step="restore the file from a copy, or use another savepoint: millstream jobs savepoints",
        )
    if (job.path / BEFORE_MOVE).exists():
        raise InvalidInput(
            f"the job '{job.job}' is being moved to Kafka",
            next_step="complete the move first: millstream topics move …",
        )
    description = savepoints.description(name)
    own = job.description()
    entries: list[dict[str, Any]] = []
    read_since: list[Path] = []
    if job.newest_offsets() is None or own is None:  # a job without progress
        description = replace(description, identity=uuid.uuid4().hex, shift=0, written={})
    elif own.identity != description.identity:
        raise AlreadyExists(
            f"the job '{job.job}' has progress of its own, which is not that of '{savepoint.job}' in the savepoint "
            f"'{name}'",
            where=str(job.path),
            next_step=f"restore it into a new job: millstream jobs restore {name} --into NAME",
        )
    else:
        reached = _reached(job, checkpoint_of(job), own)
        shift, entries = _caught_up(savepoint, description.shift, reached, copy)
        description = replace(description, shift=shift)
        read_since = _orders_of_queues(job, savepoint)

    def fill(draft: Path) -> None:
        source = savepoints.path(name)
        for part in ("checkpoint", SOURCES, FRAMES):
            if (source / part).is_dir():
                copied_tree(all_files(source / part), source, draft)
        copied_tree(read_since, job.path, draft)
        write_document(draft / REDO, {"batches": entries})
        write_document(draft / DESCRIPTION, asdict(description))

    when_checked()
    swap(job, fill, removed=(REACHED, REWINDS, OWED))
    records = records_between(savepoint.sources, entries[-1]["end"]["sources"]) if entries else 0
    return Restored(savepoint, job.job, len(entries), records)


def _orders_of_queues(job: JobFolder, savepoint: Savepoint) -> list[Path]:
    """What the batches since the savepoint read of queues: a job only adds to it, so it fits the savepoint as well."""
    found = []
    for name, begun in savepoint.sources.items():
        folder = job.path / SOURCES / name
        if (folder / taken.FILE).exists():
            order = TakenRecords(folder)
            if any(position < order.begin_of(partition) for partition, position in begun.items()):
                raise InvalidInput(
                    f"the order in which '{name}' was read since the savepoint '{savepoint.name}' is not listed any "
                    "more",
                    where=str(folder / taken.FILE),
                    next_step=f"restore it into a new job: millstream jobs restore {savepoint.name} --into NAME; "
                    "or use a newer savepoint",
                )
        found += [folder / file for file in (taken.FILE, dropped.FILE) if (folder / file).exists()]
    return found


def _reached(job: JobFolder, checkpoint: Checkpoint, own: JobDescription) -> _Reached:
    """A batch that has started is complete in all outputs if there is another one after it, or if Spark says so."""
    ends = {int(entry["batch"]): entry["end"] for entry in redo_entries(job.path)}
    for batch in (checkpoint.complete, checkpoint.started):
        found = checkpoint.offsets_of(batch) if batch >= 0 else None
        if found is not None:
            ends[batch] = found
    newest = max(ends, default=-1)
    full = newest if newest <= checkpoint.complete else newest - 1
    if full not in ends:
        raise InvalidInput(
            f"the newest batch of the job '{job.job}' cannot be determined",
            where=str(job.checkpoint),
            next_step=f"see whether its checkpoint can be repaired: {job.command('repair')}",
        )
    return _Reached(full + own.shift, ends[full], ends.get(full + 1))


def _caught_up(
    savepoint: Savepoint, shift: int, reached: _Reached, copy: Checkpoint
) -> tuple[int, list[dict[str, Any]]]:
    """The new difference between the numbers of outputs and those of Spark, and the batches to repeat."""
    behind = reached.number - (savepoint.batch + shift)
    if behind < 0:
        raise InvalidInput(
            f"the savepoint '{savepoint.name}' is newer than the job '{savepoint.job}'",
            next_step=f"restore it into a new job: millstream jobs restore {savepoint.name} --into NAME",
        )
    start = copy.offsets_of(savepoint.batch)
    assert start is not None
    ends: list[Mapping[str, Any]] = []
    if behind:
        records = records_between(start["sources"], reached.end["sources"])
        pieces = max(1, min(behind, -(-records // CATCH_UP_ROWS), int(reached.end["clock"]) - int(start["clock"])))
        ends = [_between(start, reached.end, piece, pieces) for piece in range(1, pieces)] + [reached.end]
    shift = reached.number - (savepoint.batch + len(ends))
    if reached.begun is not None:
        ends.append(reached.begun)
    entries = []
    for batch, end in enumerate(ends, savepoint.batch + 1):
        before = start if batch == savepoint.batch + 1 else ends[batch - savepoint.batch - 2]
        entries.append({"batch": batch, "after": before["clock"], "end": dict(end)})
    return shift, entries


def _between(start: Mapping[str, Any], end: Mapping[str, Any], piece: int, pieces: int) -> dict[str, Any]:
    """The end of one of several batches that together read what was read between two offsets."""

    def at(first: int, last: int) -> int:
        return first + (last - first) * piece // pieces

    sources = {
        source: {name: at(start["sources"].get(source, {}).get(name, 0), last) for name, last in parts.items()}
        for source, parts in end["sources"].items()
        if source in start["sources"]  # one that was added since begins where it is configured to, in the last batch
    }
    return {"clock": at(int(start["clock"]), int(end["clock"])), "ended": False, "sources": sources, "done": {}}


def records_between(start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> int:
    """How many records there are between two offsets; a new source counts from its beginning."""
    return sum(
        max(0, last - start.get(source, {}).get(name, 0))
        for source, parts in end.items()
        for name, last in parts.items()
    )
