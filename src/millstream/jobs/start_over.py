"""A job starts over: it forgets its progress and state, and what it wrote to its outputs is removed.

Results depend on one another by the state of the job. So one output cannot be made again alone: the whole job is
replayed, and all of its outputs are written again.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.connectors.opening_sources import KafkaSource, TopicSource, open_source
from millstream.errors import JobChanged, NotFound, StartOverRefused
from millstream.jobs.claims import START_OVER, Claims
from millstream.jobs.folder import BEFORE_MOVE, JobFolder
from millstream.jobs.rebuilding import requested_rebuild
from millstream.jobs.repairing import remove_damaged_ledgers
from millstream.log import Broker
from millstream.plan.endpoints import Rate, Socket
from millstream.plan.nodes import Read, Write
from millstream.plan.run_settings import Settings
from millstream.user_lines import users_line


def starts_over(folder: JobFolder, settings: Settings) -> bool:
    """Whether the user asks for it, or has asked a run that was cut short."""
    asked = settings.start_over or bool(settings.rebuilt) or requested_rebuild(folder) is not None
    return asked or folder.is_starting_over


def start_over(folder: JobFolder, outputs: Sequence[Write], broker: Broker) -> None:
    """Empties the outputs, then the job's folder. Cut short, it goes on at the next start."""
    if (folder.path / BEFORE_MOVE).exists():
        raise JobChanged(
            f"the job '{folder.job}' is on its way to Kafka, so it cannot start over now",
            where=str(folder.path),
            next_step="complete the move first: millstream topics move …",
        )
    remove_damaged_ledgers(folder)
    with Claims(folder.job, folder, outputs, broker) as claims:
        claims.check_clear()
        with folder.starting_over():
            claims.clear()


def check_rebuild(
    settings: Settings, outputs: Sequence[Write], sources: Sequence[Read], broker: str, folder: JobFolder
) -> None:
    """Refuses to rebuild what is no output, or what the sources can no longer give."""
    known = [output.name for output in outputs]
    for name in settings.rebuilt:
        if name not in known:
            raise NotFound(
                f"the flow has no output '{name}'", where=users_line(), next_step=f"its outputs: {', '.join(known)}"
            )
    requested = requested_rebuild(folder)
    is_whole = bool(settings.rebuilt) or (requested is not None and not requested.allows_loss)
    for node in sources if is_whole and not settings.start_over else ():
        if isinstance(node.source, Socket | Rate):
            raise _incomplete(folder, node, f"{node.source} cannot be read a second time")
        own = folder.path / "sources" / node.name
        source = open_source(node.source, node.schema, broker=broker, folder=own, name=node.name, on_lost=node.on_lost)
        try:
            if settings.since is None and isinstance(source, TopicSource | KafkaSource):
                gone = {partition: first for partition, first in source.earliest().items() if first > 0}
                for partition, first in gone.items():
                    raise _incomplete(
                        folder, node, f"of its partition {partition} the records before offset {first} are gone"
                    )
        finally:
            source.close()


def _incomplete(folder: JobFolder, node: Read, why: str) -> StartOverRefused:
    return StartOverRefused(
        f"the results cannot be made again in full: {why}",
        where=f"source '{node.name}'",
        next_step=f"restore the output from a backup; or write all outputs from what is left: {START_OVER}, or "
        f"{folder.command('rebuild')} --allow-loss",
    )
