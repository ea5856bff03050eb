"""Consumer groups, as Kafka's coordinator has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from millstream.errors import InvalidInput, KafkaUnavailable, UnknownGroup, UnknownTopic
from millstream.log.agreement.groups import GroupInfo, GroupPartition, TopicPartition
from millstream.log.kafka.clients import ANSWER_SECONDS, Clients
from millstream.log.kafka.failures import client_module
from millstream.log.kafka.times import records_between
from millstream.log.kafka.topics import as_kafka, described, offsets

AT_WORK = frozenset(("UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"))


def group_names(clients: Clients) -> list[str]:
    """Groups of consumers; those of queues are not included."""
    types = client_module().ConsumerGroupType
    wanted = {types.CLASSIC, types.CONSUMER}
    found = clients.retrying(
        lambda: clients.admin.list_consumer_groups(types=wanted).result(ANSWER_SECONDS), clients.where
    )
    return sorted(group.group_id for group in found.valid)


def committed_offsets(clients: Clients, group: str) -> dict[TopicPartition, int]:
    """The offsets that a group has committed; empty for one that does not exist."""
    request = client_module().ConsumerGroupTopicPartitions(group)
    found = _answers(clients, group, lambda: clients.admin.list_consumer_group_offsets([request], require_stable=True))
    return {TopicPartition(place.topic, place.partition): place.offset for place in found if place.offset >= 0}


def store_offsets(clients: Clients, group: str, found: Mapping[TopicPartition, int]) -> None:
    """Works only for an idle group."""
    request = client_module().ConsumerGroupTopicPartitions(group, list(as_kafka(found)))
    try:
        _answers(clients, group, lambda: clients.admin.alter_consumer_group_offsets([request]))
    except KafkaUnavailable as error:
        cause = error.__cause__
        if isinstance(cause, client_module().KafkaException) and cause.args[0].name() in AT_WORK:
            raise _not_idle(group) from error
        raise


def _answers(clients: Clients, group: str, ask: Callable[[], Mapping[Any, Future[Any]]]) -> list[Any]:
    """The partitions of a request about a group; raises if any of them failed."""

    def wait() -> list[Any]:
        [found] = ask().values()
        return without_errors(found.result(ANSWER_SECONDS).topic_partitions)

    return clients.retrying(wait, f"group '{group}'")


def without_errors(found: Sequence[Any]) -> list[Any]:
    """The coordinator's answers by partition: a request can succeed while one of its partitions fails."""
    for place in found:
        if place.error is not None:
            raise client_module().KafkaException(place.error)
    return list(found)


def _found(clients: Clients, group: str) -> Any:
    names = group_names(clients)
    if group not in names:
        raise UnknownGroup(f"there is no group '{group}'", next_step=f"groups that exist: {', '.join(names) or 'none'}")
    [found] = clients.answered(lambda: clients.admin.describe_consumer_groups([group]), f"group '{group}'").values()
    return found


def describe_group(clients: Clients, group: str) -> GroupInfo:
    """Kafka does not count rebalances: there is no generation."""
    found = _found(clients, group)
    owners: dict[TopicPartition, str] = {}
    for member in found.members:
        for place in member.assignment.topic_partitions:
            owners[TopicPartition(place.topic, place.partition)] = member.member_id
    committed = committed_offsets(clients, group)
    partitions: list[GroupPartition] = []
    for topic in sorted({place.topic for place in [*committed, *owners]}):
        try:
            _, count = described(clients, topic)
        except UnknownTopic:
            continue
        places = [TopicPartition(topic, number) for number in range(count)]
        starts = offsets(clients, places, "earliest")
        ends = offsets(clients, places, "latest", committed=True)
        begun = {place: max(starts[place], committed.get(place, 0)) for place in places}
        lags = records_between(clients, begun, ends)
        partitions += [
            GroupPartition(topic, place.partition, committed.get(place), ends[place], lags[place], owners.get(place))
            for place in places
        ]
    members = tuple(sorted(member.member_id for member in found.members))
    return GroupInfo(group, None, members, tuple(partitions))


def check_idle(clients: Clients, group: str) -> None:
    """Refuses if the group has active members: they would overwrite the change."""
    if members := _found(clients, group).members:
        raise _not_idle(group, f"{len(members)} ")


def _not_idle(group: str, count: str = "") -> InvalidInput:
    return InvalidInput(
        f"group '{group}' has {count}active members", next_step="stop its consumers first, then try again"
    )


def delete_group(clients: Clients, group: str) -> None:
    clients.answered(lambda: clients.admin.delete_consumer_groups([group]), f"group '{group}'")
