"""A subscription returns every event of a store once, in order, and waits for new ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from millstream.errors import ClosedError
from millstream.events.contents import Contents
from millstream.events.event import Recorded
from millstream.events.layout import to_rows
from millstream.log.consumer import Consumer

WAIT_SECONDS = 1.0


class Subscription:
    """Made by `store.subscribe(…)`; iterate over it, or call `poll`."""

    def __init__(self, consumer: Consumer, contents: Contents) -> None:
        self._consumer = consumer
        self._contents = contents
        self._closing = threading.Event()

    def poll(self, timeout: float = 0.0, max_events: int = 500) -> list[Recorded]:
        """Up to `max_events` events, waiting up to `timeout` seconds. In a group, those returned before are done."""
        found = []
        for batch in self._consumer.poll_batches(timeout, max_records=max_events):
            value: pa.StructArray = batch.columns.column("value")
            for position, row in zip(batch.offsets.tolist(), to_rows(value), strict=True):
                if row.version is not None:
                    found.append(self._contents.recorded(position, row))
        return found

    def __iter__(self) -> Iterator[Recorded]:
        """Every event as it is recorded, until the subscription is closed."""
        while not self._closing.is_set():
            try:
                events = self.poll(WAIT_SECONDS)
            except ClosedError:
                return
            yield from events

    def commit(self) -> None:
        """In a group: the events returned so far are done."""
        self._consumer.commit()

    def close(self) -> None:
        """Ends the iteration, also in another thread."""
        self._closing.set()
        self._consumer.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
