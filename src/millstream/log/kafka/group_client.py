"""The client of a group's member: confluent-kafka's consumer is the member, and a handle of librdkafka reads.

A rebalance calls Python back, and what is raised there has to reach the caller of a poll: confluent-kafka sees to that.
So its consumer joins, commits and owns the partitions, but has them paused. The records of the same partitions come as
columns from a handle that is in no group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.column_client import ColumnConsumer, listed
from millstream.log.kafka.failures import client_module
from millstream.log.kafka.received import Event, Received, objects_received

if TYPE_CHECKING:
    from confluent_kafka import Consumer


ENDS = "_DESTROY"
"""The client is about to end, and gives up by itself what it owns."""


class GroupConsumer:
    """What the member owns is the truth. After an exception the reader may have more or less: `place` corrects it."""

    def __init__(self, client: Consumer, records: ColumnConsumer) -> None:
        self.client = client
        self._records = records
        self._is_reading = False

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(held.topic, held.partition) for held in self.client.assignment()}

    def place(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions from these offsets, and drops what was received of them."""
        if new := starts.keys() - self.assignment():
            end = dict.fromkeys(new, client_module().OFFSET_END)  # where nothing is fetched before it is paused
            self.client.incremental_assign(listed(end))
        if starts:
            self.client.pause(listed(starts))
        self._records.place(starts)
        self._is_reading = True

    def remove(self, places: Iterable[TopicPartition]) -> None:
        """During a rebalance the client waits for this, also without a partition."""
        gone = set(places)
        read = self._records.assignment()
        if stopped := read & gone:
            self._records.remove(stopped)
        self._is_reading = bool(read - gone)
        try:
            self.client.incremental_unassign(listed(dict.fromkeys(self.assignment() & gone, 0)))
        except client_module().KafkaException as error:
            if error.args[0].name() != ENDS:
                raise

    def receive(self, seconds: float, more: int) -> Iterator[Received | Event]:
        """Serves the group first: what is revoked then is not returned. Without a partition it waits for the group."""
        message = self.client.poll(0.0 if self._is_reading else seconds)
        events = [message] if message is not None and message.error() is not None else []
        if not self._is_reading:
            seconds = 0.0
        return chain(objects_received(events, self._records.wanted), self._records.receive(seconds, more))

    def close(self) -> None:
        try:
            self.client.close()
        finally:
            self._records.close()
