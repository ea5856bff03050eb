"""The plan that a job runs, as a document in its folder: its file may have been edited since it started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from millstream.errors import MillstreamError
from millstream.log.disk import read_document, write_document
from millstream.plan.dashboards import built_dashboards
from millstream.plan.explain import Stage, kind_of
from millstream.plan.nodes import Dead, Node, WindowedAggregate, Write
from millstream.spark.query.physical_drawing import stages_of
from millstream.spark.query.physical_plan import PhysicalPlan

FILE = "plan.json"


def plan_document(flow: str, physical_plan: PhysicalPlan) -> dict[str, Any]:
    """Its steps, how Spark runs them, and the dashboards of its file.

    A step has its name, what it does, its kind and its inputs by name.
    """
    return {
        "flow": flow,
        "key_groups": physical_plan.groups,
        "logical": [_step(node) for node in physical_plan.order],
        "physical": [_stage(stage) for stage in stages_of(physical_plan)],
        "dashboards": [each.document() for each in built_dashboards()],
    }


def _step(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "does": node.label,
        "kind": kind_of(node),
        "inputs": [each.name for each in node.inputs],
        "columns": list(node.schema.names),
        "line": node.user_line,
        "windowed": isinstance(node, WindowedAggregate),
        "dead_to": node.sink.broker_topic if isinstance(node, Write) and isinstance(node.inputs[0], Dead) else None,
    }


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "does": stage.does,
        "kind": stage.kind,
        "inputs": [each.name for each in stage.inputs],
    }


def write_plan(folder: Path, flow: str, physical_plan: PhysicalPlan) -> None:
    with suppress(OSError, MillstreamError):  # no job fails because its plan cannot be shown
        write_document(folder / FILE, plan_document(flow, physical_plan))


def read_plan(folder: Path) -> dict[str, Any] | None:
    """None if the job has not started yet."""
    try:
        found: dict[str, Any] = read_document(folder / FILE)
    except (MillstreamError, OSError, ValueError):
        return None
    return found
