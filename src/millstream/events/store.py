"""An event store: streams of events in one topic, appended only if the caller has seen the newest version.

Its topic has one partition: the order of all events is the order in which they were recorded, and an append to several
streams is one write. A store is shared by threads; any number of processes may have it open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TypeVar

import orjson

from millstream import terminal
from millstream.errors import ClosedError, InvalidInput, MillstreamError, OffsetLost, WrongVersion
from millstream.events.aggregate import Aggregate
from millstream.events.contents import Contents
from millstream.events.decisions import Decisions, Part, Request, checked_parts
from millstream.events.event import Append, Appended, Event, Recorded, checked_text, new_id
from millstream.events.group_commit import GroupCommit
from millstream.events.index import Index, Rules
from millstream.events.layout import CLOSED, DELETED, RETENTION, Row
from millstream.events.ports import EventLog
from millstream.events.scavenging import Expired
from millstream.events.subscription import Subscription
from millstream.log.broker import Broker
from millstream.log.buffer import microseconds
from millstream.log.start_positions import Start
from millstream.records import duration

READ_ROWS = 1000
RETRIES = 10
MICROSECOND = timedelta(microseconds=1)
logger = terminal.logger(__name__)
Kind = TypeVar("Kind", bound=Aggregate)
Result = TypeVar("Result")


class EventStore:
    """Made by `millstream.event_store(…)`; use it as a context manager, or call `close`."""

    def __init__(self, broker: Broker, log: EventLog, name: str, contents: Contents, *, owns_broker: bool) -> None:
        self.name = name
        self._broker = broker
        self._owns_broker = owns_broker
        self._log = log
        self._contents = contents
        self._turn = threading.RLock()  # of the index
        self._index = Index(log.index_path, log.identity, keeps_contents=not log.has_random_access)
        self._commits = GroupCommit(self._commit)
        self._subscriptions: list[Subscription] = []
        self._checked: set[type[Aggregate]] = set()  # those whose state can be kept in a snapshot
        self._closed = False

    # ------------------------------------------------------------ appending

    def append(self, stream: str, events: Event | Iterable[Event], *, expected_version: int | None = None) -> Appended:
        """Records events in a stream, all or none.

        `expected_version` is the version that the stream must have, 0 for a new one; if another writer was first, it
        raises WrongVersion with the current one. Events that were recorded before, by their ids, are not recorded
        again.
        """
        return self._recorded([self._part(stream, events, expected_version)])[0]

    def append_together(self, appends: Iterable[Append]) -> list[Appended]:
        """Records events in several streams, all or none."""
        return self._recorded([self._part_of(each) for each in appends])

    def append_each(self, appends: Iterable[Append]) -> list[Appended | MillstreamError]:
        """Records many appends, independent of each other, with few writes; a refused one returns its error."""
        requests = [Request(checked_parts((self._part_of(each),))) for each in appends]
        self._check_open()
        if requests:
            self._commits.submit(requests)
        outcomes: list[Appended | MillstreamError] = []
        for request in requests:
            if request.error is None:
                outcomes.extend(request.outcome)
            elif isinstance(request.error, MillstreamError):
                outcomes.append(request.error)
            else:
                raise request.error
        return outcomes

    def close_stream(self, stream: str, *, expected_version: int | None = None) -> None:
        """Ends a stream: its events stay, and no more can be appended."""
        checked_text(stream, "name of a stream")
        self._record_own(Row(stream, None, CLOSED, 1, new_id(), "{}", None, 0), expected_version)

    def keep(self, stream: str, *, last: int | None = None, age: str | timedelta | None = None) -> None:
        """Limits what `read` returns of a stream: its last events, or those up to an age; both None for all.

        `scavenge` removes the others.
        """
        if last is not None and (not isinstance(last, int) or isinstance(last, bool) or last < 1):
            raise InvalidInput(f"a stream can keep 1 event or more, not {last!r}")
        age_us = None if age is None else duration(age, what="age") // MICROSECOND
        checked_text(stream, "name of a stream")
        self._record_own(_retention(stream, last, age_us, 0), None)

    def scavenge(self, *, older_than: str | timedelta = "1 day") -> int:
        """Removes events that their streams no longer keep from the topic, for good; returns how many.

        Only events that were recorded longer ago than `older_than`: after that, an append of the same event is not
        recognized as repeated. The newest event of a stream always stays. On Kafka only those before the first event
        that is kept by any stream can be removed.
        """
        age = duration(older_than, what="older_than")
        self._check_open()
        with self._turn:
            self._catch_up()
            self._index.flush()
            now_us = time.time_ns() // 1000
            expired = Expired(self._index.limited(), now_us, now_us - age // MICROSECOND)
        removed = self._log.remove(expired, self._restate)
        with self._turn:
            self._index.forget(removed)
        return removed.count

    def _restate(self, streams: Sequence[str], deleted_before: int) -> None:
        """Records the rules of streams again, as they are when it is written."""
        rows: list[Row] = []

        def decide() -> list[Sequence[Row]]:
            self._catch_up()
            at_us = max(time.time_ns() // 1000, self._index.newest_us)
            rules = {stream: self._index.rules(stream) for stream in streams}
            rows[:] = [
                _retention(stream, rule.keep_last, rule.keep_us, at_us, **{DELETED: deleted_before})
                for stream, rule in rules.items()
            ]
            return [rows] if rows else []

        with self._turn:
            stored = self._log.write(decide)
            self._index.apply(stored.positions, rows, stored.next_position)

    def _record_own(self, row: Row, expected_version: int | None) -> None:
        self._recorded([Part(row.stream, (row,), expected_version, is_own=True)])

    def _part_of(self, append: Append) -> Part:
        if not isinstance(append, Append):
            raise InvalidInput(
                f"{append!r:.100} is not an append",
                next_step='name the stream and its events: millstream.Append("cart-1", [millstream.Event(…)], 0)',
            )
        return self._part(append.stream, append.events, append.expected_version)

    def _part(self, stream: str, events: Event | Iterable[Event], expected: int | None) -> Part:
        checked_text(stream, "name of a stream")
        if expected is not None and (not isinstance(expected, int) or isinstance(expected, bool) or expected < 0):
            raise InvalidInput(
                f"{expected!r} is not a version of a stream",
                where=f"stream '{stream}'",
                next_step="give the number of its events so far, 0 for a new stream, or None for any",
            )
        listed = (events,) if isinstance(events, Event) else events
        if not isinstance(listed, Iterable):
            raise InvalidInput(
                f"{events!r:.100} is not an event",
                where=f"stream '{stream}'",
                next_step='append events: millstream.Event("ItemAdded", {"item": "tea"})',
            )
        return Part(stream, tuple([self._contents.row(stream, each) for each in listed]), expected)

    def _recorded(self, parts: Sequence[Part]) -> list[Appended]:
        self._check_open()
        request = Request(checked_parts(parts))
        self._commits.submit([request])
        if request.error is not None:
            raise request.error
        return request.outcome

    def _commit(self, requests: Sequence[Request]) -> None:
        """Called by one thread at a time, with the appends of all that wait."""
        accepted: list[Request] = []

        def decide() -> list[Sequence[Row]]:
            self._catch_up()
            accepted[:] = Decisions(self._index, self._rows, time.time_ns() // 1000).decide(requests)
            return [request.rows for request in accepted]

        with self._turn:
            stored = self._log.write(decide)
            if not accepted:
                return
            rows = [row for request in accepted for row in request.rows]
            self._index.apply(stored.positions, rows, stored.next_position)
            end = 0
            for request in accepted:
                for part in request.parts:
                    end += len(part.rows)
                    part.outcome = Appended(part.stream, part.version, stored.positions[end - 1])
            self._index.tidy()

    def _catch_up(self) -> None:
        self._index.check_file()
        for span in self._log.news(self._index.position):
            self._index.apply(span.positions, span.rows, span.next_position)
            self._index.tidy()

    def _rows(self, positions: Sequence[int]) -> list[Row | None]:
        return self._log.rows(positions) if self._log.has_random_access else self._index.contents(positions)

    # ------------------------------------------------------------ reading

    def version(self, stream: str) -> int:
        """The current version of a stream: the number of its events, 0 if there is no such stream."""
        with self._current(stream) as (version, _):
            return version

    @property
    def has_gaps(self) -> bool:
        """Whether there are positions without an event, as on Kafka, where each append takes one more."""
        return self._log.has_gaps

    def is_closed(self, stream: str) -> bool:
        """Whether a stream was closed."""
        with self._current(stream) as (_, rules):
            return rules.is_closed

    def read(
        self,
        stream: str,
        from_version: int = 1,
        to_version: int | None = None,
        *,
        until: datetime | None = None,
    ) -> Iterator[Recorded]:
        """The events of a stream, from a version on, up to a version or up to those recorded at a time."""
        for version in (from_version, to_version):
            if version is not None and not isinstance(version, int):
                raise InvalidInput(
                    f"{version!r:.100} is not a version of a stream",
                    where=f"stream '{stream}'",
                    next_step="versions are numbers, the first is 1",
                )
        newest_us = None if until is None else microseconds(until)
        first, last, oldest_us = self._bounds(stream, from_version, to_version)
        for start in range(first, last + 1, READ_ROWS):
            for position, row in self._stored(stream, start, min(last, start + READ_ROWS - 1)):
                if newest_us is not None and row.at_us > newest_us:
                    return
                if row.at_us >= oldest_us:
                    yield self._contents.recorded(position, row)

    def _bounds(self, stream: str, from_version: int, to_version: int | None) -> tuple[int, int, int]:
        with self._current(stream) as (version, rules):
            kept = 1 if rules.keep_last is None else version - rules.keep_last + 1
            oldest_us = 0 if rules.keep_us is None else time.time_ns() // 1000 - rules.keep_us
            last = version if to_version is None else min(to_version, version)
            return max(1, from_version, kept), last, oldest_us

    def _stored(self, stream: str, first: int, last: int) -> list[tuple[int, Row]]:
        """The rows of some versions of a stream, each with its position, without those that were removed."""
        with self._turn:
            positions = self._index.positions(stream, first, last)
            rows = self._rows(positions)
            missing = [position for position, row in zip(positions, rows, strict=True) if row is None]
            if missing:
                self._catch_up()  # the stream may have got its limit since
                if not self._index.rules(stream).was_limited:
                    raise OffsetLost(
                        f"the event at position {missing[0]} is no longer stored",
                        where=f"stream '{stream}', topic '{self.name}'",
                        next_step="the retention or the compaction of the topic has deleted it: change its settings",
                    )
        return [(position, row) for position, row in zip(positions, rows, strict=True) if row is not None]

    def read_all(self, from_position: int = 0) -> Iterator[Recorded]:
        """All events of the store in the order in which they were recorded, up to the current end."""
        self._check_open()
        if not isinstance(from_position, int) or from_position < 0:
            raise InvalidInput(
                f"{from_position!r:.100} is not a position in the store",
                next_step="give that of an event or an append, or 0 for the beginning",
            )
        for span in self._log.spans(from_position):
            for position, row in zip(span.positions, span.rows, strict=True):
                if row.version is not None:
                    yield self._contents.recorded(position, row)

    def subscribe(self, start: Start = "earliest", *, group: str | None = None) -> Subscription:
        """All events from a point on, then new ones as they are recorded.

        `start` is 'earliest', 'latest', a position or a time, which on Kafka counts to the millisecond. Subscriptions
        with the same `group` continue where the last one has stopped.
        """
        self._check_open()
        given = {} if group is None else {"group": group}
        if isinstance(start, datetime) and self._log.has_milliseconds:
            start = start.replace(microsecond=start.microsecond // 1000 * 1000)
        consumer = self._broker.consumer(self.name, start=start, on_lost=self._log.on_lost, **given)
        made = Subscription(consumer, self._contents)
        self._subscriptions.append(made)
        return made

    @contextmanager
    def _current(self, stream: str) -> Iterator[tuple[int, Rules]]:
        """The version and the rules of a stream, up to date, while nobody else changes the index."""
        self._check_open()
        checked_text(stream, "name of a stream")
        with self._turn:
            self._catch_up()
            yield self._index.version(stream), self._index.rules(stream)
            self._index.tidy()

    # ------------------------------------------------------------ aggregates

    def load(self, kind: type[Kind], stream: str, *, version: int | None = None, at: datetime | None = None) -> Kind:
        """An aggregate rebuilt from its events: now, as of a version, or as of a time."""
        with self._current(stream) as (current, _):
            wanted = current if version is None else min(version, current)
            # Which version a time had is known only from the events.
            snapshot = None if at is not None else self._index.snapshot(kind.snapshot_kind(), stream, wanted)
        made = kind.begun(stream, snapshot)
        for event in self.read(stream, made.version + 1, wanted, until=at):
            made.apply(event)
        return made

    def save(self, aggregate: Aggregate) -> Appended | None:
        """Records what the commands of an aggregate decided; WrongVersion if another writer was first."""
        pending = aggregate.pending
        if not pending:
            return None
        # Before anything is recorded, because it may be refused: the caller would take the events for not recorded.
        state = self._state_due(aggregate)
        appended = self.append(aggregate.stream, pending, expected_version=aggregate.version - len(pending))
        aggregate.saved()
        if state is not None and appended.version == aggregate.version:  # not if they were recorded long before
            try:
                self._keep_snapshot(aggregate, state)
            except MillstreamError as error:
                logger.warning("no snapshot of stream '%s' was kept; its events were: %s", aggregate.stream, error)
        return appended

    def _state_due(self, aggregate: Aggregate) -> bytes | None:
        """What a snapshot will keep, if one is due after the pending events. Checked for each class at once."""
        every, kind = aggregate.snapshot_every, type(aggregate)
        if every is None or aggregate.has_personal_data:
            return None
        is_due = (aggregate.version - len(aggregate.pending)) // every != aggregate.version // every
        if not is_due and kind in self._checked:
            return None
        state = aggregate.snapshot_state()
        self._checked.add(kind)
        return state if is_due else None

    def snapshot(self, aggregate: Aggregate) -> None:
        """Keeps the state of a saved aggregate, so that loading it reads only later events."""
        if aggregate.pending:
            raise InvalidInput(
                "an aggregate with events that are not saved has no snapshot",
                where=f"stream '{aggregate.stream}'",
                next_step="save it first",
            )
        self._keep_snapshot(aggregate, aggregate.snapshot_state())

    def _keep_snapshot(self, aggregate: Aggregate, state: bytes) -> None:
        with self._turn:
            kind, now_us = aggregate.snapshot_kind(), time.time_ns() // 1000
            self._index.save_snapshot(kind, aggregate.stream, aggregate.version, now_us, state)

    def execute(
        self, kind: type[Kind], stream: str, command: Callable[[Kind], Result], *, retries: int = RETRIES
    ) -> Result:
        """Loads an aggregate, runs a command on it and saves it; decides again if another writer was first."""
        for attempt in range(retries + 1):
            aggregate = self.load(kind, stream)
            result = command(aggregate)
            try:
                self.save(aggregate)
                return result
            except WrongVersion:
                if attempt == retries:
                    raise
        raise AssertionError("the last attempt returns or raises")

    # ------------------------------------------------------------ personal data

    def forget(self, subject: str) -> bool:
        """Deletes the keys of a subject: its personal data, recorded anywhere, can never be read again."""
        return self._contents.forget(subject)

    # ------------------------------------------------------------ closing

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the event store was closed", next_step="open it again with millstream.event_store(…)")

    def close(self) -> None:
        """Also closes its subscriptions, and the broker if the store has opened it."""
        if self._closed:
            return
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()
        with self._turn:
            try:
                self._index.flush()
            finally:
                self._index.close()
                self._contents.close()
                self._log.close()
                if self._owns_broker:
                    self._broker.close()

    def __enter__(self) -> EventStore:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _retention(stream: str, last: int | None, age_us: int | None, at_us: int, **more: int) -> Row:
    data = orjson.dumps({"last": last, "age_us": age_us, **more}).decode()
    return Row(stream, None, RETENTION, 1, new_id(), data, None, at_us)
