"""The parts of a plan that Spark's own engine runs: steps in a row, of which the first and the last need it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from millstream.errors import InvalidPlan
from millstream.expressions.spark_types import instead_of
from millstream.plan.nodes import Node, Project, Where, WithEventTime
from millstream.plan.on_spark.needs_spark import SparkFunction, needs_spark
from millstream.records.variants import variant_columns


@dataclass(frozen=True)
class SparkPart:
    """Each step is the only one that takes the rows of the one before."""

    number: int
    """What packed rows for it have as the number of their step."""
    steps: tuple[Node, ...]

    @property
    def first(self) -> Node:
        return self.steps[0]

    @property
    def last(self) -> Node:
        return self.steps[-1]

    @property
    def given(self) -> Node:
        """The step whose rows it takes."""
        return self.first.inputs[0]


def _check_end(last: Node, consumers: Sequence[Node]) -> None:
    """Variants stay in a part: they have no place in rows that are packed."""
    for column in variant_columns(last.schema.arrow):
        if len(consumers) > 1:
            raise InvalidPlan(
                f"the variant '{column}' of '{last.name}' is used by two steps, '{consumers[0].name}' and "
                f"'{consumers[1].name}', but it can only be passed on to one",
                where=last.user_line,
                next_step=f"make it again in each of them; or {instead_of('variant', column)}",
            )
        raise InvalidPlan(
            f"the column '{column}' of '{last.name}' is a variant, which a result cannot have",
            where=last.user_line,
            next_step=instead_of("variant", column),
        )


def parts_of(order: Sequence[Node], outputs: Container[Node], first_number: int) -> list[SparkPart]:
    """The parts of a plan, given all its steps in order."""
    consumers: dict[Node, list[Node]] = {}
    for node in order:
        for given in node.inputs:
            consumers.setdefault(given, []).append(node)
    parts: list[SparkPart] = []
    taken: set[Node] = set()
    for node in order:
        if node in taken or not needs_spark(node):
            continue
        steps = [node]
        while (after := consumers.get(steps[-1], [])) and len(after) == 1 and steps[-1] not in outputs:
            if isinstance(steps[-1], WithEventTime):  # the watermark follows from all of its rows
                break
            if not isinstance(after[0], Where | Project | SparkFunction | WithEventTime):
                break
            steps.append(after[0])
        while not needs_spark(steps[-1]):  # the last ones run without a detour
            steps.pop()
        _check_end(steps[-1], consumers.get(steps[-1], []))
        taken.update(steps)
        parts.append(SparkPart(first_number + len(parts), tuple(steps)))
    return parts
