"""Which step does the work of which node that keeps state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.operators.process import ProcessStep
from millstream.operators.stateful import Stateful
from millstream.plan import nodes
from millstream.plan.nodes import Node

STEPS: dict[type[Node], Callable[[Any], Stateful]] = {
    nodes.Process: ProcessStep,
}
