"""On Kafka one process writes to a store at a time: who takes over, who does not, and what is reported in the end."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

import millstream as ms
from kafka_cluster import KafkaCluster
from millstream.errors import StoreBusy, WrongVersion
from millstream.events import kafka_log
from millstream.events.kafka_log import KafkaEventLog
from millstream.events.store import EventStore
from waiting import until

pytestmark = pytest.mark.more


@pytest.fixture
def opened(kafka: KafkaCluster) -> Iterator[Callable[[], EventStore]]:
    """Handles on one store: each is like another process's."""
    name, stores = f"turns-{uuid.uuid4().hex}", list[EventStore]()

    def open_one() -> EventStore:
        stores.append(ms.event_store(f"kafka://{kafka.bootstrap}", name))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def writer_of(store: EventStore) -> object:
    assert isinstance(store._log, KafkaEventLog)
    return store._log._writer


def test_only_an_append_that_stores_something_takes_over(opened: Callable[[], EventStore]) -> None:
    first, second = opened(), opened()
    event = ms.Event("Happened", id="one")
    first.append("a", event, expected_version=0)
    writer = writer_of(first)
    with pytest.raises(WrongVersion) as refused:
        second.append("a", ms.Event("Happened"), expected_version=0)
    assert refused.value.current_version == 1
    assert second.append("a", event, expected_version=0).is_repeated
    assert writer_of(second) is None
    first.append("a", ms.Event("Happened"), expected_version=1)
    assert writer_of(first) is writer
    second.append("a", ms.Event("Happened"), expected_version=2)
    assert writer_of(second) is not None
    assert first.append("a", ms.Event("Happened"), expected_version=3).version == 4
    assert writer_of(first) is not writer
    # Kafka makes a transaction visible to others shortly after its commit was answered.
    until(lambda: [event.version for event in second.read("a")] == [1, 2, 3, 4], "the other sees all events")


def test_an_append_without_a_turn_is_refused_in_time_and_can_be_repeated(
    opened: Callable[[], EventStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened(), opened()
    first.append("a", ms.Event("Happened"), expected_version=0)
    second.append("a", ms.Event("Happened"), expected_version=1)
    late = ms.Event("Happened")
    with monkeypatch.context() as patch:
        patch.setattr(kafka_log, "WAIT_SECONDS", -1.0)
        with pytest.raises(StoreBusy, match="other processes"):
            first.append("a", late, expected_version=2)
    until(lambda: [event.version for event in second.read("a")] == [1, 2], "the other sees its own")
    assert first.append("a", late, expected_version=2).version == 3
    until(lambda: [event.id for event in second.read("a")][-1] == late.id, "the other sees the late one")
