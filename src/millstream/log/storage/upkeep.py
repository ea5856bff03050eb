"""Upkeep deletes old segments and compacts, in the background of every process that has the log open.

A lock per partition lets one process at a time do it; the others skip it.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream import terminal
from millstream.errors import MillstreamError, NotFound
from millstream.log.storage.compaction import compact
from millstream.log.storage.disk import FileLock, storage_errors
from millstream.log.storage.partition import UPKEEP_LOCK, Partition
from millstream.log.storage.retention import delete_old, delete_replaced, forget_aborted
from millstream.log.topics import TopicSettings

if TYPE_CHECKING:
    from millstream.log.embedded import EmbeddedLog, Topic

INTERVAL_SECONDS = 15.0
logger = terminal.logger(__name__)


class Upkeep:
    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millstream-upkeep", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            try:
                self._round()
            except Exception as error:  # the next round may succeed
                logger.warning("upkeep failed and will be retried: %s", error, exc_info=_is_unexpected(error))

    def _round(self) -> None:
        for name in self._log.all_topics():
            if self._stop.is_set():
                return
            try:
                self.clean(self._log.topic(name))
            except NotFound:  # deleted meanwhile
                continue
            except Exception as error:  # continue with the other topics
                logger.warning(
                    "upkeep of topic '%s' failed and will be retried: %s", name, error, exc_info=_is_unexpected(error)
                )

    def clean(self, topic: Topic, *, forced: bool = False) -> None:
        """Applies the topic's settings to each partition that no other process is cleaning."""
        for number in range(topic.settings.partitions):
            partition = topic.partition(number)
            with storage_errors(partition.folder), FileLock(partition.folder / UPKEEP_LOCK).attempt() as free:
                if free:
                    clean_partition(partition, topic.settings, time.time(), forced=forced)


def _is_unexpected(error: Exception) -> bool:
    return not isinstance(error, MillstreamError)


def clean_partition(partition: Partition, settings: TopicSettings, now: float, *, forced: bool = False) -> None:
    """Called under the upkeep lock: the partition cannot be deleted meanwhile, and must not have been before."""
    partition.check_alive()
    now_us = int(now * 1_000_000)
    delete_replaced(partition)
    forget_aborted(partition)
    if settings.retention is not None or settings.retention_bytes is not None:
        retention_us = None if settings.retention is None else settings.retention // timedelta(microseconds=1)
        delete_old(partition, None if retention_us is None else now_us - retention_us, settings.retention_bytes)
    if settings.compaction:
        before_us = now_us - settings.tombstone_retention // timedelta(microseconds=1)
        compact(partition, tombstones_before_us=before_us, forced=forced)
