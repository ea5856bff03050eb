"""Tables that are added to a capture while it runs, by requests in a topic of the log.

The newest record of a table counts: a request, or the capture's answer that it cannot be captured. Requests stay, so a
capture that starts again has the tables that were added to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from millstream.capture.capturing_topics import REQUESTS, SEGMENT_BYTES, create_if_missing, newest_position
from millstream.errors import InvalidInput, MillstreamError, UnknownTopic
from millstream.log import Broker, Producer, Record
from millstream.log.topics import checked_name

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 0.1


class Requests:
    """What a capture is asked for, and its answers."""

    def __init__(self, log: Broker, name: str) -> None:
        self._topic = REQUESTS + name
        create_if_missing(log, self._topic, compaction=True, segment_bytes=SEGMENT_BYTES)
        self._consumer = log.consumer(self._topic)
        self._looked_at: float | None = None
        self._open: dict[str, str] = {}

    def waiting(self) -> dict[str, str]:
        """Tables that are to be added, each with its topic."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_SECONDS:
            found = self._consumer.until_caught_up() if self._looked_at is None else self._consumer.poll()
            _apply(found, self._open)
            self._looked_at = now
        return dict(self._open)

    def done(self, table: str) -> None:
        self._open.pop(table, None)

    def refuse(self, producer: Producer, table: str, topic: str, error: MillstreamError) -> None:
        """So that the request is not tried again, and its sender learns why."""
        reason = {"refused": error.what, "next_step": error.next_step}
        with producer.transaction():
            producer.send(self._topic, json.dumps({"table": table, "topic": topic, **reason}), key=table)
        self.done(table)

    def close(self) -> None:
        self._consumer.close()


def requested(log: Broker, name: str) -> dict[str, str]:
    """All tables that a capture was asked for and has not refused, each with its topic."""
    found: dict[str, str] = {}
    try:
        with log.consumer(REQUESTS + name) as consumer:
            _apply(consumer.until_caught_up(), found)
    except UnknownTopic:
        pass
    return found


def _apply(records: Iterable[Record], tables: dict[str, str]) -> None:
    for record in records:
        request = json.loads(record.value)
        tables.pop(request["table"], None)
        if "refused" not in request:
            tables[request["table"]] = request["topic"]


def add_to_capture(log: Broker, capture: str, tables: Mapping[str, str] | str, *, wait_s: float = 10.0) -> bool:
    """Adds tables to a capture, each with its topic: a running one starts with their rows, and continues with others.

    Returns True when the capture has them; False if it has not answered so long. Then it adds them when it runs.
    """
    wanted = {tables: tables} if isinstance(tables, str) else dict(tables)
    checked_name(capture, "capture")
    for topic in wanted.values():
        checked_name(topic, "topic")
    try:
        with log.consumer(REQUESTS + capture, start="latest") as answers, log.producer(acks="all") as producer:
            for table, topic in wanted.items():
                producer.send(REQUESTS + capture, json.dumps({"table": table, "topic": topic}), key=table)
            producer.flush()
            deadline = time.monotonic() + wait_s
            while True:
                for record in answers.poll(ANSWER_SECONDS):
                    _check(json.loads(record.value), wanted, capture)
                position = newest_position(log, capture)
                if position is not None and wanted.keys() <= position["tables"].keys():
                    return True
                if time.monotonic() >= deadline:
                    return False
    except UnknownTopic as error:
        raise UnknownTopic(
            f"there is no capture '{capture}' into this log",
            next_step="start it: millstream capture postgres …; its name is the one of the database, or --name",
        ) from error


def _check(answer: dict[str, Any], wanted: Mapping[str, str], capture: str) -> None:
    if "refused" in answer and answer["table"] in wanted:
        raise InvalidInput(answer["refused"], where=f"capture '{capture}'", next_step=answer["next_step"])
