"""Sends a producer's chunks to a log server, which appends them as they are.

Every frame has the producer's id and a sequence number. If an answer is lost, the same frames are sent again, and the
server finds those that it has stored.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.log.agreement.groups import TopicPartition
from millstream.log.buffer import Chunk, PartitionWork
from millstream.log.channel import Placed
from millstream.log.flight.client import Connection
from millstream.log.flight.protocol import decoded
from millstream.log.ports import Acks, Sender
from millstream.log.storage.frame import parts


class FlightStorage:
    def __init__(self, connection: Connection, acks: Acks, sender: Sender) -> None:
        self._connection = connection
        self._sender = sender
        self._syncs = acks == "all"
        self._id = random.getrandbits(62) | 1 << 62
        self._sequences: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        """An offset before which none of the frames in flight can be."""
        self._planned: tuple[Chunk, list[_Part]] | None = None

    def store(self, chunk: Chunk, placed: Placed) -> None:
        if self._planned is None or self._planned[0] is not chunk:
            self._planned = (chunk, self._plan(chunk.topic, placed))
            chunk.work = [part.work for part in self._planned[1]]
        while self._planned[1]:
            part = self._planned[1][0]
            offsets = self._send(chunk.topic, placed, part)
            part.work.spans = [(offset, piece.num_rows) for offset, piece in zip(offsets, part.pieces, strict=True)]
            assert chunk.work is not None
            chunk.stored.append(chunk.work.pop(0))
            self._planned[1].pop(0)

    def _plan(self, topic: str, placed: Placed) -> list[_Part]:
        if not placed.batch.num_rows:
            return []
        chosen = placed.partitions
        if isinstance(chosen, int):
            return [self._part(topic, chosen, placed.rows, placed.batch)]
        made = []
        for number in map(int, np.unique(chosen)):
            own = np.flatnonzero(chosen == number)
            rows = own if placed.rows is None else placed.rows[own]
            made.append(self._part(topic, number, rows, placed.batch.take(pa.array(own))))
        return made

    def _part(self, topic: str, number: int, rows: np.ndarray | None, records: pa.RecordBatch) -> _Part:
        place = TopicPartition(topic, number)
        pieces = list(parts(records))
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = (sequence + len(pieces)) & 0x7FFFFFFF
        return _Part(place, PartitionWork(number, rows, []), pieces, sequence)

    def _send(self, topic: str, placed: Placed, part: _Part) -> list[int]:
        place = part.place
        if place not in self._ends:
            self._ends[place] = int(self._connection.ask("offset", topic=topic, partition=place.partition, at="latest"))
        given = {
            "topic": topic,
            "identity": placed.topic.identity,
            "partition": place.partition,
            "producer": self._id,
            "sequence": part.sequence,
            "sync": self._syncs,
            "tried_since": self._ends[place] if part.was_tried else None,
        }
        part.was_tried = True
        with self._connection.translated():
            writer, answers = self._connection.put(given, part.pieces[0].schema)
            with writer:
                for piece in part.pieces:
                    writer.write_batch(piece)
                writer.done_writing()
                offsets = [int(offset) for offset in decoded(answers.read())]
        self._ends[place] = offsets[-1] + part.pieces[-1].num_rows
        return offsets

    # ------------------------------------------------------------ transactions

    def begin(self) -> None:
        raise unsupported("transactions")

    def commit(self, include: Callable[[object], None]) -> None:
        raise unsupported("transactions")

    def abort(self) -> None:
        return None

    def close(self) -> None:
        return None


class _Part:
    """The frames of a chunk for one partition; kept, so that a retry sends exactly the same."""

    def __init__(self, place: TopicPartition, work: PartitionWork, pieces: list[pa.RecordBatch], sequence: int) -> None:
        self.place, self.work, self.pieces, self.sequence = place, work, pieces, sequence
        self.was_tried = False


def unsupported(what: str) -> InvalidInput:
    return InvalidInput(
        f"a log over Flight has no {what}", next_step="open the log's folder, on the machine where it is"
    )
