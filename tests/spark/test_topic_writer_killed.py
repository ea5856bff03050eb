"""Spark is killed while plain PySpark writes a topic: every record is there once when it has caught up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.log import EmbeddedLog
from waiting import until

RECORDS = 600
COPY = """
import sys
from millstream.spark import register, session

spark = session()
register(spark, broker=sys.argv[1])
rows = spark.readStream.format("millstream").option("topic", "in").option("maxRecordsPerBatch", "50").load().select("n")
writer = rows.writeStream.format("millstream").option("topic", "out").option("checkpointLocation", sys.argv[2])
writer.trigger(availableNow=True).start().awaitTermination()
"""


def numbers(log: EmbeddedLog) -> list[int]:
    if "out" not in log.topics():
        return []
    with log.consumer("out") as consumer:
        return [record.value["n"] for record in consumer.until_caught_up()]


@pytest.mark.more
@pytest.mark.timeout(1200)
@pytest.mark.own_processes
def test_every_record_is_written_once_though_spark_is_killed(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("in", schema="n int")
    with log.producer() as producer:
        for number in range(RECORDS):
            producer.send("in", {"n": number})
    command = [sys.executable, "-c", COPY, str(log.path), str(tmp_path / "checkpoint")]
    with subprocess.Popen(command, start_new_session=True) as process:
        until(lambda: len(numbers(log)) >= 60, "some batches are written")
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
    assert subprocess.run(command, timeout=600).returncode == 0
    assert sorted(numbers(log)) == list(range(RECORDS))
