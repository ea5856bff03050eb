"""The positions of groups and queues, compared with the end of a partition."""

from __future__ import annotations

from millstream.log.agreement.coordinator import Coordinator
from millstream.log.agreement.groups import TopicPartition

OF_QUEUES = "partition = :partition AND queue IN (SELECT name FROM queues WHERE topic = :topic)"


def truncate_progress(coordinator: Coordinator, place: TopicPartition, end_offset: int) -> None:
    """Moves positions back to the new end of a partition: its next records reuse offsets."""
    beyond = {"topic": place.topic, "partition": place.partition, "end": end_offset}
    with coordinator.change(durable=True) as db:
        db.execute(
            "UPDATE offsets SET next_offset = :end "
            "WHERE topic = :topic AND partition = :partition AND next_offset > :end",
            beyond,
        )
        db.execute(f"UPDATE queue_cursors SET next_offset = :end WHERE {OF_QUEUES} AND next_offset > :end", beyond)
        db.execute(f"DELETE FROM deliveries WHERE {OF_QUEUES} AND record_offset >= :end", beyond)


def furthest_read(coordinator: Coordinator, place: TopicPartition) -> int:
    """The furthest position of any group or queue: the partition had at least this many records."""
    with coordinator.look() as db:
        rows = db.execute(
            "SELECT next_offset FROM offsets WHERE topic = :topic AND partition = :partition UNION ALL "
            f"SELECT next_offset FROM queue_cursors WHERE {OF_QUEUES}",
            {"topic": place.topic, "partition": place.partition},
        ).fetchall()
    return max((offset for (offset,) in rows), default=0)
