"""The plan of a job in real-time mode as a document: its steps, and the tasks that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.jobs.real_time_plan import RealTimePlan
from millstream.jobs.versions.plan_document import columns_read, counted, step_document, write_plan_document
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.shown.dashboards import built_dashboards
from millstream.plan.shown.masks import masked_columns
from millstream.plan.walking import in_order

MODE = "real time"
PROCESS = "jvm"
"""Spark's own engine runs everything, without Python."""


def real_time_document(plan: RealTimePlan, partitions: Mapping[str, int]) -> dict[str, Any]:
    """As `plan_document` describes others. `partitions` are those of each source: each has a task of its own."""
    order = in_order(plan.outputs)
    sources = {node: [read.name for read in plan.sources if read in in_order([node])] for node in order}
    return {
        "flow": plan.name,
        "mode": MODE,
        "key_groups": 0,
        "tasks": sum(partitions.values()),
        "logical": [
            {
                **step_document(node),
                "process": PROCESS,
                "stages": [node.name] if isinstance(node, Write) else sources[node],
            }
            for node in order
        ],
        "physical": [
            *(_tasks(read, order, partitions[read.name]) for read in plan.sources),
            *(_output(output, sources[output]) for output in plan.outputs),
        ],
        "dashboards": [each.document() for each in built_dashboards()],
        "masked": masked_columns(),
        "read": columns_read(order),
    }


def write_real_time_plan(folder: Path, plan: RealTimePlan, partitions: Mapping[str, int]) -> None:
    write_plan_document(folder, lambda: real_time_document(plan, partitions))


def _tasks(read: Read, order: Sequence[Node], partitions: int) -> dict[str, Any]:
    """All steps after a source run in the tasks that read it."""
    fused = [node.name for node in order if not isinstance(node, Read | Write) and read in in_order([node])]
    return {
        "name": read.name,
        "does": ", then ".join([read.name, *fused]) + ", record by record",
        "kind": "source",
        "inputs": [],
        "runs": f"{counted(partitions, 'task')} without end, by partition",
        "steps": [read.name],
        "process": PROCESS,
    }


def _output(output: Write, sources: Sequence[str]) -> dict[str, Any]:
    return {
        "name": output.name,
        "does": f"{output.label}, as soon as a record is processed",
        "kind": "sink",
        "inputs": list(sources),
        "runs": "in the tasks that read",
        "steps": [output.name],
        "process": PROCESS,
    }
