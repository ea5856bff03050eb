"""Rehearses an upgrade: the old and the new flow both continue a savepoint over the same records, into memory.

Neither touches the job, its outputs or the savepoint. Both read the same ranges in the same batches with the same
clock, so whatever differs between their results comes from the code.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.connectors.memory import Memory
from millstream.connectors.source import Offsets
from millstream.connectors.topic.queue_endpoint import LimitedTopic
from millstream.connectors.topic.queue_source import Limits
from millstream.errors import InvalidInput
from millstream.jobs.job_folder import JobFolder, runs_of
from millstream.jobs.results.result_topics import keys_of
from millstream.jobs.versions.differences import difference
from millstream.jobs.versions.restoring import records_between, restore
from millstream.jobs.versions.savepoints import Savepoint, Savepoints
from millstream.jobs.versions.upgrading import compared, upgraded
from millstream.log.storage.disk import write_document
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.rewiring import rewired
from millstream.plan.walking import in_order
from millstream.spark.query.batch_offsets import HALTED, REDO
from millstream.spark.query.opened_sources import opened
from millstream.spark.query.physical_plan import PhysicalPlan


@dataclass(frozen=True)
class Ranges:
    """What both flows read: up to where results are not compared, and from there to the end."""

    skipped: dict[str, Offsets]
    end: dict[str, Offsets]
    since: datetime
    now_us: int


def rehearsed(
    savepoints: Savepoints, job: str, old: Flow, new: Flow, *, broker: str, last: timedelta, mapping: Mapping[str, str]
) -> dict[str, Any]:
    """Runs both flows, and compares what they send in the last time span."""
    for flow in (old, new):
        _check_without_queues(flow)
    since = datetime.now(UTC) - last
    savepoint = _chosen(savepoints, job, since)
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=savepoints.folder) as place:
        folders = {name: JobFolder(Path(place) / name, old.name) for name in ("old", "new")}
        for folder in folders.values():
            with folder.held():
                restore(savepoints, savepoint.name, folder)
        plan = compared(folders["new"], PhysicalPlan(new.check(), 1), mapping)
        with folders["new"].held():
            upgraded(folders["new"], plan.description)
        ranges = _ranges(PhysicalPlan(old.check(), 1), savepoint, broker, since, Path(place))
        results = {}
        for name, flow in (("old", old), ("new", new)):
            with _removing_runs(folders[name]):
                results[name] = _results(flow, folders[name], savepoint, ranges, broker)
    keys = {output.name: keys_of(output) for flow in (old, new) for output in flow.check()}
    found = [
        difference(output, results["old"].get(output, []), results["new"].get(output, []), keys[output])
        for output in dict.fromkeys([*results["old"], *results["new"]])
    ]
    rows = json.loads(json.dumps([asdict(each) for each in found], default=str))
    return {
        "job": job,
        "savepoint": savepoint.name,
        "since": max(since, datetime.fromtimestamp(savepoint.clock / 1e6, UTC)).isoformat(timespec="seconds"),
        "records": records_between(ranges.skipped, ranges.end),
        "steps": plan.document()["steps"],
        "dropped": plan.dropped,
        "outputs": rows,
    }


def _check_without_queues(flow: Flow) -> None:
    if flow.queues:
        raise InvalidInput(
            f"the flow '{flow.name}' has a queue inside, '{next(iter(flow.queues))}', and a rehearsal writes nothing, "
            "not even into it",
            next_step="play the steps with millstream.testing, or upgrade without a rehearsal after a savepoint",
        )
    for node in in_order(flow.check()):
        if isinstance(node, Read) and isinstance(node.source, LimitedTopic) and node.source.limits.priority is not None:
            raise InvalidInput(
                f"the source '{node.name}' is read by priority, and a rehearsal reads all of what came in one batch",
                where=node.user_line,
                next_step="play the steps with millstream.testing, or upgrade without a rehearsal after a savepoint",
            )


def _beside_the_job(node: Node, sinks: Mapping[str, Memory]) -> Node:
    """Writes into memory, and is no reader for whom the writers of a queue would wait."""
    if isinstance(node, Write):
        return replace(node, sink=sinks[node.name])
    if isinstance(node, Read) and isinstance(node.source, LimitedTopic):
        return replace(node, source=replace(node.source, limits=Limits()))
    return node


def _chosen(savepoints: Savepoints, job: str, since: datetime) -> Savepoint:
    """The newest savepoint before the time span, else the oldest one: what came before it cannot be compared."""
    known = savepoints.list(job)
    if not known:
        raise InvalidInput(
            f"there is no savepoint of the job '{job}' to start from",
            next_step=f"take one, and rehearse when some time has passed: millstream jobs savepoint {job}",
        )
    return next((each for each in known if each.clock / 1e6 <= since.timestamp()), known[-1])


def _ranges(plan: PhysicalPlan, savepoint: Savepoint, broker: str, since: datetime, folder: Path) -> Ranges:
    skipped: dict[str, Offsets] = dict(savepoint.sources)
    end: dict[str, Offsets] = dict(savepoint.sources)
    for node in plan.fed_sources:
        if not node.source.can_replay:
            raise InvalidInput(
                f"the source '{node.name}' cannot be read a second time, so nothing can be rehearsed",
                next_step="write its records to a topic first, and read that",
            )
        source = opened(node, plan, broker, folder / "old", f"rehearsal {time.time_ns()}")
        start, latest, at = savepoint.sources.get(node.name, {}), source.latest(), source.at(since)
        end[node.name] = start | latest
        skipped[node.name] = {
            name: max(start.get(name, 0), min(at.get(name, 0), last)) for name, last in end[node.name].items()
        }
    return Ranges(skipped, end, since, time.time_ns() // 1000)


def _results(
    flow: Flow, folder: JobFolder, savepoint: Savepoint, ranges: Ranges, broker: str
) -> dict[str, list[dict[str, Any]]]:
    """By output, the rows that a flow sends in the compared time span."""
    middle = max(savepoint.clock + 1, int(ranges.since.timestamp() * 1e6))
    last = max(middle + 1, ranges.now_us)
    ends = [
        {"clock": middle, "ended": False, "sources": ranges.skipped, "done": {}},
        {"clock": last, "ended": False, "sources": ranges.end, "done": {}, HALTED: True},
    ]
    batches = [
        {"batch": savepoint.batch + 1, "after": savepoint.clock, "end": ends[0]},
        {"batch": savepoint.batch + 2, "after": middle, "end": ends[1]},
    ]
    write_document(folder.path / REDO, {"batches": batches})
    kept = {output.name: Memory(f"{folder.path} {output.name}") for output in flow.check()}
    flow.outputs[:] = rewired(flow.outputs, lambda node: _beside_the_job(node, kept))

    def skip(batch: int, _: Mapping[str, pa.Table]) -> None:
        if batch <= savepoint.batch + 1:
            for memory in kept.values():
                memory.clear()

    flow.run(broker=broker, folder=folder.path, until="caught up", on_batch=skip, provenance=False)
    return {name: memory.rows() for name, memory in kept.items()}


@contextmanager
def _removing_runs(folder: JobFolder) -> Iterator[None]:
    try:
        yield
    finally:
        kept = folder.description()
        if kept is not None:
            shutil.rmtree(runs_of(kept.identity), ignore_errors=True)
