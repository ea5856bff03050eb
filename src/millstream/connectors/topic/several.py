"""Several topics as one source: a list of names, or all topics that match a pattern, also those created later.

Each partition is named after its topic and number, as `orders.eu/0`, so offsets and watermarks are per topic and
partition, and a new topic begins at its earliest record.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from millstream import terminal
from millstream.connectors.kafka.source import KafkaSource
from millstream.connectors.source import Offsets, Slab, Slice, Source, cut, fair_shares
from millstream.connectors.topic.names import TopicNames
from millstream.connectors.topic.source import TopicSource
from millstream.errors import DamagedState, OffsetLost, UnknownTopic
from millstream.log import Broker, EmbeddedLog, open_embedded
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.log import KafkaLog
from millstream.log.storage.disk import read_document, write_document
from millstream.private_files import make_folders
from millstream.records import Schema

logger = terminal.logger(__name__)
KNOWN = "topics.json"
GONE = "gone.json"
"""The deleted topics whose loss the user has accepted."""
LOOK_SECONDS = 1.0  # for new topics


class SeveralTopics(Source):
    """Subclasses define where the topics are."""

    POLL_S = 0.02

    def __init__(self, log: Broker, names: TopicNames, folder: Path, *, on_lost: str = "error") -> None:
        self._log = log
        self._names = names
        self._folder = folder
        self._on_lost = on_lost
        self._opened: dict[str, TopicSource | KafkaSource] = {}
        self._found: list[str] = []
        self._looked_at = float("-inf")
        self._gone: set[str] = set()
        self._losses: list[str] = []

    @abstractmethod
    def _open(self, topic: str) -> TopicSource | KafkaSource:
        """One of the topics as a source."""

    @property
    def identity(self) -> str:
        """The topics may change while a job exists, so each one's identity is in the job's folder."""
        return "topics"

    @property
    def decodes(self) -> bool:
        return any(self._source(topic).decodes for topic in self._topics())

    # ------------------------------------------------------------ what there is

    def _topics(self) -> list[str]:
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._found = self._names.among(self._log)
            self._looked_at = time.monotonic()
        return self._found

    def _source(self, topic: str) -> TopicSource | KafkaSource:
        if topic not in self._opened:
            self._opened[topic] = self._open(topic)
        return self._opened[topic]

    def earliest(self) -> Offsets:
        return _joined((topic, self._source(topic).earliest()) for topic in self._topics())

    def latest(self) -> Offsets:
        return _joined((topic, self._source(topic).latest()) for topic in self._topics())

    def at(self, moment: datetime) -> Offsets:
        return _joined((topic, self._source(topic).at(moment)) for topic in self._topics())

    def written_at(self, partition: str, offset: int) -> float | None:
        topic, _, number = partition.rpartition("/")
        return self._source(topic).written_at(number, offset)

    # ------------------------------------------------------------ planning a batch

    def row_bytes(self) -> float:
        return max((self._source(topic).row_bytes() for topic in self._topics()), default=0.0)

    def take_losses(self) -> list[str]:
        taken, self._losses = self._losses, []
        return [*taken, *(loss for source in self._opened.values() for loss in source.take_losses())]

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        """The limit is shared among the topics that lag, and then among the partitions of each."""
        begun = _by_topic(start)
        topics = self._topics()
        self._check_there(begun, topics)
        self._check_identities(topics)
        ends = {topic: self._source(topic).limited(begun.get(topic, {}), None) for topic in topics}
        if limit_rows is not None:
            lags = {topic: self._lag(topic, begun.get(topic, {}), end) for topic, end in ends.items()}
            if sum(lags.values()) > limit_rows:
                shares = fair_shares({topic: lag for topic, lag in lags.items() if lag}, limit_rows)
                ends |= {topic: self._source(topic).limited(begun.get(topic, {}), n) for topic, n in shares.items()}
        return _joined(ends.items())

    def _lag(self, topic: str, start: Offsets, end: Offsets) -> int:
        first = {} if start.keys() >= end.keys() else self._source(topic).earliest()
        return sum(max(0, offset - start.get(name, first.get(name, 0))) for name, offset in end.items())

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        begun = _by_topic(start)
        pieces = [
            replace(piece, partition=f"{topic}/{piece.partition}")
            for topic, ends in sorted(_by_topic(end).items())
            if ends != begun.get(topic)  # a topic that is gone keeps its offsets
            for task in self._source(topic).slices(begun.get(topic, {}), ends, 1)
            for piece in task
        ]
        return cut(pieces, tasks)

    def _check_there(self, begun: dict[str, Offsets], topics: Sequence[str]) -> None:
        """A topic that was read and is gone may have had records that were not read."""
        for topic in begun.keys() - set(topics) - self._gone - _known(self._folder / GONE).keys():
            if topic in self._log.topics():
                continue  # the flow no longer reads it
            lost = OffsetLost(
                f"topic '{topic}' was read before and no longer exists: records that were not read are lost",
                where=str(self._names),
                next_step="continue without it with on_lost='earliest' (millstream run --on-lost earliest)",
            )
            if self._on_lost == "error":
                raise lost
            self._gone.add(topic)
            make_folders(self._folder)
            write_document(self._folder / GONE, {"topics": _known(self._folder / GONE) | {topic: ""}})
            self._opened.pop(topic, None)
            self._losses.append(f"{lost.what} (on_lost='{self._on_lost}')")
            logger.warning("%s", self._losses[-1])

    def _check_identities(self, topics: Sequence[str]) -> None:
        """A topic that was recreated under the same name has other records at the same offsets."""
        path = self._folder / KNOWN
        known = _known(path)
        found = {topic: self._source(topic).identity for topic in topics}
        for topic, identity in found.items():
            if known.get(topic, identity) != identity:
                raise UnknownTopic(
                    f"topic '{topic}' was deleted and created again",
                    where=str(self._names),
                    next_step="start over with the records that are left: millstream run flow.py --start-over",
                )
        if not found.keys() <= known.keys():
            make_folders(self._folder)
            write_document(path, {"topics": known | found})

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            latest = self.latest()
            new = [name for name in latest if name not in start]
            begun = start | ({} if not new else {name: self.earliest().get(name, 0) for name in new})
            if any(offset > begun[name] for name, offset in latest.items()):
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, self.POLL_S))

    # ------------------------------------------------------------ reading

    def read(self, slice: Slice) -> Iterator[Slab]:
        topic, _, number = slice.partition.rpartition("/")
        for slab in self._source(topic).read(replace(slice, partition=number)):
            yield replace(slab, partition=slice.partition)

    def close(self) -> None:
        for source in self._opened.values():
            source.close()
        self._opened.clear()
        self._log.close()


class SeveralEmbedded(SeveralTopics):
    """Topics of the embedded log."""

    def __init__(
        self,
        names: TopicNames,
        schema: Schema,
        folder: Path,
        *,
        broker: str | None,
        format: str | None,
        columns: Schema | None = None,
        on_lost: str = "error",
    ) -> None:
        log: EmbeddedLog = open_embedded(broker)
        super().__init__(log, names, folder, on_lost=on_lost)
        self._schema, self._columns = schema, columns
        self._broker, self._format = broker, format

    def _open(self, topic: str) -> TopicSource:
        source = TopicSource(
            topic,
            self._schema,
            broker=self._broker,
            format=self._format or "json",
            columns=self._columns,
            on_lost=self._on_lost,
        )
        source.check_format(self._format)
        return source


class SeveralKafka(SeveralTopics):
    """Topics of Kafka."""

    POLL_S = 0.1

    def __init__(
        self,
        names: TopicNames,
        schema: Schema,
        folder: Path,
        *,
        address: KafkaAddress,
        format: str,
        on_lost: str = "error",
    ) -> None:
        log = KafkaLog(address)
        super().__init__(log, names, folder, on_lost=on_lost)
        self._schema, self._address, self._format = schema, address, format

    def _open(self, topic: str) -> KafkaSource:
        return KafkaSource(self._address, topic, self._schema, format=self._format, on_lost=self._on_lost)


def _known(path: Path) -> dict[str, str]:
    """The identities of the topics that were read before."""
    if not path.exists():
        return {}
    try:
        return {str(topic): str(identity) for topic, identity in read_document(path)["topics"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedState(
            f"the topics that the job has read cannot be read from its folder: {error}",
            where=str(path),
            next_step="delete the file, if none of the topics was deleted and recreated",
        ) from error


def _joined(found: Iterable[tuple[str, Offsets]]) -> Offsets:
    return {f"{topic}/{name}": offset for topic, offsets in found for name, offset in offsets.items()}


def _by_topic(offsets: Offsets) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {}
    for partition, offset in offsets.items():
        topic, _, name = partition.rpartition("/")
        found.setdefault(topic, {})[name] = offset
    return found
