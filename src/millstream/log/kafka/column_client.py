"""A consumer on a handle of librdkafka of its own, for records as columns.

It takes the same settings as confluent-kafka's, and reports errors and log lines to the same functions. Both are served
only while the consumer takes records: no thread of librdkafka ever calls Python.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream import terminal
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.columns import Owned, columns_received
from millstream.log.kafka.failures import client_module
from millstream.log.kafka.handle import library_for, log_line, open_handle, raise_code, raise_error, reported
from millstream.log.kafka.librdkafka import (
    CONSUMER,
    NO_CONSUMER_CLOSE,
    ErrorCallback,
    Library,
    LogCallback,
    PlaceList,
    offset_list,
)
from millstream.log.kafka.received import Event, Received, Wanted, objects_received


def column_consumer(settings: Mapping[str, Any], wanted: Wanted) -> ColumnConsumer | None:
    """None where confluent-kafka has to do it."""
    found = library_for(settings)
    return None if found is None else ColumnConsumer(found, settings, wanted)


class ColumnConsumer:
    """Belongs to the process that has created it: a forked child must not use it, and does not close it."""

    def __init__(self, library: Library, settings: Mapping[str, Any], wanted: Wanted) -> None:
        self._library = library
        self.wanted = wanted
        self._process = os.getpid()
        self._handle = self._queue = 0
        self._owned: Owned | None = None  # the last batch: librdkafka waits for its end when the handle is closed
        self._listed = PlaceList(library)
        self._callbacks = self._made_callbacks(settings)  # must live as long as the handle
        self._handle = open_handle(library, CONSUMER, settings, self._prepare)
        if code := library.poll_set_consumer(self._handle):
            self.close()
            raise_code(code)
        self._queue = library.queue_get_consumer(self._handle)

    def _made_callbacks(self, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        report: Callable[[Any], None] = settings.get("error_cb", lambda error: None)
        logger: logging.Logger = settings.get("logger", terminal.logger(__name__))
        library = self._library

        def on_error(handle: int, code: int, reason: bytes | None, _: object) -> None:
            report(reported(library, handle, code, reason))

        def on_log(_: int, level: int, facility: bytes | None, line: bytes | None) -> None:
            log_line(logger, level, facility, line)

        return ErrorCallback(on_error), LogCallback(on_log)

    def _prepare(self, conf: int) -> None:
        self._library.conf_set_error_cb(conf, self._callbacks[0])
        self._library.conf_set_log_cb(conf, self._callbacks[1])

    # ------------------------------------------------------------ partitions

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions from these offsets, and drops what was received of others."""
        self._with_list(starts, self._library.assign)

    def assignment(self) -> set[TopicPartition]:
        """As librdkafka has it: an exception may come between a change there and a note of it here."""
        self._listed.destroy()
        raise_code(self._library.assignment(self._handle, ctypes.byref(self._listed.found)))
        try:
            return self._listed.places()
        finally:
            self._listed.destroy()

    def place(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions from these offsets, and drops what was received of them."""
        if held := self.assignment() & starts.keys():
            self.remove(held)
        self.add(starts)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions, too."""
        self._with_list(starts, self._library.incremental_assign)

    def remove(self, places: Iterable[TopicPartition]) -> None:
        self._with_list(dict.fromkeys(places, 0), self._library.incremental_unassign)

    def _with_list(self, starts: Mapping[TopicPartition, int], act: Callable[[int, int], int | None]) -> None:
        library = self._library
        with offset_list(library, starts) as listed:
            failure = act(self._handle, listed)
        if act is library.assign:
            raise_code(failure or 0)
        else:
            raise_error(library, failure)

    # ------------------------------------------------------------ records

    def take(self, count: int, seconds: float) -> Iterator[Received | Event]:
        """Up to so many records and events, in order; waits until there are as many, or the time is over."""
        messages = self._room(count)
        self._library.consume_batch_queue(self._queue, int(seconds * 1000), messages.ctypes.data, count)
        return self._columns()

    def receive(self, seconds: float, more: int) -> Iterator[Received | Event]:
        """Waits for the first record or event; then also takes as many more as are there."""
        messages = self._room(1 + more)
        consume, address = self._library.consume_batch_queue, messages.ctypes.data
        if consume(self._queue, int(seconds * 1000), address, 1) > 0 and more:
            consume(self._queue, 0, address + messages.itemsize, more)
        return self._columns()

    def _room(self, count: int) -> npt.NDArray[np.uint64]:
        """For the addresses of messages; those of the last call are destroyed."""
        if self._owned is not None:
            self._owned.destroy()
        messages = np.zeros(count, np.uint64)
        self._owned = Owned(self._library, messages)
        return messages

    def _columns(self) -> Iterator[Received | Event]:
        assert self._owned is not None
        return columns_received(self._library, self._owned, self.wanted)

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        if self._handle and self._process == os.getpid():
            handle, self._handle = self._handle, 0
            if self._owned is not None:
                self._owned.destroy()
            self._listed.destroy()
            if self._queue:
                self._library.queue_destroy(self._queue)
            self._library.consumer_close(handle)
            self._library.destroy_flags(handle, NO_CONSUMER_CLOSE)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


class ObjectConsumer:
    """The same on confluent-kafka's consumer."""

    def __init__(self, client: Any, wanted: Wanted) -> None:
        self.client = client
        self._wanted = wanted

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        self.client.assign(listed(starts))

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(held.topic, held.partition) for held in self.client.assignment()}

    def place(self, starts: Mapping[TopicPartition, int]) -> None:
        if held := self.assignment() & starts.keys():
            self.remove(held)
        self.add(starts)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        self.client.incremental_assign(listed(starts))

    def remove(self, places: Iterable[TopicPartition]) -> None:
        self.client.incremental_unassign(listed(dict.fromkeys(places, 0)))

    def take(self, count: int, seconds: float) -> Iterator[Received | Event]:
        messages: Sequence[Any] = self.client.consume(count, seconds)
        return objects_received(messages, self._wanted)

    def receive(self, seconds: float, more: int) -> Iterator[Received | Event]:
        first = self.client.poll(seconds)
        messages = [] if first is None else [first, *(self.client.consume(more, 0) if more else ())]
        return objects_received(messages, self._wanted)

    def close(self) -> None:
        self.client.close()


def listed(starts: Mapping[TopicPartition, int]) -> list[Any]:
    """As confluent-kafka takes partitions and their offsets."""
    kind = client_module().TopicPartition
    return [kind(place.topic, place.partition, offset) for place, offset in sorted(starts.items())]
