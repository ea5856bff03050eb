"""What readers of committed records wait for: a transaction ends a moment before its partitions know."""

from __future__ import annotations

from millstream.log import Broker
from waiting import until


def settle(log: Broker, topic: str) -> None:
    """A transaction is committed before every partition has heard of it."""
    until(lambda: all(p.stable_offset == p.end_offset for p in log.describe_topic(topic).partitions), "all had heard")
