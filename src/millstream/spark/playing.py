"""Plays the steps of a test on Spark: each is a micro-batch of one query, through the same fabric as a job."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from pyspark.sql import DataFrame

from millstream.local import Flowing, bundle_of, flowing_of
from millstream.operators import elementwise
from millstream.operators.windowed import Clock
from millstream.plan.bundles import Bundle
from millstream.plan.nodes import Node
from millstream.spark.compiler import compiled
from millstream.spark.fabric import Shipment
from millstream.spark.layout import Layout
from millstream.spark.packing import ROWS, from_bytes, to_bytes
from millstream.spark.script_feed import Scene, ScriptFeed
from millstream.spark.session import session

PARTITIONS = "spark.sql.shuffle.partitions"


def played(observed: Sequence[Node], steps: Sequence[Mapping[Node, Bundle]]) -> list[dict[Node, Bundle]]:
    """What every observed node sends in each step."""
    outputs = list(dict.fromkeys(observed))
    layout = Layout(tuple(outputs), groups=1, stops=False)
    scenes = tuple({node.name: _scene(node, bundle) for node, bundle in step.items()} for step in steps)
    folder = Path(tempfile.mkdtemp(prefix="millstream-play-"))
    sent: list[list[pl.DataFrame]] = []

    def collect(batch: DataFrame, number: int) -> None:
        frames: list[list[pl.DataFrame]] = [[] for _ in outputs]
        for row in batch.where("step >= 0").sort("task").collect():
            assert row.kind == ROWS
            frames[row.step - len(layout.chain)].append(from_bytes(bytes(row.blob)))
        empty = [elementwise.frame_of([], node) for node in outputs]
        sent.append([pl.concat([none, *some], how="diagonal") for none, some in zip(empty, frames, strict=True)])

    try:
        spark = session()
        before = spark.conf.get(PARTITIONS) or "2"
        spark.conf.set(PARTITIONS, "1")
        shipment = Shipment(uuid.uuid4().hex, layout, 1, str(folder / "runs"))
        packed = compiled(spark, shipment, ScriptFeed(shipment, scenes))
        query = (
            packed.writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        spark.conf.set(PARTITIONS, before)
        query.awaitTermination()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    still = Clock(0, 0, 0, 0)
    return [
        {node: bundle_of(node, Flowing(rows, still)) for node, rows in zip(outputs, found, strict=True)}
        for found in sent
    ]


def _scene(node: Node, bundle: Bundle) -> Scene:
    flowing = flowing_of(node, bundle)
    return Scene(to_bytes(flowing.rows), bundle.watermark_before, bundle.watermark, bundle.clock)
