"""Matches the steps of a flow with the state of its job: which steps continue, and which are new.

Steps are identified by name. A default name changes with the steps before it, such as a `where`; such a step continues
with the state of the only missing step that does the same. A new step starts empty, so it is refused where rows that it
never saw may be retracted, and where Spark cannot add it to the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import polars as pl

from millstream.errors import InvalidInput, JobChanged
from millstream.jobs.results.renaming import renamed
from millstream.operators.stateful import stateful
from millstream.plan.apps import flow_of
from millstream.plan.naming import is_default, without_digest
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.table_nodes import SideJoin
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.terminal import escaped

StepDescription = dict[str, str]
DOES, STAGE, SLOT, SINCE, FROM, PATH = "does", "stage", "place", "since", "from", "way"
HOLDS = "holds"
"""What the state of a step depends on, if that is less than what the step does."""
NONE_DROPPED: Mapping[str, StepDescription] = MappingProxyType({})
NOT_STATE = (SLOT, SINCE, FROM, PATH)
"""Recorded for a step, though its state does not depend on them."""


@dataclass(frozen=True)
class CheckpointProgress:
    """The progress of a job that has state."""

    started: int
    """The newest batch that has started, complete or not."""
    complete: int
    sources: tuple[str, ...]
    """The sources it has started to read."""


@dataclass(frozen=True)
class Fit:
    """The steps of a flow as its job records them from now on, and which steps and sources are new."""

    steps: dict[str, StepDescription]
    new_steps: tuple[str, ...] = ()
    new_sources: tuple[str, ...] = ()


def slots_of(steps: Mapping[str, StepDescription]) -> dict[str, int]:
    """By step, the slot in which its stage keeps its state."""
    return {name: int(each[SLOT]) for name, each in steps.items()}


def resting_steps(kept: Mapping[str, StepDescription], physical_plan: PhysicalPlan) -> dict[str, StepDescription]:
    """The steps of flows of an app that do not run now: their state stays, and they continue with it."""
    present = {"", *(flow_of(node.name) for node in physical_plan.order)}
    return {name: each for name, each in kept.items() if flow_of(name) not in present}


def resting_slots(kept: Mapping[str, StepDescription], physical_plan: PhysicalPlan) -> dict[int, list[int]]:
    """By stage, the slots of steps that do not run now."""
    found: dict[int, list[int]] = {}
    for each in resting_steps(kept, physical_plan).values():
        found.setdefault(int(each[STAGE]), []).append(int(each[SLOT]))
    return found


def first_fit(physical_plan: PhysicalPlan) -> Fit:
    """The fit of a job without state."""
    slots = physical_plan.first_slots()
    found = described(physical_plan, {})
    return Fit({name: each | {SLOT: str(slots[name]), SINCE: "0"} for name, each in found.items()})


def fitted(
    job: str,
    where: str,
    physical_plan: PhysicalPlan,
    kept: Mapping[str, StepDescription],
    progress: CheckpointProgress,
    dropped: Mapping[str, StepDescription] = NONE_DROPPED,
    stages: int = 0,
) -> Fit:
    """The fit of a job with state; refuses a flow that does not match it.

    `dropped` are steps of earlier versions of the flow; with them the checkpoint has at least this many `stages`.
    """
    # Steps added in a run that started no batch have no state.
    kept = {name: each for name, each in with_default_slots(kept).items() if int(each[SINCE]) <= progress.started}
    resting = resting_steps(kept, physical_plan)
    before = Counterparts(physical_plan, {name: each for name, each in kept.items() if name not in resting}).found
    steps = described(physical_plan, before)
    gone = [name for name in kept if name not in before.values() and name not in resting]
    pairs = [of_states(kept[old], steps[new]) for new, old in before.items()]
    if gone or any(then != now for then, now in pairs):
        raise JobChanged(
            f"the flow '{job}' has changed, and its state no longer fits:\n{differences(kept, steps, before)}",
            where=where,
            next_step=f"undo the change, {alternatives(physical_plan, job, where)}",
        )
    added = [node for node in physical_plan.chain if node.name not in before]
    stages = max([stages, *(int(each[STAGE]) for each in kept.values())])
    check_added(job, where, physical_plan, stages, added, {*before, *progress.sources})
    new_sources = [node.name for node in physical_plan.fed_sources if node.name not in progress.sources]
    return Fit(
        with_slots(described(physical_plan, {}), kept, before, progress.complete + 1, dropped) | resting,
        tuple(node.name for node in added),
        tuple(new_sources),
    )


def with_slots(
    steps: dict[str, StepDescription],
    kept: Mapping[str, StepDescription],
    before: Mapping[str, str],
    batch: int,
    dropped: Mapping[str, StepDescription],
) -> dict[str, StepDescription]:
    """Steps that continue stay in their slots; new steps get the next free ones, never those of dropped steps."""
    taken: dict[str, set[int]] = {}
    for each in (*kept.values(), *dropped.values()):
        taken.setdefault(each[STAGE], set()).add(int(each[SLOT]))
    for name, each in steps.items():
        if name in before:
            each |= {part: kept[before[name]][part] for part in (SLOT, SINCE)}
        else:
            used = taken.setdefault(each[STAGE], set())
            slot = max(used, default=-1) + 1
            used.add(slot)
            each |= {SLOT: str(slot), SINCE: str(batch)}
    return steps


def with_default_slots(kept: Mapping[str, StepDescription]) -> dict[str, StepDescription]:
    """Versions that did not record slots numbered the steps of a stage in order."""
    found: dict[str, StepDescription] = {}
    for name, each in kept.items():
        slot = sum(other[STAGE] == each[STAGE] for other in found.values())
        found[name] = {SLOT: str(slot), SINCE: "0"} | each
    return found


# ---------------------------------------------------------------- what a step is


def described(physical_plan: PhysicalPlan, before: Mapping[str, str]) -> dict[str, StepDescription]:
    """By step with state: what it does, its tables, and its inputs. `before` maps names to earlier ones."""
    found = {}
    for node in physical_plan.chain:
        step = stateful(node, whole_rows=physical_plan.takes_late(node))
        assert step is not None
        tables = {
            f"table {name}": ", ".join(f"{column} {kind}" for column, kind in table.schema.items())
            for name, table in step.tables().items()
        }
        stage = next(
            number for number, stage in enumerate(physical_plan.stages, 1) if physical_plan.chain.index(node) in stage
        )
        found[node.name] = {
            DOES: node.label,
            **({HOLDS: node.state_label} if node.state_label != node.label else {}),
            **tables,
            **_fed_by(node, before),
            STAGE: str(stage),
            FROM: _origins(physical_plan, node, before),
            PATH: _element_wise_names(node),
        }
    return found


def _origins(physical_plan: PhysicalPlan, node: Node, before: Mapping[str, str]) -> str:
    return ", ".join(before.get(origin.name, origin.name) for origin in physical_plan.origins_of(node))


def _element_wise_names(node: Node) -> str:
    """The element-wise steps before a step with state, without the digests of their definitions."""
    names = []
    while node.inputs and not node.inputs[0].keeps_state:
        node = node.inputs[0]
        names.append(without_digest(node.name))
    return ", ".join(reversed(names))


def _fed_by(node: Node, before: Mapping[str, str]) -> StepDescription:
    """The inputs of a step, as far as its state depends on them.

    A row must be retracted in the form it was added in, so the steps before a step over changing rows may not change.
    Nor may two inputs be swapped.
    """
    found = {}
    for number, given in enumerate(node.inputs, 1):
        if given.is_changing:
            found[f"input {number}"] = ", then ".join(_lineage(given, set(), before))
        elif len(node.inputs) > 1:
            found[f"input {number}"] = _lineage(given, set(), before)[0]
    return found


def _lineage(node: Node, known: set[Node], before: Mapping[str, str]) -> list[str]:
    """The source or step with state before a node, by name, and what is done to its rows since.

    A union is described once and then only named: otherwise every union that reads another twice would double the text.
    """
    if not node.inputs or node.keeps_state or node in known:
        return [before.get(node.name, node.name)]
    if len(node.inputs) > 1:
        known.add(node)
        return [
            f"{node.label} of ({'; '.join(', then '.join(_lineage(given, known, before)) for given in node.inputs)})"
        ]
    label = node.label
    if isinstance(node, SideJoin):
        content = "".join(str(pl.Series(column).hash(7).sum()) for column in node.rows.columns)
        label += f" ({hashlib.sha256(content.encode()).hexdigest()[:12]})"
    return [*_lineage(node.inputs[0], known, before), label]


# ---------------------------------------------------------------- then and now


class Counterparts:
    """Finds the kept step that each step of a flow continues."""

    def __init__(self, physical_plan: PhysicalPlan, kept: Mapping[str, StepDescription]) -> None:
        self._physical_plan = physical_plan
        self._kept = kept
        self.found: dict[str, str] = {}
        names = {node.name for node in physical_plan.chain}
        self._gone = [name for name in kept if name not in names]
        self._unknown = [node for node in physical_plan.chain if node.name not in kept]
        for node in physical_plan.chain:
            continued = node.name if node.name in kept else self._renamed(node)
            if continued is not None:
                self.found[node.name] = continued

    def _renamed(self, node: Node) -> str | None:
        """The only missing step that does the same, if this is the only new one that does."""
        likely = [name for name in self._gone if self._could_be(node, name)]
        rivals = [other for other in self._unknown if any(self._could_be(other, name) for name in likely)]
        if len(likely) > 1 or len(rivals) > 1:
            way = _element_wise_names(node)
            likely = [name for name in likely if self._kept[name].get(PATH) == way]
            rivals = [other for other in rivals if _element_wise_names(other) == way]
        return likely[0] if len(likely) == 1 and len(rivals) == 1 else None

    def _could_be(self, node: Node, name: str) -> bool:
        """A step whose user-given name was changed to another is a different step."""
        fed_by = _origins(self._physical_plan, node, self.found)
        return (
            (is_default(node.name) or is_default(name))
            and (node.label == self._kept[name][DOES] or node.state_label == self._kept[name].get(HOLDS))
            and self._kept[name].get(FROM, fed_by) == fed_by
        )


def of_state(step: StepDescription) -> StepDescription:
    """The parts of a description that the state of a step depends on."""
    return {part: text for part, text in step.items() if part not in NOT_STATE}


def of_states(then: StepDescription, now: StepDescription) -> tuple[StepDescription, StepDescription]:
    """The parts of two descriptions of a step that must be equal. Older versions did not record what it holds."""
    left_out = DOES if HOLDS in then and HOLDS in now else HOLDS
    before, after = ({part: text for part, text in of_state(each).items() if part != left_out} for each in (then, now))
    return before, after


def differences(
    kept: Mapping[str, StepDescription], steps: Mapping[str, StepDescription], before: Mapping[str, str]
) -> str:
    """A diff between the steps that the state belongs to and those of the flow."""
    lines = [f"  - {name}: {each[DOES]}" for name, each in kept.items() if name not in before.values()]
    for name, each in steps.items():
        if name not in before:
            lines.append(f"  + {name}: {each[DOES]}")
            continue
        then, now = of_states(kept[before[name]], each)
        for part in dict.fromkeys([*then, *now]):
            if then.get(part) != now.get(part):
                lines += [f"    {name}, {part}", f"  - {then.get(part)}", f"  + {now.get(part)}"]
    return "\n".join(map(escaped, lines))


def check_added(
    job: str, where: str, physical_plan: PhysicalPlan, stages: int, added: Sequence[Node], old: Collection[str]
) -> None:
    """Refuses new steps that need more stages than the checkpoint has, or that would miss what is retracted."""
    for node in added:
        stage = next(
            number for number, stage in enumerate(physical_plan.stages, 1) if physical_plan.chain.index(node) in stage
        )
        if stage > stages:
            raise JobChanged(
                f"the new step '{node.name}' of the flow '{job}' needs {_shuffles(stage)}, and the job was started "
                f"with {_shuffles(stages) if stages else 'none'}: Spark cannot add one to its checkpoint",
                where=node.user_line or where,
                next_step="move the step to a separate flow that reads the output of this one, "
                + alternatives(physical_plan, job, where),
            )
        for given in node.inputs:
            table = next((each for each in _changing_origins(given) if each.name in old), None)
            if table is not None:
                raise JobChanged(
                    f"the new step '{node.name}' of the flow '{job}' would start empty after '{table.name}', whose "
                    "rows are retracted: it never saw the earlier ones",
                    where=node.user_line or where,
                    next_step=f"leave the step out, {alternatives(physical_plan, job, where)}",
                )


def _shuffles(count: int) -> str:
    return f"{count} shuffle{'' if count == 1 else 's'}"


def _changing_origins(node: Node) -> list[Node]:
    """The sources and steps with state that a node's retractions come from."""
    found: dict[Node, None] = {}
    waiting = [node]
    seen = set()
    while waiting:
        given = waiting.pop()
        if given in seen or not given.is_changing:
            continue
        seen.add(given)
        if given.keeps_state or isinstance(given, Read):
            found[given] = None
        else:
            waiting += given.inputs
    return list(found)


def alternatives(physical_plan: PhysicalPlan, job: str, folder: str) -> str:
    """Ways to build the results of a flow without the state in its job's folder."""
    is_chosen = Path(folder).name != job
    outputs = [output for output in physical_plan.outputs if isinstance(output, Write)]
    try:
        renamed(outputs, f"{job}.replayed")
        how = f"flow.replay(into=…{', folder=…' if is_chosen else ''})"
    except InvalidInput:
        how = "give the flow and its outputs other names, and run it"
        how += " with another folder=" if is_chosen else ""
    over = f"remove {folder}" if is_chosen else f"millstream jobs forget {job}"
    return f"or build the results next to the old ones: {how}; or start over: {over}"


def notice_of(job: str, folder: str, physical_plan: PhysicalPlan, fit: Fit, known_outputs: Collection[str]) -> str:
    """What the owner of a job must know about additions to it; empty if there are none."""
    old = {node.name for node in (*physical_plan.sources, *physical_plan.chain)} - {*fit.new_steps, *fit.new_sources}
    outputs = [
        output.name
        for output in physical_plan.outputs
        if output.name not in known_outputs and any(origin.name in old for origin in physical_plan.origins_of(output))
    ]
    parts = [
        ("new steps start empty, with the rows that arrive from now on", fit.new_steps),
        ("new sources are read from where they are configured to start", fit.new_sources),
        ("new outputs receive the rows sent from now on", outputs),
    ]
    summary = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    if not fit.new_steps and not outputs:
        return summary
    return f"{summary}. For earlier rows, {alternatives(physical_plan, job, folder).removeprefix('or ')}"
