"""The batches that a job has completed, as its checkpoint records them: what each read, and its clock.

Spark keeps the newest hundred. What was read before them is one range without a record of how it was cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from millstream.connectors.source import Offsets
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.checkpoint import Checkpoint
from millstream.jobs.job_folder import REAL_TIME_CHECKPOINT, JobFolder


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


def recorded_batches(folder: JobFolder) -> list[RecordedBatch]:
    """The completed batches, oldest first, without gaps."""
    if (folder.path / REAL_TIME_CHECKPOINT).exists():
        raise InvalidInput(
            f"the job '{folder.job}' runs in real-time mode, which has no batches to repeat",
            where=str(folder.path),
            next_step="run it in micro-batches to be able to ask why",
        )
    checkpoint = Checkpoint(folder.checkpoint, operators=0, partitions=0)
    found: list[RecordedBatch] = []
    for number in range(checkpoint.complete, -1, -1):
        ends = checkpoint.offsets_of(number)
        if ends is None:
            break
        if found:
            found[-1] = replace(found[-1], starts=ends["sources"])
        found.append(RecordedBatch(number, None, ends["sources"], ends["clock"], ends["ended"], ends.get("done", {})))
    if not found:
        raise NotFound(
            f"the job '{folder.job}' has no batch that can be repeated",
            where=str(folder.checkpoint),
            next_step="ask when it has completed one; a flow that reads Spark DataFrames cannot be asked",
        )
    return found[::-1]
