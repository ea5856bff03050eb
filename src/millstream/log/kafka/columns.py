"""Copies the messages that librdkafka has received into columns, without a Python object per record.

A message belongs to librdkafka until it is destroyed. Its fields and bytes are copied first, and every message of a
batch is destroyed exactly once, also if the copy fails or is abandoned.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.failures import client_module
from millstream.log.kafka.librdkafka import (
    ERR,
    KEY,
    KEY_LENGTH,
    LENGTH,
    OFFSET,
    PARTITION,
    PAYLOAD,
    TOPIC,
    CMessage,
    Library,
)
from millstream.log.kafka.loops import CalledDestroying, CompiledDestroying, Words, destroying, header_codes, times_of
from millstream.log.kafka.messages import Headers
from millstream.log.kafka.received import Event, Received, Wanted, pieces

MESSAGE_BYTES = ctypes.sizeof(CMessage)


class Owned:
    """Messages of librdkafka, by their addresses in an array that was zeros before librdkafka filled it.

    It exists before the messages do, so that an exception from a signal handler loses none.
    """

    def __init__(self, library: Library, messages: Words) -> None:
        self._library = library
        self._messages = messages
        self._process = os.getpid()
        self._left: CompiledDestroying | CalledDestroying | None = None

    @property
    def addresses(self) -> Words:
        found: Words = self._messages[self._messages != 0]
        return found

    def _rest(self) -> CompiledDestroying | CalledDestroying:
        if self._left is None:
            self._left = destroying(self._library, self.addresses)
        return self._left

    @property
    def is_gone(self) -> bool:
        return self._rest().is_done

    def destroy(self, until: int | None = None) -> None:
        """All of them, or those before a position, however often; in a forked child none, they are its parent's."""
        if self._process == os.getpid():
            self._rest().until(int(np.count_nonzero(self._messages)) if until is None else until)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.destroy()


def columns_received(library: Library, owned: Owned, wanted: Wanted) -> Iterator[Received | Event]:
    """Destroys the messages as it goes; ends if they were destroyed meanwhile, because the consumer was closed."""
    if owned.is_gone:
        return
    addresses = owned.addresses
    fields = _Fields(addresses)
    for begin, end in fields.runs():
        if owned.is_gone:
            return
        place = fields.place(library, begin)
        if error := int(fields.errors[begin]):
            event = Event(place, int(fields.offsets[begin]), _kafka_error(library, error, int(addresses[begin])))
            owned.destroy(end)
            yield event
            continue
        for first, last in pieces(fields.lengths[begin:end]):
            if owned.is_gone:
                return
            part = slice(begin + first, begin + last)
            found = fields.received(library, place, part, addresses[part], wanted)
            owned.destroy(part.stop)
            yield found


def _kafka_error(library: Library, code: int, message: int) -> Any:
    text = library.message_errstr(message)
    return client_module().KafkaError(code, text.decode(errors="replace") if text else None)


def words_of(messages: Words, *words: int) -> list[Words]:
    """These words of each message."""
    first, last = int(messages.min()), int(messages.max())
    memory = np.frombuffer(pa.foreign_buffer(first, last - first + MESSAGE_BYTES), np.uint64)
    at = ((messages - np.uint64(first)) >> np.uint64(3)).astype(np.int64)
    return [memory[at + word] for word in words]


class _Fields:
    """The fields of the messages as columns, all copied at once: later, some messages may have been destroyed."""

    def __init__(self, messages: Words) -> None:
        errors, self.topics, partitions, offsets = words_of(messages, ERR, TOPIC, PARTITION, OFFSET)
        self.errors = errors.astype(np.uint32).view(np.int32)
        self.partitions = partitions.astype(np.uint32).view(np.int32)
        self.offsets = offsets.view(np.int64)
        self.payloads, lengths = words_of(messages, PAYLOAD, LENGTH)
        self.lengths = lengths.view(np.int64)
        self.keys, self.key_lengths = words_of(messages, KEY, KEY_LENGTH)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Bounds of consecutive records of one partition; an event is alone."""
        changes = (self.topics[1:] != self.topics[:-1]) | (self.partitions[1:] != self.partitions[:-1])
        changes |= (self.errors[1:] != 0) | (self.errors[:-1] != 0)
        begins = [0, *(np.flatnonzero(changes) + 1).tolist(), len(self.offsets)]
        return pairwise(begins)

    def place(self, library: Library, at: int) -> TopicPartition:
        topic = int(self.topics[at])
        return TopicPartition(library.topic_name(topic).decode() if topic else "", int(self.partitions[at]))

    def received(
        self, library: Library, place: TopicPartition, part: slice, messages: Words, wanted: Wanted
    ) -> Received:
        headers, bad = _headers(library, messages) if wanted.headers else (None, [])
        return Received(
            place,
            self.offsets[part],
            copied(self.payloads[part], self.lengths[part]),
            copied(self.keys[part], self.key_lengths[part]) if wanted.keys else None,
            times_of(library, messages) if wanted.times else None,
            headers,
            bad,
        )


def copied(addresses: Words, lengths: Words | npt.NDArray[np.int64]) -> pa.Array:
    """The bytes at these addresses; null at address 0.

    Arrow copies them in one call: all memory from the first to the last is one column of alternating values and gaps,
    of which only the values are taken.
    """
    there = np.flatnonzero(addresses)
    if not len(there):
        return pa.nulls(len(addresses), pa.binary())
    starts, sizes = addresses[there].astype(np.int64), lengths[there].astype(np.int64)
    order = None
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, sizes = starts[order], sizes[order]
    base = int(starts[0])
    edges = np.empty(2 * len(starts), np.int64)
    edges[0::2] = starts - base
    edges[1::2] = starts - base + sizes
    if (edges[1:] < edges[:-1]).any():  # they overlap
        return pa.array([_bytes(*each) for each in zip(addresses.tolist(), lengths.tolist(), strict=True)], pa.binary())
    memory = pa.foreign_buffer(base, max(1, int(edges[-1])))
    whole = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(edges) - 1, [None, pa.py_buffer(edges), memory])
    taken = np.empty(len(starts), np.int64)
    taken[slice(None) if order is None else order] = 2 * np.arange(len(starts))
    places = pa.array(taken)
    if len(there) < len(addresses):
        sources = np.zeros(len(addresses), np.int64)
        sources[there] = taken
        places = pa.array(sources, mask=addresses == 0)
    return whole.take(places).cast(pa.binary())


def _bytes(address: int, length: int) -> bytes | None:
    return ctypes.string_at(address, length) if address else None


def _headers(library: Library, messages: Words) -> tuple[list[Headers | None], list[int]]:
    """The headers of each message, and the positions of those with a name that cannot be decoded."""
    found: list[Headers | None] = [None] * len(messages)
    bad = []
    held = ctypes.c_void_p()
    for place in np.flatnonzero(header_codes(library, messages) == 0).tolist():
        library.message_headers(int(messages[place]), ctypes.addressof(held))
        try:
            found[place] = _pairs(library, held)
        except UnicodeDecodeError:
            bad.append(place)
    return found, bad


def _pairs(library: Library, headers: ctypes.c_void_p) -> Headers:
    name, value, length = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    pairs: Headers = []
    arguments = ctypes.byref(name), ctypes.byref(value), ctypes.byref(length)
    while not library.header_get_all(headers, len(pairs), *arguments):
        content = ctypes.string_at(value, length.value) if value.value else None
        pairs.append(((name.value or b"").decode(), content))
    return pairs
