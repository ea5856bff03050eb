"""The input of a query: one Python data source that feeds the packed rows of all sources of a flow to Spark.

The element-wise steps after a source run where it is read, so Spark gets packed rows and converts nothing. An offset
holds the processing time besides the offsets of the sources: a repeated batch has the same clock.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.spark.query_failures import marked

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "millstream_feed"
PACKED = "label int, step int, kind int, task long, blob binary"
FEED = "feed"
BETWEEN = "between"
"""The offsets that a batch starts and ends at, as JSON."""


class Feed(Protocol):
    """Decides in the driver what a batch reads, and reads it in the workers."""

    def initial(self) -> dict[str, Any]: ...

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """The end of the next batch; `start` if there is none."""

    def stop_at_latest(self) -> None:
        """Ignores rows that arrive from now on."""

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]: ...

    def read(self, task: Any) -> Iterator[pa.RecordBatch]: ...


class FeedSource(DataSource):
    """A feed as a Spark data source; it is passed as an option."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return PACKED

    def reader(self, schema: StructType) -> BatchReader:
        """The rows between two offsets once more."""
        start, end = json.loads(self.options[BETWEEN])
        return BatchReader(self.streamReader(schema), start, end)

    def streamReader(self, schema: StructType) -> FeedReader:  # noqa: N802
        mark, _, packed = self.options[FEED].rpartition(":")
        return FeedReader(base64.b64decode(packed), f"{mark}:")


def as_option(feed: Feed, mark: str) -> str:
    """A feed and the mark of its run's failures, which can be read even if the feed cannot be unpickled."""
    return mark + base64.b64encode(cloudpickle.dumps(feed)).decode()  # type: ignore[no-untyped-call]


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Unpickles its feed on first use: Spark also creates readers just to send them elsewhere."""

    def __init__(self, packed: bytes, mark: str) -> None:
        self._packed = packed
        self._mark = mark
        self._unpacked: Feed | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_packed": self._packed, "_mark": self._mark, "_unpacked": None}

    @property
    def _feed(self) -> Feed:
        if self._unpacked is None:
            self._unpacked = cloudpickle.loads(self._packed)
        return self._unpacked

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with marked(self._mark):
            return self._feed.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with marked(self._mark):
            return self._feed.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with marked(self._mark):
            self._feed.stop_at_latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with marked(self._mark):
            return [InputPartition(task) for task in self._feed.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with marked(self._mark):
            yield from self._feed.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        pass


class BatchReader(DataSourceReader):
    """Reads a batch of a query once more, outside of the query."""

    def __init__(self, reader: FeedReader, start: dict[str, Any], end: dict[str, Any]) -> None:
        self._reader = reader
        self._start = start
        self._end = end

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions(self._start, self._end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._reader.read(partition)
