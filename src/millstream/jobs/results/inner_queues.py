"""The topics of queues inside a flow: those that are missing are created before the job starts."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.log import Broker
from millstream.log.preparing import prepared_topic
from millstream.plan.nodes import Write


def prepare_queues(outputs: Iterable[Write], log: Broker) -> None:
    for output in outputs:
        if output.sink.is_inner:
            refused = f"does not fit the queue '{output.name}' of the flow, which has other columns"
            prepared_topic(log, output.sink.topic_name, output.schema.ddl, refused=refused)
