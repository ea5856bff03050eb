"""Recorders for the Python library `eventsourcing`: its applications keep their events in event stores.

Set PERSISTENCE_MODULE to this module. Versions of that library may begin anywhere and leave gaps, so an event is
identified by its originator and version, which is the id that the store accepts once.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypeVar
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    IntegrityError,
    ListenNotifySubscription,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Subscription,
    Tracking,
    TrackingRecorder,
)
from eventsourcing.utils import resolve_topic

from millstream.errors import ClosedError, EventIdReused, InvalidInput, WrongVersion
from millstream.events.event import Append, Event, Recorded
from millstream.events.opening import event_store
from millstream.events.store import EventStore
from millstream.log import ADDRESS_VARIABLE, DEFAULT_FOLDER

TRACKING = "$tracking/"
NUMBERS = "$notifications"
"""The stream with the last id of a notification, in stores whose positions have gaps."""
ID = "notification"
"""The metadata with the id of an event in such a store."""
LISTEN_SECONDS = 0.2
Kind = TypeVar("Kind")


def _event(stored: StoredEvent, notification_id: int | None) -> Event:
    metadata: dict[str, Any] = {"version": stored.originator_version, "uuid": isinstance(stored.originator_id, UUID)}
    if notification_id is not None:
        metadata[ID] = notification_id
    name = f"{stored.originator_id}/{stored.originator_version}"
    return Event(stored.topic, {"state": base64.b64encode(stored.state).decode()}, metadata, id=name)


def _fields(event: Recorded) -> dict[str, Any]:
    assert event.metadata is not None
    return {
        "originator_id": UUID(event.stream) if event.metadata["uuid"] else event.stream,
        "originator_version": event.metadata["version"],
        "topic": event.type,
        "state": base64.b64decode(event.data["state"]),
    }


class _Numbers:
    """Ids of notifications without gaps, for a store whose positions have some.

    An event carries its id, and an append of events records the last one in a stream of its own, whose expected version
    has other processes wait for their turn.
    """

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self.turn = threading.Lock()  # threads that would only refuse one another

    def last(self) -> tuple[int, int]:
        """The last id, and the version of the stream that has it."""
        version = self._store.version(NUMBERS)
        if version == 0:  # what was recorded before events carried ids has its position
            return max((event.position + 1 for event in self._store.read_all()), default=0), 0
        return max(int(event.data["last"]) for event in self._store.read(NUMBERS, version)), version

    def taken(self, count: int) -> tuple[int, Append]:
        """The first of so many ids, and what must be recorded with their events."""
        last, version = self.last()
        return last + 1, Append(NUMBERS, [Event("Numbered", {"last": last + count})], version)


class _OnStore:
    """What all recorders do; it has no base, because those of the library are in a fixed order."""

    _numbers: _Numbers | None = None

    def __init__(self, store: EventStore) -> None:
        self._store = store

    def _insert(self, stored_events: Sequence[StoredEvent], tracking: Tracking | None = None) -> list[int]:
        """The notification ids of the events."""
        streams: dict[str, list[StoredEvent]] = {}
        for each in stored_events:
            streams.setdefault(str(each.originator_id), []).append(each)
        if not streams and tracking is None:
            return []
        while True:
            try:
                with nullcontext() if self._numbers is None else self._numbers.turn:
                    ids = self._recorded(streams, [] if tracking is None else [self._tracked(tracking)])
            except WrongVersion:  # of the tracking or of the ids: another process was first
                continue
            except EventIdReused as error:
                raise IntegrityError(str(error)) from error
            return [ids[id(each)] for each in stored_events]

    def _recorded(self, streams: Mapping[str, Sequence[StoredEvent]], with_them: list[Append]) -> dict[int, int]:
        """The notification id of each object."""
        ordered = [each for events in streams.values() for each in events]
        numbers: dict[int, int] = {}
        if ordered and self._numbers is not None:
            first, taken = self._numbers.taken(len(ordered))
            numbers = {id(each): first + number for number, each in enumerate(ordered)}
            with_them.append(taken)
        parts = [
            Append(stream, [_event(each, numbers.get(id(each))) for each in events])
            for stream, events in streams.items()
        ]
        done = self._store.append_together(with_them + parts)[len(with_them) :]
        if any(each.is_repeated for each in done):
            raise IntegrityError("the events were recorded before")
        if numbers:
            return numbers
        ids: dict[int, int] = {}
        for appended, events in zip(done, streams.values(), strict=True):
            first = appended.position - len(events) + 1
            ids.update((id(each), first + number + 1) for number, each in enumerate(events))
        return ids

    def _tracked(self, tracking: Tracking) -> Append:
        stream = TRACKING + tracking.application_name
        version = self._store.version(stream)
        newest = self._max_tracking_id(tracking.application_name)
        if newest is not None and tracking.notification_id <= newest:
            raise IntegrityError(f"{tracking.application_name} has already tracked {newest}")
        return Append(stream, [Event("Tracked", {"id": tracking.notification_id})], version)

    def _max_tracking_id(self, application_name: str) -> int | None:
        stream = TRACKING + application_name
        version = self._store.version(stream)
        for event in self._store.read(stream, max(1, version)):
            return int(event.data["id"])
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        found = [StoredEvent(**_fields(event)) for event in self._store.read(str(originator_id))]
        found.sort(key=lambda event: event.originator_version, reverse=desc)
        kept = [
            event
            for event in found
            if (gt is None or event.originator_version > gt) and (lte is None or event.originator_version <= lte)
        ]
        return kept[:limit]


class MillstreamAggregateRecorder(_OnStore, AggregateRecorder):
    """The events of aggregates, or their snapshots."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        self._insert(stored_events)
        return None


class MillstreamApplicationRecorder(_OnStore, ApplicationRecorder):
    """The events of an application; notifications are numbered from 1 in the order of their events."""

    def __init__(self, store: EventStore) -> None:
        super().__init__(store)
        self._numbers = _Numbers(store) if store.has_gaps else None
        self._newest = (0, -1)
        """The id and the position of the newest notification that any thread has read."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        return self._insert(stored_events, kwargs.get("tracking"))

    def _notifications(self, from_id: int) -> Iterator[Notification]:
        position = max(0, from_id - 1)  # no event is before it, whether positions have gaps or not
        newest, newest_position = self._newest
        if newest < from_id:
            position = max(position, newest_position + 1)
        for event in self._store.read_all(position):
            if event.stream.startswith(TRACKING) or event.stream == NUMBERS:
                continue
            number = (event.metadata or {}).get(ID, event.position + 1)
            self._newest = max(self._newest, (number, event.position))
            if number >= from_id:
                yield Notification(id=number, **_fields(event))

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        found: list[Notification] = []
        first = 1 if start is None else start if inclusive_of_start else start + 1
        for notification in self._notifications(first):
            if len(found) == limit or (stop is not None and notification.id > stop):
                break
            if not topics or notification.topic in topics:
                found.append(notification)
        return found

    def max_notification_id(self) -> int | None:
        newest, _ = self._newest
        for notification in self._notifications(newest + 1):
            newest = notification.id
        return newest or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        return MillstreamSubscription(self, gt, topics)


class MillstreamSubscription(ListenNotifySubscription[MillstreamApplicationRecorder]):
    """Notifications as they are recorded, by any process."""

    def __init__(
        self, recorder: MillstreamApplicationRecorder, gt: int | None = None, topics: Sequence[str] = ()
    ) -> None:
        self._stopping = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(recorder._store,), daemon=True)
        super().__init__(recorder, gt, topics)
        self._listener.start()

    def _listen(self, store: EventStore) -> None:
        with suppress(ClosedError), store.subscribe("latest") as news:
            self._has_been_notified.set()  # for what was recorded before it began
            while not self._stopping.is_set():
                if news.poll(LISTEN_SECONDS):
                    self._has_been_notified.set()

    def stop(self) -> None:
        self._stopping.set()
        super().stop()


class MillstreamTrackingRecorder(_OnStore, TrackingRecorder):
    """How far other applications' notifications were processed."""

    def insert_tracking(self, tracking: Tracking) -> None:
        self._insert([], tracking)

    def max_tracking_id(self, application_name: str) -> int | None:
        return self._max_tracking_id(application_name)


class MillstreamProcessRecorder(MillstreamTrackingRecorder, MillstreamApplicationRecorder, ProcessRecorder):
    """Events, recorded together with the notifications that they result from."""


class Factory(InfrastructureFactory[MillstreamTrackingRecorder]):
    """Opens the stores of an application, named after it, at the address in MILLSTREAM_BROKER."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._stores: dict[str, EventStore] = {}

    def _store(self, purpose: str) -> EventStore:
        if purpose not in self._stores:
            address = self.env.get(ADDRESS_VARIABLE) or DEFAULT_FOLDER
            self._stores[purpose] = event_store(address, f"{(self.env.name or 'application').lower()}.{purpose}")
        return self._stores[purpose]

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        return MillstreamAggregateRecorder(self._store(purpose))

    def application_recorder(self) -> ApplicationRecorder:
        return self._class(self.APPLICATION_RECORDER_TOPIC, MillstreamApplicationRecorder)(self._store("events"))

    def tracking_recorder(
        self, tracking_recorder_class: type[MillstreamTrackingRecorder] | None = None
    ) -> MillstreamTrackingRecorder:
        kind = tracking_recorder_class or self._class(self.TRACKING_RECORDER_TOPIC, MillstreamTrackingRecorder)
        return kind(self._store("tracking"))

    def process_recorder(self) -> ProcessRecorder:
        return self._class(self.PROCESS_RECORDER_TOPIC, MillstreamProcessRecorder)(self._store("events"))

    def _class(self, setting: str, usual: type[Kind]) -> type[Kind]:
        """The class of recorders that the environment names, one of ours or derived from it."""
        topic = self.env.get(setting)
        if not topic:
            return usual
        named = resolve_topic(topic)
        if not (isinstance(named, type) and issubclass(named, usual)):
            raise InvalidInput(
                f"{topic} is not a subclass of {usual.__name__}",
                where=f"{setting} in the environment of '{self.env.name}'",
                next_step=f"derive it from {usual.__module__}.{usual.__name__}, or leave the setting out",
            )
        return named

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        super().close()
