"""Plays the steps of a test on Spark: each is a micro-batch of one query, through the same code as a job."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.errors import MillstreamError
from millstream.local import Flowing, bundle_of, flowing_of
from millstream.operators import elementwise
from millstream.operators.clock import Clock
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import Bundle
from millstream.spark.query.compiler import compiled, started
from millstream.spark.query.failing_rows import FailingRows
from millstream.spark.query.packing import ROWS, from_bytes, to_bytes
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.state_runner import Shipment
from millstream.spark.query_failures import Failed, of_query
from millstream.spark.session.start import session
from millstream.testing.script_feed import Carried, Rows, Scene, ScriptFeed

if TYPE_CHECKING:
    from millstream.testing.through_kafka import Through

VARIABLE = "MILLSTREAM_PLAY_BROKER"


def played(observed: Sequence[Node], steps: Sequence[Mapping[Node, Bundle]]) -> list[dict[Node, Bundle]]:
    """The output of every observed node in each step."""
    outputs = list(dict.fromkeys(observed))
    physical_plan = PhysicalPlan(tuple(outputs), groups=1)
    folder = Path(tempfile.mkdtemp(prefix="millstream-play-"))
    broker = os.environ.get(VARIABLE)
    kafka = _through(broker, folder) if broker else None
    sent: list[list[pl.DataFrame]] = []

    def collect(batch: DataFrame, number: int) -> None:
        frames: list[list[pl.DataFrame]] = [[] for _ in outputs]
        try:
            rows = failing_rows.without_them(batch, number, _collected)
        except MillstreamError as error:
            raise Failed(error, shipment.mark) from error
        for row in rows:
            assert row.kind == ROWS
            frames[row.step - len(physical_plan.chain)].append(from_bytes(bytes(row.blob)))
        empty = [elementwise.frame_of([], node) for node in outputs]
        sent.append([pl.concat([none, *some], how="diagonal") for none, some in zip(empty, frames, strict=True)])

    try:
        spark = session()
        shipment = Shipment(uuid.uuid4().hex, physical_plan, 1, str(folder / "runs"))
        feed = ScriptFeed(shipment, _scenes(steps, kafka))
        failing_rows = FailingRows(shipment, feed, folder / "checkpoint")
        packed = compiled(spark, shipment, feed)
        writer = packed.writeStream.foreachBatch(collect).option("checkpointLocation", str(folder / "checkpoint"))
        _await(started(spark, shipment, writer.trigger(availableNow=True)), shipment)
        if kafka is not None:
            read = [
                kafka.sent(f"out-{place}", node, [found[place] for found in sent]) for place, node in enumerate(outputs)
            ]
            sent = [[portion.frame() for portion in found] for found in zip(*read, strict=True)]
    finally:
        if kafka is not None:
            kafka.close()
        shutil.rmtree(folder, ignore_errors=True)
    still = Clock(0, 0, 0, 0)
    return [
        {node: bundle_of(node, Flowing(rows, still)) for node, rows in zip(outputs, found, strict=True)}
        for found in sent
    ]


def _collected(batch: DataFrame) -> list[Any]:
    """The rows for the outputs, in order of their tasks. Sorting them in Spark would add a shuffle to every batch."""
    return sorted((row for row in batch.collect() if row.step >= 0), key=lambda row: row.task)


def _await(query: StreamingQuery, shipment: Shipment) -> None:
    try:
        query.awaitTermination()
    except PySparkException as error:
        raise of_query(error, shipment.mark, in_spark=shipment.physical_plan.in_spark) from None


def _through(broker: str, folder: Path) -> Through:
    from millstream.testing.through_kafka import Through

    return Through(broker, folder)


def _scenes(steps: Sequence[Mapping[Node, Bundle]], kafka: Through | None) -> tuple[dict[str, Scene], ...]:
    """The output of each source in each step; its rows are inlined, or stored in topics."""
    scenes: list[dict[str, Scene]] = [{} for _ in steps]
    for number, node in enumerate(dict.fromkeys(node for step in steps for node in step)):
        frames = [flowing_of(node, step[node]).rows for step in steps]
        rows: Sequence[Rows] = (
            [Carried(to_bytes(frame)) for frame in frames]
            if kafka is None
            else kafka.sent(f"in-{number}", node, frames)
        )
        for scene, step, part in zip(scenes, steps, rows, strict=True):
            bundle = step[node]
            scene[node.name] = Scene(part, bundle.watermark_before, bundle.watermark, bundle.clock)
    return tuple(scenes)
