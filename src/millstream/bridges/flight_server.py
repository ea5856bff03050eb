"""A log for other machines, over Arrow Flight: frames are appended and returned as columns, and never parsed.

Producers and consumers on the other side keep their own positions; only memberships in groups are kept here, and end
when a consumer has not polled for too long.
"""

from __future__ import annotations

import hmac
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from millstream import terminal
from millstream.bridges.reports import Served
from millstream.errors import (
    BufferFull,
    InvalidInput,
    InvalidRecord,
    MillstreamError,
    NotFound,
    SourceUnavailable,
    UnknownTopic,
)
from millstream.log.agreement.groups import TopicPartition
from millstream.log.agreement.wakeup import Wakeup
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.embedded import EmbeddedLog
from millstream.log.embedded.group_member import EmbeddedMember
from millstream.log.embedded.times import offsets_at, time_reached
from millstream.log.flight.protocol import (
    WAIT_SECONDS_MAX,
    decoded,
    encoded,
    error_text,
    offsets_in,
    offsets_out,
    places_in,
    places_out,
)
from millstream.log.ports import Release
from millstream.log.storage.frame import Draft, parts, timed_draft
from millstream.log.storage.reader import PartitionReader, offset_at_time
from millstream.log.storage.validity import Malformed, check_texts

BATCH_BYTES_MAX = 64 << 20
READ_BYTES_MAX = 64 << 20
SWEEP_SECONDS = 1.0
END_SECONDS = 10.0
"""How long the calls that run may take when the server ends."""
MEMBERS_MAX = 1000
"""Consumers of groups that may be open at once."""
CALLS_MAX = 2000
"""Calls in progress at once: those of a consumer that waits for records, and of a producer that stores some."""
logger = terminal.logger(__name__)
Question = Callable[..., Any]


class MustRelease(Exception):
    """A member has to commit and release partitions before it is asked again."""

    def __init__(self, places: set[TopicPartition]) -> None:
        super().__init__(places)
        self.places = places


@dataclass
class _Member:
    port: EmbeddedMember
    poll_seconds_max: float
    used_at: float
    turn: threading.Lock = field(default_factory=threading.Lock)


class Answers:
    """The questions of clients, by name."""

    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log
        self._members: dict[str, _Member] = {}
        self._lock = threading.Lock()
        self._questions: dict[str, Question] = {
            "topics": log.topics,
            "topic": self._topic,
            "create_topic": self._create_topic,
            "delete_topic": lambda name: log.delete_topic(name),
            "describe_topic": self._describe_topic,
            "offset": self._offset,
            "corresponding": self._corresponding,
            "switches": lambda: {name: switch.to_document() for name, switch in log.switches.fresh().items()},
            "groups": log.groups,
            "committed": lambda group: offsets_out(log.committed_offsets(group)),
            "begin_group": self._begin_group,
            "join": self._join,
            "member.subscribe": self._subscribe,
            "member.refresh": self._refresh,
            "member.commit": self._commit,
            "member.commit_owned": self._commit_owned,
            "member.leave": self._leave,
        }

    def answer(self, question: str, given: dict[str, Any]) -> Any:
        asked = self._questions.get(question)
        if asked is None:
            raise InvalidInput(
                f"the server does not know {question[:50]!r}", next_step="use the same version on both sides"
            )
        return asked(**given)

    # ------------------------------------------------------------ topics

    def _topic(self, name: str) -> Any:
        topic = self._log.topic(name)
        return {"identity": topic.identity, "settings": _document(topic.settings.to_document())}

    def _create_topic(self, name: str, settings: dict[str, Any]) -> None:
        self._log.create_topic(name, **settings)

    def _describe_topic(self, name: str) -> Any:
        info = self._log.describe_topic(name)
        fields = PARTITION_FIELDS
        parts = [{each: getattr(part, each) for each in fields} for part in info.partitions]
        return {"partitions": parts, "switched_to": info.switched_to, "serves": info.serves}

    def _offset(self, topic: str, partition: int, at: str | int) -> int:
        found = self._log.topic(topic).partition(partition)
        if isinstance(at, int):
            return offset_at_time(found, at)
        if at == "stable":
            self._log.end_abandoned(found)
        read = {"earliest": found.start_offset, "latest": found.end_offset, "stable": found.stable_offset}
        return read[at]()

    def _corresponding(self, positions: list[Any], topic: str) -> Any:
        reached = [(self._log.find_partition(*place), offset) for place, offset in offsets_in(positions).items()]
        return list(offsets_at(self._log.topic(topic).partitions(), time_reached(reached)).items())

    # ------------------------------------------------------------ groups

    def _settings(self, group: str, poll_seconds_max: float, *, committed: bool = True) -> ConsumerSettings:
        isolation = "read_committed" if committed else "read_uncommitted"
        return ConsumerSettings(group, "at_least_once", "earliest", isolation, "error", None, poll_seconds_max)

    def _begin_group(self, group: str, places: list[Any], committed: bool) -> None:
        EmbeddedMember(self._log, group, self._settings(group, 60.0, committed=committed)).begin_group(
            places_in(places)
        )

    def _join(self, group: str, topics: list[str], poll_seconds_max: float) -> Any:
        self.close_silent()
        with self._lock:
            if len(self._members) >= MEMBERS_MAX:
                raise BufferFull(f"{MEMBERS_MAX} consumers are open", next_step="close those that are not used")
        port = EmbeddedMember(self._log, group, self._settings(group, poll_seconds_max))
        port.join(topics)
        session = secrets.token_hex(16)
        with self._lock:
            self._members[session] = _Member(port, poll_seconds_max, time.monotonic())
        return {"session": session, "member": port.member}

    @contextmanager
    def _using(self, session: str) -> Iterator[EmbeddedMember]:
        with self._lock:
            member = self._members.get(session)
        if member is None:
            raise NotFound(
                "the server does not know this consumer: it did not poll for too long, or the server was restarted",
                next_step="make a new consumer: it continues where the group has committed",
            )
        with member.turn:
            member.used_at = time.monotonic()
            yield member.port

    def _subscribe(self, session: str, topics: list[str], released: list[Any]) -> Any:
        with self._using(session) as member:
            try:
                member.subscribe(topics, _checking(released))
            except MustRelease as asked:
                return {"release": places_out(asked.places)}
        return {}

    def _refresh(self, session: str, is_due: bool, released: list[Any]) -> Any:
        with self._using(session) as member:
            try:
                owned = member.refresh(_checking(released), is_due=is_due or bool(released))
            except MustRelease as asked:
                member.refresh_fully()
                return {"release": places_out(asked.places)}
        return {"owned": None if owned is None else places_out(owned)}

    def _commit(self, session: str, offsets: list[Any]) -> None:
        with self._using(session) as member:
            member.commit(offsets_in(offsets))

    def _commit_owned(self, session: str, offsets: list[Any]) -> Any:
        with self._using(session) as member:
            return places_out(member.commit_owned(offsets_in(offsets)).lost)

    def _leave(self, session: str) -> None:
        with self._using(session) as member:
            with self._lock:
                self._members.pop(session, None)
            member.leave()

    def close_silent(self) -> None:
        """Ends memberships of consumers that are gone."""
        now = time.monotonic()
        self._close(lambda member: now - member.used_at > 2 * member.poll_seconds_max)

    def close(self) -> None:
        self._close(lambda member: True)

    def _close(self, chosen: Callable[[_Member], bool]) -> None:
        with self._lock:
            gone = [session for session, member in self._members.items() if chosen(member)]
            members = [self._members.pop(session) for session in gone]
        for member in members:
            with member.turn:
                member.port.leave()


PARTITION_FIELDS = (
    "number",
    "start_offset",
    "end_offset",
    "stable_offset",
    "size_bytes",
    "segments",
    "open_transactions",
)


def _document(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _checking(released: list[Any]) -> Release:
    known = set(places_in(released))

    def release(places: set[TopicPartition]) -> None:
        if places - known:
            raise MustRelease(places)

    return release


# ---------------------------------------------------------------- the server


class Tokens(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Rejects every call without the token."""

    def __init__(self, token: str | None) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        if self._token is None:
            return
        given = headers.get("authorization", [""])[0]
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise flight.FlightUnauthenticatedError("a valid token is required")


class Calls(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls beyond so many at a time: each has a thread of the server until it ends."""

    def __init__(self, calls_max: int) -> None:
        super().__init__()
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self._running = 0

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Call:
        with self._lock:
            if self._running >= self._calls_max:
                busy = SourceUnavailable(
                    f"the log server has {self._calls_max:,} calls in progress and accepts no more",
                    next_step="try again, or close consumers and producers that are not used",
                )
                raise flight.FlightUnavailableError(error_text(busy))
            self._running += 1
        return Call(self)

    def completed(self) -> None:
        with self._lock:
            self._running -= 1


class Call(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def call_completed(self, exception: BaseException | None) -> None:
        self._calls.completed()


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(
        self,
        log: EmbeddedLog,
        location: str,
        *,
        token: str | None = None,
        tls: tuple[bytes, bytes] | None = None,
        calls_max: int = CALLS_MAX,
    ) -> None:
        certificates = [] if tls is None else [tls]
        checks = {"tokens": Tokens(token), "calls": Calls(calls_max)}  # in this order: unknown clients take no place
        super().__init__(location, tls_certificates=certificates, middleware=checks)
        self._log = log
        self.answers = Answers(log)
        self.served = Served("flight")
        self.has_abandoned_calls = False
        """Arrow waits for them once more at the end of the process, and forever."""
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()  # unlike an event, it holds no lock in a signal

    def stop(self) -> None:
        """Ends `wait_until_stopped`; can be called by a signal."""
        self._stops.put(None)

    def wait_until_stopped(self) -> None:
        """Ends memberships of consumers that are gone meanwhile."""
        while True:
            try:
                return self._stops.get(timeout=SWEEP_SECONDS)
            except queue.Empty:
                self.answers.close_silent()

    def close(self) -> None:
        """Accepts no more calls, and lets those that run end: what is being appended is stored and answered.

        A client that has begun a call and does not go on is waited for only so long.
        """
        ending = threading.Thread(target=self.shutdown, name="millstream-flight-end", daemon=True)
        ending.start()
        ending.join(END_SECONDS)
        self.has_abandoned_calls = ending.is_alive()
        if self.has_abandoned_calls:
            logger.warning("a client has begun to send records and has not ended: its call is abandoned")
        self.answers.close()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def do_action(self, context: Any, action: Any) -> Any:
        with _reported():
            answer = self.answers.answer(action.type, decoded(action.body))
            return [flight.Result(encoded(answer))]

    def do_get(self, context: Any, ticket: Any) -> Any:
        with _reported():
            given = decoded(ticket.ticket)
            return self._read(
                offsets_in(given["positions"]),
                min(float(given["seconds"]), WAIT_SECONDS_MAX),
                min(int(given["bytes"]), READ_BYTES_MAX),
                committed=bool(given["committed"]),
            )

    def _read(self, positions: dict[TopicPartition, int], seconds: float, bytes_max: int, *, committed: bool) -> Any:
        if not positions:
            raise InvalidInput("a request must name partitions")
        readers = {
            place: PartitionReader(self._log.find_partition(*place), offset, committed=committed)
            for place, offset in positions.items()
        }
        wakeup = Wakeup() if seconds > 0 else None
        if wakeup is not None:
            wakeup.watch(reader.partition.marks.path for reader in readers.values())
        deadline = time.monotonic() + seconds
        try:
            while True:
                for place, reader in readers.items():
                    if fetched := reader.read(bytes_max):
                        return _stream(place, fetched, readers)
                left = deadline - time.monotonic()
                if wakeup is None or left <= 0:
                    place = next(iter(readers))
                    return _stream(place, [], readers)
                for reader in readers.values():
                    self._log.end_abandoned(reader.partition)
                wakeup.wait(left)
        finally:
            if wakeup is not None:
                wakeup.close()

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with _reported():
            given = decoded(descriptor.command)
            topic = self._log.topic(given["topic"])
            if topic.identity != given["identity"]:
                raise UnknownTopic(f"topic '{topic.name}' was deleted and created again", next_step="open it again")
            if not reader.schema.equals(topic.stored_schema):
                raise InvalidRecord("the columns are not those of the topic", where=f"topic '{topic.name}'")
            drafts: list[Draft] = []
            for chunk in reader:
                drafts.append(_drafted(chunk.data, int(given["producer"]), int(given["sequence"]) + len(drafts)))
            partition = topic.partition(int(given["partition"]))
            since, records = given["tried_since"], sum(draft.rows for draft in drafts)
            with self.served.passage.counted(records):
                offsets = partition.append(drafts, sync=bool(given["sync"]), tried_since=since)
            self.served.counts.add(stored=records)
            writer.write(encoded(offsets))


def _drafted(records: pa.RecordBatch, producer: int, sequence: int) -> Draft:
    if records.nbytes > BATCH_BYTES_MAX:
        raise InvalidRecord(f"a frame is larger than {BATCH_BYTES_MAX:,} bytes", next_step="send smaller batches")
    try:
        records.validate()
        check_texts(records)
    except (Malformed, pa.ArrowInvalid) as fault:  # readers would report it as damage
        raise InvalidRecord(f"the records are malformed: {fault}") from fault
    if not records.num_rows or len(list(parts(records))) != 1:
        raise InvalidRecord("a frame has no records, or too many", next_step="use the client of the same version")
    return timed_draft(records, producer_id=producer, epoch=0, sequence=sequence & 0x7FFFFFFF, flags=0)


def _stream(place: TopicPartition, fetched: list[Any], readers: dict[TopicPartition, PartitionReader]) -> Any:
    """The records of one partition, and then the new positions of all that were read."""
    schema = readers[place].partition.schema
    made = []
    for fetch in fetched:
        described: dict[str, Any] = {"topic": place.topic, "partition": place.partition}
        if fetch.thinned_offsets is None:
            described["first"] = fetch.first_offset
        else:
            described["offsets"] = fetch.thinned_offsets.tolist()
        made.append((fetch.records, encoded(described)))
    positions = offsets_out({each: reader.offset for each, reader in readers.items()})
    made.append((_empty(schema), encoded({"positions": positions})))
    return flight.GeneratorStream(schema, iter(made))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


@contextmanager
def _reported() -> Iterator[None]:
    """Errors of ours reach the client as they are; others are logged here."""
    try:
        yield
    except MillstreamError as error:
        raise flight.FlightServerError(error_text(error)) from error
    except flight.FlightError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise flight.FlightServerError(error_text(InvalidInput(f"the request is not valid: {error!r}"))) from error
    except Exception:
        logger.exception("a request failed")
        raise
