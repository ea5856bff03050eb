"""Before a batch of an app is repeated: which flows take part in it now, and which go back to its start later."""

from __future__ import annotations

from collections.abc import Collection

from millstream.jobs.apps.owed_batches import OwedBatches
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.repairing import checkpoint_of
from millstream.plan.apps import flow_of
from millstream.spark.query.rewinding import Rewind, read_rewinds, rewound, write_rewinds

REWINDS_KEPT = 1000


def settle_rewinds(folder: JobFolder, flows: Collection[str]) -> None:
    """Records the rewinds of an unfinished batch: those of its flows that are not among `flows`, which run now.

    If such a flow owed this batch to its sinks it no longer does, since it reads the rows of the batch again.
    """
    started, complete = folder.newest_batches()
    if started <= complete:
        return
    checkpoint, kept = checkpoint_of(folder), read_rewinds(folder.path)
    end, before = checkpoint.offsets_of(started), checkpoint.offsets_of(started - 1) if started else None
    description = folder.description()
    if end is None or description is None:
        return
    earlier = [each for each in kept if each.batch < started]
    positions = {} if before is None else rewound(before, earlier)
    found = []
    for flow in sorted({flow_of(name) for name in end["sources"]}.difference(flows)):
        sources = {name: positions.get(name, {}) for name in end["sources"] if flow_of(name) == flow}
        found.append(Rewind(flow, started, end["clock"], sources))
        OwedBatches(folder.path).done(flow, started + description.shift)
    settled = [*earlier, *found][-REWINDS_KEPT:]
    if settled != kept:
        write_rewinds(folder.path, settled)
