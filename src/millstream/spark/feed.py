"""What enters a query: one Python data source feeds all sources of a flow to Spark, packed.

The element-wise steps behind a source run where it is read, so that Spark is given packed rows and converts nothing. An
offset holds the processing time besides the offsets of the sources: a batch that is tried again has the same clock.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.operators.stateful import SENT
from millstream.spark.fabric import Shipment
from millstream.spark.failures import told
from millstream.spark.packing import PACKED, from_bytes, to_batch

FORMAT = "millstream_feed"
FEED = "feed"


class Feed(Protocol):
    """Decides in the driver what a batch reads, and reads it in the workers."""

    def initial(self) -> dict[str, Any]: ...

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """As far as the next batch goes; `start` if there is none."""

    def stop_at_present(self) -> None:
        """From now on nothing counts that comes later."""

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]: ...

    def read(self, task: Any) -> Iterator[pa.RecordBatch]: ...


class FeedSource(DataSource):
    """Spark's view of a feed, which comes as an option."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return PACKED

    def streamReader(self, schema: StructType) -> FeedReader:  # noqa: N802
        return FeedReader(cloudpickle.loads(base64.b64decode(self.options[FEED])))


def as_option(feed: Feed) -> str:
    return base64.b64encode(cloudpickle.dumps(feed)).decode()  # type: ignore[no-untyped-call]


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with told():
            return self._feed.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with told():
            return self._feed.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with told():
            self._feed.stop_at_present()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with told():
            return [InputPartition(task) for task in self._feed.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with told():
            yield from self._feed.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        pass


@dataclass(frozen=True)
class Scene:
    """What a source sends in one step of a script."""

    rows: bytes
    watermark_before: int
    watermark: int
    now: int


@dataclass(frozen=True)
class ScriptFeed:
    """A feed of steps that are known beforehand, for tests: each is a batch."""

    shipment: Shipment
    steps: tuple[dict[str, Scene], ...]

    def initial(self) -> dict[str, Any]:
        return {"step": 0}

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        return {"step": min(start["step"] + 1, len(self.steps))}

    def stop_at_present(self) -> None:
        pass

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[int]:
        return range(start["step"], end["step"])

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        plan = self.shipment.plan
        reached = max(scene.watermark_before for scene in self.steps[task].values())
        for number, source in enumerate(plan.layout.sources):
            scene = self.steps[task][source.name]
            packer = plan.packer(source, task=number, reached=reached)
            packer.add({SENT: from_bytes(scene.rows)}, scene.now)
            yield to_batch(list(packer.pack({"watermark": scene.watermark, "now": scene.now})))
