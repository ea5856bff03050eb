"""The plan that a job runs, as a document in its folder: its file may have been edited since it started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millstream.errors import MillstreamError
from millstream.log.storage.disk import read_document, write_document
from millstream.plan.nodes import Dead, Node, Read, WindowedAggregate, Write
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.shown.dashboards import built_dashboards
from millstream.plan.shown.explain import Stage, kind_of
from millstream.plan.shown.masks import masked_columns
from millstream.plan.walking import in_order
from millstream.spark.query.physical_drawing import stages_of
from millstream.spark.query.physical_plan import PhysicalPlan

FILE = "plan.json"


def plan_document(
    flow: str, physical_plan: PhysicalPlan, tasks: int | None = None, waiting: Sequence[Node] = ()
) -> dict[str, Any]:
    """Its steps, how Spark runs them, and the dashboards and masked columns of its file.

    A step has its name, what it does, its kind, its inputs by name, the kind of process it runs in, and the physical
    parts that run it. `tasks` is how many run a stage at the same time. `waiting` has outputs of an app that do not run
    now, because their flow has failed: the columns of the topics they read are still masked.
    """
    stages = stages_of(physical_plan)
    logical = [
        {
            **step_document(node),
            "process": _process(physical_plan, node),
            "stages": _stages(physical_plan, stages, node),
        }
        for node in physical_plan.order
    ]
    process = {step["name"]: step["process"] for step in logical}
    return {
        "flow": flow,
        "key_groups": physical_plan.groups,
        "logical": logical,
        "physical": [
            {**_stage(stage, physical_plan.groups, tasks), "process": process[stage.steps[0]]} for stage in stages
        ],
        "dashboards": [each.document() for each in built_dashboards()],
        "masked": masked_columns(),
        "read": columns_read(in_order((*physical_plan.outputs, *waiting))),
    }


def columns_read(order: Sequence[Node]) -> dict[str, list[str]]:
    """By topic, the columns that any step reads of it."""
    found: dict[str, set[str]] = {}
    for node in order:
        if isinstance(node, Read) and (topic := node.source.broker_topic):
            found.setdefault(topic, set()).update(node.schema.names)
    return {topic: sorted(columns) for topic, columns in found.items()}


def step_document(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "does": node.label,
        "kind": kind_of(node),
        "inputs": [each.name for each in node.inputs],
        "columns": list(node.schema.names),
        "line": node.user_line,
        "topic": node.source.broker_topic if isinstance(node, Read) else None,
        "windowed": isinstance(node, WindowedAggregate),
        "dead_to": node.sink.broker_topic if isinstance(node, Write) and isinstance(node.inputs[0], Dead) else None,
    }


def _process(physical_plan: PhysicalPlan, node: Node) -> str:
    """As the processes of a job are called."""
    if isinstance(node, Write):
        return "driver"
    by_spark = node in physical_plan.in_spark or (isinstance(node, Read) and isinstance(node.source, SparkFrame))
    return "jvm" if by_spark else "worker"


def _stages(physical_plan: PhysicalPlan, stages: Sequence[Stage], node: Node) -> list[str]:
    """The parts that run a step: its own, or those of all origins whose rows it takes."""
    origins = [node.name] + [
        origin.name
        for origin in (*physical_plan.sources, *physical_plan.chain)
        if not isinstance(node, Write) and node in physical_plan.region(origin).steps
    ]
    return [stage.name for stage in stages if not set(origins).isdisjoint(stage.steps)]


def _stage(stage: Stage, groups: int, tasks: int | None) -> dict[str, Any]:
    of_groups = f"{groups} key groups" if tasks is None else f"{groups} key groups in {counted(tasks, 'task')}"
    runs = {"source": "tasks by partition and range", "state": of_groups, "sink": "the driver, batch by batch"}
    return {
        "name": stage.name,
        "does": stage.does,
        "kind": stage.kind,
        "inputs": [each.name for each in stage.inputs],
        "runs": runs.get(stage.kind, "a task"),
        "steps": list(stage.steps),
    }


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def write_plan(
    folder: Path, flow: str, physical_plan: PhysicalPlan, tasks: int | None = None, waiting: Sequence[Node] = ()
) -> None:
    write_plan_document(folder, lambda: plan_document(flow, physical_plan, tasks, waiting))


def write_plan_document(folder: Path, made: Callable[[], dict[str, Any]]) -> None:
    """No job fails because its plan cannot be shown, unless it has masked columns: they are read from the plan."""
    try:
        write_document(folder / FILE, made())
    except (OSError, MillstreamError):
        if masked_columns():
            raise


def read_plan(folder: Path) -> dict[str, Any] | None:
    """None if the job has not started yet."""
    try:
        found: dict[str, Any] = read_document(folder / FILE)
    except (MillstreamError, OSError, ValueError):
        return None
    return found
