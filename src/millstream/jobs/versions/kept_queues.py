"""What a changed flow would lose of queues: rows in one that it no longer has, and the order of one read by priority.

Offsets in a queue that is read by priority count records, so only a queue with a priority continues there.
"""

from __future__ import annotations

from millstream.connectors.topic.queue_endpoint import LimitedTopic
from millstream.connectors.topic.taken import FILE
from millstream.errors import JobChanged, UnknownTopic
from millstream.jobs.job_folder import JobDescription, JobFolder
from millstream.jobs.repairing import checkpoint_of
from millstream.jobs.versions.savepoints import SOURCES
from millstream.log import Broker
from millstream.plan.apps import flow_of
from millstream.plan.steps.inner_queues import INPUT
from millstream.spark.query.physical_plan import PhysicalPlan


def check_queues(folder: JobFolder, physical_plan: PhysicalPlan, log: Broker) -> None:
    """Refuses a flow that would leave rows in a queue, or read one in an order that does not fit its offsets."""
    kept, progress = folder.description(), folder.progress()
    if kept is None or progress is None:
        return
    check_order(folder, physical_plan)
    for source, topic in gone_queues(kept, physical_plan).items():
        complete = progress.complete
        end = checkpoint_of(folder).offsets_of(complete) if complete >= 0 else None
        done = {} if end is None else end["sources"].get(source, {})
        try:
            parts = log.describe_topic(topic).partitions
        except UnknownTopic:
            continue
        waiting = sum(max(0, each.stable_offset - int(done.get(str(each.number), 0))) for each in parts)
        if waiting:
            raise JobChanged(
                f"the flow '{folder.job}' has no queue '{source}' any more, in which {waiting:,} records wait",
                where=str(folder.path),
                next_step="run the flow as it was until the queue is empty: millstream run flow.py --until 'caught up'"
                f"; or read the topic '{topic}' in another flow before you start over",
            )


def check_order(folder: JobFolder, physical_plan: PhysicalPlan) -> None:
    """Refuses to go on without a priority where a queue was read by one."""
    for node in physical_plan.fed_sources:
        has_priority = isinstance(node.source, LimitedTopic) and node.source.limits.priority is not None
        if not has_priority and (folder.path / SOURCES / node.name / FILE).exists():
            raise JobChanged(
                f"'{node.name}' was read by priority, so its offsets do not fit a source without one",
                where=node.user_line or str(folder.path),
                next_step="leave it a priority, priority='0' reads in order; or give the source another name=, and it "
                "is read from the start",
            )


def gone_queues(kept: JobDescription, physical_plan: PhysicalPlan) -> dict[str, str]:
    """By source, the topics of the queues inside a flow that it no longer has."""
    names = {node.name for node in physical_plan.order}
    flows = {"", *map(flow_of, names)}
    ending = f".{INPUT}"
    queues = {name.removesuffix(ending): topic for name, topic in kept.written.items() if name.endswith(ending)}
    return {
        name: topic
        for name, topic in queues.items()
        if name in kept.sources and name not in names and flow_of(name) in flows
    }
