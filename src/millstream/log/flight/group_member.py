"""A consumer's membership in a group, kept by the log server for as long as the consumer polls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.log.agreement.groups import TopicPartition
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.flight.client import Connection
from millstream.log.flight.protocol import offsets_in, offsets_out, places_in, places_out
from millstream.log.flight.storing import unsupported
from millstream.log.ports import Commit, Release


class FlightMember:
    def __init__(self, connection: Connection, group: str, settings: ConsumerSettings) -> None:
        self._connection = connection
        self._group = group
        self._settings = settings
        self._session: str | None = None
        self.member: str | None = None

    def _ask(self, question: str, **given: Any) -> Any:
        return self._connection.ask(f"member.{question}", session=self._session, **given)

    def begin_group(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        committed = self._settings.reads_committed
        self._connection.ask("begin_group", group=self._group, places=places_out(places), committed=committed)
        return {}

    def join(self, topics: Sequence[str]) -> None:
        interval = self._settings.poll_seconds_max
        made = self._connection.ask("join", group=self._group, topics=list(topics), poll_seconds_max=interval)
        self._session, self.member = made["session"], made["member"]

    def subscribe(self, topics: Sequence[str], release: Release) -> None:
        self._until_released("subscribe", release, topics=list(topics))

    def refresh(self, release: Release, *, is_due: bool) -> set[TopicPartition] | None:
        owned = self._until_released("refresh", release, is_due=is_due)["owned"]
        return None if owned is None else set(places_in(owned))

    def _until_released(self, question: str, release: Release, **given: Any) -> Any:
        """The server asks for partitions before it gives them to another member: they are committed first."""
        released: set[TopicPartition] = set()
        while True:
            answer = self._ask(question, released=places_out(released), **given)
            if "release" not in answer:
                return answer
            places = set(places_in(answer["release"]))
            release(places)
            released |= places

    def committed(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        found = offsets_in(self._connection.ask("committed", group=self._group))
        return {place: found[place] for place in places if place in found}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._ask("commit", offsets=offsets_out(offsets))

    def commit_owned(self, offsets: Mapping[TopicPartition, int]) -> Commit:
        lost = frozenset(places_in(self._ask("commit_owned", offsets=offsets_out(offsets))))
        return Commit({place: offset for place, offset in offsets.items() if place not in lost}, lost)

    def commit_with(self, transaction: object, offsets: Mapping[TopicPartition, int]) -> None:
        raise unsupported("transactions")

    def leave(self) -> None:
        if self._session is not None:
            self._ask("leave")
            self._session = None
