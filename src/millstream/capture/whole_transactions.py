"""Reads the topics of a capture transaction by transaction: all changes of one at once, in the order of the commits.

A group's place is one record: the offset in the list of transactions, and in every partition the offset after the last
change that was returned. Partitions have changes in the order of the list, so nothing before these offsets is missing.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from millstream import terminal
from millstream.capture.capturing_topics import SEGMENT_BYTES, create_if_missing, newest_record
from millstream.capture.transactions import LIST
from millstream.errors import InvalidInput, OffsetLost
from millstream.log import Broker, Consumer, Producer, Record
from millstream.log.topics import checked_name

GROUPS = "_transactions_read."
POLL_RECORDS = 1000
POLL_SECONDS = 0.2
COMPLETE_SECONDS = 30.0
"""Kafka shows a transaction in its partitions one after the other, and not at once."""
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class Transaction:
    """A transaction of a database, or a part of a snapshot."""

    id: str
    position: int
    at: datetime
    """When it was committed."""
    changes: list[dict[str, Any]]
    """In the order they were made in, of all tables; each as in its topic."""


class Part:
    """One partition with changes: read only as far as needed."""

    def __init__(self, log: Broker, topic: str, partition: int, start: int | None) -> None:
        self.consumer = log.consumer(topic, partitions=[partition], start="earliest" if start is None else start)
        self._waiting: deque[Record] = deque()
        self.offset = start
        """After the last change that was taken."""

    @property
    def has_later(self) -> bool:
        """Whether `take` has stopped at a change of a later transaction."""
        return bool(self._waiting)

    def take(self, entry: dict[str, Any], most: int, wait_s: float) -> tuple[list[dict[str, Any]], int]:
        """Changes of a transaction that are next, and how many were skipped because they are of earlier ones."""
        taken: list[dict[str, Any]] = []
        skipped = 0
        while len(taken) < most:
            if not self._waiting:
                self._waiting.extend(self.consumer.poll(0.0 if taken else wait_s, POLL_RECORDS))
                if not self._waiting:
                    break
            change = self._waiting[0].value
            if change["transaction"] == entry["transaction"]:
                taken.append(change)
            elif change["position"] < entry["position"]:
                skipped += 1
            else:
                break
            self.offset = self._waiting.popleft().offset + 1
        return taken, skipped


class WholeTransactions:
    """Made by `ms.captured_transactions`; use it as a context manager, or call `close`."""

    def __init__(self, log: Broker, capture: str, topics: Sequence[str], group: str | None) -> None:
        self._log = log
        self._topics = list(topics)
        self._list = LIST + capture
        self._places = None if group is None else f"{GROUPS}{len(capture)}.{capture}.{group}"  # both may have dots
        self._key = group
        self._producer: Producer | None = None
        self._entry: Record | None = None
        """The next transaction, of which changes may be missing yet."""
        self._taken: list[dict[str, Any]] = []
        self._parts: dict[tuple[str, int], Part] = {}
        with ExitStack() as opening:
            opening.callback(self.close)
            place = self._begin()
            self._has_started = place is not None
            self._place: dict[str, int] = place or {}
            start = self._place.get(self._list, 0)
            self._consumer: Consumer | None = log.consumer(self._list, start=start or "earliest")
            self._find_parts()
            opening.pop_all()

    def _begin(self) -> dict[str, int] | None:
        """Where the group continues. An older reader of the group can store nothing from now on."""
        self._consumer = None
        self._log.describe_topic(self._list)
        if self._places is None:
            return None
        self._producer = self._log.producer(name=self._places, acks="all")
        create_if_missing(self._log, self._places, compaction=True, segment_bytes=SEGMENT_BYTES)
        found = newest_record(self._log, self._places)
        place: dict[str, int] | None = None if found is None else json.loads(found)
        return place

    def _find_parts(self) -> None:
        """Opens the partitions, also those that a topic has gained."""
        for topic in self._topics:
            for partition in range(len(self._log.describe_topic(topic).partitions)):
                if (topic, partition) not in self._parts:
                    start = self._place.get(f"{topic}/{partition}")
                    self._parts[topic, partition] = Part(self._log, topic, partition, start)

    # ------------------------------------------------------------ reading

    def poll(self, timeout: float = 0.0) -> Transaction | None:
        """The next transaction with changes in these topics, waiting up to so many seconds for one."""
        assert self._consumer is not None
        deadline = time.monotonic() + timeout
        while True:
            if self._entry is None:
                found = self._consumer.poll(max(0.0, deadline - time.monotonic()), 1)
                if not found:
                    return None
                self._entry = found[0]
            entry = self._entry.value
            is_whole = self._complete(entry)
            self._place = self._reached(self._entry.offset + 1)
            changes, self._taken, self._entry = self._taken, [], None
            if is_whole and changes:
                self._has_started = True
                changes.sort(key=lambda change: int(change["number"]))
                return Transaction(entry["transaction"], entry["position"], entry["at"], changes)

    def _reached(self, entries: int) -> dict[str, int]:
        """The place after a whole transaction: an interrupted one must not move it."""
        offsets = {f"{topic}/{partition}": part.offset for (topic, partition), part in self._parts.items()}
        return {**{name: offset for name, offset in offsets.items() if offset is not None}, self._list: entries}

    def _complete(self, entry: dict[str, Any]) -> bool:
        """Takes all changes of a transaction; False if its topics have only some of them, since they start later."""
        deadline = time.monotonic() + COMPLETE_SECONDS
        wanted = {each["topic"]: each["changes"] for each in entry["topics"] if each["topic"] in self._topics}
        missing = sum(wanted.values()) - len(self._taken)
        wait_s = 0.0
        while missing:
            before = missing
            for (topic, _), part in list(self._parts.items()):
                if topic in wanted and missing:
                    taken, skipped = part.take(entry, missing, wait_s)
                    self._taken += taken
                    missing -= len(taken)
                    self._check_skipped(topic, skipped)
            if missing == before:
                if self._is_beyond(wanted) or time.monotonic() > deadline:
                    self._check_start(entry, missing)
                    return False
                self._find_parts()
                wait_s = POLL_SECONDS
        return True

    def _is_beyond(self, wanted: dict[str, int]) -> bool:
        """Whether all partitions have later changes next, so that no more of this transaction can come."""
        return all(part.has_later for (topic, _), part in self._parts.items() if topic in wanted)

    def _check_skipped(self, topic: str, skipped: int) -> None:
        if not skipped:
            return
        if self._has_started:
            raise self._lost(f"{skipped} changes in the topic '{topic}' are of no transaction in '{self._list}'")
        logger.warning("%d changes in '%s' are older than '%s', and left out", skipped, topic, self._list)

    def _check_start(self, entry: dict[str, Any], missing: int) -> None:
        what = f"{missing} changes of transaction '{entry['transaction']}' are not in the topics any more"
        if self._has_started:
            raise self._lost(what)
        logger.warning("%s: it is left out", what)

    def _lost(self, what: str) -> OffsetLost:
        return OffsetLost(
            what,
            where=", ".join(self._topics),
            next_step="do not compact these topics, and retain the list as long as them; start over with a new group",
        )

    def __iter__(self) -> Iterator[Transaction]:
        """Every transaction as it arrives, without end."""
        while True:
            if (found := self.poll(1.0)) is not None:
                yield found

    def until_caught_up(self) -> Iterator[Transaction]:
        """Every transaction that is in the log; then it stops."""
        assert self._consumer is not None
        while True:
            found = self.poll()
            if found is not None:
                yield found
            elif self._consumer.lag() == 0:
                return

    # ------------------------------------------------------------ committing

    def commit(self, within: Producer | None = None) -> None:
        """The next reader of the group continues after the transactions returned so far.

        With a producer that has a transaction, this becomes part of it: what is sent and what is read are stored
        together.
        """
        if self._places is None or self._producer is None:
            raise InvalidInput("only a reader with a group can commit", next_step="captured_transactions(…, group='…')")
        document = json.dumps(self._place)
        if within is not None:
            within.send(self._places, document, key=self._key)
            return
        with self._producer.transaction():
            self._producer.send(self._places, document, key=self._key)

    def close(self) -> None:
        """What was not committed is returned to the next reader of the group."""
        with ExitStack() as closing:
            for part in self._parts.values():
                closing.callback(part.consumer.close)
            if self._consumer is not None:
                closing.callback(self._consumer.close)
            if self._producer is not None:
                closing.callback(self._producer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def captured_transactions(
    log: Broker, capture: str, topics: str | Sequence[str], *, group: str | None = None
) -> WholeTransactions:
    """Reads topics of a capture by whole transactions: `for transaction in ….until_caught_up()`.

    `capture` is the name of the capture. Changes in topics that are not named are left out. With `group`, `commit`
    stores the place where the next reader of the group continues; the newest reader takes over from an older one.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or len(set(names)) < len(names):
        raise InvalidInput(
            f"topics must be different names, at least one, not {topics!r}",
            next_step="for example captured_transactions(log, 'shop', ['orders'])",
        )
    checked_name(capture, "capture")
    if group is not None:
        checked_name(group, "group")
    return WholeTransactions(log, capture, names, group)
