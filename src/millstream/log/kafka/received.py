"""What a client of Kafka has received: records as columns, and events between them, in order.

There are two ways to the same columns: `objects_received` from the messages of confluent-kafka, one Python object per
record, and `columns.py` from the memory of librdkafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.messages import Headers, headers_of, times_ms

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

PIECE_BYTES = 16 << 20  # a compressed batch arrives whole, and a small one may contain gigabytes


class Wanted(NamedTuple):
    """Which parts of a record are needed besides its offset and value; each takes time."""

    keys: bool = True
    times: bool = True
    headers: bool = True


ALL = Wanted()


@dataclass(frozen=True, slots=True)
class Received:
    """Records of one partition, in the order of their offsets; parts that are not wanted are None."""

    place: TopicPartition
    offsets: npt.NDArray[np.int64]
    values: pa.Array
    keys: pa.Array | None = None
    times_ms: npt.NDArray[np.int64] | None = None
    headers: Sequence[Headers | None] | None = None
    bad_headers: Sequence[int] = ()
    """The positions of records whose headers cannot be decoded."""

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, begin: int, end: int) -> Received:
        return Received(
            self.place,
            self.offsets[begin:end],
            self.values.slice(begin, end - begin),
            None if self.keys is None else self.keys.slice(begin, end - begin),
            None if self.times_ms is None else self.times_ms[begin:end],
            None if self.headers is None else self.headers[begin:end],
            [place - begin for place in self.bad_headers if begin <= place < end],
        )

    @classmethod
    def joined(cls, parts: Sequence[Received]) -> Received:
        """Consecutive parts of one partition, with everything wanted, as one."""
        if len(parts) == 1:
            return parts[0]
        begins = np.cumsum([0, *map(len, parts)]).tolist()
        return cls(
            parts[0].place,
            np.concatenate([part.offsets for part in parts]),
            pa.concat_arrays([part.values for part in parts]),
            pa.concat_arrays([part.keys for part in parts]),
            np.concatenate([part.times_ms for part in parts if part.times_ms is not None]),
            list(chain.from_iterable(part.headers or () for part in parts)),
            [begin + place for begin, part in zip(begins, parts, strict=False) for place in part.bad_headers],
        )


@dataclass(frozen=True, slots=True)
class Event:
    """An error or another notice of the client, at this offset of a partition."""

    place: TopicPartition
    offset: int
    error: KafkaError


def objects_received(messages: Sequence[Message], wanted: Wanted) -> Iterator[Received | Event]:
    begin = 0
    for place, group in groupby(messages, _run):
        end = begin + len(list(group))
        error = messages[begin].error()
        if error is not None:
            for each in messages[begin:end]:
                yield Event(place[0], each.offset() or 0, each.error() or error)
        else:
            for first, last in pieces([len(message) for message in messages[begin:end]]):
                yield _records(place[0], messages[begin + first : begin + last], wanted)
        begin = end


def record_received(place: TopicPartition, message: Message) -> Received:
    return _records(place, [message], ALL)


def _run(message: Message) -> tuple[TopicPartition, bool]:
    """Equal for records of one partition that follow one another."""
    return _place(message), message.error() is None


def _records(place: TopicPartition, messages: Sequence[Message], wanted: Wanted) -> Received:
    headers, bad = headers_of(messages) if wanted.headers else (None, [])
    return Received(
        place,
        np.array([message.offset() for message in messages], np.int64),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.array([message.key() for message in messages], pa.binary()) if wanted.keys else None,
        times_ms(messages) if wanted.times else None,
        headers,
        bad,
    )


def _place(message: Message) -> TopicPartition:
    partition = message.partition()
    return TopicPartition(message.topic() or "", -1 if partition is None else int(partition))


def pieces(sizes: Sequence[int] | npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Bounds of parts that are not much larger than a piece."""
    ends = np.cumsum(sizes, dtype=np.int64)
    begin, passed = 0, 0
    while begin < len(ends):
        last = int(np.searchsorted(ends, passed + PIECE_BYTES)) + 1
        yield begin, min(last, len(ends))
        begin, passed = last, int(ends[min(last, len(ends)) - 1])
