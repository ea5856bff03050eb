"""The functions of librdkafka, the C library in confluent-kafka's wheel, as `rdkafka.h` declares them.

Only what that header makes public is used: its ABI does not change within a major version. `library()` is None where
the library is not found, lacks a function, or has another memory layout; confluent-kafka's objects then do the work.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.failures import client_module

PRODUCER, CONSUMER = 0, 1
NO_CONSUMER_CLOSE = 0x8
ERROR_BYTES = 512

ErrorCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
LogCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)


class CMessage(ctypes.Structure):
    """`rd_kafka_message_t`. Arrays of them are read by numpy, as words of eight bytes."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("length", c_size_t),
        ("key", c_void_p),
        ("key_length", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


class CPlace(ctypes.Structure):
    """`rd_kafka_topic_partition_t`."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_length", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("private", c_void_p),
    )


class CPlaces(ctypes.Structure):
    """`rd_kafka_topic_partition_list_t`."""

    _fields_ = (("count", c_int), ("room", c_int), ("places", ctypes.POINTER(CPlace)))


class PlaceList:
    """A list of partitions that librdkafka makes: as long as it is there, no handle with these partitions is closed.

    It exists before the list does, so that an exception from a signal handler loses none.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self.found = c_void_p()

    def places(self) -> set[TopicPartition]:
        there = ctypes.cast(self.found, ctypes.POINTER(CPlaces)).contents
        return {TopicPartition(each.topic.decode(), each.partition) for each in there.places[: there.count]}

    def destroy(self) -> None:
        """However often: no signal handler can run between the first line and the call of C code."""
        listed, self.found.value = self.found.value, None
        if listed:
            self._library.topic_partition_list_destroy(listed)


ERR, TOPIC, PARTITION, PAYLOAD, LENGTH, KEY, KEY_LENGTH, OFFSET, PRIVATE = (
    getattr(CMessage, name).offset // 8 for name, _ in CMessage._fields_
)
"""The words of a message."""

# Name, result, arguments. These return at once, and keep the interpreter's lock: to release it costs more than they do.
SHORT: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("rd_kafka_conf_new", c_void_p, ()),
    ("rd_kafka_conf_destroy", None, (c_void_p,)),
    ("rd_kafka_conf_set", c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    ("rd_kafka_conf_set_error_cb", None, (c_void_p, ErrorCallback)),
    ("rd_kafka_conf_set_log_cb", None, (c_void_p, LogCallback)),
    ("rd_kafka_set_log_queue", c_int, (c_void_p, c_void_p)),
    ("rd_kafka_poll_set_consumer", c_int, (c_void_p,)),
    ("rd_kafka_queue_get_consumer", c_void_p, (c_void_p,)),
    ("rd_kafka_queue_destroy", None, (c_void_p,)),
    ("rd_kafka_topic_partition_list_new", c_void_p, (c_int,)),
    ("rd_kafka_topic_partition_list_add", c_void_p, (c_void_p, c_char_p, c_int32)),
    ("rd_kafka_topic_partition_list_set_offset", c_int, (c_void_p, c_char_p, c_int32, c_int64)),
    ("rd_kafka_topic_partition_list_destroy", None, (c_void_p,)),
    ("rd_kafka_topic_name", c_char_p, (c_void_p,)),
    ("rd_kafka_message_destroy", None, (c_void_p,)),
    ("rd_kafka_message_errstr", c_char_p, (c_void_p,)),
    ("rd_kafka_message_timestamp", c_int64, (c_void_p, c_void_p)),
    ("rd_kafka_message_headers", c_int, (c_void_p, c_void_p)),
    ("rd_kafka_header_get_all", c_int, (c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)),
    ("rd_kafka_fatal_error", c_int, (c_void_p, c_char_p, c_size_t)),
    ("rd_kafka_error_code", c_int, (c_void_p,)),
    ("rd_kafka_error_string", c_char_p, (c_void_p,)),
    ("rd_kafka_error_is_fatal", c_int, (c_void_p,)),
    ("rd_kafka_error_is_retriable", c_int, (c_void_p,)),
    ("rd_kafka_error_txn_requires_abort", c_int, (c_void_p,)),
    ("rd_kafka_error_destroy", None, (c_void_p,)),
    ("rd_kafka_conf_set_events", None, (c_void_p, c_int)),
    ("rd_kafka_queue_get_main", c_void_p, (c_void_p,)),
    ("rd_kafka_topic_new", c_void_p, (c_void_p, c_char_p, c_void_p)),
    ("rd_kafka_topic_destroy", None, (c_void_p,)),
    ("rd_kafka_produceva", c_void_p, (c_void_p, c_void_p, c_size_t)),
    ("rd_kafka_last_error", c_int, ()),
    ("rd_kafka_purge", c_int, (c_void_p, c_int)),
    ("rd_kafka_headers_new", c_void_p, (c_size_t,)),
    ("rd_kafka_headers_destroy", None, (c_void_p,)),
    ("rd_kafka_header_add", c_int, (c_void_p, c_char_p, c_ssize_t, c_char_p, c_ssize_t)),
    ("rd_kafka_event_type", c_int, (c_void_p,)),
    ("rd_kafka_event_destroy", None, (c_void_p,)),
    ("rd_kafka_event_message_count", c_size_t, (c_void_p,)),
    ("rd_kafka_event_message_array", c_size_t, (c_void_p, c_void_p, c_size_t)),
    ("rd_kafka_event_error", c_int, (c_void_p,)),
    ("rd_kafka_event_error_string", c_char_p, (c_void_p,)),
    ("rd_kafka_event_log", c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    ("rd_kafka_consumer_group_metadata_read", c_void_p, (c_void_p, c_char_p, c_size_t)),
    ("rd_kafka_consumer_group_metadata_destroy", None, (c_void_p,)),
    ("rd_kafka_version", c_int, ()),
)
# These wait, and release the lock.
LONG: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("rd_kafka_new", c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    ("rd_kafka_assign", c_int, (c_void_p, c_void_p)),
    ("rd_kafka_assignment", c_int, (c_void_p, c_void_p)),
    ("rd_kafka_incremental_assign", c_void_p, (c_void_p, c_void_p)),
    ("rd_kafka_incremental_unassign", c_void_p, (c_void_p, c_void_p)),
    ("rd_kafka_consume_batch_queue", c_ssize_t, (c_void_p, c_int, c_void_p, c_size_t)),
    ("rd_kafka_consumer_close", c_int, (c_void_p,)),
    ("rd_kafka_destroy_flags", None, (c_void_p, c_int)),
    ("rd_kafka_queue_poll", c_void_p, (c_void_p, c_int)),
    ("rd_kafka_init_transactions", c_void_p, (c_void_p, c_int)),
    ("rd_kafka_begin_transaction", c_void_p, (c_void_p,)),
    ("rd_kafka_commit_transaction", c_void_p, (c_void_p, c_int)),
    ("rd_kafka_abort_transaction", c_void_p, (c_void_p, c_int)),
    ("rd_kafka_send_offsets_to_transaction", c_void_p, (c_void_p, c_void_p, c_void_p, c_int)),
)


class Library:
    """The functions, by their names without `rd_kafka_`."""

    def __init__(self, file: str) -> None:
        for loaded, functions in ((ctypes.PyDLL(file), SHORT), (ctypes.CDLL(file), LONG)):
            for name, result, arguments in functions:
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("rd_kafka_"), function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@contextmanager
def offset_list(library: Library, starts: Mapping[TopicPartition, int]) -> Iterator[int]:
    """Partitions and offsets as librdkafka takes them."""
    listed: int = library.topic_partition_list_new(len(starts))
    try:
        for place, offset in starts.items():
            topic = place.topic.encode()
            library.topic_partition_list_add(listed, topic, place.partition)
            library.topic_partition_list_set_offset(listed, topic, place.partition, offset)
        yield listed
    finally:
        library.topic_partition_list_destroy(listed)


@lru_cache(maxsize=1)
def library() -> Library | None:
    words = struct.calcsize("P") == 8 and ctypes.sizeof(CMessage) == 72 and sys.byteorder == "little"
    file = _file() if words else None
    if file is None:
        return None
    try:
        found = Library(str(file))
    except (OSError, AttributeError):
        return None
    return found if found.version() == client_module().libversion()[1] else None


def _file() -> Path | None:
    """The very file that confluent-kafka has loaded: a wheel has it in a folder beside the package, or inside."""
    package = Path(client_module().__file__).parent
    places = (package.parent / "confluent_kafka.libs", package / ".dylibs")
    found = [file for place in places if place.is_dir() for file in place.glob("librdkafka*")]
    return found[0] if len(found) == 1 else None
