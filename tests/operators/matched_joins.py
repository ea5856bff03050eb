"""Joins as they run if only Spark can evaluate their condition: a step before them finds the pairs that satisfy it.

Here that step evaluates the same condition without Spark, so what such a join sends must be what the plain one sends.
"""

from __future__ import annotations

from typing import Any

from millstream.plan.flow import Flow
from millstream.plan.joins.conditions import matched
from millstream.plan.nodes import Node


def with_matching(flow: Flow, joined: Any, inner: Node) -> Node | None:
    """A join whose condition another step evaluates, given the same join if it is inner; None without a condition."""
    if joined.condition is None:
        return None
    return matched(flow, joined, list(inner.schema.arrow), joined.condition.holds.spark)
