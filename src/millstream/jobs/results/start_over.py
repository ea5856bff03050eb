"""A job starts over: its progress, its state and what it wrote to its outputs are removed.

Outputs share the state of the job, so none can be rebuilt alone: the whole job is replayed, and all of its outputs are
rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.connectors.opening import open_source
from millstream.errors import JobChanged, NotFound, StartOverRefused
from millstream.jobs.job_folder import BEFORE_MOVE, JobFolder
from millstream.jobs.repairing import remove_damaged_ledgers
from millstream.jobs.results.broker_address import address_of
from millstream.jobs.results.output_claims import START_OVER, OutputClaims
from millstream.jobs.results.rebuilding import requested_rebuild
from millstream.jobs.shown.display import Display
from millstream.log import Broker
from millstream.plan.nodes import Read, Write
from millstream.plan.run_settings import Settings
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.user_lines import users_line


def starts_over(folder: JobFolder, settings: Settings) -> bool:
    """Whether the user requests it, or requested it from a run that was interrupted."""
    is_requested = settings.start_over or bool(settings.rebuilt) or requested_rebuild(folder) is not None
    return is_requested or folder.is_starting_over


def start_over(folder: JobFolder, outputs: Sequence[Write], broker: Broker) -> None:
    """Empties the outputs, then the job's folder. If interrupted, the next start resumes it."""
    if (folder.path / BEFORE_MOVE).exists():
        raise JobChanged(
            f"the job '{folder.job}' is being moved to Kafka, so it cannot start over now",
            where=str(folder.path),
            next_step="complete the move first: millstream topics move …",
        )
    remove_damaged_ledgers(folder)
    with OutputClaims(folder.job, folder, outputs, broker) as claims:
        claims.check_clear()
        with folder.starting_over():
            claims.clear()


def check_rebuild(
    settings: Settings, outputs: Sequence[Write], sources: Sequence[Read], broker: str, folder: JobFolder
) -> None:
    """Refuses to rebuild an unknown output, or results whose source records are gone."""
    known = [output.name for output in outputs]
    for name in settings.rebuilt:
        if name not in known:
            raise NotFound(
                f"the flow has no output '{name}'", where=users_line(), next_step=f"its outputs: {', '.join(known)}"
            )
    requested = requested_rebuild(folder)
    is_whole = bool(settings.rebuilt) or (requested is not None and not requested.allows_loss)
    for node in sources if is_whole and not settings.start_over else ():
        if not node.source.can_replay:
            raise _incomplete(folder, node, f"{node.source} cannot be read a second time")
        own = folder.path / "sources" / node.name
        source = open_source(node.source, node.schema, broker=broker, folder=own, name=node.name, on_lost=node.on_lost)
        try:
            if settings.since is None:
                gone = {partition: first for partition, first in source.earliest().items() if first > 0}
                for partition, first in gone.items():
                    raise _incomplete(
                        folder, node, f"the records of its partition {partition} before offset {first} are gone"
                    )
        finally:
            source.close()


def _incomplete(folder: JobFolder, node: Read, why: str) -> StartOverRefused:
    return StartOverRefused(
        f"the results cannot be rebuilt in full: {why}",
        where=f"source '{node.name}'",
        next_step=f"restore the output from a backup; or rebuild all outputs from the remaining records: "
        f"{START_OVER}, or {folder.command('rebuild')} --allow-loss",
    )


def restart(outputs: Sequence[Write], folder: JobFolder, log: Broker, settings: Settings, display: Display) -> None:
    """Starts a job over, before Spark is started."""
    display.phase("starting over: emptying the outputs")
    check_rebuild(settings, outputs, PhysicalPlan(tuple(outputs), 1).fed_sources, address_of(log), folder)
    start_over(folder, outputs, log)
