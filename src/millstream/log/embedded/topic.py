"""A topic of the embedded log: a folder with a description and one folder per partition."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from millstream.errors import UnknownPartition, UnknownTopic
from millstream.log.storage.archive import Archive, open_archive
from millstream.log.storage.disk import Disk
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.partition import Partition
from millstream.log.topics import TopicSettings


class Topic:
    """A topic, as this process has it open."""

    def __init__(
        self,
        name: str,
        identity: str,
        settings: TopicSettings,
        folder: Path,
        disk: Disk,
        latest: Callable[[str], Topic],
        on_truncate: Callable[[str, int, int], None],
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
        self._on_truncate = on_truncate
        # A partition's files are closed with its last user.
        self._partitions: weakref.WeakValueDictionary[int, Partition] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()

    def take_over(self, before: Topic) -> None:
        """Takes over the open partitions, with the current settings."""
        self._partitions, self._lock = before._partitions, before._lock
        for reference in self._partitions.valuerefs():
            partition = reference()
            if partition is not None:
                partition.schema, partition.segment_bytes = self.stored_schema, self.settings.segment_bytes
                partition.moved_to, partition.archive = self.moved_to, self._archive(partition.number)

    def forget(self) -> None:
        """Releases the partitions; those in use stay open."""
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
                    on_truncate=truncation_of(self._on_truncate, self.name, number),
                )
                found.moved_to, found.archive = self.moved_to, self._archive(number)
                self._partitions[number] = found
                try:
                    found.refresh()  # this description may be outdated, or of a topic that was deleted since
                except BaseException:
                    self._partitions.pop(number, None)
                    raise
            return found

    def _archive(self, number: int) -> Archive | None:
        root = self.settings.retention_archive
        return None if root is None else open_archive(root, self.name, self.identity, number)

    def partitions(self) -> list[Partition]:
        return [self.partition(number) for number in range(self.settings.partitions)]


def _renewer(latest: Callable[[str], Topic], name: str, identity: str) -> Callable[[], None]:
    """Detects a change of settings, and raises if the topic was deleted."""

    def renew() -> None:
        if latest(name).identity != identity:
            raise UnknownTopic(f"topic '{name}' was deleted and created again", next_step="open it again")

    return renew


def truncation_of(on_truncate: Callable[[str, int, int], None], topic: str, number: int) -> Callable[[int], None]:
    return lambda end_offset: on_truncate(topic, number, end_offset)
