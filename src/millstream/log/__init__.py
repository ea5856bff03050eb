"""The log: topics, partitions and offsets; producers, consumers, groups, queues and transactions."""

from __future__ import annotations

import os

from millstream.errors import InvalidInput
from millstream.log.batches import Batch, Lost, Record
from millstream.log.broker import Broker
from millstream.log.buffer import BatchReceipt, Receipt
from millstream.log.consumer import Consumer
from millstream.log.embedded import EmbeddedLog
from millstream.log.groups import GroupInfo, TopicPartition
from millstream.log.producer import Producer
from millstream.log.queues import Message, Queue, QueueInfo
from millstream.log.switches import Switch
from millstream.log.topics import TopicInfo, TopicSettings, TopicVersion

ADDRESS_VARIABLE = "MILLSTREAM_BROKER"
DEFAULT_FOLDER = ".millstream"

__all__ = [
    "Batch",
    "BatchReceipt",
    "Broker",
    "Consumer",
    "EmbeddedLog",
    "GroupInfo",
    "Lost",
    "Message",
    "Producer",
    "Queue",
    "QueueInfo",
    "Receipt",
    "Record",
    "Switch",
    "TopicInfo",
    "TopicPartition",
    "TopicSettings",
    "TopicVersion",
    "connect",
]


def connect(address: str | os.PathLike[str] | None = None) -> EmbeddedLog:
    """Opens a broker by its address: a folder, or file://folder. Unsaid: MILLSTREAM_BROKER, else `.millstream` here."""
    given = os.fspath(address) if address is not None else os.environ.get(ADDRESS_VARIABLE) or DEFAULT_FOLDER
    scheme, separator, rest = given.partition("://")
    if not separator:
        return EmbeddedLog(given)
    if scheme == "file":
        return EmbeddedLog(rest)
    raise InvalidInput(
        f"there is no broker for '{scheme}://'",
        where=given,
        next_step="give a folder, or an address that begins with file://",
    )
