"""Which steps of a flow continue with state that its job kept, and which are new.

Steps are known by name. A default name changes with what lies before the step, such as a `where`; such a step continues
with the state of the one step that is gone and does the same. A new step starts empty, so it is refused where it would
not know rows that are retracted later, and where Spark cannot add it to the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from millstream.errors import InvalidInput, JobChanged
from millstream.jobs.renaming import renamed
from millstream.operators.stateful import stateful
from millstream.plan.naming import is_default, without_digest
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.table_nodes import SideJoin
from millstream.spark.query.physical_plan import Layout
from millstream.terminal import escaped

Description = dict[str, str]
DOES, STAGE, PLACE, SINCE, FROM, WAY = "does", "stage", "place", "since", "from", "way"
NOT_STATE = (PLACE, SINCE, FROM, WAY)
"""What is noted of a step though its state does not depend on it."""


@dataclass(frozen=True)
class Progress:
    """How far a job has come that has state."""

    begun: int
    """Its newest batch, complete or not."""
    complete: int
    sources: tuple[str, ...]
    """Those it has begun to read."""


@dataclass(frozen=True)
class Fit:
    """The steps of a flow as its job keeps them from now on, and what is new beside those that continue."""

    steps: dict[str, Description]
    new_steps: tuple[str, ...] = ()
    new_sources: tuple[str, ...] = ()


def places_of(steps: Mapping[str, Description]) -> dict[str, int]:
    """By the name of a step, the number under which its stage keeps its state."""
    return {name: int(each[PLACE]) for name, each in steps.items()}


def first_fit(layout: Layout) -> Fit:
    """That of a job without state."""
    places = layout.first_places()
    found = described(layout, {})
    return Fit({name: each | {PLACE: str(places[name]), SINCE: "0"} for name, each in found.items()})


def fitted(job: str, where: str, layout: Layout, kept: Mapping[str, Description], progress: Progress) -> Fit:
    """That of a job with state; refuses a flow that does not fit it."""
    # What was added in a run that got no further has no state.
    kept = {name: each for name, each in _numbered(kept).items() if int(each[SINCE]) <= progress.begun}
    before = _Counterparts(layout, kept).found
    steps = described(layout, before)
    gone = [name for name in kept if name not in before.values()]
    if gone or any(_of_state(kept[old]) != _of_state(steps[new]) for new, old in before.items()):
        raise JobChanged(
            f"the flow '{job}' has changed, and the state it kept does not fit:\n{differences(kept, steps, before)}",
            where=where,
            next_step=f"undo the change, {ways_on(layout, job, where)}",
        )
    added = [node for node in layout.chain if node.name not in before]
    _check_added(job, where, layout, kept, added, {*before, *progress.sources})
    new_sources = [node.name for node in layout.fed_sources if node.name not in progress.sources]
    return Fit(
        _placed(described(layout, {}), kept, before, progress.complete + 1),
        tuple(node.name for node in added),
        tuple(new_sources),
    )


def _placed(
    steps: dict[str, Description], kept: Mapping[str, Description], before: Mapping[str, str], batch: int
) -> dict[str, Description]:
    """Steps that continue stay where their state is; the others come behind them."""
    taken: dict[str, set[int]] = {}
    for each in kept.values():
        taken.setdefault(each[STAGE], set()).add(int(each[PLACE]))
    for name, each in steps.items():
        if name in before:
            each |= {part: kept[before[name]][part] for part in (PLACE, SINCE)}
        else:
            used = taken.setdefault(each[STAGE], set())
            place = max(used, default=-1) + 1
            used.add(place)
            each |= {PLACE: str(place), SINCE: str(batch)}
    return steps


def _numbered(kept: Mapping[str, Description]) -> dict[str, Description]:
    """A job of a version that did not note places had its steps in order, from the beginning."""
    found: dict[str, Description] = {}
    for name, each in kept.items():
        place = sum(other[STAGE] == each[STAGE] for other in found.values())
        found[name] = {PLACE: str(place), SINCE: "0"} | each
    return found


# ---------------------------------------------------------------- what a step is


def described(layout: Layout, before: Mapping[str, str]) -> dict[str, Description]:
    """By name, what each step with state does, its tables, and what it is fed by; `before` has names of the past."""
    found = {}
    for node in layout.chain:
        step = stateful(node, whole_rows=layout.takes_late(node))
        assert step is not None
        tables = {
            f"table {name}": ", ".join(f"{column} {kind}" for column, kind in table.schema.items())
            for name, table in step.tables().items()
        }
        stage = next(number for number, stage in enumerate(layout.stages, 1) if layout.chain.index(node) in stage)
        found[node.name] = {
            DOES: node.label,
            **tables,
            **_fed_by(node, before),
            STAGE: str(stage),
            FROM: _origins(layout, node, before),
            WAY: _names_on_way(node),
        }
    return found


def _origins(layout: Layout, node: Node, before: Mapping[str, str]) -> str:
    return ", ".join(before.get(origin.name, origin.name) for origin in layout.origins_of(node))


def _names_on_way(node: Node) -> str:
    """The element-wise steps that lead to a step with state, without what changes with their definitions."""
    names = []
    while node.inputs and not node.inputs[0].keeps_state:
        node = node.inputs[0]
        names.append(without_digest(node.name))
    return ", ".join(reversed(names))


def _fed_by(node: Node, before: Mapping[str, str]) -> Description:
    """What a step is fed with, as far as its state depends on it.

    A row that was put there must be taken back in the same form: so what lies before a step over rows that change may
    not change. And two inputs may not change places.
    """
    found = {}
    for number, given in enumerate(node.inputs, 1):
        if given.is_changing:
            found[f"input {number}"] = ", then ".join(_way(given, set(), before))
        elif len(node.inputs) > 1:
            found[f"input {number}"] = _way(given, set(), before)[0]
    return found


def _way(node: Node, known: set[Node], before: Mapping[str, str]) -> list[str]:
    """The step that keeps state or the source before a node, by name, and what is done to its rows since.

    A union that was described before is only named: else each that is fed by another twice would double the text.
    """
    if not node.inputs or node.keeps_state or node in known:
        return [before.get(node.name, node.name)]
    if len(node.inputs) > 1:
        known.add(node)
        return [f"{node.label} of ({'; '.join(', then '.join(_way(given, known, before)) for given in node.inputs)})"]
    label = node.label
    if isinstance(node, SideJoin):
        content = "".join(str(pl.Series(column).hash(7).sum()) for column in node.rows.columns)
        label += f" ({hashlib.sha256(content.encode()).hexdigest()[:12]})"
    return [*_way(node.inputs[0], known, before), label]


# ---------------------------------------------------------------- then and now


class _Counterparts:
    """Finds the kept step that each step of a flow continues."""

    def __init__(self, layout: Layout, kept: Mapping[str, Description]) -> None:
        self._layout = layout
        self._kept = kept
        self.found: dict[str, str] = {}
        names = {node.name for node in layout.chain}
        self._gone = [name for name in kept if name not in names]
        self._unknown = [node for node in layout.chain if node.name not in kept]
        for node in layout.chain:
            continued = node.name if node.name in kept else self._renamed(node)
            if continued is not None:
                self.found[node.name] = continued

    def _renamed(self, node: Node) -> str | None:
        """The only step that is gone and does the same, if this is the only new one that does."""
        likely = [name for name in self._gone if self._could_be(node, name)]
        rivals = [other for other in self._unknown if any(self._could_be(other, name) for name in likely)]
        if len(likely) > 1 or len(rivals) > 1:
            way = _names_on_way(node)
            likely = [name for name in likely if self._kept[name].get(WAY) == way]
            rivals = [other for other in rivals if _names_on_way(other) == way]
        return likely[0] if len(likely) == 1 and len(rivals) == 1 else None

    def _could_be(self, node: Node, name: str) -> bool:
        """A user who gives a step with a chosen name another one means another step."""
        fed_by = _origins(self._layout, node, self.found)
        return (
            (is_default(node.name) or is_default(name))
            and node.label == self._kept[name][DOES]
            and self._kept[name].get(FROM, fed_by) == fed_by
        )


def _of_state(step: Description) -> Description:
    return {part: text for part, text in step.items() if part not in NOT_STATE}


def differences(kept: Mapping[str, Description], steps: Mapping[str, Description], before: Mapping[str, str]) -> str:
    """How the steps of a flow differ from those its state was kept for, line by line."""
    lines = [f"  - {name}: {each[DOES]}" for name, each in kept.items() if name not in before.values()]
    for name, each in steps.items():
        if name not in before:
            lines.append(f"  + {name}: {each[DOES]}")
            continue
        then, now = _of_state(kept[before[name]]), _of_state(each)
        for part in dict.fromkeys([*then, *now]):
            if then.get(part) != now.get(part):
                lines += [f"    {name}, {part}", f"  - {then.get(part)}", f"  + {now.get(part)}"]
    return "\n".join(map(escaped, lines))


def _check_added(
    job: str,
    where: str,
    layout: Layout,
    kept: Mapping[str, Description],
    added: Sequence[Node],
    old: Collection[str],
) -> None:
    stages = max((int(each[STAGE]) for each in kept.values()), default=0)
    for node in added:
        stage = next(number for number, stage in enumerate(layout.stages, 1) if layout.chain.index(node) in stage)
        if stage > stages:
            raise JobChanged(
                f"the new step '{node.name}' of the flow '{job}' needs {_shuffles(stage)}, and the job was started "
                f"with {_shuffles(stages) if stages else 'none'}: Spark cannot add one to its checkpoint",
                where=node.place or where,
                next_step="put the step into a flow of its own that reads what this one writes, "
                + ways_on(layout, job, where),
            )
        for given in node.inputs:
            table = next((each for each in _changing_origins(given) if each.name in old), None)
            if table is not None:
                raise JobChanged(
                    f"the new step '{node.name}' of the flow '{job}' would start empty behind '{table.name}', whose "
                    "rows are retracted: it would not know those that came before",
                    where=node.place or where,
                    next_step=f"leave the step out, {ways_on(layout, job, where)}",
                )


def _shuffles(count: int) -> str:
    return f"{count} shuffle{'' if count == 1 else 's'}"


def _changing_origins(node: Node) -> list[Node]:
    """The sources and steps with state that the retractions of a node come from."""
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


def ways_on(layout: Layout, job: str, folder: str) -> str:
    """How the results of a flow can be built without what its job kept in a folder."""
    is_chosen = Path(folder).name != job
    outputs = [output for output in layout.outputs if isinstance(output, Write)]
    try:
        renamed(outputs, f"{job}.replayed")
        how = f"flow.replay(into=…{', folder=…' if is_chosen else ''})"
    except InvalidInput:
        how = "give the flow another name and its outputs other places, and run it"
        how += " with another folder=" if is_chosen else ""
    over = f"remove {folder}" if is_chosen else f"millstream jobs forget {job}"
    return f"or build the results beside the old ones: {how}; or start over: {over}"


def notice_of(job: str, folder: str, layout: Layout, fit: Fit, known_outputs: Collection[str]) -> str:
    """What the owner of a job must know of what was added to it; empty if nothing was."""
    old = {node.name for node in (*layout.sources, *layout.chain)} - {*fit.new_steps, *fit.new_sources}
    outputs = [
        output.name
        for output in layout.outputs
        if output.name not in known_outputs and any(origin.name in old for origin in layout.origins_of(output))
    ]
    parts = [
        ("new steps start empty, with the rows that come from now on", fit.new_steps),
        ("new sources are read from where they are configured to start", fit.new_sources),
        ("new outputs get what is sent from now on", outputs),
    ]
    said = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
    if not fit.new_steps and not outputs:
        return said
    return f"{said}. For the rows before, {ways_on(layout, job, folder).removeprefix('or ')}"
