"""Dead letters in a topic: counted, shown, tried with a fixed flow, and sent again, each at most once.

A letter that is sent again leaves a marker in the topic `TOPIC.resent`, in the same transaction. The markers are read
after the producer has its name, which ends the transaction of a killed one: so none is sent twice.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from millstream.errors import InvalidInput, NotFound, OffsetLost, UnknownTopic
from millstream.log import Broker, Record
from millstream.records import DEAD_LETTER_SCHEMA, codec

SENT_AT_ONCE = 500
MARKERS = ".resent"
Place = tuple[int, int]
"""Partition and offset of a letter in its topic."""


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter, where it stands, and where its record was read."""

    partition: int
    offset: int
    value: bytes | None
    topic: str | None
    source_partition: int | None
    source_offset: int | None
    reason: str
    at: datetime | None

    @property
    def place(self) -> Place:
        return self.partition, self.offset

    @property
    def has_origin(self) -> bool:
        return None not in (self.topic, self.source_partition, self.source_offset)

    def document(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "offset": self.offset,
            "reason": self.reason,
            "at": self.at,
            "origin": {"topic": self.topic, "partition": self.source_partition, "offset": self.source_offset},
            "value": self.value,
        }


def letters_of(log: Broker, topic: str) -> Iterator[DeadLetter]:
    """All dead letters of a topic that are there now."""
    if topic not in log.topics():
        raise UnknownTopic(f"there is no topic '{topic}'", next_step="dead letters are where .dead.write(…) puts them")
    with log.consumer(topic, start="earliest", on_lost="earliest") as consumer:
        for record in consumer.until_caught_up():
            yield _letter(record)


def letter_at(log: Broker, topic: str, place: Place) -> DeadLetter:
    for letter in letters_of(log, topic):
        if letter.place == place:
            return letter
    raise NotFound(
        f"there is no dead letter at offset {place[1]} of partition {place[0]} of '{topic}'",
        next_step=f"millstream dead-letters list {topic}",
    )


def counted(log: Broker, topic: str) -> list[dict[str, Any]]:
    """How many letters there are by origin and reason, most first, and how many of them were sent again."""
    return overview(log, topic, 0)["reasons"]  # type: ignore[no-any-return]


def overview(log: Broker, topic: str, shown: int) -> dict[str, Any]:
    """The `reasons` of all letters, counted, and the newest `letters`."""
    resent = resent_places(log, topic)
    found: dict[tuple[str | None, str], dict[str, Any]] = {}
    newest: deque[DeadLetter] = deque(maxlen=shown)
    for letter in letters_of(log, topic):
        row = found.setdefault(
            (letter.topic, letter.reason), {"topic": letter.topic, "reason": letter.reason, "letters": 0, "resent": 0}
        )
        row["letters"] += 1
        row["resent"] += letter.place in resent
        row["newest"] = {"partition": letter.partition, "offset": letter.offset, "at": letter.at}
        newest.append(letter)
    letters = [{**letter.document(), "resent": letter.place in resent} for letter in reversed(newest)]
    return {"reasons": sorted(found.values(), key=lambda row: -row["letters"]), "letters": letters}


def resent_places(log: Broker, topic: str) -> set[Place]:
    """The letters that were sent again."""
    markers = topic + MARKERS
    if markers not in log.topics():
        return set()
    with log.consumer(markers, start="earliest", on_lost="earliest") as consumer:
        keys = [record.key for record in consumer.until_caught_up() if record.key is not None]
    return {(int(partition), int(offset)) for partition, _, offset in (key.decode().partition("/") for key in keys)}


def resend(
    log: Broker, topic: str, place: Place | None = None, *, on_sent: Callable[[int], None] = lambda count: None
) -> dict[str, Any]:
    """Sends the records of dead letters again, to the topics they came from: of one letter, or of all not sent yet.

    `on_sent` is called with the number of letters after each transaction.
    """
    chosen = list(letters_of(log, topic)) if place is None else [letter_at(log, topic, place)]
    if topic + MARKERS not in log.topics():
        log.create_topic(topic + MARKERS, partitions=1, compaction=True)
    counts: Counter[str] = Counter()
    with log.producer(name=f"dead-letters.{topic}", acks="all") as producer, ExitStack() as opened:
        records = OriginalRecords(log, opened)
        resent = resent_places(log, topic)
        waiting = [letter for letter in chosen if letter.place not in resent]
        counts["already_sent"] = len(chosen) - len(waiting)
        for start in range(0, len(waiting), SENT_AT_ONCE):
            part = waiting[start : start + SENT_AT_ONCE]
            found = [(letter, record) for letter in part if (record := records.of(letter)) is not None]
            counts["expired"] += len(part) - len(found)
            if not found:
                continue
            with producer.transaction():
                for letter, record in found:
                    headers = dict(record.headers) or None
                    producer.send(record.topic, record.value, record.key, headers=headers)
                    marker = {"to": record.topic, "at": datetime.now(UTC).isoformat()}
                    producer.send(topic + MARKERS, json.dumps(marker).encode(), f"{letter.partition}/{letter.offset}")
            counts["sent"] += len(found)
            on_sent(counts["sent"])
    return {name: counts[name] for name in ("sent", "already_sent", "expired")}


class OriginalRecords:
    """The records that letters are about, read where they came from."""

    def __init__(self, log: Broker, opened: ExitStack) -> None:
        self._log = log
        self._opened = opened
        self._consumers: dict[tuple[str, int], Any] = {}

    def of(self, letter: DeadLetter) -> Record | None:
        """None if the record has expired, or its origin is unknown."""
        if not letter.has_origin or letter.topic not in self._log.topics():
            return None
        assert letter.topic is not None
        assert letter.source_partition is not None
        where = (letter.topic, letter.source_partition)
        if where not in self._consumers:
            made = self._log.consumer(letter.topic, partitions=[letter.source_partition], start="earliest", pinned=True)
            self._consumers[where] = self._opened.enter_context(made)
        consumer = self._consumers[where]
        try:
            consumer.seek(letter.source_offset, topic=letter.topic, partition=letter.source_partition)
            found = next(iter(consumer.poll(timeout=5.0, max_records=1)), None)
        except OffsetLost:
            return None
        return found if found is not None and found.offset == letter.source_offset else None


def _letter(record: Record) -> DeadLetter:
    values = record.value if isinstance(record.value, dict) else _decoded(record)
    try:
        return DeadLetter(
            record.partition,
            record.offset,
            values["value"],
            values["topic"],
            values["partition"],
            values["offset"],
            values["reason"] or "",
            values["at"],
        )
    except KeyError as missing:
        raise _not_letters(record) from missing


def _decoded(record: Record) -> dict[str, Any]:
    decoded = codec("json", DEAD_LETTER_SCHEMA).decode([record.value])
    rows: Sequence[dict[str, Any]] = pa.Table.from_batches([decoded.rows]).to_pylist()
    if not rows:
        raise _not_letters(record)
    return dict(rows[0])


def _not_letters(record: Record) -> InvalidInput:
    return InvalidInput(
        f"offset {record.offset} of '{record.topic}' is not a dead letter",
        next_step="name a topic that .dead is written to",
    )
