"""A preview of a plan that only Spark can run: a job in a temporary folder, whose sink is in this process."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from millstream.connectors.discard import discard
from millstream.connectors.memory import Memory, forget, memory
from millstream.connectors.weights import WEIGHT as WEIGHT_COLUMN
from millstream.jobs.previews.results import Limits, Results
from millstream.jobs.running import run_job, start_job
from millstream.jobs.shown.display import Display
from millstream.log.kafka.address import SCHEME
from millstream.operators.aggregates.accumulators import WEIGHT
from millstream.plan.checks import refusal
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.run_settings import Settings
from millstream.plan.walking import in_order


def previewed_on_spark(observed: Sequence[Node], limits: Limits, address: str, folder: Path) -> pl.DataFrame:
    """The results of the first observed node; the others are dead letters, which are dropped."""
    node = observed[0]
    if node.is_table and WEIGHT_COLUMN in node.schema:
        raise refusal("a preview of a table on Spark adds a column weight", "rename the column with select(…)")
    name = f"preview-{uuid.uuid4().hex[:12]}"
    is_streaming = any(
        isinstance(read, Read) and isinstance(read.source, SparkFrame) and read.source.streams
        for read in in_order(observed)
    )
    # Without a log, a job would create one.
    broker = address if address.startswith(SCHEME) or Path(address).expanduser().exists() else str(folder / "log")
    kept = memory(name)
    try:
        if limits.follows:
            # The folder of a batch run, so that this run continues where the first one stopped.
            settings = Settings(broker=broker, folder=folder / "job", provenance=False).checked()
            job = start_job(_flow(f"{name}.batch", observed, kept), settings, Display())
            try:
                job.wait(limits.seconds)
            finally:
                job.stop()
        if is_streaming:  # it has no end that could close its windows
            settings = Settings(broker=broker, folder=folder / "job", provenance=False, until="caught up").checked()
            run_job(_flow(f"{name}.batch", observed, kept), settings, Display())
        else:
            settings = Settings(broker=broker, folder=folder / "job", provenance=False, batch=True).checked()
            run_job(_flow(name, observed, kept), settings, Display())
        return _results(node, kept, limits)
    finally:
        forget(kept)


def _flow(name: str, observed: Sequence[Node], kept: Memory) -> Flow:
    """A flow beside the user's, with sinks of its own: that one is not changed."""
    flow = Flow(name)
    node, *dead = observed
    flow.outputs.append(Write("preview", node.schema, (node,), node.user_line, kept, node.is_table))
    for number, letters in enumerate(dead):
        sink = discard()
        flow.outputs.append(Write(f"preview_dead_{number}", letters.schema, (letters,), letters.user_line, sink))
    return flow


def _results(node: Node, kept: Memory, limits: Limits) -> pl.DataFrame:
    results = Results(node, limits.rows)
    for table in kept.collected.tables:
        rows = pl.from_arrow(table)
        assert isinstance(rows, pl.DataFrame)
        has_weights = node.is_table or (node.is_changing and WEIGHT_COLUMN not in node.schema)
        weights = pl.col(WEIGHT_COLUMN) if has_weights else pl.lit(1)
        results.add(rows.with_columns(weights.cast(pl.Int32).alias(WEIGHT)))
    return results.frame()
