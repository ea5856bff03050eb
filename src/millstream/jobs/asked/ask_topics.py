"""The topics of the questions of a flow: those that are missing are created before the job starts.

Requests and answers are of no use after a while: their callers have gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from millstream.log import Broker
from millstream.log.preparing import prepared_topic
from millstream.plan.steps.asks import Ask

RETENTION = timedelta(hours=1)


def prepare_topics(asks: Iterable[Ask], log: Broker) -> None:
    for ask in asks:
        refused = f"does not fit the question '{ask.name}' of the flow '{ask.flow}'"
        for topic, schema in (
            (ask.requests_topic, ask.requests_schema),
            (ask.answers_topic, ask.answers_schema),
        ):
            prepared_topic(log, topic, schema.ddl, refused=refused, retention=RETENTION)
