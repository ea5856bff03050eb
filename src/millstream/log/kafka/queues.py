"""Queues on Kafka: each is a share group, and a description of what Kafka does not store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.errors import DamagedLog, InvalidInput, InvalidSetting
from millstream.log.kafka.descriptions import TOPIC as DESCRIPTIONS
from millstream.log.kafka.failures import client_module, translated_errors
from millstream.log.kafka.topics import KafkaTopic, alter_configs, offsets
from millstream.log.queues import QueueInfo, QueueSettings, in_use, prepared, unknown

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

KIND = "queue"  # the kind of its descriptions
ANSWER_SECONDS = 15.0
SPARE_TRIES = 3  # deliveries beyond max_tries, in which a message becomes a dead letter: that consumer may die, too


def group_of(queue: str) -> str:
    """The queue's share group; consumer groups have other names."""
    return f"queue-{queue}"


def names(log: KafkaLog) -> list[str]:
    return sorted(log.descriptions.of(KIND))


def create(log: KafkaLog, name: str, topic: KafkaTopic, settings: QueueSettings) -> None:
    settings = prepared(log, name, names(log), settings)
    _set_up_group(log, name, settings)
    is_late = settings.start == "latest"
    starts = offsets(log.clients, topic.places(), "latest", committed=True) if is_late else {}
    starts_document = {str(place.partition): offset for place, offset in starts.items()}
    log.descriptions.write(KIND, name, {"topic": topic.name, **settings.to_document(), "starts": starts_document})


def _set_up_group(log: KafkaLog, name: str, settings: QueueSettings) -> None:
    """The brokers have their own limits for these settings, and reject values beyond them."""
    wanted = {
        "share.auto.offset.reset": "earliest",  # the queue's start offset is stored, and records before it are skipped
        "share.isolation.level": "read_committed",
        "share.record.lock.duration.ms": str(int(settings.timeout.total_seconds() * 1000)),
    }
    if settings.max_in_flight != QueueSettings.max_in_flight:
        wanted["share.partition.max.record.locks"] = str(settings.max_in_flight)
    _alter_group(log, name, wanted)
    for spare in range(SPARE_TRIES, 0, -1):
        try:
            _alter_group(log, name, {"share.delivery.count.limit": str(settings.max_tries + spare)})
            return
        except InvalidSetting as error:
            if spare == 1:
                raise InvalidSetting(
                    f"max_tries={settings.max_tries} needs {settings.max_tries + 1} deliveries of a message, which "
                    f"this Kafka does not allow: {error.what}",
                    where=f"queue '{name}'",
                    next_step="lower max_tries, or raise group.share.max.delivery.count.limit on the brokers",
                ) from error


def _alter_group(log: KafkaLog, name: str, settings: Mapping[str, str]) -> None:
    alter_configs(log.clients, "GROUP", group_of(name), settings, f"queue '{name}'")


def load(log: KafkaLog, name: str) -> tuple[str, QueueSettings, dict[int, int]]:
    """Its topic, its settings, and where it starts."""
    document = _document(log, name)
    try:
        topic, starts = str(document.pop("topic")), document.pop("starts")
        return topic, QueueSettings.of(**document), {int(number): int(offset) for number, offset in starts.items()}
    except (KeyError, TypeError, ValueError, AttributeError, InvalidSetting) as error:
        raise DamagedLog(
            f"the description of queue '{name}' cannot be read: {error}",
            where=f"topic '{DESCRIPTIONS}', {log.address}",
            next_step="it was not written by Millstream: delete the queue and create it again",
        ) from error


def _document(log: KafkaLog, name: str) -> dict[str, Any]:
    known = log.descriptions.of(KIND)
    if name not in known:
        raise unknown(name, known)
    return dict(known[name])


def describe(log: KafkaLog, name: str) -> QueueInfo:
    topic, settings, _ = load(log, name)
    not_counted = dict.fromkeys(("waiting", "in_flight", "acknowledged", "dead", "lost", "consumers"))
    return QueueInfo(name, topic, settings, **not_counted)


def delete(log: KafkaLog, name: str) -> None:
    _document(log, name)  # it need not be valid
    kafka_exception = client_module().KafkaException
    try:
        log.clients.admin.delete_consumer_groups([group_of(name)])[group_of(name)].result(ANSWER_SECONDS)
    except kafka_exception as error:
        code = error.args[0].name()
        if code == "NON_EMPTY_GROUP":
            raise InvalidInput(
                f"queue '{name}' has active consumers", next_step="stop them first, then try again"
            ) from error
        if code != "GROUP_ID_NOT_FOUND":  # nothing has been received yet
            with translated_errors(f"queue '{name}'"):
                raise
    log.descriptions.write(KIND, name, None)


def check_unused(log: KafkaLog, topic: str) -> None:
    known = log.descriptions.of(KIND)
    used = [name for name, each in sorted(known.items()) if topic in (each["topic"], each["dead_letters"])]
    if used:
        raise in_use(topic, used)
