"""In a consumer group each partition has at most one owner at any time, and eventually exactly one.

A rebalance (a member joins, leaves, dies or stops polling, or a topic gets partitions) moves targets, not owners: the
old owner commits and releases a partition at its next poll, and only then does the new one take it. The partitions of a
dead member are free at once.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from millstream.errors import InvalidInput, PartitionsRevoked, UnknownGroup
from millstream.log.agreement.coordinator import Coordinator
from millstream.log.agreement.liveness import Participant, is_alive

CHECK_SECONDS = 0.2


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class GroupPartition:
    topic: str
    partition: int
    next_offset: int | None
    end_offset: int
    lag: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    name: str
    generation: int | None  # not available from Kafka
    members: tuple[str, ...]
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        return sum(partition.lag for partition in self.partitions)


def fair_shares(
    members: Mapping[str, Iterable[str]], partitions: Iterable[TopicPartition], held: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str | None]:
    """The balanced assignment: shares differ by at most one where topics allow it, and few partitions move."""
    topics = {member: set(names) for member, names in sorted(members.items())}
    shares: dict[str, list[TopicPartition]] = {member: [] for member in topics}
    loose = []
    for partition in sorted(partitions):
        owner = held.get(partition)
        if owner in topics and partition.topic in topics[owner]:
            shares[owner].append(partition)
        else:
            loose.append(partition)
    unowned = []
    for partition in loose:
        eligible = [member for member in topics if partition.topic in topics[member]]
        if eligible:
            shares[min(eligible, key=lambda member: len(shares[member]))].append(partition)
        else:
            unowned.append(partition)
    while move := _unbalanced(topics, shares):
        partition, giver, taker = move
        shares[giver].remove(partition)
        shares[taker].append(partition)
    fair: dict[TopicPartition, str | None] = {partition: member for member, own in shares.items() for partition in own}
    return fair | dict.fromkeys(unowned)


def _unbalanced(
    topics: Mapping[str, set[str]], shares: Mapping[str, list[TopicPartition]]
) -> tuple[TopicPartition, str, str] | None:
    """A partition whose move makes the assignment more balanced."""
    for giver in sorted(shares, key=lambda member: -len(shares[member])):
        for taker in sorted(shares, key=lambda member: len(shares[member])):
            if len(shares[giver]) - len(shares[taker]) < 2:
                break
            for partition in reversed(shares[giver]):
                if partition.topic in topics[taker]:
                    return partition, giver, taker
    return None


class Membership:
    """One consumer's membership in a group."""

    def __init__(
        self,
        coordinator: Coordinator,
        participants: Path,
        group: str,
        topics: Sequence[str],
        partition_count: Callable[[str], int],
        poll_seconds_max: float,
    ) -> None:
        self._coordinator = coordinator
        self._participants = participants
        self.group = group
        self._topics = list(topics)
        self._partition_count = partition_count
        self._poll_seconds_max = poll_seconds_max
        self._participant = Participant(participants)
        self._checked_at = 0.0
        self._seen_version = -1
        self.owned: set[TopicPartition] = set()
        with coordinator.change() as db:
            db.execute("INSERT OR IGNORE INTO groups VALUES (?, 0)", (group,))
            self._enter(db)

    @property
    def id(self) -> str:
        return self._participant.id

    def _enter(self, db: sqlite3.Connection) -> None:
        now = time.time()
        db.execute(
            "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?)",
            (self.group, self.id, json.dumps(self._topics), now, now, self._poll_seconds_max),
        )
        self._rebalance(db)

    def subscribe(self, topics: Sequence[str], release: Callable[[set[TopicPartition]], None]) -> None:
        """Subscribes to other topics; partitions of the old ones are committed and released."""
        gone = {partition for partition in self.owned if partition.topic not in topics}
        release(gone)
        self._topics = list(topics)
        with self._coordinator.change() as db:
            self._disown(db, gone)
            self._enter(db)
        self.owned -= gone
        self._seen_version, self._checked_at = -1, 0.0

    def refresh(self, release: Callable[[set[TopicPartition]], None]) -> bool:
        """Called at every poll: releases partitions (after `release` has committed them) and takes those that are free.

        Returns whether anything changed. Cheap if nothing has.
        """
        now = time.time()
        due = time.monotonic() - self._checked_at >= CHECK_SECONDS
        version = self._coordinator.version()
        if not due and version == self._seen_version:
            return False
        if due:
            self._checked_at = time.monotonic()
            self._check_others(now)
        self._seen_version = self._coordinator.version()
        before = set(self.owned)
        lost, going = self._view()
        if lost:  # revoked because this member did not poll for too long; they cannot be committed any more
            self.owned -= lost
            release(lost)
        if going:
            release(going)
            self._let_go(going)
        self._take()
        return bool(lost or going) or self.owned != before

    def refresh_fully(self) -> None:
        """The next refresh does not rely on what this one has seen: it was not completed."""
        self._seen_version = -1

    def _check_others(self, now: float) -> None:
        """Removes dead and silent members, and assigns new partitions."""
        with self._coordinator.look() as db:
            members = db.execute("SELECT * FROM members WHERE group_name = ?", (self.group,)).fetchall()
            known = {TopicPartition(*row) for row in self._rows(db, "topic, partition")}
        gone = [
            row["member"]
            for row in members
            if row["member"] != self.id
            and (now - row["polled_at"] > row["poll_seconds_max"] or not is_alive(self._participants, row["member"]))
        ]
        me = next((row for row in members if row["member"] == self.id), None)
        wanted = set(self._all_partitions(members))
        if me is None or gone or wanted != known:
            with self._coordinator.change() as db:
                db.executemany(
                    "DELETE FROM members WHERE group_name = ? AND member = ?", [(self.group, m) for m in gone]
                )
                self._enter(db)
        elif now - me["polled_at"] > min(1.0, self._poll_seconds_max / 4):
            with self._coordinator.change() as db:
                db.execute(
                    "UPDATE members SET polled_at = ? WHERE group_name = ? AND member = ?", (now, self.group, self.id)
                )

    def _rows(self, db: sqlite3.Connection, columns: str) -> list[sqlite3.Row]:
        return db.execute(f"SELECT {columns} FROM ownership WHERE group_name = ?", (self.group,)).fetchall()

    def _all_partitions(self, members: Iterable[sqlite3.Row]) -> Iterable[TopicPartition]:
        topics = {topic for row in members for topic in self._wanted(row)}
        return (TopicPartition(topic, n) for topic in sorted(topics) for n in range(self._partition_count(topic)))

    def _wanted(self, member: sqlite3.Row) -> list[str]:
        return [str(topic) for topic in self._coordinator.document(member["topics"], list)]

    def _rebalance(self, db: sqlite3.Connection) -> None:
        members = db.execute("SELECT * FROM members WHERE group_name = ?", (self.group,)).fetchall()
        present = {row["member"] for row in members}
        rows = self._rows(db, "topic, partition, owner, target")
        owners = {
            TopicPartition(row["topic"], row["partition"]): row["owner"] for row in rows if row["owner"] in present
        }
        held = {TopicPartition(row["topic"], row["partition"]): row["owner"] or row["target"] for row in rows}
        targets = fair_shares(
            {row["member"]: self._wanted(row) for row in members}, self._all_partitions(members), held
        )
        db.execute("DELETE FROM ownership WHERE group_name = ?", (self.group,))
        db.executemany(
            "INSERT INTO ownership VALUES (?, ?, ?, ?, ?)",
            [(self.group, *partition, owners.get(partition), target) for partition, target in targets.items()],
        )
        db.execute("UPDATE groups SET generation = generation + 1 WHERE name = ?", (self.group,))

    def _view(self) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """The partitions that this member lost, and those it has but should release."""
        with self._coordinator.look() as db:
            rows = self._rows(db, "topic, partition, owner, target")
        mine = {
            TopicPartition(row["topic"], row["partition"]): row["target"] for row in rows if row["owner"] == self.id
        }
        return self.owned - mine.keys(), {p for p in self.owned & mine.keys() if mine[p] != self.id}

    def _let_go(self, partitions: set[TopicPartition]) -> None:
        with self._coordinator.change() as db:
            self._disown(db, partitions)
        self.owned -= partitions

    def _disown(self, db: sqlite3.Connection, partitions: set[TopicPartition]) -> None:
        db.executemany(
            "UPDATE ownership SET owner = NULL WHERE group_name = ? AND topic = ? AND partition = ? AND owner = ?",
            [(self.group, *partition, self.id) for partition in partitions],
        )

    def _take(self) -> None:
        with self._coordinator.look() as db:
            rows = self._rows(db, "topic, partition, owner, target")
        if any(row["target"] == self.id and row["owner"] is None for row in rows):
            with self._coordinator.change() as db:
                db.execute(
                    "UPDATE ownership SET owner = target WHERE group_name = ? AND target = ? AND owner IS NULL",
                    (self.group, self.id),
                )
                rows = self._rows(db, "topic, partition, owner, target")
        self.owned |= {TopicPartition(row["topic"], row["partition"]) for row in rows if row["owner"] == self.id}

    def commit(self, db: sqlite3.Connection, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits this member's offsets in a transaction of the coordinator, if it still owns all the partitions."""
        if lost := self.commit_owned(db, offsets):
            raise revoked(lost, self.group, self.id)

    def commit_owned(self, db: sqlite3.Connection, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Commits the offsets of partitions that this member still owns; returns the others."""
        owned = {TopicPartition(r["topic"], r["partition"]) for r in self._rows(db, "*") if r["owner"] == self.id}
        store_offsets(db, self.group, {place: offset for place, offset in offsets.items() if place in owned})
        return offsets.keys() - owned

    def leave(self) -> None:
        try:
            with self._coordinator.change() as db:
                db.execute("DELETE FROM members WHERE group_name = ? AND member = ?", (self.group, self.id))
                self._rebalance(db)
        finally:  # if it cannot report that it leaves, it is found dead
            self.owned.clear()
            self._participant.close()


def revoked(lost: Iterable[TopicPartition], group: str, member: str | None) -> PartitionsRevoked:
    return PartitionsRevoked(
        f"partitions {', '.join(map(str, sorted(lost)))} now belong to another member",
        where=f"group '{group}', member {member}",
        next_step="poll again; if processing takes long, raise max_poll_interval",
    )


def begin_group(coordinator: Coordinator, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits a group's start offsets in topics that it has not read before."""
    with coordinator.change() as db:
        known = {topic for (topic,) in db.execute("SELECT topic FROM offsets WHERE group_name = ?", (group,))}
        store_offsets(db, group, {place: offset for place, offset in offsets.items() if place.topic not in known})


def store_offsets(db: sqlite3.Connection, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    now = time.time()
    db.executemany(
        "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?)",
        [(group, *partition, offset, now) for partition, offset in offsets.items()],
    )


def store_alone(coordinator: Coordinator, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Stores the offsets of a group without members, which exists from then on."""
    with coordinator.change() as db:
        db.execute("INSERT OR IGNORE INTO groups VALUES (?, 0)", (group,))
        store_offsets(db, group, offsets)


def committed_offsets(coordinator: Coordinator, group: str) -> dict[TopicPartition, int]:
    with coordinator.look() as db:
        rows = db.execute("SELECT topic, partition, next_offset FROM offsets WHERE group_name = ?", (group,)).fetchall()
    return {TopicPartition(row["topic"], row["partition"]): row["next_offset"] for row in rows}


def group_names(coordinator: Coordinator) -> list[str]:
    with coordinator.look() as db:
        return [name for (name,) in db.execute("SELECT name FROM groups ORDER BY name")]


def living_members(coordinator: Coordinator, participants: Path, group: str) -> list[str]:
    with coordinator.look() as db:
        rows = db.execute("SELECT member FROM members WHERE group_name = ? ORDER BY member", (group,)).fetchall()
    return [member for (member,) in rows if is_alive(participants, member)]


def describe_group(
    coordinator: Coordinator,
    participants: Path,
    group: str,
    end_offsets: Callable[[str], Mapping[int, tuple[int, int]]],
    records_between: Callable[[TopicPartition, int, int], int],
) -> GroupInfo:
    """`end_offsets` gives the start and end offset of every partition of a topic."""
    with coordinator.look() as db:
        found = db.execute("SELECT generation FROM groups WHERE name = ?", (group,)).fetchone()
        owners = db.execute("SELECT * FROM ownership WHERE group_name = ?", (group,)).fetchall()
    if found is None:
        names = group_names(coordinator)
        raise UnknownGroup(f"there is no group '{group}'", next_step=f"groups that exist: {', '.join(names) or 'none'}")
    members = living_members(coordinator, participants, group)
    offsets = committed_offsets(coordinator, group)
    owner_of = {TopicPartition(r["topic"], r["partition"]): r["owner"] for r in owners if r["owner"] in members}
    partitions = []
    for topic in sorted({partition.topic for partition in [*offsets, *owner_of]} | {r["topic"] for r in owners}):
        for number, (start, end) in sorted(end_offsets(topic).items()):
            partition = TopicPartition(topic, number)
            next_offset = offsets.get(partition)
            lag = records_between(partition, max(start, next_offset or 0), end)
            partitions.append(GroupPartition(topic, number, next_offset, end, lag, owner_of.get(partition)))
    return GroupInfo(group, found["generation"], tuple(members), tuple(partitions))


def change_idle_group(coordinator: Coordinator, participants: Path, group: str) -> None:
    """Refuses if the group has active members: they would not read from where they were reset to."""
    if group not in group_names(coordinator):
        raise UnknownGroup(
            f"there is no group '{group}'",
            next_step=f"groups that exist: {', '.join(group_names(coordinator)) or 'none'}",
        )
    if members := living_members(coordinator, participants, group):
        raise InvalidInput(
            f"group '{group}' has {len(members)} active members", next_step="stop its consumers first, then try again"
        )
