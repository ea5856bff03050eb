"""Checks the sources of a flow before Spark is started: they can be read, and rows of changes have a weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from millstream.connectors.opening import connector_errors, open_source
from millstream.errors import InvalidInput
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.shown.notices import warn_of_bad_records
from millstream.plan.bad_rows import listened_to
from millstream.plan.nodes import Read, Write
from millstream.records import Schema
from millstream.spark.query.physical_plan import PhysicalPlan


@dataclass(frozen=True)
class TopicRead:
    """A topic as it was when the job started."""

    identity: str
    partitions: int


def check_sources(outputs: tuple[Write, ...], broker: str, folder: JobFolder) -> dict[str, TopicRead]:
    """Refuses unreadable sources before Spark is started. Returns the topics by source name."""
    found = {}
    physical_plan = PhysicalPlan(tuple(outputs), 1)
    listened = listened_to(physical_plan.order)
    check_weights(physical_plan.sources)
    for node in physical_plan.fed_sources:
        if not node.source.can_peek:
            continue
        own = folder.path / "sources" / node.name
        source = open_source(node.source, node.schema, broker=broker, folder=own, name=node.name, on_lost=node.on_lost)
        with connector_errors(node.source, node.name):
            ends = source.latest()
        if source.decodes and node not in listened and not node.source.is_inner:
            warn_of_bad_records(folder.job, node)
        if source.identity is not None:
            of_topics = Counter(name.rpartition("/")[0] for name in ends)
            found[node.name] = TopicRead(source.identity, max(of_topics.values(), default=1))
        source.close()
    return found


def check_weights(sources: Iterable[Read]) -> None:
    """Refuses a source of changes whose rows have no weight."""
    for node in sources:
        if node.changes and ("weight" not in node.schema or not pa.types.is_integer(node.schema.field("weight").type)):
            others = Schema.from_arrow(pa.schema([each for each in node.schema.arrow if each.name.lower() != "weight"]))
            raise InvalidInput(
                "with changes=True the column weight marks retractions, and the schema of "
                f"'{node.name}' has no integer column weight",
                where=node.user_line,
                next_step=f"add it to the schema: '{others}, weight int'",
            )
