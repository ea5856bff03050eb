"""The log: topics, partitions and offsets; producers, consumers, groups, queues and transactions."""

from __future__ import annotations

import os
from pathlib import Path

from millstream.errors import InvalidInput
from millstream.log.agreement.groups import GroupInfo, TopicPartition
from millstream.log.batches import Batch, Lost, Record
from millstream.log.broker import Broker
from millstream.log.buffer import BatchReceipt, Receipt
from millstream.log.consumer import Consumer
from millstream.log.embedded import EmbeddedLog
from millstream.log.memory import SCHEME as MEMORY_SCHEME
from millstream.log.memory import memory_folder
from millstream.log.producer import Producer
from millstream.log.queues import Message, Queue, QueueInfo
from millstream.log.switches import Switch
from millstream.log.topics import TopicInfo, TopicSettings, TopicVersion
from millstream.secrets import shown_address

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
    "open_embedded",
]


def connect(address: str | os.PathLike[str] | None = None, *, shared_group: str | None = None) -> Broker:
    """Opens a broker by its address: a folder, file://folder, memory://, kafka://host:9092, or flight://host:8815.

    Default: MILLSTREAM_BROKER, else `.millstream` here. A log in a folder is private to this user unless it is shared
    with an operating system group. One in memory ends with this process.
    """
    given = chosen_address(address)
    if given.startswith("kafka://"):
        if shared_group is not None:
            raise InvalidInput(
                "Kafka cannot be shared with an operating system group",
                where=given.partition("?")[0],
                next_step="leave shared_group out: access to a topic is controlled by Kafka's ACLs",
            )
        from millstream.log.kafka.log import KafkaLog  # imported lazily: the embedded log needs no Kafka client

        return KafkaLog(given)
    if given.startswith(("flight://", "flight+tls://")):
        if shared_group is not None:
            raise InvalidInput(
                "a log server cannot be shared with an operating system group",
                where=given.partition("?")[0],
                next_step="leave shared_group out: access is controlled by the server's token",
            )
        from millstream.log.flight.log import FlightLog  # imported lazily: it loads gRPC

        return FlightLog(given)
    return EmbeddedLog(_folder(given), shared_group=shared_group)


def open_embedded(address: str | os.PathLike[str] | None = None) -> EmbeddedLog:
    """Opens a log that must be in a folder; rejects Kafka."""
    given = chosen_address(address)
    if given.startswith("kafka://"):
        raise InvalidInput(
            "this works on a log in a folder, not yet on Kafka",
            where=given.partition("?")[0],
            next_step="name a folder, here or with MILLSTREAM_BROKER",
        )
    return EmbeddedLog(_folder(given))


def chosen_address(address: str | os.PathLike[str] | None) -> str:
    """The address of a broker: as given, else MILLSTREAM_BROKER, else the default folder.

    A log in memory has its folder as address, so that it can be given to other processes while this one lives.
    """
    given = os.fspath(address) if address is not None else os.environ.get(ADDRESS_VARIABLE) or DEFAULT_FOLDER
    return memory_folder(given) if given.startswith(MEMORY_SCHEME) else given


def log_folder(address: str) -> Path | None:
    """The folder of an embedded log, by its address; None for other addresses."""
    scheme, separator, rest = address.partition("://")
    if separator and scheme != "file":
        return None
    return Path(rest if separator else address).expanduser()


def _folder(given: str) -> str:
    scheme, separator, rest = given.partition("://")
    if separator and scheme != "file":
        raise InvalidInput(
            f"there is no broker for '{scheme}://'",
            where=shown_address(given),
            next_step="give a folder, or an address that begins with file://, memory://, kafka:// or flight://",
        )
    return rest if separator else given
