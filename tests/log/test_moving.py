"""Where the records of a moved partition went, and a topic that takes no more records because it was moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import TopicMoved
from millstream.log import EmbeddedLog
from millstream.log.moving import OffsetMap

ADDRESS = "kafka://127.0.0.1:9092"


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(1, 9)), st.integers(0, 70))
def test_an_offset_is_moved_to_the_number_of_records_before_it(kept: set[int], sizes: list[int], asked: int) -> None:
    """Goal: gaps that compaction and aborted transactions leave are not counted, however records come in frames.

    Oracle: count the records before the offset, one by one.
    """
    offsets = sorted(kept)
    moves = OffsetMap()
    left = list(offsets)
    for size in [*sizes, len(offsets)]:
        if left:
            moves.add(left[:size])
            left = left[size:]
    assert moves.moved(asked) == sum(offset < asked for offset in offsets)
    assert moves.count == len(offsets)


def test_a_moved_topic_is_read_and_not_written(tmp_path: Path) -> None:
    """Goal: writers hear where a topic has gone, those too that had it open; what it holds can still be read."""
    with EmbeddedLog(tmp_path / "log") as log, EmbeddedLog(tmp_path / "log") as other:
        log.create_topic("scores", partitions=2)
        producer = other.producer()
        producer.send("scores", b"before").wait()
        with log.moving("scores", ADDRESS):
            pass
        producer.send("scores", b"after")
        with pytest.raises(TopicMoved, match="moved") as refused:
            producer.close()
        assert ADDRESS in str(refused.value)
        assert [record.value for record in log.consumer("scores").until_caught_up()] == [b"before"]
        assert log.change_topic("scores", retention="7 days").settings.retention is not None
        with pytest.raises(TopicMoved), log.producer() as producer:
            producer.send("scores", b"after").wait()


def test_a_move_that_fails_leaves_the_topic_open(tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("scores")
        with pytest.raises(RuntimeError), log.moving("scores", ADDRESS):
            raise RuntimeError("the network is gone")
        with log.producer() as producer:
            producer.send("scores", b"after").wait()
        assert log.describe_topic("scores").records_max == 1
