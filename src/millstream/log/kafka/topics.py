"""Kafka topics as ours: settings are Kafka's under other names, the schema is stored in the descriptions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from millstream.errors import (
    AlreadyExists,
    DamagedLog,
    InvalidSetting,
    KafkaUnavailable,
    MillstreamError,
    UnknownPartition,
)
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.clients import ANSWER_SECONDS, NEWS_SECONDS, Clients
from millstream.log.kafka.failures import admin_module, client_module
from millstream.log.storage.layout import stored_schema
from millstream.log.topics import TopicSettings
from millstream.records import Schema

REPLICAS = 3
LOOK_SECONDS = 0.05
ATTEMPT_SECONDS = 10.0  # a request for offsets waits for the leaders of its beginning; the next one asks the new ones
MILLISECOND = timedelta(milliseconds=1)
FOREVER = "-1"
MIN_IN_SYNC = "min.insync.replicas"
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}  # like the embedded log, which accepts future times


class KafkaPartition:
    """One partition and its bounds, as the brokers report them."""

    def __init__(self, clients: Clients, topic: str, number: int) -> None:
        self._clients = clients
        self.topic = topic
        self.number = number

    def start_offset(self) -> int:
        return self._offset("earliest")

    def end_offset(self) -> int:
        return self._offset("latest")

    def stable_offset(self) -> int:
        """The last stable offset: no transaction that started before it is still open."""
        return self._offset("latest", committed=True)

    def sync(self) -> None:
        return  # Kafka's brokers see to that

    def _offset(self, spec: str, *, committed: bool = False) -> int:
        place = TopicPartition(self.topic, self.number)
        return offsets(self._clients, [place], spec, committed=committed)[place]


class KafkaTopic:
    """A topic, as recently described."""

    def __init__(self, name: str, identity: str, settings: TopicSettings, clients: Clients) -> None:
        self.name = name
        self.identity = identity
        self.settings = settings
        self.stored_schema: pa.Schema = stored_schema(settings.schema)
        self._clients = clients

    def partition(self, number: int) -> KafkaPartition:
        if not 0 <= number < self.settings.partitions:
            raise UnknownPartition(
                f"there is no partition {number}",
                where=f"topic '{self.name}'",
                next_step=f"choose 0 to {self.settings.partitions - 1}",
            )
        return KafkaPartition(self._clients, self.name, number)

    def partitions(self) -> list[KafkaPartition]:
        return [self.partition(number) for number in range(self.settings.partitions)]

    def places(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.settings.partitions)]


# ---------------------------------------------------------------- settings to and from Kafka


def to_kafka(settings: TopicSettings) -> dict[str, str]:
    if settings.retention_archive is not None:
        raise InvalidSetting(
            "Kafka's brokers archive segments themselves",
            next_step="leave retention_archive out, and set up tiered storage on the brokers",
        )
    limited = settings.retention is not None or settings.retention_bytes is not None
    policy = "delete" if not settings.compaction else "compact,delete" if limited else "compact"
    age = settings.retention
    return {
        "cleanup.policy": policy,
        "retention.ms": FOREVER if age is None else str(age // MILLISECOND),
        "retention.bytes": FOREVER if settings.retention_bytes is None else str(settings.retention_bytes),
        "segment.bytes": str(settings.segment_bytes),
        "delete.retention.ms": str(settings.tombstone_retention // MILLISECOND),
        **({} if settings.min_insync_replicas is None else {MIN_IN_SYNC: str(settings.min_insync_replicas)}),
    }


def from_kafka(
    partitions: int, replicas: int, config: Mapping[str, str], description: Mapping[str, Any]
) -> TopicSettings:
    """Not validated like a user's settings: topics created by others may have values that ours cannot."""
    age, size = int(config["retention.ms"]), int(config["retention.bytes"])
    schema = description.get("schema")
    return TopicSettings(
        partitions=partitions,
        schema=_schema(schema) if schema else None,
        codec=description.get("codec"),
        retention=None if age < 0 or config["cleanup.policy"] == "compact" else _length(age),
        retention_bytes=None if size < 0 or config["cleanup.policy"] == "compact" else size,
        segment_bytes=int(config["segment.bytes"]),
        compaction="compact" in config["cleanup.policy"],
        tombstone_retention=_length(int(config["delete.retention.ms"])),
        replication_factor=replicas,
        min_insync_replicas=int(config[MIN_IN_SYNC]),
    )


def _schema(described: Any) -> Schema:
    try:
        if isinstance(described, str):
            return Schema.of(described)
        reason = "it is not text"
    except MillstreamError as error:
        reason = error.what
    raise DamagedLog(
        f"the stored schema of a topic cannot be read: {reason}",
        where="topic '_millstream'",
        next_step="it was not written by Millstream: send a record with the key topic/NAME and no value there, with "
        "Kafka's own tools; then set the schema of the topic again",
    )


def _length(milliseconds: int) -> timedelta:
    return min(timedelta.max // MILLISECOND, milliseconds) * MILLISECOND


def kept_settings(clients: Clients, topic: str, seconds: float = ANSWER_SECONDS) -> dict[str, str]:
    """The settings of a topic, as Kafka has them."""
    admin = admin_module()
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)
    [found] = clients.answered(lambda: clients.admin.describe_configs([resource]), f"topic '{topic}'", seconds).values()
    return {name: entry.value for name, entry in found.items()}


def change_settings(clients: Clients, topic: str, settings: Mapping[str, str]) -> None:
    """Returns when the broker that is asked for settings knows the change, or after a while."""
    alter_configs(clients, "TOPIC", topic, settings, f"topic '{topic}'")
    deadline = time.monotonic() + NEWS_SECONDS
    while time.monotonic() < deadline:
        known = kept_settings(clients, topic)
        if all(known.get(name) == value for name, value in settings.items()):
            return
        time.sleep(LOOK_SECONDS)


def alter_configs(clients: Clients, kind: str, name: str, settings: Mapping[str, str], where: str) -> None:
    """Alters the configuration of a topic or a group; the brokers reject what they do not allow."""
    admin = admin_module()
    changes = [
        admin.ConfigEntry(setting, value, incremental_operation=admin.AlterConfigOpType.SET)
        for setting, value in settings.items()
    ]
    resource = admin.ConfigResource(getattr(admin.ResourceType, kind), name, incremental_configs=changes)
    clients.answered(lambda: clients.admin.incremental_alter_configs([resource]), where)


# ---------------------------------------------------------------- creating and deleting


def make_topic(
    clients: Clients,
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    *,
    replicas: int | None = None,
    missing_ok: bool = False,
) -> None:
    """Returns when every partition has a leader. With three or more brokers, two must have a record."""
    where = f"topic '{name}'"
    brokers = clients.retrying(lambda: clients.admin.list_topics(timeout=ANSWER_SECONDS).brokers, where)
    if replicas is None:
        replicas = min(REPLICAS, len(brokers))
    _check_replicas(replicas, settings.get(MIN_IN_SYNC), len(brokers))
    safe = {MIN_IN_SYNC: "2"} if replicas >= REPLICAS else {}
    new = admin_module().NewTopic(name, partitions, replicas, config={**ANY_TIME, **safe, **settings})
    try:
        clients.answered(lambda: clients.admin.create_topics([new]), where)
    except AlreadyExists:
        if not missing_ok:
            raise
    clients.made(name)
    wait_for_leaders(clients, name, partitions)


def _check_replicas(replicas: int, in_sync: str | None, brokers: int) -> None:
    if replicas > brokers:
        raise InvalidSetting(
            f"a replication factor of {replicas} needs as many brokers; there are {brokers}",
            next_step="choose a smaller one, or start more brokers",
        )
    if in_sync is not None and int(in_sync) > replicas:
        raise InvalidSetting(
            f"{in_sync} replicas in sync cannot be had of {replicas}: no record could be written",
            next_step="choose a smaller min_insync_replicas, or a larger replication_factor",
        )


def add_partitions(clients: Clients, name: str, partitions: int) -> None:
    more = admin_module().NewPartitions(name, partitions)
    clients.answered(lambda: clients.admin.create_partitions([more]), f"topic '{name}'")
    wait_for_leaders(clients, name, partitions)


def wait_for_leaders(clients: Clients, name: str, partitions: int) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        found = clients.retrying(lambda: clients.admin.list_topics(name, timeout=ANSWER_SECONDS), f"topic '{name}'")
        known = found.topics[name].partitions
        if len(known) >= partitions and all(partition.leader >= 0 for partition in known.values()):
            return
        if time.monotonic() > deadline:
            raise KafkaUnavailable(
                f"not every partition of topic '{name}' has a leader",
                where=clients.where,
                next_step="check its brokers",
            )
        time.sleep(LOOK_SECONDS)


def remove_topic(clients: Clients, name: str) -> None:
    clients.removed(name)
    clients.answered(lambda: clients.admin.delete_topics([name]), f"topic '{name}'")
    deadline = time.monotonic() + ANSWER_SECONDS
    while name in clients.retrying(lambda: clients.admin.list_topics(timeout=ANSWER_SECONDS).topics, name):
        if time.monotonic() > deadline:
            raise KafkaUnavailable(f"topic '{name}' is still being deleted", where=clients.where)
        time.sleep(LOOK_SECONDS)


# ---------------------------------------------------------------- offsets


def offsets(
    clients: Clients,
    places: Iterable[TopicPartition],
    spec: str | int,
    *,
    committed: bool = False,
    seconds: float = ANSWER_SECONDS,
) -> dict[TopicPartition, int]:
    """The first or next offset of partitions, or that of the first record at or after a time (ms).

    If there is no such record: the next offset.
    """
    confluent_kafka, specs = client_module(), admin_module().OffsetSpec
    levels = confluent_kafka.IsolationLevel
    asked = list(places)
    if not asked:
        return {}
    if isinstance(spec, int):
        wanted = specs.for_timestamp(spec)
    else:
        wanted = specs.earliest() if spec == "earliest" else specs.latest()
    request = {confluent_kafka.TopicPartition(*place): wanted for place in asked}
    level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
    where, attempt = ", ".join(map(str, asked[:3])), min(seconds, ATTEMPT_SECONDS)
    answers = clients.answered(
        lambda: clients.admin.list_offsets(request, isolation_level=level, request_timeout=attempt), where, seconds
    )
    found = {TopicPartition(place.topic, place.partition): answer.offset for place, answer in answers.items()}
    later = [place for place, offset in found.items() if offset < 0]
    return found | offsets(clients, later, "latest", committed=committed)


def described(clients: Clients, name: str, seconds: float = ANSWER_SECONDS) -> tuple[str, int]:
    """The id of a topic and the number of its partitions; raises UnknownTopic."""
    return replicated(clients, name, seconds)[:2]


def replicated(clients: Clients, name: str, seconds: float = ANSWER_SECONDS) -> tuple[str, int, int]:
    """The same, and the number of replicas."""
    confluent_kafka = client_module()
    [found] = clients.answered(
        lambda: clients.admin.describe_topics(confluent_kafka.TopicCollection([name])), f"topic '{name}'", seconds
    ).values()
    replicas = max((len(each.replicas) for each in found.partitions), default=1)
    return str(found.topic_id), len(found.partitions), replicas


def as_kafka(offsets_by_place: Mapping[TopicPartition, int]) -> Sequence[Any]:
    kind = client_module().TopicPartition
    return [kind(place.topic, place.partition, offset) for place, offset in sorted(offsets_by_place.items())]
