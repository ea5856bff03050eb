"""A topic of the embedded log: a folder with a description and one folder per partition."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from millstream.errors import UnknownPartition, UnknownTopic
from millstream.log.disk import Disk
from millstream.log.layout import stored_schema
from millstream.log.partition import Partition
from millstream.log.topics import TopicSettings


class Topic:
    """A topic as this process knows it."""

    def __init__(
        self,
        name: str,
        identity: str,
        settings: TopicSettings,
        folder: Path,
        disk: Disk,
        latest: Callable[[str], Topic],
        on_cut: Callable[[str, int, int], None],
        moved_to: str | None = None,
    ) -> None:
        self.name = name
        self.moved_to = moved_to
        self.identity = identity
        self.settings = settings
        self.folder = folder
        self.stored_schema = stored_schema(settings.schema)
        self._disk = disk
        self._latest = latest
        self._on_cut = on_cut
        # A partition is held by its users; with the last of them its files are closed.
        self._partitions: weakref.WeakValueDictionary[int, Partition] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()

    def take_over(self, before: Topic) -> None:
        """Takes over the partitions that are open, under the current settings."""
        self._partitions, self._lock = before._partitions, before._lock
        for reference in self._partitions.valuerefs():
            partition = reference()
            if partition is not None:
                partition.schema, partition.segment_bytes = self.stored_schema, self.settings.segment_bytes
                partition.moved_to = self.moved_to

    def forget(self) -> None:
        """Releases the partitions; one that is still in use stays open."""
        with self._lock:
            self._partitions.clear()

    def partition(self, number: int) -> Partition:
        with self._lock:
            found = self._partitions.get(number)
            if found is None:
                if not 0 <= number < self.settings.partitions:
                    raise UnknownPartition(
                        f"there is no partition {number}",
                        where=f"topic '{self.name}'",
                        next_step=f"choose 0 to {self.settings.partitions - 1}",
                    )
                found = Partition(
                    self.name,
                    number,
                    self.folder / str(number),
                    self.stored_schema,
                    self.settings.segment_bytes,
                    self._disk,
                    renew=_renewer(self._latest, self.name, self.identity),
                    on_cut=cutter(self._on_cut, self.name, number),
                )
                found.moved_to = self.moved_to
                self._partitions[number] = found
                try:
                    found.refresh()  # this description may be outdated, or that of a topic deleted meanwhile
                except BaseException:
                    self._partitions.pop(number, None)
                    raise
            return found

    def partitions(self) -> list[Partition]:
        return [self.partition(number) for number in range(self.settings.partitions)]


def _renewer(latest: Callable[[str], Topic], name: str, identity: str) -> Callable[[], None]:
    """Notices a change of settings, and raises if the topic was deleted."""

    def renew() -> None:
        if latest(name).identity != identity:
            raise UnknownTopic(f"topic '{name}' was deleted and created again", next_step="open it again")

    return renew


def cutter(on_cut: Callable[[str, int, int], None], topic: str, number: int) -> Callable[[int], None]:
    return lambda end_offset: on_cut(topic, number, end_offset)
