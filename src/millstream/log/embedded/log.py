"""The embedded log: a folder that any number of processes on one machine open at once, with no server between them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from millstream.errors import (
    AlreadyExists,
    ClosedError,
    DamagedLog,
    InvalidInput,
    NotFound,
    StorageError,
    UnknownTopic,
)
from millstream.log.agreement import groups
from millstream.log.agreement.coordinator import Coordinator
from millstream.log.agreement.groups import GroupInfo, Membership, TopicPartition
from millstream.log.agreement.transactions import NamedProducer, end_abandoned
from millstream.log.buffer import microseconds
from millstream.log.consumer import Consumer
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.description import (
    MOVED_TO,
    TOPIC,
    damaged,
    topic_description,
)
from millstream.log.embedded import queues
from millstream.log.embedded.deliveries import EmbeddedDeliveries
from millstream.log.embedded.fetching import EmbeddedFetching
from millstream.log.embedded.folder import changes_lock, open_folder, raise_file_limit
from millstream.log.embedded.group_member import EmbeddedMember
from millstream.log.embedded.read_offsets import furthest_read, truncate_progress
from millstream.log.embedded.storing import EmbeddedStorage
from millstream.log.embedded.switch_file import SWITCHES, SwitchFile
from millstream.log.embedded.times import offsets_at, time_reached
from millstream.log.embedded.topic import Topic, truncation_of
from millstream.log.open_clients import Parts
from millstream.log.ports import Acks, Assignee, Sender
from millstream.log.producer import Producer
from millstream.log.queues import Queue, QueueInfo, QueueSettings
from millstream.log.start_positions import Start
from millstream.log.storage import partition as partitions
from millstream.log.storage.archive import prepare_archive
from millstream.log.storage.disk import Disk, FileLock, storage_errors, sync_folder, write_document
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.partition import LOCK, UPKEEP_LOCK, Partition
from millstream.log.storage.reader import offset_at_time, records_between
from millstream.log.storage.repair import Repaired, repair
from millstream.log.storage.segment import segment_names
from millstream.log.storage.upkeep import Upkeep
from millstream.log.switches import Switching
from millstream.log.topics import PartitionInfo, TopicInfo, TopicSettings, check_embedded, checked_name, topic_names
from millstream.private_files import make_folder

COORDINATOR = "coordinator.sqlite"


@contextmanager
def _held(locks: Iterable[FileLock]) -> Iterator[None]:
    """Holds all locks, acquired in partition order as everywhere."""
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        yield


def _undescribed(name: str, folder: Path) -> DamagedLog:
    return DamagedLog(
        f"topic '{name}' has no description",
        where=str(folder / TOPIC),
        next_step="restore the file from a copy: the topic's records are still there; if the folder is not "
        "Millstream's, move it elsewhere",
    )


class EmbeddedLog(Switching):
    """Opens the log in a folder; creates it if the folder is new or empty."""

    poll_seconds_min = 1.0  # members check on each other several times in this interval
    transaction_type: type = sqlite3.Connection

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        upkeep: bool = True,
        disk: Disk | None = None,
        shared_group: str | None = None,
    ) -> None:
        """`shared_group` permanently opens the log to the members of a group; by default it is private to its owner."""
        self.path = Path(path).expanduser().absolute()
        self._disk = disk or Disk()
        raise_file_limit()
        open_folder(self.path, shared_group)
        self._topics: dict[str, tuple[tuple[int, ...], Topic]] = {}
        self._parts = Parts()
        self._topics_lock = threading.Lock()
        self._participants = self.path / "participants"
        self.switches = SwitchFile(self.path / SWITCHES)
        self._check_coordinator()
        self.coordinator = Coordinator(self.path / COORDINATOR)
        self._upkeep = Upkeep(self) if upkeep else None
        self._closed = False

    def _check_coordinator(self) -> None:
        path = self.path / COORDINATOR
        if not path.exists() and self.topics():
            raise DamagedLog(
                "the coordinator's file is missing: it has the progress of groups, queues and named producers",
                where=str(path),
                next_step="restore it; if it is lost, create an empty file of that name: groups, queues and named "
                "producers then start over",
            )

    def _lock(self) -> FileLock:
        return changes_lock(self.path)

    # ------------------------------------------------------------ topics

    def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        """Creates a topic. The settings are those of `TopicSettings`; durations and sizes as text or as values."""
        checked_name(name, "topic")
        made = TopicSettings.of(**settings)
        check_embedded(made)
        if made.retention_archive is not None:
            prepare_archive(made.retention_archive)
        folder = self._folder(name)
        self._check_name_free(name)
        if folder.exists():
            raise AlreadyExists(f"topic '{name}' already exists", next_step="choose another name, or change that one")
        draft = self.path / "topics" / f".new-{uuid.uuid4().hex}"
        with storage_errors(draft):
            make_folder(draft)
            try:
                for number in range(made.partitions):
                    partitions.create(draft / str(number), stored_schema(made.schema), self._disk)
                write_document(draft / TOPIC, {"name": name, "id": uuid.uuid4().hex, **made.to_document()})
                draft.rename(folder)
                sync_folder(folder.parent)
            except (OSError, StorageError) as error:
                shutil.rmtree(draft, ignore_errors=True)
                if folder.exists():
                    raise AlreadyExists(f"topic '{name}' already exists") from error
                raise
        return self.describe_topic(name)

    def topics(self) -> list[str]:
        return topic_names(self.path / "topics")

    def all_topics(self) -> list[str]:
        """Also internal ones."""
        return topic_names(self.path / "topics", internal=True)

    def topic(self, name: str) -> Topic:
        """The topic's current description; its partitions are kept open between calls."""
        self._check_open()
        folder = self._folder(checked_name(name, "topic"))
        try:
            with self._topics_lock:
                if folder.is_symlink():
                    raise damaged(folder, "the topic's folder was replaced by a link")
                found = (folder / TOPIC).stat()
                # File system clocks are coarse, but a new file in the same tick has at least another inode.
                version = (found.st_mtime_ns, found.st_ino, folder.stat().st_ino)
                known = self._topics.get(name)
                if known is None or known[0] != version:
                    known = (version, self._load_topic(name, folder, known[1] if known else None))
                    self._topics[name] = known
                return known[1]
        except (FileNotFoundError, NotADirectoryError):
            if folder.is_dir():
                raise _undescribed(name, folder) from None
            names = self.topics()
            read = self.resolve(name)
            raise UnknownTopic(
                f"there is no topic '{name}'" + (f": its readers read '{read}'" if read != name else ""),
                where=str(self.path),
                next_step=f"create it first; topics that exist: {', '.join(names) or 'none'}",
            ) from None

    def _load_topic(self, name: str, folder: Path, before: Topic | None) -> Topic:
        identity, settings, moved_to = topic_description(folder)
        topic = Topic(name, identity, settings, folder, self._disk, self.topic, self._cut, moved_to)
        if before is not None and before.identity == identity:
            topic.take_over(before)
        return topic

    def describe_topic(self, name: str) -> TopicInfo:
        topic = self.topic(name)
        infos = []
        for number in range(topic.settings.partitions):  # one by one: each keeps files open while it is used
            partition = topic.partition(number)
            mark = partition.marks.read()
            infos.append(
                PartitionInfo(
                    number=partition.number,
                    start_offset=partition.known_start_offset(),
                    end_offset=mark.end.offset,
                    stable_offset=mark.stable.offset,
                    size_bytes=partition.size_bytes(),
                    segments=len(segment_names(partition.folder)[0]),
                    open_transactions=len(mark.open),
                )
            )
        read, serves = self.resolve(name), self.switches.served_by(name)
        return TopicInfo(name, topic.settings, tuple(infos), topic.folder, read if read != name else None, serves)

    def change_topic(self, name: str, **settings: Any) -> TopicInfo:
        with self._lock():
            topic = self.topic(name)
            made = topic.settings.changed(**settings)
            check_embedded(made, topic.settings.partitions)
            opened = topic.partitions()
            # No record may be written between the check for records and the new description.
            with _held(partition.lock for partition in opened):
                for partition in opened:
                    partition.check_alive()
                empty = all(partition.end_offset() == 0 for partition in opened)
                made.check_change_from(topic.settings, empty=empty)
                if made.retention_archive not in (None, topic.settings.retention_archive):
                    prepare_archive(str(made.retention_archive))
                self._add_partitions(topic, made)
                self._describe(topic, made, topic.moved_to)
        return self.describe_topic(name)

    def _describe(self, topic: Topic, settings: TopicSettings, moved_to: str | None) -> None:
        moved = {} if moved_to is None else {MOVED_TO: moved_to}
        write_document(
            topic.folder / TOPIC, {"name": topic.name, "id": topic.identity, **settings.to_document(), **moved}
        )

    @contextmanager
    def moving(self, name: str, to: str) -> Iterator[Topic]:
        """Blocks writers of a topic; afterwards they get an error that names the new topic."""
        with self._lock():
            topic = self.topic(name)
            opened = topic.partitions()
            with _held(partition.lock for partition in opened):
                for partition in opened:
                    partition.check_alive()
                yield topic
                self._describe(topic, topic.settings, to)

    def _add_partitions(self, topic: Topic, made: TopicSettings) -> None:
        with storage_errors(topic.folder):
            for leftover in topic.folder.glob(".new-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            for number in range(topic.settings.partitions, made.partitions):
                draft = topic.folder / f".new-{uuid.uuid4().hex}"
                partitions.create(draft, stored_schema(made.schema), self._disk)
                shutil.rmtree(topic.folder / str(number), ignore_errors=True)
                draft.rename(topic.folder / str(number))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, its records, and the offsets of groups and queues. Active writers get an error."""
        topic = self.topic(name)
        queues.check_unused(self.coordinator, name)
        grave = self.path / "topics" / f".deleted-{uuid.uuid4().hex}"
        # Not through the partitions: damaged ones cannot be opened.
        folders = [topic.folder / str(number) for number in range(topic.settings.partitions)]
        folders = [folder for folder in folders if folder.is_dir()]
        with self._lock(), storage_errors(topic.folder):
            locks = [FileLock(folder / lock) for lock in (UPKEEP_LOCK, LOCK) for folder in folders]
            with _held(locks):
                if any(lock.gone for lock in locks) or self.topic(name).identity != topic.identity:
                    raise UnknownTopic(f"topic '{name}' was deleted meanwhile")
                self._forget_version(name)
                # First: a new topic of this name must never find the old one's offsets.
                with self.coordinator.change(durable=True) as db:
                    for table in ("offsets", "ownership", "transaction_partitions"):
                        db.execute(f"DELETE FROM {table} WHERE topic = ?", (name,))
                topic.folder.rename(grave)
                sync_folder(grave.parent)
                shutil.rmtree(grave, ignore_errors=True)  # the rest is removed when the log is next opened
        self._forget(name)

    def _cut(self, topic: str, partition: int, end_offset: int) -> None:
        truncate_progress(self.coordinator, TopicPartition(topic, partition), end_offset)

    def _forget(self, name: str) -> None:
        with self._topics_lock:
            _, topic = self._topics.pop(name, (0, None))
        if topic is not None:
            topic.forget()

    def _folder(self, name: str) -> Path:
        return self.path / "topics" / name

    def offset_at_time(self, topic: str, partition: int, moment: datetime) -> int:
        """The offset of the first record at or after a time."""
        return offset_at_time(self.topic(topic).partition(partition), microseconds(moment))

    # ------------------------------------------------------------ where switched readers start

    def _stable_offsets(self, topic: str) -> dict[int, int]:
        return {partition.number: partition.stable_offset() for partition in self.topic(topic).partitions()}

    def _offsets_at(self, topic: str, moment: datetime) -> dict[int, int]:
        return offsets_at(self.topic(topic).partitions(), microseconds(moment))

    def _corresponding(self, positions: Mapping[TopicPartition, int], topic: str) -> dict[int, int]:
        reached = [(self.find_partition(*place), offset) for place, offset in positions.items()]
        return offsets_at(self.topic(topic).partitions(), time_reached(reached))

    # ------------------------------------------------------------ producers and consumers

    def producer(self, **settings: Any) -> Producer:
        self._check_open()
        self._keep_up()
        return self._parts.noted(Producer(self, **settings))

    def open_producer(self, name: str | None, acks: Acks, sender: Sender) -> EmbeddedStorage:
        return EmbeddedStorage(self, name, acks, sender)

    def consumer(self, topics: str | Sequence[str] | None = None, **settings: Any) -> Consumer:
        self._check_open()
        if settings.get("group") is not None:
            checked_name(settings["group"], "group")
        self._keep_up()
        return self._parts.noted(Consumer(self, topics, **settings))

    def open_consumer(
        self, settings: ConsumerSettings, assignee: Assignee
    ) -> tuple[EmbeddedFetching, EmbeddedMember | None]:
        fetching = EmbeddedFetching(self, settings)
        if settings.group is None:
            return fetching, None
        return fetching, EmbeddedMember(self, settings.group, settings)

    def named_producer(self, name: str) -> NamedProducer:
        return NamedProducer(checked_name(name, "producer"), self.coordinator, self._participants, self.find_partition)

    def forget_producer(self, name: str) -> None:
        """Removes a closed producer that will not be used again, unless its last transaction is still to be ended."""
        with self.coordinator.change() as db:
            db.execute("DELETE FROM producers WHERE name = ? AND state = 'idle'", (name,))

    def membership(self, group: str, topics: Sequence[str], poll_seconds_max: float) -> Membership:
        return Membership(self.coordinator, self._participants, group, topics, self._partition_count, poll_seconds_max)

    def _partition_count(self, topic: str) -> int:
        try:
            return self.topic(topic).settings.partitions
        except NotFound:
            return 0

    def find_partition(self, topic: str, number: int) -> Partition:
        return self.topic(topic).partition(number)

    def end_abandoned(self, partition: Partition) -> None:
        end_abandoned(self.coordinator, self._participants, self.find_partition, partition)

    # ------------------------------------------------------------ groups

    def groups(self) -> list[str]:
        return groups.group_names(self.coordinator)

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        return groups.committed_offsets(self.coordinator, group)

    def describe_group(self, name: str) -> GroupInfo:
        return groups.describe_group(
            self.coordinator, self._participants, name, self._offset_ranges, self._records_between
        )

    def _records_between(self, place: TopicPartition, start: int, end: int) -> int:
        return records_between(self.find_partition(*place), start, end) if start < end else 0

    def _offset_ranges(self, topic: str) -> dict[int, tuple[int, int]]:
        try:
            found = self.topic(topic).partitions()
        except UnknownTopic:
            return {}
        return {partition.number: (partition.start_offset(), partition.stable_offset()) for partition in found}

    def check_idle(self, group: str) -> None:
        """Refuses to change a group with active members."""
        groups.change_idle_group(self.coordinator, self._participants, group)

    def reset_group(self, name: str, topic: str, to: Start) -> GroupInfo:
        """Moves an idle group to a position in a topic: 'earliest', 'latest', an offset or a time."""
        self.check_idle(name)
        with Consumer(self, topic, start=to) as reader:
            offsets = {place: reader.position(*place) for place in reader.assignment}
        with self.coordinator.change() as db:
            groups.store_offsets(db, name, offsets)
        return self.describe_group(name)

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Of a group without members."""
        groups.store_alone(self.coordinator, group, offsets)

    def delete_group(self, name: str) -> None:
        self.check_idle(name)
        with self.coordinator.change() as db:
            for table in ("offsets", "ownership", "members"):
                db.execute(f"DELETE FROM {table} WHERE group_name = ?", (name,))
            db.execute("DELETE FROM groups WHERE name = ?", (name,))

    # ------------------------------------------------------------ queues

    def create_queue(self, name: str, topic: str, **settings: Any) -> QueueInfo:
        """Settings: timeout, max_tries, dead_letters (a topic), max_in_flight, start ('earliest' or 'latest')."""
        checked_name(name, "queue")
        source = self.topic(self.resolve(topic))
        queues.create(self, name, source, QueueSettings.of(**settings))
        return self.describe_queue(name)

    def queues(self) -> list[QueueInfo]:
        return [self.describe_queue(name) for name in queues.names(self.coordinator)]

    def describe_queue(self, name: str) -> QueueInfo:
        return queues.describe(self.coordinator, self._participants, name, self.topic)

    def delete_queue(self, name: str) -> None:
        queues.delete(self.coordinator, self._participants, name)

    def queue(self, name: str) -> Queue:
        self._check_open()
        self._keep_up()
        return self._parts.noted(Queue(self, name))

    def open_queue(self, name: str) -> tuple[str, QueueSettings, EmbeddedDeliveries]:
        topic, settings = queues.load(self.coordinator, name)
        return topic, settings, EmbeddedDeliveries(self, name, topic, settings, self._participants)

    # ------------------------------------------------------------ upkeep and closing

    def clean(self, topic: str | None = None) -> None:
        """Applies retention and compaction now, instead of in the background."""
        upkeep = self._upkeep or Upkeep(self)
        for name in [topic] if topic else self.all_topics():
            upkeep.clean(self.topic(name), forced=True)

    def repair_topic(self, name: str) -> list[Repaired]:
        """Keeps the intact records of damaged partitions, and reports what is lost. Nobody else may use the topic."""
        topic = self.topic(name)
        for number in range(topic.settings.partitions):
            with storage_errors(topic.folder):
                (topic.folder / str(number)).mkdir(exist_ok=True)
        found = [
            repair(
                topic.folder / str(number),
                number,
                topic.stored_schema,
                self._disk,
                on_truncate=truncation_of(self._cut, name, number),
                known_end=furthest_read(self.coordinator, TopicPartition(name, number)),
            )
            for number in range(topic.settings.partitions)
        ]
        self._forget(name)
        return found

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("a log cannot be sent to another process", next_step="send its path and open it there")

    def _keep_up(self) -> None:
        if self._upkeep is not None:
            self._upkeep.start()

    def _check_open(self) -> None:
        if getattr(self, "_closed", False):
            raise ClosedError("the log was closed", next_step="open it again with millstream.connect(…)")

    def close(self) -> None:
        """Also closes the producers, consumers and queues opened here; raises the first of their errors."""
        if self._closed:
            return
        if self._upkeep is not None:
            self._upkeep.stop()
        failure = self._parts.close()
        self._closed = True
        for name in list(self._topics):
            self._forget(name)
        self.coordinator.close()
        if failure is not None:
            raise failure

    def __enter__(self) -> EmbeddedLog:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
