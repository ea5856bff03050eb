"""Readers of a name read the topic it refers to; a switch changes that for all of them at once, and can be reverted.

Writers never follow a switch: they name the topic itself, so a job of the old version keeps writing the old topic. A
name refers to a topic, never to another name, so resolving it twice gives the same as resolving it once. Each broker
stores the switches in its own way, but always as one whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from millstream.errors import AlreadyExists, InvalidInput, InvalidSetting, UnknownTopic
from millstream.log.agreement.groups import TopicPartition
from millstream.log.ports import BrokerTopic
from millstream.log.topics import TopicVersion, checked_name

ALL_OTHERS = ""  # no group has this name
At = str | datetime


@dataclass(frozen=True, slots=True)
class Switch:
    """The topic that a name refers to, and where readers start that are switched to it."""

    name: str
    topic: str
    before: tuple[str, ...]  # earlier topics, the latest last: for switching back
    versions: tuple[str, ...]  # all its topics so far that still exist
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


class Switches(ABC):
    """All switches of a broker."""

    @abstractmethod
    def now(self) -> Mapping[str, Switch]:
        """By name; the same object as long as nothing has changed. It may be a second old."""

    @abstractmethod
    def fresh(self) -> Mapping[str, Switch]:
        """Like `now`, but never outdated."""

    @abstractmethod
    def write(self, switches: Mapping[str, Switch]) -> None:
        """Called under the broker's lock for changes."""

    def resolve(self, name: str) -> str:
        switch = self.now().get(name)
        return name if switch is None else switch.topic

    def served_by(self, topic: str) -> tuple[str, ...]:
        """The other names whose readers read this topic."""
        return tuple(sorted(s.name for s in self.now().values() if s.topic == topic != s.name))


class Switching(ABC):
    """The switch operations of a broker."""

    switches: Switches

    @abstractmethod
    def topic(self, name: str) -> BrokerTopic: ...

    @abstractmethod
    def groups(self) -> list[str]: ...

    @abstractmethod
    def committed_offsets(self, group: str) -> Mapping[TopicPartition, int]: ...

    @abstractmethod
    def _lock(self) -> AbstractContextManager[object]:
        """Held while topics and switches are changed."""

    @abstractmethod
    def _stable_offsets(self, topic: str) -> dict[int, int]:
        """The last stable offset of each partition."""

    @abstractmethod
    def _offsets_at(self, topic: str, moment: datetime) -> dict[int, int]:
        """The first offset of each partition at or after a time."""

    @abstractmethod
    def _corresponding(self, positions: Mapping[TopicPartition, int], topic: str) -> dict[int, int]:
        """The offsets in a topic, by partition, that correspond in time to positions in other topics."""

    def resolve(self, name: str) -> str:
        """The topic that readers of this name currently read."""
        return self.switches.resolve(name)

    def switch(self, name: str, topic: str, *, at: At = "earliest") -> Switch:
        """From now on readers of `name` read `topic`; active ones follow at their next poll.

        `at` is where they start: 'earliest', 'latest', a time, or 'corresponding', the time they had reached in the old
        topic. A group that has read the topic before continues where it was.
        """
        checked_name(name, "topic")
        if isinstance(at, str) and at not in ("earliest", "latest", "corresponding"):
            raise InvalidSetting(f"at must be 'earliest', 'latest', 'corresponding' or an aware datetime, not {at!r}")
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
        """Reverts the last switch of a name. Groups continue where they were in the previous topic."""
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
        """Removes the switches of a name: it refers to the topic of that name again."""
        with self._lock():
            known = dict(self.switches.now())
            if known.pop(name, None) is None:
                raise InvalidInput(f"'{name}' is not switched", next_step="list the topics: millstream topics list")
            self.switches.write(known)

    def topic_versions(self, name: str) -> list[TopicVersion]:
        """The topics that a name has referred to, oldest first; each can be read by its own name with pinned=True."""
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
        self.topic(topic)  # raises if it does not exist
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

    def _starts(self, old: str, new: str, at: At) -> dict[str, dict[int, int]]:
        """Fixed when the switch is made: records written after it are read, whenever a reader follows."""
        if at == "latest":
            return {ALL_OTHERS: self._stable_offsets(new)}
        if isinstance(at, datetime):
            return {ALL_OTHERS: self._offsets_at(new, at)}
        starts: dict[str, dict[int, int]] = {}
        for group in self.groups() if at == "corresponding" and self._exists(old) else ():
            reached = {place: offset for place, offset in self.committed_offsets(group).items() if place.topic == old}
            if reached:
                starts[group] = self._corresponding(reached, new)
        return starts

    # ------------------------------------------------------------ creating and deleting topics

    def _check_name_free(self, name: str) -> None:
        """A topic whose name is switched elsewhere would be written but never read."""
        switch = self.switches.now().get(name)
        if switch is not None and switch.topic != name:
            raise AlreadyExists(
                f"readers of '{name}' read topic '{switch.topic}'",
                next_step=f"write to '{switch.topic}', or first run: millstream switch {name} --off",
            )

    def _forget_version(self, topic: str) -> None:
        """Called under the lock of the log before a topic is deleted."""
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
