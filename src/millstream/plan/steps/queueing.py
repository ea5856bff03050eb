"""The step of a stream that lets its rows wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from millstream.plan.on_spark import engine
from millstream.plan.stored.searching import Searching

if TYPE_CHECKING:
    from millstream.plan.stream import Stream


class Queueing(Searching):
    """A stream whose rows may wait for the steps after it."""

    def queue(self, name: str, **limits: Any) -> Stream:
        """The same rows, which wait in a queue inside the flow: the steps after it read them in later batches.

        The limits are those of `ms.queue`; default: at most 10,000 rows, else the steps before it wait. With `at_once`,
        the most rows of a batch, a slow branch holds the others for no longer. The queue is the topic FLOW.NAME.
        """
        from millstream.plan.steps.inner_queues import queued

        stream = cast("Stream", self)
        made = engine.inner_queue(f"{stream.flow.name}.{name}", limits)
        node = queued(stream, name, made)
        stream.flow.queues[node.name] = made
        return stream._next(node)
