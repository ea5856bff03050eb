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
from millstream.log.groups import TopicPartition
from millstream.log.kafka.columns import Owned, columns_received
from millstream.log.kafka.failures import client_module
from millstream.log.kafka.librdkafka import (
    CONSUMER,
    ERROR_BYTES,
    FATAL,
    NO_CONSUMER_CLOSE,
    ErrorCallback,
    Library,
    LogCallback,
    library,
)
from millstream.log.kafka.received import Event, Received, Wanted, objects_received

LEVELS = (
    logging.CRITICAL, logging.CRITICAL, logging.CRITICAL, logging.ERROR,
    logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG,
)  # fmt: skip
"""By syslog's levels."""
CALLBACKS = ("logger", "error_cb")


def column_consumer(settings: Mapping[str, Any], wanted: Wanted) -> ColumnConsumer | None:
    """None where confluent-kafka has to do it: without the library, or for settings that only it understands."""
    found = library()
    return None if found is None or not _is_plain(settings) else ColumnConsumer(found, settings, wanted)


def _is_plain(settings: Mapping[str, Any]) -> bool:
    """Whether all settings are texts and numbers, and no token has to be fetched by Python."""
    if any(
        str(value).upper() == "OAUTHBEARER" for name, value in settings.items() if name.startswith("sasl.mechanism")
    ):
        return False
    own = {name: value for name, value in settings.items() if name not in CALLBACKS}
    return all(isinstance(value, str | int | float) for value in own.values()) and "plugin.library.paths" not in own


class ColumnConsumer:
    """Belongs to the process that has created it: a forked child must not use it, and does not close it."""

    def __init__(self, library: Library, settings: Mapping[str, Any], wanted: Wanted) -> None:
        self._library = library
        self._wanted = wanted
        self._process = os.getpid()
        self._handle = self._queue = 0
        self._assigned: set[TopicPartition] = set()
        self._owned: Owned | None = None  # the last batch: librdkafka waits for its end when the handle is closed
        self._callbacks = self._made_callbacks(settings)  # must live as long as the handle
        self._handle = self._opened(settings)
        if code := library.poll_set_consumer(self._handle):
            self.close()
            raise client_module().KafkaException(client_module().KafkaError(code))
        library.set_log_queue(self._handle, None)
        self._queue = library.queue_get_consumer(self._handle)

    def _made_callbacks(self, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        report: Callable[[Any], None] = settings.get("error_cb", lambda error: None)
        logger: logging.Logger = settings.get("logger", terminal.logger(__name__))
        library = self._library

        def on_error(handle: int, code: int, reason: bytes | None, _: object) -> None:
            text = ctypes.create_string_buffer(reason or b"", ERROR_BYTES)
            is_fatal = code == FATAL
            code = library.fatal_error(handle, text, ERROR_BYTES) if is_fatal else code
            report(client_module().KafkaError(code, text.value.decode(errors="replace"), fatal=is_fatal))

        def on_log(_: int, level: int, facility: bytes | None, line: bytes | None) -> None:
            texts = [(part or b"").decode(errors="replace") for part in (facility, line)]
            logger.log(LEVELS[min(level, 7)], "%s %s", *texts)

        return ErrorCallback(on_error), LogCallback(on_log)

    def _opened(self, settings: Mapping[str, Any]) -> int:
        library = self._library
        error = ctypes.create_string_buffer(ERROR_BYTES)
        conf = library.conf_new()
        try:
            for name, value in settings.items():
                if name not in CALLBACKS:
                    text = str(value).lower() if isinstance(value, bool) else str(value)
                    if library.conf_set(conf, name.encode(), text.encode(), error, ERROR_BYTES):
                        raise _refused("_INVALID_ARG", error)
            library.conf_set(conf, b"log.queue", b"true", error, ERROR_BYTES)
            library.conf_set_error_cb(conf, self._callbacks[0])
            library.conf_set_log_cb(conf, self._callbacks[1])
            handle: int | None = library.new(CONSUMER, conf, error, ERROR_BYTES)
            if not handle:
                raise _refused("_INVALID_ARG", error)
        except BaseException:
            library.conf_destroy(conf)
            raise
        return handle

    # ------------------------------------------------------------ partitions

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions from these offsets, and drops what was received of others."""
        self._with_list(starts, self._library.assign)
        self._assigned = set(starts)

    def assignment(self) -> set[TopicPartition]:
        return set(self._assigned)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions, too."""
        self._with_list(starts, self._library.incremental_assign)
        self._assigned |= starts.keys()

    def remove(self, places: Iterable[TopicPartition]) -> None:
        gone = dict.fromkeys(places, 0)
        self._with_list(gone, self._library.incremental_unassign)
        self._assigned -= gone.keys()

    def _with_list(self, starts: Mapping[TopicPartition, int], act: Callable[[int, int], int | None]) -> None:
        library = self._library
        listed = library.topic_partition_list_new(len(starts))
        try:
            for place, offset in starts.items():
                topic = place.topic.encode()
                library.topic_partition_list_add(listed, topic, place.partition)
                library.topic_partition_list_set_offset(listed, topic, place.partition, offset)
            failure = act(self._handle, listed)
        finally:
            library.topic_partition_list_destroy(listed)
        if failure and act is library.assign:
            raise client_module().KafkaException(client_module().KafkaError(failure))
        if failure:
            code, text = library.error_code(failure), library.error_string(failure).decode(errors="replace")
            library.error_destroy(failure)
            raise client_module().KafkaException(client_module().KafkaError(code, text))

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
        return columns_received(self._library, self._owned, self._wanted)

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        if self._handle and self._process == os.getpid():
            handle, self._handle = self._handle, 0
            if self._owned is not None:
                self._owned.destroy()
            if self._queue:
                self._library.queue_destroy(self._queue)
            self._library.consumer_close(handle)
            self._library.destroy_flags(handle, NO_CONSUMER_CLOSE)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


def _refused(code: str, error: Any) -> Exception:
    module = client_module()
    found: Exception = module.KafkaException(
        module.KafkaError(getattr(module.KafkaError, code), error.value.decode(errors="replace"))
    )
    return found


class ObjectConsumer:
    """The same on confluent-kafka's consumer."""

    def __init__(self, client: Any, wanted: Wanted) -> None:
        self.client = client
        self._wanted = wanted

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        self.client.assign(_listed(starts))

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(held.topic, held.partition) for held in self.client.assignment()}

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        self.client.incremental_assign(_listed(starts))

    def remove(self, places: Iterable[TopicPartition]) -> None:
        self.client.incremental_unassign(_listed(dict.fromkeys(places, 0)))

    def take(self, count: int, seconds: float) -> Iterator[Received | Event]:
        messages: Sequence[Any] = self.client.consume(count, seconds)
        return objects_received(messages, self._wanted)

    def receive(self, seconds: float, more: int) -> Iterator[Received | Event]:
        first = self.client.poll(seconds)
        messages = [] if first is None else [first, *(self.client.consume(more, 0) if more else ())]
        return objects_received(messages, self._wanted)

    def close(self) -> None:
        self.client.close()


def _listed(starts: Mapping[TopicPartition, int]) -> list[Any]:
    kind = client_module().TopicPartition
    return [kind(place.topic, place.partition, offset) for place, offset in sorted(starts.items())]
