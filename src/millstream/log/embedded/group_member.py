"""A consumer's membership in a group of the embedded log, kept by the coordinator."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.log.agreement.groups import Membership, TopicPartition, begin_group, committed_offsets
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.ports import Commit, Release

if TYPE_CHECKING:
    from millstream.log.embedded.log import EmbeddedLog


class EmbeddedMember:
    """Keeps no reference to its consumer: a consumer that is garbage collected without being closed leaves at once."""

    def __init__(self, log: EmbeddedLog, group: str, settings: ConsumerSettings) -> None:
        self._log = log
        self._group = group
        self._settings = settings
        self._joined: Membership | None = None

    @property
    def _membership(self) -> Membership:
        assert self._joined is not None, "the consumer has not joined its group yet"
        return self._joined

    @property
    def member(self) -> str | None:
        return None if self._joined is None else self._joined.id

    def begin_group(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        partitions = {place: self._log.find_partition(*place) for place in places}
        committed = self._settings.reads_committed
        ends = {place: p.stable_offset() if committed else p.end_offset() for place, p in partitions.items()}
        begin_group(self._log.coordinator, self._group, ends)
        return {}

    def join(self, topics: Sequence[str]) -> None:
        self._joined = self._log.membership(self._group, topics, self._settings.poll_seconds_max)

    def subscribe(self, topics: Sequence[str], release: Release) -> None:
        self._membership.subscribe(topics, release)

    def refresh(self, release: Release, *, is_due: bool) -> set[TopicPartition] | None:
        has_changed = self._membership.refresh(release)
        return self._membership.owned if has_changed or is_due else None

    def refresh_fully(self) -> None:
        self._membership.refresh_fully()

    def committed(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        found = committed_offsets(self._log.coordinator, self._group)
        return {place: found[place] for place in places if place in found}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._log.coordinator.change() as db:
            self._membership.commit(db, offsets)

    def commit_owned(self, offsets: Mapping[TopicPartition, int]) -> Commit:
        with self._log.coordinator.change() as db:
            lost = frozenset(self._membership.commit_owned(db, offsets))
        return Commit({place: offset for place, offset in offsets.items() if place not in lost}, lost)

    def commit_with(self, transaction: object, offsets: Mapping[TopicPartition, int]) -> None:
        assert isinstance(transaction, sqlite3.Connection)
        self._membership.commit(transaction, offsets)

    def leave(self) -> None:
        if self._joined is not None:
            self._joined.leave()
