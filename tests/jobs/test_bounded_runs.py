"""A run that ends with what is there: partitions that have nothing more hold nothing back if `idle` is given."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.log import EmbeddedLog

from .support import CAUGHT_UP, SCHEMA, per_user, put, read, scores

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """Two partitions, of which one has all rows."""
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("scores", schema=SCHEMA, partitions=2)
        put(opened, "scores", [("ann", 1, 0.0), ("ann", 2, 30.0)])
        yield opened


@pytest.mark.more
def test_an_empty_partition_holds_nothing_back_where_idle_is_given(log: EmbeddedLog) -> None:
    flow = ms.Flow("idle")
    per_user(scores(flow, watermark=ms.bounded("5 seconds", idle="1 hour"))).write("totals")
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert [(each["user"], each["total"]) for each in read(log, "totals")] == [("ann", 1)]


def test_without_idle_the_run_says_which_partition_it_waited_for(
    log: EmbeddedLog, caplog: pytest.LogCaptureFixture
) -> None:
    flow = ms.Flow("patient")
    per_user(scores(flow)).write("totals")
    with caplog.at_level(logging.WARNING, "millstream.job"):
        flow.run(broker=log.path, until=CAUGHT_UP)
    assert read(log, "totals") == []
    (message,) = caplog.messages
    assert "in 'read_scores', partition 1 sent no row" in message
    assert "idle=" in message


@pytest.mark.more
def test_neither_in_a_query_of_a_dataframe_that_ends_with_what_is_there(log: EmbeddedLog, tmp_path: Path) -> None:
    flow = ms.Flow("frame")
    totals = per_user(scores(flow, watermark=ms.bounded("5 seconds", idle="1 hour"))).to_dataframe(broker=log.path)
    found: list[Any] = []
    writer = totals.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert [(each["user"], each["total"]) for each in found] == [("ann", 1)]
