"""Moves topics and the jobs that read them from the embedded log to Kafka; a job then goes on where it was.

How far a job has read stands in the newest file of Spark's offset log, by the name of each source: those of moved
topics are translated to those of the records there. Its state, and how its batches count, stay as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import InvalidInput
from millstream.jobs.folder import BEFORE_MOVE, DESCRIPTION, OUTPUTS, JobFolder
from millstream.jobs.repairing import check_checkpoint, has_batches_to_redo, unusable
from millstream.log.disk import read_document, write_document
from millstream.log.moving import Moved, OnProgress, check_movable, move_topic

if TYPE_CHECKING:
    from millstream.log import EmbeddedLog
    from millstream.log.kafka.log import KafkaLog


@dataclass(frozen=True)
class Move:
    topics: tuple[Moved, ...]
    jobs: tuple[JobFolder, ...]


def move(log: EmbeddedLog, target: KafkaLog, names: Sequence[str], on_progress: OnProgress = lambda *_: None) -> Move:
    """Moves these topics, the jobs that read them, and what those jobs write."""
    with ExitStack() as held:
        wanted, jobs = _all_of_it(log, names)
        for job in jobs:
            held.enter_context(job.held())
            _check(log, job, wanted)
        for name in wanted:
            check_movable(log, name)
        moved = tuple(move_topic(log, target, name, on_progress) for name in wanted)
        for job in jobs:
            _go_on(job, moved)
        return Move(moved, tuple(jobs))


def _all_of_it(log: EmbeddedLog, names: Iterable[str]) -> tuple[list[str], list[JobFolder]]:
    """These topics, the jobs that read them, what those write, the jobs that read that, and so on."""
    wanted = list(dict.fromkeys(names))
    while True:
        jobs = _jobs_reading(log, wanted)
        more = [topic for topic in _written(log, jobs) if topic not in wanted]
        if not more:
            return wanted, jobs
        wanted = list(dict.fromkeys([*wanted, *more]))


def _jobs_reading(log: EmbeddedLog, names: Iterable[str]) -> list[JobFolder]:
    """Those whose move was cut short among them."""
    identities = {log.topic(name).identity for name in names}
    folder = log.path / "jobs"
    found = (
        [JobFolder(path, path.name) for path in sorted(folder.iterdir()) if _is_job(path)] if folder.is_dir() else []
    )
    return [
        job
        for job in found
        if (kept := job.kept()) is not None
        and (identities & set(kept.sources.values()) or (job.path / BEFORE_MOVE).exists())
    ]


def _is_job(path: Path) -> bool:
    return (path / DESCRIPTION).exists() and not path.name.startswith(".")


def _written(log: EmbeddedLog, jobs: Iterable[JobFolder]) -> list[str]:
    there = log.topics()
    kept = [job.kept() for job in jobs]
    return [topic for each in kept if each is not None for topic in each.written.values() if topic in there]


def _check(log: EmbeddedLog, job: JobFolder, names: Sequence[str]) -> None:
    check_checkpoint(job)
    if job.unfinished_batch() or has_batches_to_redo(job):
        raise InvalidInput(
            f"the job '{job.job}' was ended in the middle of a batch",
            where=str(job.path),
            next_step="run it here until it has caught up (--until 'caught up'), then move",
        )
    kept = job.kept()
    assert kept is not None
    there = {log.topic(name).identity: name for name in log.topics()}
    besides = [there[identity] for identity in kept.sources.values() if there.get(identity, names[0]) not in names]
    if besides:
        raise InvalidInput(
            f"the job '{job.job}' also reads {', '.join(sorted(set(besides)))}, and a job has one broker",
            where=str(job.path),
            next_step=f"move them together: millstream topics move {' '.join([*names, *sorted(set(besides))])} kafka://…",
        )


def _go_on(job: JobFolder, moved: Sequence[Moved]) -> None:
    """Says how far the job has read in the words of Kafka.

    What stood there before is written down first: a move that was cut short must not say again what is said already.
    """
    kept = job.kept()
    assert kept is not None
    maps = {each.identity_before: each for each in moved}
    of_source = {name: maps[identity] for name, identity in kept.sources.items() if identity in maps}
    file = job.newest_offsets()
    if file is not None and of_source:  # else it was said already
        note = job.path / BEFORE_MOVE
        if not note.exists():
            write_document(note, {"file": file.name, "lines": file.read_text().splitlines()})
        *first, last = _lines_before(job)
        said = json.loads(last)
        for name, offsets in said["sources"].items():
            if name in of_source:
                maps_of = of_source[name].partitions
                said["sources"][name] = {part: maps_of[int(part)].moved(offset) for part, offset in offsets.items()}
        _replace(file, "\n".join([*first, json.dumps(said)]))
    renewed = {name: each.identity for name, each in of_source.items()}
    write_document(job.path / DESCRIPTION, asdict(replace(kept, sources=kept.sources | renewed)))
    (job.path / OUTPUTS).unlink(missing_ok=True)  # topics it writes are others now, and it claims those when it starts
    (job.path / BEFORE_MOVE).unlink(missing_ok=True)


def _lines_before(job: JobFolder) -> list[str]:
    try:
        lines = [str(line) for line in read_document(job.path / BEFORE_MOVE)["lines"]]
        json.loads(lines[-1])["sources"].items()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"how far the job '{job.job}' had read before the move cannot be read: {error}"
        raise unusable(job, why, job.path / BEFORE_MOVE) from error
    return lines


def _replace(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.moving")
    with draft.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # of what stood there
    draft.replace(file)
