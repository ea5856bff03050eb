"""Gives the running query of an app other flows after its current batch, without stopping it.

What is new is checked, claimed and opened while the others run. Then the plan is announced: the batch that is planned
next has it, and the driver writes that batch with it. What cannot be changed in a running query is left to the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from millstream import secrets
from millstream.connectors.catalog import remember
from millstream.jobs.apps.plan_parts import PlanParts
from millstream.jobs.asked.ask_topics import prepare_topics
from millstream.jobs.checked_sources import check_sources
from millstream.jobs.job import POLL_S
from millstream.jobs.job_folder import JobDescription
from millstream.jobs.micro_batches import MicroBatchJob, check_kept, configured, opened_sink, starts_of
from millstream.jobs.repairing import check_ledgers, checkpoint_of, newest_batches
from millstream.jobs.results.inner_queues import prepare_queues
from millstream.jobs.results.result_topics import partitions_of
from millstream.jobs.versions.kept_steps import slots_of
from millstream.jobs.versions.plan_document import write_plan
from millstream.log import EmbeddedLog
from millstream.plan.apps import App
from millstream.plan.nodes import Write
from millstream.plan.run_settings import CAUGHT_UP, Settings
from millstream.spark.query.bounded_frames import as_files
from millstream.spark.query.full_queues import queues_of
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.plan_changes import FOLDER, OF_BATCH, ChangedPlan, announce, next_name
from millstream.spark.query.state_runner import Shipment
from millstream.spark.session.shipping import is_local
from millstream.spark.session.start import session
from millstream.spark.session.user_code import modules


def change(
    job: MicroBatchJob, app: App, settings: Settings, waiting: Sequence[Write], is_over: Callable[[], bool]
) -> bool:
    """Returns whether the job's query now runs with the flows of `app`. An error of a new flow is raised.

    False: its plan cannot be changed while it runs, or it has ended meanwhile. `waiting` has outputs that do not run.
    """
    before, opened, folder = job.parts, job.opened, job.folder
    outputs = tuple(as_files(configured(app, settings), folder.path))
    plan = PhysicalPlan(outputs, before.physical_plan.groups)
    if not _may_change(job, plan, settings):
        return False
    added = [output for output in outputs if output.name not in opened.sinks]
    names = {output.name for output in outputs}
    removed = [output for output in before.outputs if output.name not in names]
    check_ledgers(folder, [output.name for output in added])
    prepare_topics(app.asks.values(), opened.log)
    prepare_queues(outputs, opened.log)
    topics = check_sources(tuple(added), opened.broker, folder) if added else {}
    identities = {source: topic.identity for source, topic in topics.items()}
    partitions = {source: topic.partitions for source, topic in topics.items()}
    check_kept(folder, plan, identities)
    opened.claims.add(added, newest_batches(folder))
    opened.kept = folder.settle(plan, opened.kept.partitions, identities)
    write_plan(folder.path, job.name, plan, opened.kept.partitions, [*waiting, *removed])
    for output in added:
        opened.sinks[output.name] = opened_sink(output, job.name, opened.log, folder, partitions_of(output, partitions))
    opened.claims.record()
    remember(folder.path, outputs, opened.log.path if isinstance(opened.log, EmbeddedLog) else opened.broker)
    parts = _parts(before, plan, settings, job, opened.kept)
    has_changed = _announced(job, parts, slots_of(opened.kept.steps))
    while not has_changed.wait(POLL_S / 5):
        if not job.is_running or is_over():
            return False
    for output in removed:
        opened.sinks.pop(output.name).close()
    opened.claims.leave(removed)
    _forget_others(folder.path / FOLDER, parts.shipment.name)
    return True


def _may_change(job: MicroBatchJob, plan: PhysicalPlan, settings: Settings) -> bool:
    """Whether Spark's query and its workers are the same for both plans."""
    before, kept = job.parts.physical_plan, job.opened.kept
    if not kept.shares_states or settings.batch or settings.until == CAUGHT_UP or not job.is_running:
        return False
    if any(each.dataframe_sources or each.spark_parts for each in (before, plan)):
        return False
    if len(plan.stages) > kept.stages_kept or secrets.delivery() != job.opened.delivered:
        return False
    if not is_local(session().sparkContext.master) and not modules(plan.order).items() <= modules(before.order).items():
        return False
    then, now = _readings(before), _readings(plan)
    changed = {place for name, place in (then.items() ^ now.items())}
    nodes = [*before.fed_sources, *plan.fed_sources]
    return all(node.source.counts_lag for node in nodes if (then | now)[node.name] in changed)


def _readings(plan: PhysicalPlan) -> dict[str, str]:
    """By source, what makes it another reading."""
    return {node.name: repr((plan.reads_as[node], plan.shared_reading[node])) for node in plan.fed_sources}


def _parts(
    before: PlanParts, plan: PhysicalPlan, settings: Settings, job: MicroBatchJob, kept: JobDescription
) -> PlanParts:
    name = next_name(before.shipment)
    shipment: Shipment = replace(before.shipment, name=name, physical_plan=plan, evolved=tuple(kept.evolved))
    starts = starts_of(settings, shipment, job.opened.broker, job.folder.path)
    sinks = {output: job.opened.sinks[output.name] for output in plan.outputs if isinstance(output, Write)}
    feed = replace(before.feed, shipment=shipment, starts=starts, queues=queues_of(plan.outputs, job.name))
    return replace(before, feed=feed, sinks=sinks)


def _announced(job: MicroBatchJob, parts: PlanParts, slots: dict[str, int]) -> threading.Event:
    """Announces a plan. The event is set by its first batch, from which on the driver writes with it."""
    opened, has_changed = job.opened, threading.Event()
    checkpoint = checkpoint_of(job.folder)

    def begin(number: int) -> None:
        end = checkpoint.offsets_of(number)
        if end is None or end.get(OF_BATCH) != parts.shipment.name:
            return
        opened.outputs.on_start = None
        opened.outputs.take(parts.written)
        opened.sampler.change(parts.physical_plan, parts.lag)
        if opened.events is not None:
            opened.events.change(parts.physical_plan)
        opened.questions.state = parts.current
        job.take(parts)
        has_changed.set()
        opened.outputs.write_owed()

    opened.outputs.on_start = begin
    announce(ChangedPlan(parts.feed, slots), session().sparkContext.addFile)
    return has_changed


def _forget_others(folder: Path, name: str) -> None:
    """Removes the files of earlier plans, which no later batch has."""
    for path in folder.iterdir():
        if path.name != name:
            path.unlink(missing_ok=True)
