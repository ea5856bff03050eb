"""Moves topics and the jobs that read them from the embedded log to Kafka, where the jobs resume.

The newest file of Spark's offset log has a job's offsets by source. Those of moved topics are translated to the offsets
of the same records in Kafka. The job's state and its batch numbers do not change.
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
from millstream.jobs.job_folder import BEFORE_MOVE, DESCRIPTION, OUTPUTS, JobFolder
from millstream.jobs.repairing import check_checkpoint, has_batches_to_redo, unusable
from millstream.log.moving import Moved, OnProgress, check_movable, move_topic
from millstream.log.storage.disk import read_document, write_document

if TYPE_CHECKING:
    from millstream.log import EmbeddedLog
    from millstream.log.kafka.log import KafkaLog


@dataclass(frozen=True)
class Move:
    topics: tuple[Moved, ...]
    jobs: tuple[JobFolder, ...]


def move(log: EmbeddedLog, target: KafkaLog, names: Sequence[str], on_progress: OnProgress = lambda *_: None) -> Move:
    """Moves these topics, the jobs that read them, and the topics that those jobs write."""
    with ExitStack() as held:
        wanted, jobs = _with_dependents(log, names)
        for job in jobs:
            held.enter_context(job.held())
            _check(log, job, wanted)
        for name in wanted:
            check_movable(log, name)
        moved = tuple(move_topic(log, target, name, on_progress) for name in wanted)
        for job in jobs:
            _translate_offsets(job, moved)
        return Move(moved, tuple(jobs))


def _with_dependents(log: EmbeddedLog, names: Iterable[str]) -> tuple[list[str], list[JobFolder]]:
    """These topics, the jobs that read them, the topics that those write, the jobs that read these, and so on."""
    wanted = list(dict.fromkeys(names))
    while True:
        jobs = _jobs_reading(log, wanted)
        more = [topic for topic in _written(log, jobs) if topic not in wanted]
        if not more:
            return wanted, jobs
        wanted = list(dict.fromkeys([*wanted, *more]))


def _jobs_reading(log: EmbeddedLog, names: Iterable[str]) -> list[JobFolder]:
    """Including jobs whose move was interrupted."""
    identities = {log.topic(name).identity for name in names}
    folder = log.path / "jobs"
    found = (
        [JobFolder(path, path.name) for path in sorted(folder.iterdir()) if _is_job(path)] if folder.is_dir() else []
    )
    return [
        job
        for job in found
        if (kept := job.description()) is not None
        and (identities & set(kept.sources.values()) or (job.path / BEFORE_MOVE).exists())
    ]


def _is_job(path: Path) -> bool:
    return (path / DESCRIPTION).exists() and not path.name.startswith(".")


def _written(log: EmbeddedLog, jobs: Iterable[JobFolder]) -> list[str]:
    topics = log.topics()
    kept = [job.description() for job in jobs]
    return [topic for each in kept if each is not None for topic in each.written.values() if topic in topics]


def _check(log: EmbeddedLog, job: JobFolder, names: Sequence[str]) -> None:
    check_checkpoint(job)
    if job.unfinished_batch() or has_batches_to_redo(job):
        raise InvalidInput(
            f"the job '{job.job}' was stopped in the middle of a batch",
            where=str(job.path),
            next_step="run it here until it has caught up (--until 'caught up'), then move",
        )
    kept = job.description()
    assert kept is not None
    names_by_identity = {log.topic(name).identity: name for name in log.topics()}
    read = [names_by_identity[identity] for identity in kept.sources.values() if identity in names_by_identity]
    others = sorted({name for name in read if name not in names})
    if others:
        raise InvalidInput(
            f"the job '{job.job}' also reads {', '.join(others)}, and a job has one broker",
            where=str(job.path),
            next_step=f"move them together: millstream topics move {' '.join([*names, *others])} kafka://…",
        )


def _translate_offsets(job: JobFolder, moved: Sequence[Moved]) -> None:
    """Replaces the job's offsets by those of Kafka.

    The original offsets are saved first, so that a resumed move does not translate offsets twice.
    """
    kept = job.description()
    assert kept is not None
    maps = {each.identity_before: each for each in moved}
    of_source = {name: maps[identity] for name, identity in kept.sources.items() if identity in maps}
    file = job.newest_offsets()
    if file is not None and of_source:  # otherwise they are translated already
        saved = job.path / BEFORE_MOVE
        if not saved.exists():
            write_document(saved, {"file": file.name, "lines": file.read_text().splitlines()})
        *first, last = _lines_before(job)
        newest = json.loads(last)
        for name, offsets in newest["sources"].items():
            if name in of_source:
                maps_of = of_source[name].partitions
                newest["sources"][name] = {part: maps_of[int(part)].moved(offset) for part, offset in offsets.items()}
        _replace(file, "\n".join([*first, json.dumps(newest)]))
    renewed = {name: each.identity for name, each in of_source.items()}
    write_document(job.path / DESCRIPTION, asdict(replace(kept, sources=kept.sources | renewed)))
    (job.path / OUTPUTS).unlink(missing_ok=True)  # it writes other topics now, and claims them when it starts
    (job.path / BEFORE_MOVE).unlink(missing_ok=True)


def _lines_before(job: JobFolder) -> list[str]:
    try:
        lines = [str(line) for line in read_document(job.path / BEFORE_MOVE)["lines"]]
        json.loads(lines[-1])["sources"].items()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"the offsets of the job '{job.job}' before the move cannot be read: {error}"
        raise unusable(job, why, job.path / BEFORE_MOVE) from error
    return lines


def _replace(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.moving")
    with draft.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # of the replaced content
    draft.replace(file)
