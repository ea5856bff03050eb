"""Creates the archive for a fast start of Spark: runs a typical workload once while Java records what it loads."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError
from millstream.spark.session import archive
from millstream.spark.session import java as javas
from millstream.spark.session.cache import ensure_folder
from millstream.spark.session.start import created, stop

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def make() -> Path:
    """Creates the archive for the Java that would be used. It is moved into place when complete."""
    java = javas.find()
    file = archive.path(java)
    ensure_folder(file.parent)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        unfinished = Path(folder, file.name)
        spark = created("local[2]", "training", 2, {}, jvm_options=archive.recording(java, unfinished))
        try:
            _usual_work(spark, folder)
        finally:
            stop(patience_seconds=300)
        if not unfinished.exists():
            raise MillstreamError(
                "Java wrote no archive", where=str(unfinished), next_step="none: Spark works without it"
            )
        unfinished.replace(file)
    return file


def _usual_work(spark: SparkSession, folder: str) -> None:
    """A stateful query over packed rows, and a plain one: they load what flows load."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Counting(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.held = handle.getValueState("held", "n long")

        def handleInputRows(self, key, rows, timerValues):  # type: ignore[no-untyped-def]  # noqa: N802, N803
            self.held.update((sum(1 for _ in rows),))
            yield {"key_group": key[0], "blob": b"n"}

        def close(self) -> None:
            pass

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield pa.record_batch({"key_group": pa.array([batch.num_rows % 2], pa.int32()), "blob": pa.array([b"n"])})

    def collected(frame: DataFrame, batch: int) -> None:
        frame.collect()

    schema = "key_group int, blob binary"
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().select("value")
    counted = (
        rows.mapInArrow(packed, schema)
        .groupBy("key_group")
        .transformWithState(Counting(), schema, "append", "ProcessingTime")
    )
    for number, stream in enumerate([counted, rows.where("value % 2 = 0")]):
        checkpoint = str(Path(folder, f"checkpoint-{number}"))
        writer = stream.writeStream.foreachBatch(collected).option("checkpointLocation", checkpoint)
        query = writer.start()
        while not query.recentProgress and query.isActive:
            time.sleep(0.1)
        query.stop()


def main() -> int:
    """Never fails a setup: Spark starts without the archive too, only slower."""
    try:
        print(make())
    except Exception as error:
        print(f"No archive for a faster start: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
