"""Readers of a name read the topic it stands for; a switch changes that for all of them at once, and can be taken back.

Writers never follow: whoever writes names the topic itself, so a job of the old version goes on writing the old one.
A name stands for one topic, never for another name, so looking it up twice gives the same as looking it up once.
All of it is one small file, replaced whole: after a crash the old switch holds or the new one. What changed is seen
by the file's age and number, so a reader pays one stat per poll.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import AlreadyExists, DamagedLog, InvalidInput, InvalidName, InvalidSetting, UnknownTopic
from millstream.log.buffer import microseconds
from millstream.log.coordinator import Coordinator
from millstream.log.disk import FileLock, read_document, storage_errors, write_document
from millstream.log.groups import committed_offsets, group_names
from millstream.log.partition import Partition
from millstream.log.reader import PartitionReader, newest_timestamp, offset_at_time
from millstream.log.topics import TopicVersion, checked_name

if TYPE_CHECKING:
    from millstream.log.embedded import Topic

SWITCHES = "switches.json"
ALL_OTHERS = ""  # no group has this name
At = str | datetime


@dataclass(frozen=True, slots=True)
class Switch:
    """What a name stands for, and where readers begin that come over to it."""

    name: str
    topic: str
    before: tuple[str, ...]  # what it stood for, the latest last: the way back
    versions: tuple[str, ...]  # all it ever stood for, as far as they are there
    switched_at: datetime
    starts: Mapping[str, Mapping[int, int]]  # by group; a partition that is missing is read from its beginning
    corresponding: bool = False

    def start(self, group: str | None, partition: int) -> int:
        chosen = self.starts.get(group or ALL_OTHERS)
        return (self.starts.get(ALL_OTHERS, {}) if chosen is None else chosen).get(partition, 0)

    def to_document(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "before": self.before,
            "versions": self.versions,
            "switched_at": self.switched_at.isoformat(),
            "starts": self.starts,
            "corresponding": self.corresponding,
        }

    @classmethod
    def of(cls, name: str, document: Mapping[str, Any]) -> Switch:
        starts = {
            group: {int(number): int(offset) for number, offset in offsets.items()}
            for group, offsets in document["starts"].items()
        }
        for topic in (name, document["topic"], *document["before"], *document["versions"]):
            checked_name(topic, "topic")
        return cls(
            name,
            document["topic"],
            tuple(document["before"]),
            tuple(document["versions"]),
            datetime.fromisoformat(document["switched_at"]),
            starts,
            bool(document["corresponding"]),
        )


class Switches:
    """All switches of a log, as the file has them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: tuple[tuple[int, ...] | None, Mapping[str, Switch]] = (None, {})

    def now(self) -> Mapping[str, Switch]:
        """By name; the same object as long as nothing has changed."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            version = None
        else:
            version = (found.st_mtime_ns, found.st_ino, found.st_size)
        known = self._known
        if known[0] != version:
            known = self._known = (version, {} if version is None else self._read())
        return known[1]

    def resolve(self, name: str) -> str:
        switch = self.now().get(name)
        return name if switch is None else switch.topic

    def served_by(self, topic: str) -> tuple[str, ...]:
        """The other names whose readers read this topic."""
        return tuple(sorted(s.name for s in self.now().values() if s.topic == topic != s.name))

    def write(self, switches: Mapping[str, Switch]) -> None:
        """Called under the lock of the log."""
        write_document(self.path, {name: switch.to_document() for name, switch in sorted(switches.items())})
        self._known = ((-1,), {})  # a clock is coarse: what this process wrote it reads again in any case

    def _read(self) -> Mapping[str, Switch]:
        try:
            with storage_errors(self.path):
                return {name: Switch.of(name, entry) for name, entry in read_document(self.path).items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, InvalidName) as error:
            raise DamagedLog(
                f"what names stand for cannot be read: {error}",
                where=str(self.path),
                next_step="restore the file from a copy; without it every name stands for its own topic",
            ) from error


class Switching:
    """What a log offers about switches."""

    path: Path
    coordinator: Coordinator
    switches: Switches

    def topic(self, name: str) -> Topic:
        raise NotImplementedError

    def _lock(self) -> FileLock:
        raise NotImplementedError

    def resolve(self, name: str) -> str:
        """The topic that readers of this name read now."""
        return self.switches.resolve(name)

    def switch(self, name: str, topic: str, *, at: At = "earliest") -> Switch:
        """From now on who reads `name` reads `topic`: readers at work come over at their next poll.

        `at` says where they begin: 'earliest', 'latest', a time, or 'corresponding', the time they had come to in
        the old topic. A group that has read the topic before goes on where it was.
        """
        checked_name(name, "topic")
        if isinstance(at, str) and at not in ("earliest", "latest", "corresponding"):
            raise InvalidSetting(f"at is 'earliest', 'latest', 'corresponding' or an aware datetime, not {at!r}")
        with self._lock():
            known = dict(self.switches.now())
            self._check_switch(name, topic, known)
            old = known.get(name) or self._unswitched(name)
            if old.topic == topic:
                return old
            before = (*old.before, old.topic) if self._exists(old.topic) else old.before
            versions = (
                *(version for version in (*old.versions, old.topic) if version != topic and self._exists(version)),
            )
            return self._store(old, topic, before, tuple(dict.fromkeys((*versions, topic))), at, known)

    def switch_back(self, name: str, *, at: At = "earliest") -> Switch:
        """Takes the last switch of a name back. Groups go on where they were in the topic from before."""
        with self._lock():
            known = dict(self.switches.now())
            old = known.get(name)
            if old is None or not old.before:
                raise InvalidInput(
                    f"there is nothing to switch '{name}' back to",
                    next_step="name the topic: millstream switch NAME TOPIC",
                )
            *before, topic = old.before
            return self._store(old, topic, tuple(before), old.versions, at, known)

    def unswitch(self, name: str) -> None:
        """Forgets that a name was ever switched: it stands for the topic of that name alone."""
        with self._lock():
            known = dict(self.switches.now())
            if known.pop(name, None) is None:
                raise InvalidInput(f"'{name}' is not switched", next_step="see millstream topics list")
            self.switches.write(known)

    def topic_versions(self, name: str) -> list[TopicVersion]:
        """The topics a name has stood for, oldest first; each can be read under its own name with pinned=True."""
        switch = self.switches.now().get(name) or self._unswitched(name)
        if not switch.versions:
            self.topic(name)  # raises
        return [TopicVersion(version, version == switch.topic) for version in switch.versions]

    def _unswitched(self, name: str) -> Switch:
        versions = (name,) if self._exists(name) else ()
        return Switch(name, name, (), versions, datetime.now(UTC), {})

    def _exists(self, name: str) -> bool:
        try:
            return bool(self.topic(name))
        except UnknownTopic:
            return False

    def _check_switch(self, name: str, topic: str, known: Mapping[str, Switch]) -> None:
        self.topic(topic)  # raises if there is none
        elsewhere = known.get(topic)
        if elsewhere is not None and topic not in (name, elsewhere.topic):
            raise InvalidInput(
                f"readers of '{topic}' read '{elsewhere.topic}' themselves",
                next_step=f"switch '{name}' to '{elsewhere.topic}', or switch '{topic}' back first",
            )
        if topic != name and (served := self.switches.served_by(name)):
            raise InvalidInput(
                f"readers of '{served[0]}' read topic '{name}'", next_step=f"switch '{served[0]}' to '{topic}' instead"
            )

    def _store(
        self,
        old: Switch,
        topic: str,
        before: tuple[str, ...],
        versions: tuple[str, ...],
        at: At,
        known: dict[str, Switch],
    ) -> Switch:
        starts = self._starts(old.topic, topic, at)
        switch = Switch(old.name, topic, before, versions, datetime.now(UTC), starts, at == "corresponding")
        self.switches.write({**known, old.name: switch})
        return switch

    # ------------------------------------------------------------ where readers begin

    def _starts(self, old: str, new: str, at: At) -> dict[str, dict[int, int]]:
        """Fixed when the switch is made: records that come after it are read, whenever a reader comes over."""
        partitions = self.topic(new).partitions()
        if at == "latest":
            return {ALL_OTHERS: {partition.number: partition.stable_offset() for partition in partitions}}
        if isinstance(at, datetime):
            return {ALL_OTHERS: offsets_at(partitions, microseconds(at))}
        starts: dict[str, dict[int, int]] = {}
        for group in group_names(self.coordinator) if at == "corresponding" and self._exists(old) else ():
            places = {place for place in committed_offsets(self.coordinator, group).items() if place[0].topic == old}
            if places:
                came_to = [(self.topic(old).partition(place.partition), offset) for place, offset in places]
                starts[group] = offsets_at(partitions, time_reached(came_to))
        return starts

    # ------------------------------------------------------------ topics come and go

    def _check_name_free(self, name: str) -> None:
        """A topic under a name whose readers are elsewhere would be written and never read."""
        switch = self.switches.now().get(name)
        if switch is not None and switch.topic != name:
            raise AlreadyExists(
                f"readers of '{name}' read topic '{switch.topic}'",
                next_step=f"write to '{switch.topic}', or first say: millstream switch {name} --off",
            )

    def _forget_version(self, topic: str) -> None:
        """Called under the lock of the log when a topic is to be deleted."""
        if served := self.switches.served_by(topic):
            raise InvalidInput(
                f"readers of '{served[0]}' read topic '{topic}'",
                next_step=f"switch them first: millstream switch {served[0]} TOPIC, --back or --off",
            )
        known = self.switches.now()
        left = {
            name: replace(switch, before=_without(switch.before, topic), versions=_without(switch.versions, topic))
            for name, switch in known.items()
            if switch.topic != topic
        }
        if left != known:
            self.switches.write(left)


def _without(topics: tuple[str, ...], topic: str) -> tuple[str, ...]:
    return tuple(other for other in topics if other != topic)


def offsets_at(partitions: Iterable[Partition], time_us: int | None) -> dict[int, int]:
    if time_us is None:
        return {}
    return {partition.number: offset_at_time(partition, time_us) for partition in partitions}


def time_reached(positions: Iterable[tuple[Partition, int]]) -> int | None:
    """The time (µs) of the first record that is not yet read; of a reader that has read all, just after the last."""
    unread, read = [], []
    for partition, offset in positions:
        first = min(max(offset, partition.start_offset()), partition.end_offset())
        fetch = next(PartitionReader(partition, first, committed=True).stream(), None)
        if fetch is not None:
            unread.append(fetch.records.column("timestamp")[0].value)
        elif (newest := newest_timestamp(partition)) is not None:
            read.append(newest + 1)
    return min(unread, default=max(read, default=None))
