"""The recorders pass the test cases that the library `eventsourcing` has for its own, and run an application of it."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import StoredEvent
from eventsourcing.popo import POPOProcessRecorder
from eventsourcing.tests import persistence as cases
from eventsourcing.utils import Environment, get_topic

import millstream as ms
from folders import MEMORY
from kafka_cluster import KafkaCluster
from millstream.errors import InvalidInput
from millstream.events.recorders import (
    Factory,
    MillstreamAggregateRecorder,
    MillstreamApplicationRecorder,
    MillstreamProcessRecorder,
    MillstreamTrackingRecorder,
)


class OnStore(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(dir=MEMORY)
        self.store = ms.event_store(self.folder, "events")

    def tearDown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


class TestAggregateRecorder(OnStore, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> MillstreamAggregateRecorder:
        return MillstreamAggregateRecorder(self.store)


class TestApplicationRecorder(OnStore, cases.ApplicationRecorderTestCase[MillstreamApplicationRecorder]):
    def create_recorder(self) -> MillstreamApplicationRecorder:
        return MillstreamApplicationRecorder(self.store)

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestTrackingRecorder(OnStore, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> MillstreamTrackingRecorder:
        return MillstreamTrackingRecorder(self.store)


class TestProcessRecorder(OnStore, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> MillstreamProcessRecorder:
        return MillstreamProcessRecorder(self.store)


class TestNotificationIds(OnStore, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> MillstreamApplicationRecorder:
        return MillstreamApplicationRecorder(self.store)


class OtherTrackingRecorder(MillstreamTrackingRecorder):
    pass


class TestFactory(cases.InfrastructureFactoryTestCase[Factory]):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(dir=MEMORY)
        self.open(self.folder)

    def open(self, address: str) -> None:
        self.env = Environment(
            f"app{uuid4().hex}", {"PERSISTENCE_MODULE": "millstream.events.recorders", "MILLSTREAM_BROKER": address}
        )
        super().setUp()

    def tearDown(self) -> None:
        super().tearDown()
        shutil.rmtree(self.folder)

    def expected_factory_class(self) -> type[Factory]:
        return Factory

    def expected_aggregate_recorder_class(self) -> type[MillstreamAggregateRecorder]:
        return MillstreamAggregateRecorder

    def expected_application_recorder_class(self) -> type[MillstreamApplicationRecorder]:
        return MillstreamApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[MillstreamTrackingRecorder]:
        return MillstreamTrackingRecorder

    def tracking_recorder_subclass(self) -> type[MillstreamTrackingRecorder]:
        return OtherTrackingRecorder

    def expected_process_recorder_class(self) -> type[MillstreamProcessRecorder]:
        return MillstreamProcessRecorder

    def test_a_class_that_is_no_recorder_of_ours_is_refused(self) -> None:
        for setting, make in (
            (Factory.APPLICATION_RECORDER_TOPIC, self.factory.application_recorder),
            (Factory.TRACKING_RECORDER_TOPIC, self.factory.tracking_recorder),
            (Factory.PROCESS_RECORDER_TOPIC, self.factory.process_recorder),
        ):
            self.env[setting] = get_topic(POPOProcessRecorder)
            with pytest.raises(InvalidInput, match="is not a subclass of Millstream") as refused:
                make()
            assert setting in str(refused.value.where)


class OnKafka(unittest.TestCase):
    """The same there."""

    @pytest.fixture(autouse=True)
    def _broker(self, kafka: KafkaCluster) -> None:
        self.address = f"kafka://{kafka.bootstrap}"

    def setUp(self) -> None:
        self.store = ms.event_store(self.address, f"recorded-{uuid4().hex}")

    def tearDown(self) -> None:
        self.store.close()


@pytest.mark.more
class TestAggregateRecorderOnKafka(OnKafka, TestAggregateRecorder):
    pass


@pytest.mark.more
class TestApplicationRecorderOnKafka(OnKafka, TestApplicationRecorder):
    def test_writers_leave_no_gap(self) -> None:
        """Two processes' stores, two threads each: ids follow the order of the events."""
        with ms.event_store(self.address, self.store.name) as other:
            recorders = [MillstreamApplicationRecorder(store) for store in (self.store, other)]

            def insert(number: int) -> list[int]:
                found: list[int] = []
                for version in range(1, 6):
                    events = [StoredEvent(f"{number}-{each}", version, "said", b"") for each in range(2)]
                    found += recorders[number % 2].insert_events(events) or ()
                return found

            with ThreadPoolExecutor(4) as threads:
                ids = [each for found in threads.map(insert, range(4)) for each in found]
            assert sorted(ids) == list(range(1, 41))
            assert [each.id for each in recorders[0].select_notifications(None, 100)] == sorted(ids)
            assert [each.id for each in recorders[1].select_notifications(17, 2)] == [17, 18]
            assert recorders[1].max_notification_id() == 40


@pytest.mark.more
class TestTrackingRecorderOnKafka(OnKafka, TestTrackingRecorder):
    pass


@pytest.mark.more
class TestProcessRecorderOnKafka(OnKafka, TestProcessRecorder):
    pass


@pytest.mark.more
class TestNotificationIdsOnKafka(OnKafka, TestNotificationIds):
    pass


@pytest.mark.more
class TestFactoryOnKafka(OnKafka, TestFactory):
    def setUp(self) -> None:
        self.open(self.address)

    def tearDown(self) -> None:
        self.factory.close()


class Dog(Aggregate):
    @event("Registered")
    def __init__(self, name: str) -> None:
        self.name = name
        self.tricks: list[str] = []

    @event("TrickAdded")
    def add_trick(self, trick: str) -> None:
        self.tricks.append(trick)


def test_an_application_continues_in_the_next_process(address: str, name: str) -> None:
    environment = {"PERSISTENCE_MODULE": "millstream.events.recorders", "MILLSTREAM_BROKER": address}

    class Dogs(Application[UUID]):
        is_snapshotting_enabled = True

    Dogs.name = f"Dogs-{name}"
    rounds, dog = 2, Dog("Fido")
    for round_ in range(rounds):
        with Dogs(env=environment) as dogs:
            if round_:
                dog = dogs.repository.get(dog.id)
            dog.add_trick(f"trick {round_}")
            dogs.save(dog)
            dogs.take_snapshot(dog.id)
            assert dogs.repository.get(dog.id).tricks == [f"trick {number}" for number in range(round_ + 1)]
    with ms.connect(address) as log:
        assert {f"dogs-{name}.events", f"dogs-{name}.snapshots"} <= set(log.topics())
