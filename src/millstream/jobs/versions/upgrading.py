"""Compares a new flow with the state of a job: which steps keep their state, which start empty, which are dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from millstream.errors import InvalidInput, JobChanged
from millstream.jobs.job_folder import DESCRIPTION, JobDescription, JobFolder
from millstream.jobs.versions.evolution import Unfit, changes_of
from millstream.jobs.versions.kept_queues import check_order, gone_queues
from millstream.jobs.versions.kept_steps import (
    DOES,
    FROM,
    SINCE,
    SLOT,
    CheckpointProgress,
    Counterparts,
    StepDescription,
    check_added,
    described,
    of_states,
    with_default_slots,
    with_slots,
)
from millstream.jobs.versions.swapping import swap
from millstream.log.storage.disk import write_document
from millstream.plan.naming import without_digest
from millstream.plan.nodes import Node, Write
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.user_lines import what_exists

KEEPS, EVOLVES, STARTS_EMPTY, DROPPED = "keeps its state", "keeps its state, changed", "starts empty", "dropped"


@dataclass(frozen=True)
class StepChange:
    step: str
    before: str | None
    """Its name so far; None if it is new."""
    change: str
    details: str = ""


@dataclass(frozen=True)
class UpgradePlan:
    steps: tuple[StepChange, ...]
    description: JobDescription
    """The job's description once it is upgraded."""
    new_outputs: tuple[str, ...] = ()
    ended_outputs: tuple[str, ...] = ()

    @property
    def dropped(self) -> list[str]:
        """State that would be lost."""
        parts = [each.step for each in self.steps if each.change == DROPPED]
        return parts + [
            f"{each.step}: {part}"
            for each in self.steps
            for part in each.details.split("; ")
            if part.startswith("drops ")
        ]

    def document(self) -> dict[str, Any]:
        return {
            "steps": [asdict(each) for each in self.steps],
            "dropped": self.dropped,
            "new_outputs": list(self.new_outputs),
            "ended_outputs": list(self.ended_outputs),
            "description": asdict(self.description),
        }


def compared(folder: JobFolder, physical_plan: PhysicalPlan, mapping: Mapping[str, str]) -> UpgradePlan:
    """What becomes of a job if it continues with another flow. `mapping` has the new names of renamed steps.

    Raises JobChanged if it cannot.
    """
    kept = folder.description()
    progress = folder.progress()
    if kept is None or progress is None:
        raise InvalidInput(
            f"the job '{folder.job}' has not run yet, so it has no state",
            where=str(folder.path),
            next_step="submit the new flow instead",
        )
    physical_plan = replace(physical_plan, one_stage=kept.groups == 1)
    before = {
        name: each for name, each in with_default_slots(kept.steps).items() if int(each[SINCE]) <= progress.started
    }
    _check_mapping(mapping, before, physical_plan)
    renamed = {mapping.get(name, name): _renamed(each, mapping) for name, each in before.items()}
    old_names = {mapping.get(name, name): name for name in before}
    return _Comparison(folder, physical_plan, kept, renamed, old_names, progress).plan()


def upgraded(folder: JobFolder, description: JobDescription) -> None:
    """Gives a job the description of an upgrade. The caller holds the job."""
    complete = folder.newest_batches()[1]
    kept = folder.description()
    known = {} if kept is None else kept.steps
    slots = {(each[SLOT], each["stage"]) for each in known.values()}
    steps = {
        name: each if (each[SLOT], each["stage"]) in slots else each | {SINCE: str(complete + 1)}
        for name, each in description.steps.items()
    }
    made = asdict(replace(description, steps=steps))
    swap(folder, lambda draft: write_document(draft / DESCRIPTION, made))


class _Comparison:
    def __init__(
        self,
        folder: JobFolder,
        physical_plan: PhysicalPlan,
        kept: JobDescription,
        steps: Mapping[str, StepDescription],
        old_names: Mapping[str, str],
        progress: CheckpointProgress,
    ) -> None:
        self._folder = folder
        self._physical_plan = physical_plan
        self._kept = kept
        self._steps = steps
        self._old_names = old_names
        self._progress = progress
        self._before = Counterparts(physical_plan, steps).found
        for node in physical_plan.chain:
            if node.name not in self._before and (found := self._evolved(node)) is not None:
                self._before[node.name] = found

    def plan(self) -> UpgradePlan:
        now = described(self._physical_plan, self._before)
        changes = [self._change(node, now[node.name]) for node in self._physical_plan.chain]
        added = [node for node in self._physical_plan.chain if node.name not in self._before]
        stages = self._kept.stages_kept
        where = str(self._folder.path)
        check_added(
            self._folder.job, where, self._physical_plan, stages, added, {*self._before, *self._progress.sources}
        )
        gone = {name: each for name, each in self._steps.items() if name not in self._before.values()}
        changes += [StepChange(name, self._old_names[name], DROPPED, each[DOES]) for name, each in gone.items()]
        check_order(self._folder, self._physical_plan)
        queues = gone_queues(self._kept, self._physical_plan)
        changes += [StepChange(name, name, DROPPED, f"what waits in the queue {queues[name]}") for name in queues]
        written = {name: topic for name, topic in self._kept.written.items() if topic not in queues.values()}
        outputs = {each.name for each in self._physical_plan.outputs if isinstance(each, Write)}
        known = self._folder.known_outputs()
        evolved = {each.step for each in changes if each.change == EVOLVES}
        evolved |= {name for name, old in self._before.items() if self._old_names[old] in self._kept.evolved}
        dropped = self._kept.dropped | {self._old_names[name]: each for name, each in gone.items()}
        steps = with_slots(
            described(self._physical_plan, {}), {**self._steps}, self._before, self._progress.complete + 1, dropped
        )
        description = replace(
            self._kept, steps=steps, dropped=dropped, stages=stages, evolved=sorted(evolved), written=written
        )
        return UpgradePlan(tuple(changes), description, tuple(sorted(outputs - known)), tuple(sorted(known - outputs)))

    def _change(self, node: Node, now: StepDescription) -> StepChange:
        old = self._before.get(node.name)
        if old is None:
            return StepChange(node.name, None, STARTS_EMPTY, node.label)
        name = self._old_names[old]
        is_renamed = f"was {name}" if name != node.name else ""
        then, after = of_states(self._steps[old], now)
        if then == after:
            return StepChange(node.name, name, KEEPS, is_renamed)
        try:
            added, dropped = self._changes(node, old, now)
        except Unfit as why:
            raise JobChanged(
                f"the step '{node.name}' cannot keep its state: {why}",
                where=node.user_line or str(self._folder.path),
                next_step="give the step another name= and use --allow-dropped, so that it starts empty; or build the "
                "results next to the old ones: flow.replay(into=…)",
            ) from None
        details = [is_renamed, *added, *(f"drops {each}" for each in dropped)]
        return StepChange(node.name, name, EVOLVES, "; ".join(filter(None, details)))

    def _changes(self, node: Node, old: str, now: StepDescription) -> tuple[list[str], list[str]]:
        feeds_steps = any(node in self._physical_plan.origins_of(other) for other in self._physical_plan.chain)
        then, after = of_states(self._steps[old], now)
        return changes_of(node, then, after, does=DOES, feeds_steps=feeds_steps)

    def _evolved(self, node: Node) -> str | None:
        """The only missing step that this one may be, with more or other aggregates and under its default name."""
        gone = [name for name in self._steps if name not in self._before.values()]
        fed_by = ", ".join(
            self._before.get(origin.name, origin.name) for origin in self._physical_plan.origins_of(node)
        )
        likely = [
            name
            for name in gone
            if without_digest(name) == without_digest(node.name) and self._steps[name].get(FROM) == fed_by
        ]
        fitting = [name for name in likely if self._fits(node, name)]
        return fitting[0] if len(fitting) == 1 else None

    def _fits(self, node: Node, name: str) -> bool:
        try:
            self._changes(node, name, described(self._physical_plan, self._before)[node.name])
        except Unfit:
            return False
        return True


def _check_mapping(
    mapping: Mapping[str, str], kept: Mapping[str, StepDescription], physical_plan: PhysicalPlan
) -> None:
    names = [node.name for node in physical_plan.chain]
    for old, new in mapping.items():
        if old not in kept:
            raise InvalidInput(f"the job has no step '{old}'", next_step=what_exists(old, list(kept), kind="steps"))
        if new not in names:
            raise InvalidInput(f"the flow has no step '{new}'", next_step=what_exists(new, names, kind="steps"))
    for new in mapping.values():
        if list(mapping.values()).count(new) > 1 or (new in kept and new not in mapping):
            raise InvalidInput(f"two steps would become '{new}'", next_step="map each old step to a step of its own")


def _renamed(step: StepDescription, mapping: Mapping[str, str]) -> StepDescription:
    """A description, with the new names of the steps it reads."""
    found = dict(step)
    for part in step:
        if part == FROM or part.startswith("input "):
            names, separator, rest = step[part].partition(", then ")
            found[part] = ", ".join(mapping.get(name, name) for name in names.split(", ")) + separator + rest
    return found


def refuse_dropped(job: str, dropped: Sequence[str]) -> None:
    """Refuses an upgrade that loses state."""
    if dropped:
        raise JobChanged(
            f"the upgrade of '{job}' would drop state: {'; '.join(dropped)}",
            next_step="map renamed steps with --map OLD=NEW; or accept it with --allow-dropped: the savepoint that is "
            "taken before still has it",
        )
