"""The batches that a job has completed: what each read, and its clock.

They are recorded in the events of the job, as long as its topic has them, and the newest hundred also in its
checkpoint. What was read before them is one range without a record of how it was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.connectors.source import Offsets
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.checkpoint_reader import Checkpoint
from millstream.jobs.job_folder import REAL_TIME_CHECKPOINT, JobFolder
from millstream.jobs.measuring.batch_event import BatchEvent


@dataclass(frozen=True)
class RecordedBatch:
    number: int
    starts: Mapping[str, Offsets] | None
    """By source; None: from the earliest records, because the end of the batch before is not recorded."""
    ends: Mapping[str, Offsets]
    clock: int
    is_end: bool
    """Whether it closed all windows, as the last batch of a bounded run does."""
    done: Mapping[str, list[str]]
    """By source, partitions that counted as idle from then on."""

    @property
    def is_whole(self) -> bool:
        """Whether it is one batch. Otherwise it stands for all batches up to this one."""
        return self.starts is not None or self.number == 0


def recorded_batches(folder: JobFolder, events: Sequence[BatchEvent] = ()) -> list[RecordedBatch]:
    """The completed batches, oldest first, without gaps. `events` are those of the job's present state."""
    if (folder.path / REAL_TIME_CHECKPOINT).exists():
        raise InvalidInput(
            f"the job '{folder.job}' runs in real-time mode, which has no batches to repeat",
            where=str(folder.path),
            next_step="run it in micro-batches to be able to ask why",
        )
    known = _in_checkpoint(folder) | {each.number: each for event in events for each in _in_event(event)}
    found: list[RecordedBatch] = []
    for number in range(max(known, default=-1), -1, -1):
        if number not in known:
            break
        if found:
            found[-1] = replace(found[-1], starts=known[number].ends)
        found.append(known[number])
    if not found:
        raise NotFound(
            f"the job '{folder.job}' has no batch that can be repeated",
            where=str(folder.checkpoint),
            next_step="ask when it has completed one; a flow that reads Spark DataFrames cannot be asked",
        )
    if found[-1].number > 0:
        found[-1] = replace(found[-1], starts=None)
    return found[::-1]


def _in_checkpoint(folder: JobFolder) -> dict[int, RecordedBatch]:
    """Numbered as outputs do."""
    checkpoint = Checkpoint(folder.checkpoint, operators=0, partitions=0)
    kept = folder.description()
    shift = 0 if kept is None else kept.shift
    found = {}
    for number in range(checkpoint.complete, -1, -1):
        ends = checkpoint.offsets_of(number)
        if ends is None:
            break
        found[number + shift] = RecordedBatch(
            number + shift, None, ends["sources"], ends["clock"], ends["ended"], ends.get("done", {})
        )
    return found


def _in_event(event: BatchEvent) -> Iterator[RecordedBatch]:
    if not event.ends:
        return  # of a flow that reads Spark DataFrames
    for number, clock in enumerate(event.ticks, event.batch - len(event.ticks)):
        yield RecordedBatch(number, event.starts, event.starts or {}, clock, is_end=False, done={})
    yield RecordedBatch(event.batch, event.starts, event.ends, event.clock, event.ended, event.done)
