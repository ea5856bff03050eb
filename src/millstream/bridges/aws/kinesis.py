"""Records of a Kinesis stream into a topic: records and the position in their shard are one transaction.

So each is stored exactly once, whatever is killed. The records of a shard that was split or merged come before those of
the shards that replace it. A stream is known by its name and the time at which it was created: positions of a deleted
stream are not used for another of the same name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream import terminal
from millstream.bridges.arrivals import Arrival
from millstream.bridges.aws.client import AwsAccount, call
from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.bridges.reports import Behind
from millstream.errors import ConnectorFailed, InvalidInput, SourceUnavailable, StorageError

TOGETHER_MAX = 1000
IDLE_SECONDS = 0.25
"""Kinesis answers five requests per shard and second."""
SHARDS_SECONDS = 10.0
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.5, 60.0
FINISHED = "finished"
CREATED = "created"
"""Beside the positions of shards: which stream they belong to."""
WHEN_RECREATED = ("error", "earliest")
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class KinesisSource:
    account: AwsAccount
    stream: str
    bytes_max: int = 1 << 20
    when_recreated: str = "error"
    """If the stream was deleted and created again: `error`, or `earliest` to read the new one from its beginning."""

    def __post_init__(self) -> None:
        if self.when_recreated not in WHEN_RECREATED:
            raise InvalidInput(
                f"when_recreated={self.when_recreated!r} is unknown", next_step=f"one of {', '.join(WHEN_RECREATED)}"
            )


class KinesisBridge:
    def __init__(self, source: KinesisSource, landing: PositionedLanding) -> None:
        self._source = source
        self._landing = landing
        self._where = f"kinesis {source.stream}"
        self._client = source.account.client("kinesis")
        self._positions: dict[str, Any] = landing.positions()
        self._iterators: dict[str, str] = {}
        self._behind_s: dict[str, float] = {}
        self._stopped = threading.Event()
        self.on_ready: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Until it is stopped. A service that does not answer is waited for, and so is a full disk."""
        pause, is_ready = RETRY_SECONDS, False
        while not self._stopped.is_set():
            try:
                self._check_stream()
                shards = self._shards()
                if not is_ready:
                    is_ready = True
                    self.on_ready()
                self._follow(shards)
                pause = RETRY_SECONDS
            except StorageError as error:
                logger.warning("%s; trying again", error.what)
                self._iterators.clear()
                self._stopped.wait(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)

    def stop(self) -> None:
        self._stopped.set()

    def behind(self) -> Behind | None:
        """How old what is read next is, by the shard that is furthest behind."""
        known = list(self._behind_s.values())
        return Behind(max(known), "seconds") if known else None

    def _call(self, request: Callable[..., Any], **arguments: Any) -> Any:
        return call(lambda: request(**arguments), SourceUnavailable, ConnectorFailed, self._where)

    def _check_stream(self) -> None:
        """Raises ConnectorFailed, or forgets the positions, if they are those of a stream that was deleted."""
        answer = self._call(self._client.describe_stream_summary, StreamName=self._source.stream)
        created = answer["StreamDescriptionSummary"]["StreamCreationTimestamp"].timestamp()
        known = self._positions.get(CREATED)
        if known == created:
            return
        if known is None:  # new, or from before streams were told apart
            changes: dict[str, Any] = {CREATED: created}
        elif self._source.when_recreated == "error":
            raise ConnectorFailed(
                f"the stream '{self._source.stream}' was deleted and created again: its positions are not valid here, "
                "and what was in the old stream and not received is lost",
                where=self._where,
                next_step="start once with --when-recreated earliest to read the new stream from its beginning",
            )
        else:
            logger.warning("%s was deleted and created again: it is read from its beginning", self._where)
            changes = dict.fromkeys(self._positions) | {CREATED: created}
        self._landing.land([], changes)
        self._positions = {name: position for name, position in (self._positions | changes).items() if position}
        self._iterators.clear()

    def _shards(self) -> list[Mapping[str, Any]]:
        answer = self._call(self._client.list_shards, StreamName=self._source.stream)
        found: list[Mapping[str, Any]] = answer["Shards"]
        while answer.get("NextToken"):
            answer = self._call(self._client.list_shards, NextToken=answer["NextToken"])
            found += answer["Shards"]
        return found

    def _follow(self, shards: Sequence[Mapping[str, Any]]) -> None:
        """Reads the open shards in turn, until it is time to look for new ones."""
        rounds = int(SHARDS_SECONDS / IDLE_SECONDS)
        for _ in range(rounds):
            readable = self._readable(shards)
            counts = [self._read(shard) for shard in readable if not self._stopped.is_set()]
            if self._stopped.is_set() or len(self._readable(shards)) != len(readable):
                return
            if not any(counts):
                self._stopped.wait(IDLE_SECONDS)

    def _readable(self, shards: Sequence[Mapping[str, Any]]) -> list[str]:
        """Those that are not finished, and whose predecessors are finished or deleted."""
        known = {shard["ShardId"] for shard in shards}
        unfinished = {id for id in known if self._positions.get(id) != FINISHED}
        return [
            shard["ShardId"]
            for shard in shards
            if shard["ShardId"] in unfinished
            and not {shard.get("ParentShardId"), shard.get("AdjacentParentShardId")} & unfinished
        ]

    def _read(self, shard: str) -> int:
        iterator = self._iterators.pop(shard, None) or self._iterator(shard)
        answer = self._call(self._client.get_records, ShardIterator=iterator, Limit=TOGETHER_MAX)
        records, following = answer["Records"], answer.get("NextShardIterator")
        self._behind_s[shard] = 0.0 if following is None else answer.get("MillisBehindLatest", 0) / 1000
        position = FINISHED if following is None else records[-1]["SequenceNumber"] if records else None
        if position is not None:
            self._landing.land([self._arrival(shard, record) for record in records], {shard: position})
            self._positions[shard] = position
        if following is not None:
            self._iterators[shard] = following
        return len(records)

    def _iterator(self, shard: str) -> str:
        position = self._positions.get(shard)
        start = {"ShardIteratorType": "TRIM_HORIZON"}
        if position is not None:
            start = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": position}
        answer = self._call(self._client.get_shard_iterator, StreamName=self._source.stream, ShardId=shard, **start)
        return str(answer["ShardIterator"])

    def _arrival(self, shard: str, record: Mapping[str, Any]) -> Arrival:
        headers = (("kinesis-shard", shard.encode()), ("kinesis-sequence", record["SequenceNumber"].encode()))
        key = record["PartitionKey"].encode()
        made = Arrival(self._landing.topic, record["Data"], key, None, headers, f"{self._where}/{shard}")
        return made.cut_to(self._source.bytes_max)
