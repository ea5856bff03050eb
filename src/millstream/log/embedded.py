"""The embedded log: a folder that any number of processes on one machine open at once, with no server between them."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from millstream.errors import (
    AlreadyExists,
    ClosedError,
    DamagedLog,
    InvalidInput,
    NotALog,
    NotFound,
    StorageError,
    UnknownPartition,
    UnknownTopic,
)
from millstream.log import access, groups, queues
from millstream.log import partition as partitions
from millstream.log.buffer import microseconds
from millstream.log.consumer import Consumer
from millstream.log.coordinator import Coordinator
from millstream.log.description import (
    DESCRIPTION,
    FOLDERS,
    FORMAT,
    MOVED_TO,
    TOPIC,
    damaged,
    log_description,
    topic_description,
)
from millstream.log.disk import Disk, FileLock, storage_errors, sync_folder, write_document
from millstream.log.groups import GroupInfo, Membership, TopicPartition
from millstream.log.layout import stored_schema
from millstream.log.open_clients import Parts
from millstream.log.partition import LOCK, UPKEEP_LOCK, Partition
from millstream.log.producer import Producer
from millstream.log.queues import Queue, QueueInfo, QueueSettings
from millstream.log.reader import offset_at_time, records_between
from millstream.log.repair import Repaired, repair
from millstream.log.segment import segment_names
from millstream.log.start_positions import Start
from millstream.log.switches import SWITCHES, Switches, Switching
from millstream.log.topics import PartitionInfo, TopicInfo, TopicSettings, check_partition_count, checked_name, is_name
from millstream.log.transactions import NamedProducer, end_abandoned
from millstream.log.upkeep import Upkeep
from millstream.private_files import make_folder

COORDINATOR = "coordinator.sqlite"
LEFTOVER_SECONDS = 60.0
OPEN_FILES = 65536


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
        # Whoever uses a partition holds it; with the last of them its files are closed.
        self._partitions: weakref.WeakValueDictionary[int, Partition] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()

    def take_over(self, before: Topic) -> None:
        """Goes on with the partitions that are open, under the settings of now."""
        self._partitions, self._lock = before._partitions, before._lock
        for reference in self._partitions.valuerefs():
            partition = reference()
            if partition is not None:
                partition.schema, partition.segment_bytes = self.stored_schema, self.settings.segment_bytes
                partition.moved_to = self.moved_to

    def forget(self) -> None:
        """Lets go of the partitions; whoever still uses one keeps it open."""
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
                    on_cut=_cutter(self._on_cut, self.name, number),
                )
                found.moved_to = self.moved_to
                self._partitions[number] = found
                try:
                    found.refresh()  # what was opened may be of a topic made anew, or this description outdated
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
            raise UnknownTopic(f"topic '{name}' was deleted and made anew", next_step="open it again")

    return renew


def _cutter(on_cut: Callable[[str, int, int], None], topic: str, number: int) -> Callable[[int], None]:
    return lambda end_offset: on_cut(topic, number, end_offset)


def _raise_file_limit() -> None:
    """A partition needs a handful of open files, and the usual soft limit is meant for programs that use select()."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _held(locks: Iterable[FileLock]) -> Iterator[None]:
    """All of them, taken in order of partition as everybody does."""
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
    """Opens the log in a folder, and makes it there if the folder is new or empty."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        upkeep: bool = True,
        disk: Disk | None = None,
        shared_group: str | None = None,
    ) -> None:
        """`shared_group` opens the log to the members of a group, now and for ever; by default it is its owner's."""
        self.path = Path(path).expanduser().absolute()
        self._disk = disk or Disk()
        _raise_file_limit()
        self._open_folder(shared_group)
        self._topics: dict[str, tuple[tuple[int, ...], Topic]] = {}
        self._parts = Parts()
        self._topics_lock = threading.Lock()
        self._people = self.path / "people"
        self.switches = Switches(self.path / SWITCHES)
        self._check_coordinator()
        self.coordinator = Coordinator(self.path / COORDINATOR)
        self._upkeep = Upkeep(self) if upkeep else None
        self._closed = False

    def _open_folder(self, group: str | None) -> None:
        description = self.path / DESCRIPTION
        rights = access.access_for(group)
        shared = {} if group is None else {access.SHARED_GROUP: group}
        with storage_errors(self.path):
            access.make_root(self.path, rights)
            with self._lock():
                if not description.exists():
                    strangers = [name for name in os.listdir(self.path) if not self._is_own(name)]  # noqa: PTH208
                    if strangers:
                        (self.path / ".lock").unlink()
                        raise NotALog(
                            "the folder has other things in it and is not a log",
                            where=f"{self.path} ({', '.join(sorted(strangers)[:3])})",
                            next_step="choose an empty or new folder with --log or MILLSTREAM_BROKER",
                        )
                    access.claim(self.path, rights)
                    for name in FOLDERS:
                        make_folder(self.path / name)
                    write_document(description, {"what": "a Millstream log", "format": FORMAT, **shared})
                document = log_description(self.path)
                recorded = document.get(access.SHARED_GROUP)
                if group is not None and not (recorded == group and access.is_granted(self.path, rights)):
                    access.share(self.path, rights)
                    write_document(description, {**document, **shared})
                    recorded = group
                self._sweep()
        access.check(self.path, recorded)

    def _sweep(self) -> None:
        """Clears away what a process left that died while it made or deleted a topic."""
        with suppress(FileNotFoundError):
            for entry in list(os.scandir(self.path / "topics")):
                if entry.name.startswith((".deleted-", ".new-")):
                    with suppress(FileNotFoundError):
                        if time.time() - entry.stat(follow_symlinks=False).st_ctime > LEFTOVER_SECONDS:
                            shutil.rmtree(entry.path, ignore_errors=True)

    def _check_coordinator(self) -> None:
        path = self.path / COORDINATOR
        if not path.exists() and self.topics():
            raise DamagedLog(
                "the coordinator's file is missing: what groups, queues and named producers have done is in it",
                where=str(path),
                next_step="restore it; if it is lost for good, make an empty file of that name: "
                "groups, queues and named producers then begin anew",
            )

    def _is_own(self, name: str) -> bool:
        """Whether a log whose making was cut short has left this."""
        if name in FOLDERS:
            return not any((self.path / name).iterdir())
        # Jobs of a flow that reads and writes elsewhere keep their folders here, too.
        return name in (".lock", "jobs") or name.startswith(f".{DESCRIPTION}.")

    def _lock(self) -> FileLock:
        """Held while the log is made and topics are changed."""
        return FileLock(self.path / ".lock")

    # ------------------------------------------------------------ topics

    def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        """Makes a topic; the settings are those of `TopicSettings`, durations and sizes as text or as values."""
        checked_name(name, "topic")
        made = TopicSettings.of(**settings)
        check_partition_count(made.partitions)
        folder = self._folder(name)
        self._check_name_free(name)
        if folder.exists():
            raise AlreadyExists(
                f"there is a topic '{name}' already", next_step="choose another name, or change that one"
            )
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
                    raise AlreadyExists(f"there is a topic '{name}' already") from error
                raise
        return self.describe_topic(name)

    def topics(self) -> list[str]:
        """Folders of other names, and files, are not topics, however they came there."""
        with storage_errors(self.path), os.scandir(self.path / "topics") as entries:
            return sorted(
                entry.name for entry in entries if is_name(entry.name) and entry.is_dir(follow_symlinks=False)
            )

    def topic(self, name: str) -> Topic:
        """The topic as described now; its partitions are kept open between calls."""
        self._check_open()
        folder = self._folder(checked_name(name, "topic"))
        try:
            with self._topics_lock:
                if folder.is_symlink():
                    raise damaged(folder, "a link lies in place of the topic's folder")
                found = (folder / TOPIC).stat()
                # Clocks of file systems are coarse: a new file in the same tick has another number at least.
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
        for number in range(topic.settings.partitions):  # one by one: each holds files open as long as it is used
            partition = topic.partition(number)
            mark = partition.marks.read()
            infos.append(
                PartitionInfo(
                    number=partition.number,
                    start_offset=partition.start_offset(),
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
            if made.partitions > topic.settings.partitions:
                check_partition_count(made.partitions)
            opened = topic.partitions()
            # No record may come in between the look whether there are any and the new description.
            with _held(partition.lock for partition in opened):
                for partition in opened:
                    partition.check_alive()
                empty = all(partition.end_offset() == 0 for partition in opened)
                made.check_change_from(topic.settings, empty=empty)
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
        """Inside it nobody writes to a topic, and after it nobody does any more: writers are told where it has gone."""
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
        """Deletes a topic with its records and what groups and queues remember of it. Writers at work are refused."""
        topic = self.topic(name)
        self._check_unused(name)
        grave = self.path / "topics" / f".deleted-{uuid.uuid4().hex}"
        # Not through the partitions, which cannot be opened when they are damaged.
        folders = [topic.folder / str(number) for number in range(topic.settings.partitions)]
        folders = [folder for folder in folders if folder.is_dir()]
        with self._lock(), storage_errors(topic.folder):
            locks = [FileLock(folder / lock) for lock in (UPKEEP_LOCK, LOCK) for folder in folders]
            with _held(locks):
                if any(lock.gone for lock in locks) or self.topic(name).identity != topic.identity:
                    raise UnknownTopic(f"topic '{name}' was deleted meanwhile")
                self._forget_version(name)
                # First: a topic made anew under this name must never find what groups remember of this one.
                with self.coordinator.change(durable=True) as db:
                    for table in ("offsets", "ownership", "transaction_partitions"):
                        db.execute(f"DELETE FROM {table} WHERE topic = ?", (name,))
                topic.folder.rename(grave)
                sync_folder(grave.parent)
                shutil.rmtree(grave, ignore_errors=True)  # what is left is swept when the log is next opened
        self._forget(name)

    def _check_unused(self, topic: str) -> None:
        with self.coordinator.look() as db:
            rows = db.execute("SELECT name, topic, settings FROM queues ORDER BY name").fetchall()
        dead_letters = {row["name"]: queues.settings_of(self.coordinator, row).dead_letters for row in rows}
        used = [row["name"] for row in rows if topic in (row["topic"], dead_letters[row["name"]])]
        if used:
            raise InvalidInput(
                f"topic '{topic}' is used by queue {', '.join(used)}", next_step="delete the queue first"
            )

    def _cut(self, topic: str, partition: int, end_offset: int) -> None:
        """Nobody has come further than a partition now ends: its next records have offsets that were used before."""
        beyond = {"topic": topic, "partition": partition, "end": end_offset}
        of_queues = "partition = :partition AND queue IN (SELECT name FROM queues WHERE topic = :topic)"
        with self.coordinator.change(durable=True) as db:
            db.execute(
                "UPDATE offsets SET next_offset = :end "
                "WHERE topic = :topic AND partition = :partition AND next_offset > :end",
                beyond,
            )
            db.execute(f"UPDATE queue_cursors SET next_offset = :end WHERE {of_queues} AND next_offset > :end", beyond)
            db.execute(f"DELETE FROM deliveries WHERE {of_queues} AND record_offset >= :end", beyond)

    def _furthest_read(self, topic: str, partition: int) -> int:
        """How far any group or queue has come: so many records there were at least."""
        with self.coordinator.look() as db:
            rows = db.execute(
                "SELECT next_offset FROM offsets WHERE topic = :topic AND partition = :partition UNION ALL "
                "SELECT next_offset FROM queue_cursors WHERE partition = :partition "
                "AND queue IN (SELECT name FROM queues WHERE topic = :topic)",
                {"topic": topic, "partition": partition},
            ).fetchall()
        return max((offset for (offset,) in rows), default=0)

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

    # ------------------------------------------------------------ producers and consumers

    def producer(self, **settings: Any) -> Producer:
        self._check_open()
        self._keep_up()
        return self._parts.noted(Producer(self, **settings))

    def consumer(self, topics: str | Sequence[str], **settings: Any) -> Consumer:
        self._check_open()
        if settings.get("group") is not None:
            checked_name(settings["group"], "group")
        self._keep_up()
        return self._parts.noted(Consumer(self, topics, **settings))

    def named_producer(self, name: str) -> NamedProducer:
        return NamedProducer(checked_name(name, "producer"), self.coordinator, self._people, self.find_partition)

    def membership(self, group: str, topics: Sequence[str], poll_seconds_max: float) -> Membership:
        return Membership(self.coordinator, self._people, group, topics, self._partition_count, poll_seconds_max)

    def _partition_count(self, topic: str) -> int:
        try:
            return self.topic(topic).settings.partitions
        except NotFound:
            return 0

    def find_partition(self, topic: str, number: int) -> Partition:
        return self.topic(topic).partition(number)

    def end_abandoned(self, partition: Partition) -> None:
        end_abandoned(self.coordinator, self._people, self.find_partition, partition)

    # ------------------------------------------------------------ groups

    def groups(self) -> list[str]:
        return groups.group_names(self.coordinator)

    def describe_group(self, name: str) -> GroupInfo:
        return groups.describe_group(self.coordinator, self._people, name, self._offset_ranges, self._records_between)

    def _records_between(self, place: TopicPartition, start: int, end: int) -> int:
        return records_between(self.find_partition(*place), start, end) if start < end else 0

    def _offset_ranges(self, topic: str) -> dict[int, tuple[int, int]]:
        try:
            found = self.topic(topic).partitions()
        except UnknownTopic:
            return {}
        return {partition.number: (partition.start_offset(), partition.stable_offset()) for partition in found}

    def check_idle(self, group: str) -> None:
        """Refuses to touch a group whose members are at work."""
        groups.change_idle_group(self.coordinator, self._people, group)

    def reset_group(self, name: str, topic: str, to: Start) -> GroupInfo:
        """Sets how far an idle group has come in a topic: 'earliest', 'latest', an offset or a time."""
        self.check_idle(name)
        with Consumer(self, topic, start=to) as reader:
            offsets = {place: reader.position(*place) for place in reader.assignment}
        with self.coordinator.change() as db:
            groups.store_offsets(db, name, offsets)
        return self.describe_group(name)

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
        return queues.describe(self.coordinator, self._people, name, self.topic)

    def delete_queue(self, name: str) -> None:
        queues.delete(self.coordinator, self._people, name)

    def queue(self, name: str) -> Queue:
        self._check_open()
        self._keep_up()
        return self._parts.noted(Queue(self, name, self._people))

    # ------------------------------------------------------------ upkeep and the end

    def clean(self, topic: str | None = None) -> None:
        """Applies retention and compaction now, instead of in the background."""
        upkeep = self._upkeep or Upkeep(self)
        for name in [topic] if topic else self.topics():
            upkeep.clean(self.topic(name), forced=True)

    def repair_topic(self, name: str) -> list[Repaired]:
        """Keeps what still checks out of damaged partitions, and tells what is lost. Nobody else may use the topic."""
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
                on_cut=_cutter(self._cut, name, number),
                known_end=self._furthest_read(name, number),
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
        """Closes the producers, consumers and queues made here as well; raises what the first of them raises."""
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
