"""Appends the chunks of a producer to the segments of their partitions."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.log.agreement.groups import TopicPartition
from millstream.log.buffer import Chunk, PartitionWork
from millstream.log.channel import Placed
from millstream.log.embedded.topic import Topic
from millstream.log.ports import Acks, Sender
from millstream.log.storage.disk import SharedLock
from millstream.log.storage.frame import TRANSACTIONAL, Draft, parts, timed_draft
from millstream.log.storage.partition import RETRIES_LOCK, Partition

if TYPE_CHECKING:
    from millstream.log.embedded.log import EmbeddedLog


class EmbeddedStorage:
    def __init__(self, log: EmbeddedLog, name: str | None, acks: Acks, sender: Sender) -> None:
        self._sender = sender
        self._syncs = acks == "all"
        self.named = None if name is None else log.named_producer(name)
        self._id = self.named.id if self.named else random.getrandbits(62) | 1 << 62
        self._sequences: dict[TopicPartition, int] = {}
        self._enlisted: set[TopicPartition] = set()
        self._partitions: dict[TopicPartition, Partition] = {}  # kept open between chunks

    # ------------------------------------------------------------ storing

    def store(self, chunk: Chunk, placed: Placed) -> None:
        if chunk.work is None:
            chunk.work = self._plan(chunk.topic, placed)
        topic = placed.topic  # not looked up again: another topic may have the name by now
        assert isinstance(topic, Topic)
        while chunk.work:
            work = chunk.work[0]
            place = TopicPartition(chunk.topic, work.partition)
            partition = self._partitions[place] = topic.partition(work.partition)
            if self._sender.in_transaction and place not in self._enlisted:
                assert self.named is not None
                self.named.enlist(place)
                self._enlisted.add(place)
            tried_since = work.tried_since
            if tried_since is None:
                work.tried_since = partition.end_offset()
            try:
                offsets = partition.append(
                    work.drafts,
                    sync=self._syncs,
                    permit=self.named.check if self.named else None,
                    tried_since=tried_since,
                )
            except Exception:
                if work.uncertain is None:
                    with suppress(MillstreamError):  # the topic was deleted, or the disk accepts not even that
                        work.uncertain = SharedLock(partition.folder / RETRIES_LOCK)
                raise
            work.uncertain = None
            work.spans = [(offset, part.rows) for offset, part in zip(offsets, work.drafts, strict=True)]
            work.drafts = []
            chunk.stored.append(chunk.work.pop(0))

    def _plan(self, topic: str, placed: Placed) -> list[PartitionWork]:
        """The frames of a chunk, per partition."""
        if not placed.batch.num_rows:
            return []
        chosen = placed.partitions
        if isinstance(chosen, int):
            return [PartitionWork(chosen, placed.rows, self._drafts(TopicPartition(topic, chosen), placed.batch))]
        work = []
        for number in map(int, np.unique(chosen)):
            own = np.flatnonzero(chosen == number)
            drafts = self._drafts(TopicPartition(topic, number), placed.batch.take(pa.array(own)))
            work.append(PartitionWork(number, own if placed.rows is None else placed.rows[own], drafts))
        return work

    def _drafts(self, place: TopicPartition, records: pa.RecordBatch) -> list[Draft]:
        drafts = []
        for piece in parts(records):
            sequence = self._sequences.get(place, 0)
            self._sequences[place] = (sequence + 1) & 0x7FFFFFFF
            drafts.append(
                timed_draft(
                    piece,
                    producer_id=self._id,
                    epoch=self.named.epoch if self.named else 0,
                    sequence=sequence,
                    flags=TRANSACTIONAL if self._sender.in_transaction else 0,
                )
            )
        return drafts

    # ------------------------------------------------------------ transactions

    def begin(self) -> None:
        assert self.named is not None
        self.named.begin()
        self._sequences.clear()
        self._enlisted.clear()

    def commit(self, include: Callable[[object], None]) -> None:
        assert self.named is not None
        self.named.commit(include)

    def abort(self) -> None:
        assert self.named is not None
        self.named.abort()

    def close(self) -> None:
        self._partitions.clear()
        if self.named is not None:
            self.named.close()
