"""Events that were deleted behind a store's back: the versions of streams are unknown then, and nothing is appended."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from kafka_cluster import KafkaCluster
from millstream.errors import InvalidInput, OffsetLost
from millstream.events.store import EventStore
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.log import KafkaLog
from millstream.log.kafka.topics import as_kafka

from .conftest import Open


def record(store: EventStore, stream: str, count: int) -> None:
    for version in range(count):
        store.append(stream, ms.Event("E", {"text": "x" * 3000}), expected_version=version)


@pytest.mark.parametrize("limit", [{"retention": "1 day"}, {"retention_bytes": 1 << 30}])
def test_a_topic_that_deletes_its_events_is_no_store(open_store: Open, address: str, limit: dict[str, object]) -> None:
    store = open_store()
    record(store, "a", 1)
    with ms.connect(address) as broker:
        broker.change_topic(store.name, **limit)
    with pytest.raises(InvalidInput, match="would delete events") as refused:
        open_store()
    assert f"millstream topics change {store.name} --retention none" in str(refused.value.next_step)
    with ms.connect(address) as broker:
        broker.change_topic(store.name, retention=None, retention_bytes=None)
    assert open_store().version("a") == 1


def test_a_stream_whose_events_were_deleted_does_not_begin_again(tmp_path: Path) -> None:
    """Its index is rebuilt from what is left, where the stream is missing: version 0 would be wrong."""
    folder = tmp_path / "log"
    store = ms.event_store(folder, "s")
    record(store, "a", 3)
    record(store, "b", 10)
    with ms.connect(folder) as log:
        log.change_topic("s", segment_bytes=4096, retention_bytes=4096)
        store.append("b", ms.Event("E"), expected_version=10)
        log.clean("s")
        log.change_topic("s", retention_bytes=None)
        start = log.describe_topic("s").partitions[0].start_offset
    assert start > 3
    assert store.version("a") == 3  # this index has read it
    with pytest.raises(OffsetLost, match="no longer exists"):
        list(store.read("a"))
    with pytest.raises(OffsetLost, match=f"from position 0 to {start - 1}"):
        list(store.read_all())
    assert [event.version for event in store.read_all(start)] == [11]
    assert store._index.path is not None
    index = store._index.path
    store.close()
    index.unlink()
    with ms.event_store(folder, "s") as again:
        for use in (lambda: again.append("a", ms.Event("E"), expected_version=0), lambda: again.version("b")):
            with pytest.raises(OffsetLost, match=f"from position 0 to {start - 1}"):
                use()
        assert [event.version for event in again.read_all(start)] == [11]


@pytest.mark.more
def test_on_kafka_what_others_delete_is_told_from_what_the_store_removes(kafka: KafkaCluster, name: str) -> None:
    address = f"kafka://{kafka.bootstrap}"

    def delete_before(offset: int) -> None:
        with KafkaLog(address) as log:
            place = TopicPartition(name, 0)
            log.clients.answered(lambda: log.clients.admin.delete_records(list(as_kafka({place: offset}))), str(place))

    with ms.event_store(address, name) as store:
        record(store, "a", 4)
        store.keep("a", last=2)
        record(store, "b", 2)
        assert store.scavenge(older_than="1 microsecond") == 2
    with ms.event_store(address, name) as store:
        assert (store.version("a"), store.version("b")) == (4, 2)
        position = next(iter(store.read("b"))).position
    delete_before(position + 1)
    with ms.event_store(address, name) as store, pytest.raises(OffsetLost, match="no longer stored"):
        store.append("c", ms.Event("E"), expected_version=0)
