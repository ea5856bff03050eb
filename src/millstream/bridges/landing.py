"""Where messages enter the log: what `land` reports is durable, and a message with an id is stored once.

One producer per topic has the name of its bridge: a second process of the same bridge fences the first, so that no
other process stores an id that this one does not know.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from millstream.bridges.arrivals import ID_HEADER, Arrival, Counts, Outcome, Passage
from millstream.bridges.known_ids import KnownIds
from millstream.errors import AlreadyExists, InvalidRecord, MillstreamError, ProducerFenced, StorageError
from millstream.log import Broker, Producer, Receipt
from millstream.records import DEAD_LETTER_SCHEMA, duration

RETRY_SECONDS = 0.2
KEEP_IDS = "1 day"
IDS_MAX = 1_000_000


def dead_letter_topic(topic: str) -> str:
    return f"{topic}.dead"


def create_dead_letter_topic(log: Broker, topic: str) -> None:
    with suppress(AlreadyExists):
        log.create_topic(dead_letter_topic(topic), schema=DEAD_LETTER_SCHEMA)


def send_dead_letter(producer: Producer, bridge: str, arrival: Arrival) -> Receipt:
    """Dead letters have the same columns as everywhere: `topic` is where the message came from."""
    letter = {
        "value": arrival.value,
        "topic": arrival.origin or bridge,
        "partition": None,
        "offset": None,
        "reason": arrival.fault,
        "at": datetime.now(UTC),
    }
    headers = (("bridge", bridge.encode()), *id_header(arrival))
    return producer.send(dead_letter_topic(arrival.topic), letter, arrival.key, headers=headers)


def id_header(arrival: Arrival) -> tuple[tuple[str, bytes], ...]:
    return () if arrival.id is None else ((ID_HEADER, arrival.id.encode()),)


@dataclass(slots=True, eq=False)
class _Crossing:
    """One message on its way."""

    arrival: Arrival
    outcome: Outcome | MillstreamError | None = None
    receipt: Receipt | None = None
    twin: _Crossing | None = None
    """An earlier message of the same call with the same id."""


class _Pier(NamedTuple):
    """One topic of a bridge."""

    producer: Producer
    known: KnownIds


class Landing:
    """The entrance of one bridge to its topics."""

    def __init__(
        self,
        log: Broker,
        bridge: str,
        topics: Sequence[str],
        *,
        keep_ids: str | timedelta = KEEP_IDS,
        ids_max: int = IDS_MAX,
    ) -> None:
        self.log = log
        self.bridge = bridge
        self.counts = Counts()
        self.passage = Passage()
        self.is_grouped = False
        """Whether what waits is counted before it gets here."""
        self.failure: MillstreamError | None = None
        """Why nothing can be stored any more: another process of this bridge has taken over."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called once, when there is a failure."""
        self._turn = threading.Lock()
        self._closing = False
        self._piers: dict[str, _Pier] = {}
        self._with_dead_letters: set[str] = set()
        keep = duration(keep_ids, what="keep_ids")
        try:
            for topic in dict.fromkeys(topics):
                log.topic(topic)
                # Before the ids are read: from here on no other process adds any.
                producer = log.producer(name=f"bridge.{bridge}.{topic}", acks="all")
                pier = self._piers[topic] = _Pier(producer, KnownIds(keep, ids_max))
                pier.known.read(log, topic, dead_letter_topic(topic))
        except BaseException:
            self.close()
            raise

    @property
    def topics(self) -> list[str]:
        return list(self._piers)

    def land(self, arrivals: Sequence[Arrival]) -> list[Outcome | MillstreamError]:
        """Returns when every message is durable or has its error. It waits as long as the broker cannot store."""
        with self.passage.counted(0 if self.is_grouped else len(arrivals)), self._turn:
            if self.failure is not None:
                return [self.failure] * len(arrivals)
            newest: dict[tuple[str, str], _Crossing] = {}
            passages = [self._begin(arrival, newest) for arrival in arrivals]
            self._store([each for each in passages if each.outcome is None and each.twin is None])
            return [self._end(each) for each in passages]

    def close(self) -> None:
        self._closing = True
        for pier in self._piers.values():
            with suppress(MillstreamError):  # what was acknowledged is stored; the others have their error
                pier.producer.close()

    def __enter__(self) -> Landing:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ------------------------------------------------------------ the steps of `land`

    def _begin(self, arrival: Arrival, newest: dict[tuple[str, str], _Crossing]) -> _Crossing:
        passage = _Crossing(arrival)
        if arrival.id is not None:
            if arrival.id in self._piers[arrival.topic].known:
                passage.outcome = Outcome.DUPLICATE
            else:
                first = newest.setdefault((arrival.topic, arrival.id), passage)
                passage.twin = None if first is passage else first
        return passage

    def _store(self, passages: Sequence[_Crossing]) -> None:
        for passage in passages:
            if passage.arrival.fault is None:
                self._try(passage, self._send_record)
        self._flush(passages)
        unusable = [each for each in passages if each.arrival.fault is not None and each.outcome is None]
        if unusable:
            for passage in unusable:
                self._try(passage, self._send_dead_letter)
            self._flush(unusable, dead=True)

    def _try(self, passage: _Crossing, send: Callable[[Arrival], Receipt]) -> None:
        try:
            passage.receipt = send(passage.arrival)
        except MillstreamError as error:
            self._note(passage, error)

    def _send_record(self, arrival: Arrival) -> Receipt:
        producer = self._piers[arrival.topic].producer
        return producer.send(arrival.topic, arrival.value, arrival.key, headers=(*arrival.headers, *id_header(arrival)))

    def _send_dead_letter(self, arrival: Arrival) -> Receipt:
        if arrival.topic not in self._with_dead_letters:
            create_dead_letter_topic(self.log, arrival.topic)
            self._with_dead_letters.add(arrival.topic)
        return send_dead_letter(self._piers[arrival.topic].producer, self.bridge, arrival)

    def _flush(self, passages: Sequence[_Crossing], *, dead: bool = False) -> None:
        waiting = [each for each in passages if each.receipt is not None]
        for topic in {each.arrival.topic for each in waiting}:
            own = [each.receipt for each in waiting if each.arrival.topic == topic and each.receipt is not None]
            self._wait(self._piers[topic].producer, own)
        for passage in waiting:
            assert passage.receipt is not None
            error, passage.receipt = passage.receipt.error, None
            if error is not None:
                self._note(passage, error, is_final=dead)
            else:
                passage.outcome = Outcome.DEAD if dead else Outcome.STORED

    def _wait(self, producer: Producer, receipts: Sequence[Receipt]) -> None:
        """Until all are stored or refused. A full disk is waited for: its producer keeps the records and retries."""
        while True:
            try:
                producer.flush()
                return
            except MillstreamError as error:
                if all(receipt.done for receipt in receipts):  # each has its own error
                    return
                if self._closing or not isinstance(error, StorageError):
                    raise
                time.sleep(RETRY_SECONDS)

    def _note(self, passage: _Crossing, error: MillstreamError, *, is_final: bool = False) -> None:
        if isinstance(error, InvalidRecord) and not is_final:
            passage.arrival.fault = error.what
            return
        passage.outcome = error
        if isinstance(error, ProducerFenced) and self.failure is None:
            self.failure = error
            self.on_failure()

    def _end(self, passage: _Crossing) -> Outcome | MillstreamError:
        if passage.twin is not None:
            first = passage.twin.outcome
            passage.outcome = first if isinstance(first, MillstreamError) else Outcome.DUPLICATE
        assert passage.outcome is not None
        counts, id = self.counts, passage.arrival.id
        if passage.outcome is Outcome.DUPLICATE:
            counts.duplicates += 1
        elif isinstance(passage.outcome, Outcome):
            if passage.outcome is Outcome.STORED:
                counts.stored += 1
            else:
                counts.dead += 1
            if id is not None:
                self._piers[passage.arrival.topic].known.add(id, time.time())
        return passage.outcome
