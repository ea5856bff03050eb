"""Where a bridge that knows its own position enters the log: records and position are one transaction.

After a crash both are there or neither, so nothing is lost or stored twice. Positions are records of a compacted topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from millstream.bridges.arrivals import Arrival, Counts, Passage
from millstream.bridges.landing import create_dead_letter_topic, send_dead_letter
from millstream.errors import AlreadyExists, InvalidRecord
from millstream.log import Broker, Receipt

POSITIONS = "_bridge_positions"


class PositionedLanding:
    """For one topic. A second process of the same bridge fences the first."""

    def __init__(self, log: Broker, bridge: str, topic: str) -> None:
        log.topic(topic)
        self.log = log
        self.bridge, self.topic = bridge, topic
        self.counts = Counts()
        self.passage = Passage()
        with suppress(AlreadyExists):
            log.create_topic(POSITIONS, compaction=True)
        self._producer = log.producer(name=f"bridge.{bridge}.{topic}", acks="all")
        self._prefix = f"{bridge}/{topic}/"

    @property
    def topics(self) -> list[str]:
        return [self.topic]

    def positions(self) -> dict[str, Any]:
        """The stored positions, by what they are positions in."""
        found: dict[str, Any] = {}
        with self.log.consumer(POSITIONS) as consumer:
            for record in consumer.until_caught_up():
                key = (record.key or b"").decode()
                if key.startswith(self._prefix):
                    found[key.removeprefix(self._prefix)] = None if record.value is None else orjson.loads(record.value)
        return {name: position for name, position in found.items() if position is not None}

    def land(self, arrivals: Sequence[Arrival], positions: Mapping[str, Any]) -> None:
        """Returns when records and positions are durable. A position of None is removed.

        Raises StorageError if nothing was stored, and it can be tried again.
        """
        with self.passage.counted(len(arrivals)):
            while not self._is_landed(arrivals, positions):
                continue  # once more, with what does not fit its topic as dead letters
        dead = sum(arrival.fault is not None for arrival in arrivals)
        self.counts.dead += dead
        self.counts.stored += len(arrivals) - dead

    def _is_landed(self, arrivals: Sequence[Arrival], positions: Mapping[str, Any]) -> bool:
        sent: list[tuple[Arrival, Receipt]] = []
        if any(arrival.fault is not None for arrival in arrivals):
            create_dead_letter_topic(self.log, self.topic)
        try:
            with self._producer.transaction():
                for arrival in arrivals:
                    sent.append((arrival, self._send(arrival)))
                for name, position in positions.items():
                    value = None if position is None else orjson.dumps(position)
                    self._producer.send(POSITIONS, value, f"{self._prefix}{name}")
        except InvalidRecord:
            refused = [(arrival, receipt.error) for arrival, receipt in sent if arrival.fault is None]
            unfit = [(arrival, error) for arrival, error in refused if isinstance(error, InvalidRecord)]
            if not unfit:  # not even a dead letter fits its topic
                raise
            for arrival, error in unfit:
                arrival.fault = error.what
            return False
        return True

    def _send(self, arrival: Arrival) -> Receipt:
        if arrival.fault is None:
            return self._producer.send(self.topic, arrival.value, arrival.key, headers=arrival.headers)
        return send_dead_letter(self._producer, self.bridge, arrival)

    def close(self) -> None:
        self._producer.close()

    def __enter__(self) -> PositionedLanding:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
