"""Draws a physical plan: one box for each part of the query that Spark runs as a unit."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.plan.nodes import Node, Read, Write
from millstream.plan.on_spark.needs_spark import reasons
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.shown.explain import Stage
from millstream.spark.query.physical_plan import PhysicalPlan


def stages_of(physical_plan: PhysicalPlan) -> list[Stage]:
    """Reading tasks, then the stage after each shuffle, then the outputs; each after its inputs."""
    found: dict[Node, Stage] = {}
    """By source, step of the chain or output, its box."""
    boxes = []
    for source in physical_plan.sources:
        found[source] = _reading(physical_plan, source)
        boxes.append(found[source])
    for number, stage in enumerate(physical_plan.stages, 1):
        steps = [physical_plan.chain[place] for place in stage]
        fed_by = [found[origin] for origin in found if _feeds(physical_plan, origin, stage)]
        does = "shuffle by key group, then " + "; ".join(_with_fused(physical_plan, step) for step in steps)
        box = Stage(
            f"stage {number}", steps[-1].schema, tuple(dict.fromkeys(fed_by)), None, does, "state", _names(steps)
        )
        found |= dict.fromkeys(steps, box)
        boxes.append(box)
    for output in physical_plan.outputs:
        origins = [
            origin
            for origin in (*physical_plan.sources, *physical_plan.chain)
            if _ends_in(physical_plan, origin, output)
        ]
        inputs = tuple(dict.fromkeys(found[origin] for origin in origins))
        boxes.append(
            Stage(output.name, output.schema, inputs, None, f"{output.label}, by the driver", "sink", _names([output]))
        )
    return boxes


def _reading(physical_plan: PhysicalPlan, source: Read) -> Stage:
    where = "in Spark SQL, then packed" if isinstance(source.source, SparkFrame) else "in the task that reads"
    return Stage(
        source.name,
        source.schema,
        (),
        None,
        f"{_with_fused(physical_plan, source)}, {where}",
        "source",
        _names([source]),
    )


def _names(steps: Sequence[Node]) -> tuple[str, ...]:
    return tuple(step.name for step in steps)


def _with_fused(physical_plan: PhysicalPlan, origin: Node) -> str:
    return ", then ".join([origin.name, *fused_steps(physical_plan, origin)])


def fused_steps(physical_plan: PhysicalPlan, origin: Node) -> list[str]:
    """The element-wise steps after an origin."""
    return [_shown(physical_plan, step) for step in physical_plan.region(origin).steps if not isinstance(step, Write)]


def _shown(physical_plan: PhysicalPlan, step: Node) -> str:
    """A step by name; if it runs in Spark's own engine, also why."""
    if step not in physical_plan.in_spark:
        return step.name
    why = "; ".join(reasons(step)) or "between steps that need it"
    return f"{step.name} in Spark's own engine ({why})"


def _feeds(physical_plan: PhysicalPlan, origin: Node, stage: list[int]) -> bool:
    return any(end.side is not None and end.number in stage for end in physical_plan.ends(origin))


def _ends_in(physical_plan: PhysicalPlan, origin: Node, output: Node) -> bool:
    return any(end.side is None and end.node is output for end in physical_plan.ends(origin))
