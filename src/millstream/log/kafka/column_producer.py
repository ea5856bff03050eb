"""A producer on a handle of librdkafka of its own, for records as columns.

It takes the same settings as confluent-kafka's, and reports errors and log lines to the same functions, while it is
served. The arguments of every record are laid out by numpy, and what the brokers answer is read by numpy: a record
costs one call of C code, and no Python object.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream import terminal
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.columns import words_of
from millstream.log.kafka.handle import library_for, log_line, open_handle, raise_code, raise_error, reported
from millstream.log.kafka.librdkafka import (
    ERR,
    OFFSET,
    PARTITION,
    PRIVATE,
    PRODUCER,
    Library,
    offset_list,
)
from millstream.log.kafka.loops import Words

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition as ClientPartition

Pairs = Sequence[tuple[str, bytes | None]]
Integers = npt.NDArray[np.int64]
PORTION_ROWS = 2000  # laid out at a time: about a megabyte
POSITION_BITS = 40
ABORT_SECONDS = 0.1
COPY = 0x2
PURGE_ALL = 0x1 | 0x2
DELIVERED, LOGGED, FAILED = 0x1, 0x4, 0x8  # kinds of events
VU_WORDS = 9
TOPIC_VU, PARTITION_VU, VALUE_VU, KEY_VU, OPAQUE_VU, FLAGS_VU, TIME_VU, HEADERS_VU = 2, 3, 4, 5, 6, 7, 8, 10
VUS = (TOPIC_VU, PARTITION_VU, VALUE_VU, KEY_VU, OPAQUE_VU, FLAGS_VU, TIME_VU, HEADERS_VU)
"""The arguments of a record, each a `rd_kafka_vu_t`. Headers are last: most records have none."""
_NOWHERE = ctypes.create_string_buffer(8)  # an empty value is at some address; null is at none


_tags = count()


def new_tag() -> int:
    """Marks records that are sent together: an answer may come when their sender no longer waits for it."""
    return next(_tags) & 0x3FFFFF


class Answers(NamedTuple):
    """What became of records with one tag: their positions, partitions, offsets, and codes of errors."""

    tag: int
    positions: Integers
    partitions: Integers
    offsets: Integers
    codes: Integers


Note = Callable[[Answers], None]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Records to send, as columns."""

    topic: str
    partitions: Integers
    keys: pa.Array
    values: pa.Array
    times_ms: Integers
    headers: Sequence[Pairs | None] | None
    positions: Integers
    """What the answers call them."""

    def taken(self, positions: Integers) -> Outgoing:
        places = pa.array(positions)
        return Outgoing(
            self.topic,
            self.partitions[positions],
            self.keys.take(places),
            self.values.take(places),
            self.times_ms[positions],
            None if self.headers is None else [self.headers[place] for place in positions.tolist()],
            self.positions[positions],
        )

    def __len__(self) -> int:
        return len(self.partitions)


def column_producer(settings: Mapping[str, Any]) -> ColumnProducer | None:
    """None where confluent-kafka has to do it."""
    found = library_for(settings)
    return None if found is None else ColumnProducer(found, settings)


class ColumnProducer:
    """Belongs to the process that has created it: a forked child must not use it, and does not close it."""

    def __init__(self, library: Library, settings: Mapping[str, Any]) -> None:
        self._library = library
        self._process = os.getpid()
        self._handle = self._queue = 0
        self._topics: dict[str, int] = {}
        self._unanswered = 0
        self._report: Callable[[Any], None] = settings.get("error_cb", lambda error: None)
        self._logger: logging.Logger = settings.get("logger", terminal.logger(__name__))
        events = DELIVERED | LOGGED | FAILED
        self._handle = open_handle(library, PRODUCER, settings, lambda conf: library.conf_set_events(conf, events))
        self._queue = library.queue_get_main(self._handle)

    # ------------------------------------------------------------ records

    def produce(self, records: Outgoing, begin: int, tag: int) -> tuple[int, int]:
        """Queues records from a position on, in order; returns how many, and the code of the error that ended it."""
        topic = self._topic(records.topic)
        for first in range(begin, len(records), PORTION_ROWS):
            part = slice(first, min(first + PORTION_ROWS, len(records)))
            with _Arguments(self._library, topic, records, part, tag) as arguments:
                code = arguments.passed_to(self._handle)
                self._unanswered += arguments.count
            if code or arguments.count < part.stop - first:
                return first + arguments.count - begin, code
        return len(records) - begin, 0

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            made = self._library.topic_new(self._handle, name.encode(), None)
            if not made:
                raise_code(self._library.last_error())
            self._topics[name] = made
        return self._topics[name]

    def serve(self, seconds: float, note: Note) -> None:
        """Takes the events that are there, waiting for the first; answers go to `note`."""
        library, wait_ms = self._library, int(seconds * 1000)
        while event := library.queue_poll(self._queue, wait_ms):
            wait_ms = 0
            try:
                self._take(event, note)
            finally:
                library.event_destroy(event)

    def _take(self, event: int, note: Note) -> None:
        library = self._library
        kind = library.event_type(event)
        if kind == DELIVERED:
            messages: Words = np.zeros(library.event_message_count(event), np.uint64)
            taken = library.event_message_array(event, messages.ctypes.data, len(messages))
            self._unanswered -= taken
            if taken:
                codes, partitions, offsets, positions = words_of(messages[:taken], ERR, PARTITION, OFFSET, PRIVATE)
                columns = positions.view(np.int64), _int32(partitions), offsets.view(np.int64), _int32(codes)
                for answers in _by_tag(*columns):
                    note(answers)
        elif kind == FAILED:
            code, reason = library.event_error(event), library.event_error_string(event)
            self._report(reported(library, self._handle, code, reason))
        elif kind == LOGGED:
            facility, line, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
            if not library.event_log(event, *map(ctypes.byref, (facility, line, level))):
                log_line(self._logger, level.value, facility.value, line.value)

    def purge(self) -> None:
        """Gives up all records without an answer: each is then answered with an error."""
        raise_code(self._library.purge(self._handle, PURGE_ALL))

    # ------------------------------------------------------------ transactions, with the names of confluent-kafka

    def init_transactions(self, seconds: float) -> None:
        raise_error(self._library, self._library.init_transactions(self._handle, int(seconds * 1000)))

    def begin_transaction(self) -> None:
        raise_error(self._library, self._library.begin_transaction(self._handle))

    def commit_transaction(self, seconds: float) -> None:
        raise_error(self._library, self._library.commit_transaction(self._handle, int(seconds * 1000)))

    def abort_transaction(self, seconds: float) -> None:
        """Gives up its records first: librdkafka waits until somebody has taken their answers."""
        deadline = time.monotonic() + seconds
        if self._unanswered:
            self.purge()
        while self._unanswered and time.monotonic() < deadline:
            self.poll(ABORT_SECONDS)
        raise_error(self._library, self._library.abort_transaction(self._handle, int(seconds * 1000)))

    def send_offsets_to_transaction(self, offsets: Sequence[ClientPartition], group: bytes, seconds: float) -> None:
        library, metadata = self._library, ctypes.c_void_p()
        raise_error(library, library.consumer_group_metadata_read(ctypes.byref(metadata), group, len(group)))
        places = {TopicPartition(each.topic, each.partition): each.offset for each in offsets}
        try:
            with offset_list(library, places) as listed:
                sent = library.send_offsets_to_transaction(self._handle, listed, metadata, int(seconds * 1000))
        finally:
            library.consumer_group_metadata_destroy(metadata)
        raise_error(library, sent)

    def poll(self, seconds: float) -> None:
        """Without records there is nothing to answer."""
        self.serve(seconds, lambda answers: None)

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        if self._handle and self._process == os.getpid():
            handle, self._handle = self._handle, 0
            for topic in self._topics.values():
                self._library.topic_destroy(topic)
            if self._queue:
                self._library.queue_destroy(self._queue)
            self._library.destroy_flags(handle, 0)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


def _by_tag(opaque: Integers, *columns: Integers) -> Iterator[Answers]:
    tags, positions = opaque >> POSITION_BITS, opaque & ((1 << POSITION_BITS) - 1)
    for tag in np.unique(tags).tolist():
        own = tags == tag
        yield Answers(tag, positions[own], *(column[own] for column in columns))


def _int32(words: Words) -> Integers:
    return words.astype(np.uint32).view(np.int32).astype(np.int64)


class _Arguments:
    """The arguments of `rd_kafka_produceva` for some records, laid out in memory."""

    def __init__(self, library: Library, topic: int, records: Outgoing, part: slice, tag: int) -> None:
        self._library = library
        self.count = 0
        """How many records were queued."""
        rows = part.stop - part.start
        self._words = words = np.zeros((rows, len(VUS), VU_WORDS), np.uint64)
        words[:, :, 0] = VUS
        contents = words[:, :, 1]
        contents[:, VUS.index(TOPIC_VU)] = topic
        contents[:, VUS.index(PARTITION_VU)] = records.partitions[part]
        contents[:, VUS.index(FLAGS_VU)] = COPY
        contents[:, VUS.index(TIME_VU)] = records.times_ms[part]
        contents[:, VUS.index(OPAQUE_VU)] = records.positions[part] + (tag << POSITION_BITS)
        for which, column in ((VALUE_VU, records.values), (KEY_VU, records.keys)):
            addresses, sizes = addresses_of(column.slice(part.start, rows))
            contents[:, VUS.index(which)], words[:, VUS.index(which), 2] = addresses, sizes
        self._headers: list[int] = []
        self._counts: Iterator[int] = repeat(len(VUS) - 1)
        headers = None if records.headers is None else records.headers[part]
        if headers is not None and any(headers):
            self._headers = [_headers(library, pairs) if pairs else 0 for pairs in headers]
            contents[:, VUS.index(HEADERS_VU)] = self._headers
            self._counts = iter([len(VUS) - (not made) for made in self._headers])

    def passed_to(self, handle: int) -> int:
        """Stops at the first error, so that no record overtakes another; returns its code."""
        addresses = self._words.ctypes.data + self._words.strides[0] * np.arange(len(self._words))
        left = iter(addresses.tolist())
        calls = map(self._library.produceva, repeat(handle), left, self._counts)
        error: int | None = next(filter(None, calls), None)
        self.count = len(self._words) - length_hint(left) - (error is not None)
        if error is None:
            return 0
        code: int = self._library.error_code(error)
        self._library.error_destroy(error)
        return code

    def __enter__(self) -> _Arguments:
        return self

    def __exit__(self, *_: object) -> None:
        """The headers of a queued record belong to librdkafka."""
        for made in filter(None, self._headers[self.count :]):
            self._library.headers_destroy(made)


def _headers(library: Library, pairs: Pairs) -> int:
    made: int = library.headers_new(len(pairs))
    for name, value in pairs:
        encoded = name.encode()
        raise_code(library.header_add(made, encoded, len(encoded), value, len(value or b"")))
    return made


def addresses_of(column: pa.Array) -> tuple[Words, Words]:
    """Where the bytes of each value are, and how many; null is at address 0."""
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    base = data.address if data is not None and data.address else ctypes.addressof(_NOWHERE)
    addresses, sizes = (base + offsets[:-1]).astype(np.uint64), np.diff(offsets).astype(np.uint64)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        addresses[is_null] = sizes[is_null] = 0
    return addresses, sizes
