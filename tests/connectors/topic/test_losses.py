"""Goal: a job whose records were deleted by retention continues where its user chose, and reports what it skipped."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import millstream as ms
from millstream.connectors.opening import open_source
from millstream.connectors.topic.source import TopicSource
from millstream.errors import InvalidInput, OffsetLost
from millstream.log import EmbeddedLog
from millstream.plan.run_settings import Settings
from millstream.records import Schema
from millstream.spark.query.lost_records import with_on_lost

SCHEMA = Schema.of("n int")


@pytest.fixture
def start(tmp_path: Path) -> int:
    """Where a topic begins of which retention has deleted a part."""
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("t", schema="n int", segment_bytes=4096, retention_bytes=4096)
        with log.producer() as producer:
            for number in range(2000):
                producer.send("t", {"n": number})
                if number % 50 == 49:
                    producer.flush()
        log.clean("t")
        found = log.describe_topic("t").partitions[0].start_offset
    assert found > 10
    return found


def numbers(source: TopicSource, begun: int) -> list[int]:
    end = source.limited({"0": begun}, None)
    slices = [slice for task in source.slices({"0": begun}, end, 2) for slice in task]
    return [n for slice in slices for slab in source.read(slice) for n in slab.rows.column("n").to_pylist()]


def test_it_ends_by_default(tmp_path: Path, start: int) -> None:
    source = TopicSource("t", SCHEMA, broker=str(tmp_path / "log"))
    with pytest.raises(OffsetLost, match=f"offsets 10 to {start - 1} were deleted") as raised:
        source.limited({"0": 10}, None)
    assert "--on-lost earliest" in str(raised.value)
    source.close()


@pytest.mark.parametrize("choice", ["earliest", "latest"])
def test_it_continues_and_reports(tmp_path: Path, start: int, choice: str, caplog: pytest.LogCaptureFixture) -> None:
    source = open_source(
        "t", SCHEMA, broker=str(tmp_path / "log"), folder=tmp_path / "own", name="read_t", on_lost=choice
    )
    assert isinstance(source, TopicSource)
    with caplog.at_level(logging.WARNING):
        found = numbers(source, 10)
    first = start if choice == "earliest" else 2000
    assert found == list(range(first, 2000))
    assert source.lost_records == first - 10
    [warning] = [record.getMessage() for record in caplog.records]  # once, however often it occurs
    assert f"offsets 10 to {start - 1} were deleted" in warning
    assert f"{first - 10} offsets are skipped, resuming at offset {first}" in warning
    assert [source.take_losses(), source.take_losses()] == [[warning], []]
    source.close()


def test_a_flow_and_a_run_choose() -> None:
    flow = ms.Flow("f")
    flow.read("t", "n int", on_lost="earliest").write("out")
    flow.read(ms.kafka("host:9092", topic="k"), "n int", on_lost="latest").write("other")
    outputs = flow.check()
    assert [write.inputs[0].on_lost for write in outputs] == ["earliest", "latest"]
    assert outputs[1].inputs[0].source.on_lost == "latest"
    for_all = with_on_lost(outputs, "error")
    assert [write.inputs[0].on_lost for write in for_all] == ["error", "error"]
    assert for_all[1].inputs[0].source.on_lost == "error"
    with pytest.raises(InvalidInput, match="on_lost='never' is unknown"):
        flow.read("u", "n int", on_lost="never")
    with pytest.raises(InvalidInput, match="on_lost applies to topics only"):
        flow.read(ms.rate(1), "n int", on_lost="latest")
    with pytest.raises(InvalidInput, match="on_lost='never' is unknown"):
        Settings.of({"on_lost": "never"})
