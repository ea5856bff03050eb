"""A layout to look at: one box for each part of the query that Spark runs in one go."""

from __future__ import annotations

from millstream.plan.explain import Stage
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.spark_frames import SparkFrame
from millstream.spark.query.physical_plan import Layout


def stages_of(layout: Layout) -> list[Stage]:
    """Reading tasks, then the stages behind each shuffle, then the outputs; each after what it is fed by."""
    found: dict[Node, Stage] = {}
    """By source, step of the chain or output, the box it stands in."""
    boxes = []
    for source in layout.sources:
        found[source] = _reading(layout, source)
        boxes.append(found[source])
    for number, stage in enumerate(layout.stages, 1):
        steps = [layout.chain[place] for place in stage]
        fed_by = [found[origin] for origin in found if _feeds(layout, origin, stage)]
        does = "shuffle by key group, then " + "; ".join(_with_fused(layout, step) for step in steps)
        box = Stage(f"stage {number}", steps[-1].schema, tuple(dict.fromkeys(fed_by)), None, does, "state")
        found |= dict.fromkeys(steps, box)
        boxes.append(box)
    for output in layout.outputs:
        origins = [origin for origin in (*layout.sources, *layout.chain) if _ends_in(layout, origin, output)]
        inputs = tuple(dict.fromkeys(found[origin] for origin in origins))
        boxes.append(Stage(output.name, output.schema, inputs, None, f"{output.label}, by the driver", "sink"))
    return boxes


def _reading(layout: Layout, source: Read) -> Stage:
    where = "in Spark SQL, then packed" if isinstance(source.source, SparkFrame) else "in the task that reads"
    return Stage(source.name, source.schema, (), None, f"{_with_fused(layout, source)}, {where}", "source")


def _with_fused(layout: Layout, origin: Node) -> str:
    fused = [step.name for step in layout.region(origin).steps if not isinstance(step, Write)]
    return ", then ".join([origin.name, *fused])


def _feeds(layout: Layout, origin: Node, stage: list[int]) -> bool:
    return any(end.side is not None and end.number in stage for end in layout.ends(origin))


def _ends_in(layout: Layout, origin: Node, output: Node) -> bool:
    return any(end.side is None and end.node is output for end in layout.ends(origin))
