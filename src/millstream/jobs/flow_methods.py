"""The methods of a flow that its engine runs: run, start, replay, preview, and explain its physical plan."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from millstream.connectors.weights import weighted, with_weights
from millstream.errors import InvalidInput
from millstream.jobs.job import Job
from millstream.jobs.results.broker_address import address_of
from millstream.jobs.running import run_job, start_job
from millstream.jobs.shown.display import display_of, watch, watched
from millstream.log import connect
from millstream.operators.aggregates.accumulators import WEIGHT
from millstream.plan.flow import Flow
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.run_settings import CAUGHT_UP, TICK_S, RunSettings, Settings
from millstream.plan.shown.explain import Format, shown
from millstream.plan.stream import Stream
from millstream.spark.query.batch_offsets import JobFeed
from millstream.spark.query.compiler import compiled
from millstream.spark.query.data_source import FEED
from millstream.spark.query.packing import from_bytes
from millstream.spark.query.past_rows import LogPlace
from millstream.spark.query.physical_drawing import fused_steps, stages_of
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.state_runner import Shipment
from millstream.spark.session.shipping import check_workers, needs_of, ship_modules
from millstream.spark.session.start import session
from millstream.spark.session.user_code import modules
from millstream.user_lines import users_line, what_exists


def run(flow: Flow, **given: Any) -> Job:
    settings = RunSettings.of(given)
    with watched(flow.name, settings.progress) as display:
        return run_job(flow, settings, display)


def start(flow: Flow, **given: Any) -> Job:
    settings = Settings.of(given)
    display = display_of(flow.name, settings.progress)
    try:
        job = start_job(flow, settings, display)
    except BaseException:
        display.close()
        raise
    if settings.progress not in ("none", False):
        watch(job, display)
    return job


def dataframe(
    stream: Stream, *, broker: str | PathLike[str] | None = None, key_groups: int = 8, **unknown: Any
) -> DataFrame:
    """Rows of a stream as a streaming DataFrame. Its sources keep their state in a folder that is removed at exit.

    Where rows may be retracted it has a column `weight`, without which a retraction would look like a new row.
    """
    for name in unknown:
        raise InvalidInput(
            f"there is no setting '{name}'",
            where=users_line(),
            next_step=what_exists(name, ["broker", "key_groups"], kind="settings"),
        )
    spark = session()
    physical_plan = PhysicalPlan((stream.node,), key_groups)
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    folder = tempfile.mkdtemp(prefix="millstream-dataframe-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with connect(None if broker is None else fspath(broker)) as log:
        address = address_of(log)
    place = LogPlace.of(address, folder)
    shipment = Shipment(uuid.uuid4().hex, physical_plan, partitions, f"{folder}/runs", log=place)
    ship_modules(spark, modules(physical_plan.order))
    needs = needs_of(physical_plan, address, Path(folder))
    check_workers(spark, replace(needs, written=()))  # its state is on the workers and in the query's own checkpoint
    feed = JobFeed(
        shipment,
        folder=folder,
        broker=address,
        tasks_max=spark.sparkContext.defaultParallelism,
        limit_rows=None,
        tick_s=TICK_S,
        starts={},
    )
    names = stream.schema.names
    schema = weighted(stream.schema) if stream.node.is_changing else stream.schema

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column("blob").to_pylist():
                frame = from_bytes(blob)
                rows = frame.select(names).to_arrow()
                if len(schema) > len(names):
                    rows = with_weights(rows, frame[WEIGHT].to_arrow())
                yield from rows.cast(schema.arrow).to_batches()

    packed = compiled(spark, shipment, feed).where(f"step = {len(physical_plan.chain)}")
    return packed.mapInArrow(unpack, str(schema))


def preview(stream: Stream, **given: Any) -> pl.DataFrame:
    from millstream.jobs.previews.previewing import previewed  # a job needs no local runner

    return previewed(stream, **given)


def explained(flow: Flow, format: Format = "text") -> str:
    """The physical plan of a flow: steps that run where rows are read, steps that keep state, and Spark's own plan."""
    physical_plan = PhysicalPlan(flow.check(), 1)
    if format != "text":
        return shown(f"{flow.name}, on Spark", stages_of(physical_plan), format)
    lines = ["on Spark"]
    for source in physical_plan.sources:
        where = "in Spark SQL, then packed" if isinstance(source.source, SparkFrame) else "in the task that reads"
        lines.append(f"    {source.name}: {where}: {', '.join(fused_steps(physical_plan, source)) or 'nothing'}")
    for number, stage in enumerate(physical_plan.stages, 1):
        lines.append(f"    shuffle {number} by key group, then in one stage:")
        for step in (physical_plan.chain[place] for place in stage):
            lines.append(f"        {step.name}, then {', '.join(fused_steps(physical_plan, step)) or 'nothing'}")
    lines.append(f"    outputs, all from one read: {', '.join(output.name for output in physical_plan.outputs)}")
    spark = session()
    shipment = Shipment("explained", physical_plan, 1, "explained")
    feed = JobFeed(shipment, "", None, 1, None, TICK_S, {})
    frame = compiled(spark, shipment, feed)
    plan = re.sub(rf"{FEED}=[-:A-Za-z0-9+/=]+", f"{FEED}=…", frame._jdf.queryExecution().toString())
    written, _, _ = plan.partition("== Optimized Logical Plan ==")  # Spark plans the rest for each batch
    return "\n".join(lines) + "\n\n" + written.rstrip() + "\n"


def replay(flow: Flow, *, into: str | None = None, follow: bool = False, **given: Any) -> Job:
    if into is None:
        raise InvalidInput(
            "a replay writes next to the existing results, and no topic was given",
            where=users_line(),
            next_step="name a topic: flow.replay(into='totals.v2')",
        )
    return run(flow, **{"until": None if follow else CAUGHT_UP, **given}, into=into)
