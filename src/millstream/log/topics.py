"""Topic settings and descriptions, validated on creation."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from millstream.errors import InvalidName, InvalidSetting
from millstream.log.storage.archive import archive_root
from millstream.log.storage.disk import storage_errors
from millstream.records import Schema, can_evolve, codec, duration, format_duration, size_bytes

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,248}")
INTERNAL = "_provenance."
"""What the names of the topics start with that have the events of jobs."""
PARTITIONS_MAX = 10_000  # of any topic; an embedded log allows EMBEDDED_PARTITIONS_MAX
EMBEDDED_PARTITIONS_MAX = 1000
FILES_PER_PARTITION = 4  # that a writing process keeps open
REPLICATION = ("replication_factor", "min_insync_replicas")
SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX = 4096, 2 << 30


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None and ".." not in text


def topic_names(folder: Path, *, internal: bool = False) -> list[str]:
    """The topics in a folder. Internal ones are left out of listings and patterns: they describe jobs."""
    with storage_errors(folder.parent), os.scandir(folder) as entries:  # files and other folders are not topics
        names = [entry.name for entry in entries if is_name(entry.name) and entry.is_dir(follow_symlinks=False)]
    return sorted(name for name in names if internal or not name.startswith(INTERNAL))


def checked_name(name: object, what: str) -> str:
    """Names become file and folder names: they must not escape the log's folder."""
    if not isinstance(name, str) or not is_name(name):
        raise InvalidName(
            f"{name!r} is not a name for a {what}",
            next_step="use up to 249 letters, digits, '_', '-' and single '.', starting with a letter, digit or '_'",
        )
    return name


def check_embedded(settings: TopicSettings, partitions_before: int = 0) -> None:
    """Refuses what only Kafka has, and more partitions than fit."""
    if settings.partitions > partitions_before:
        check_partition_count(settings.partitions)
    for name in REPLICATION:
        if getattr(settings, name) is not None:
            raise InvalidSetting(
                f"{name} is a setting of Kafka: the embedded log stays on one machine, with one copy of each record",
                next_step="leave it out; for copies on other machines move the topic: millstream topics move TOPIC kafka://…",
            )


def check_partition_count(count: int) -> None:
    """Checked first: a topic whose partitions no process could open would be useless."""
    if count > EMBEDDED_PARTITIONS_MAX:
        raise InvalidSetting(
            f"a topic of the embedded log can have at most {EMBEDDED_PARTITIONS_MAX} partitions, not {count}",
            next_step="choose fewer: each one keeps files open in every process that uses it",
        )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and count * FILES_PER_PARTITION > files:
        raise InvalidSetting(
            f"{count} partitions need up to {count * FILES_PER_PARTITION} open files; this process may open {files}",
            next_step="choose fewer partitions, or raise the limit of open files (ulimit -n)",
        )


@dataclass(frozen=True)
class TopicSettings:
    """How a topic stores its records. Retention and sizes are per partition, as in Kafka."""

    partitions: int = 1
    """The number of partitions."""
    schema: Schema | None = None
    """The columns of its values; default: values are bytes."""
    codec: str | None = None
    """How bytes that are sent to a topic with a schema are decoded; default: JSON."""
    retention: timedelta | None = None
    """How long records are kept; default: forever."""
    retention_bytes: int | None = None
    """How many bytes a partition keeps; default: no limit."""
    retention_archive: str | None = None
    """A folder or an address such as s3://… to which retention moves old segments, from where they can still be read;
    default: it deletes them."""
    segment_bytes: int = 128 << 20
    """The size at which a new segment file is started."""
    compaction: bool = False
    """Keep only the newest record of each key."""
    tombstone_retention: timedelta = timedelta(days=1)
    """How long a compacted topic keeps tombstones."""
    replication_factor: int | None = field(default=None, compare=False)  # of where it is, not of what it stores
    """On how many brokers of Kafka each partition is; default: three, or all if there are fewer."""
    min_insync_replicas: int | None = field(default=None, compare=False)
    """How many of them must have a record before it is acknowledged, on Kafka; default: two of three."""

    @classmethod
    def of(cls, **given: Any) -> TopicSettings:
        """From user input: durations, sizes and schemas as text or as values."""
        return cls().changed(**given)

    def changed(self, **given: Any) -> TopicSettings:
        defaults = {field.name: field.default for field in fields(self)}
        for name, value in given.items():
            if name not in defaults:
                raise InvalidSetting(
                    f"there is no setting '{name}'", next_step=f"settings of a topic: {', '.join(defaults)}"
                )
            if value is None and defaults[name] is not None:
                raise InvalidSetting(f"{name} cannot be None", next_step="leave it out, or give it a value")
        settings = replace(self, **{name: _value(name, value) for name, value in given.items()})
        settings._check()
        return settings

    def _check(self) -> None:
        if not isinstance(self.partitions, int) or isinstance(self.partitions, bool):
            raise InvalidSetting(f"partitions must be a whole number, not {self.partitions!r}")
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise InvalidSetting(f"a topic must have 1 to {PARTITIONS_MAX} partitions, not {self.partitions}")
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise InvalidSetting(
                f"a segment must have {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} bytes, not {self.segment_bytes}"
            )
        for name in REPLICATION:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidSetting(f"{name} must be a whole number from 1 on, not {value!r}")
        for name in ("retention", "tombstone_retention"):
            if getattr(self, name) is not None and getattr(self, name) <= timedelta(0):
                raise InvalidSetting(f"{name} must be longer than 0", next_step="leave it out for the default")
        if self.retention_bytes is not None and self.retention_bytes < self.segment_bytes:
            raise InvalidSetting(
                f"retention_bytes ({self.retention_bytes}) is less than one segment ({self.segment_bytes})",
                next_step="only whole segments are deleted: make segment_bytes smaller, or retention_bytes larger",
            )
        if self.retention_archive is not None and self.retention is None and self.retention_bytes is None:
            raise InvalidSetting(
                "an archive needs a retention: what is older, or more, is moved there",
                next_step="set retention or retention_bytes as well",
            )
        if self.codec is not None:
            codec(self.codec, self.schema)

    def check_change_from(self, old: TopicSettings, *, empty: bool) -> None:
        """Rejects a change that does not fit the stored records."""
        if self.partitions < old.partitions:
            raise InvalidSetting(
                f"a topic cannot lose partitions ({old.partitions} to {self.partitions})",
                next_step="create a new topic with fewer partitions and copy the records over",
            )
        if empty or self.schema == old.schema:
            return
        if self.schema is None or old.schema is None:
            raise InvalidSetting(
                "a topic with records cannot gain or lose its schema",
                next_step="create a new topic and copy the records over",
            )
        if reasons := can_evolve(old.schema, self.schema):
            raise InvalidSetting(
                "the records stored under the old schema do not fit the new one: " + "; ".join(reasons),
                next_step="only add columns or widen types, or create a new topic",
            )

    def to_document(self) -> dict[str, Any]:
        return {
            "partitions": self.partitions,
            "schema": self.schema.ddl if self.schema else None,
            "codec": self.codec,
            "retention": format_duration(self.retention) if self.retention else None,
            "retention_bytes": self.retention_bytes,
            **({"retention_archive": self.retention_archive} if self.retention_archive else {}),
            "segment_bytes": self.segment_bytes,
            "compaction": self.compaction,
            "tombstone_retention": format_duration(self.tombstone_retention),
            **{name: getattr(self, name) for name in REPLICATION if getattr(self, name) is not None},
        }


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in ("retention", "tombstone_retention"):
        return duration(value, what=name)
    if name in ("retention_bytes", "segment_bytes"):
        return size_bytes(value)
    if name == "retention_archive":
        return archive_root(value)
    if name == "schema":
        return Schema.of(value)
    if name == "compaction" and not isinstance(value, bool):
        raise InvalidSetting(f"compaction must be True or False, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    number: int
    start_offset: int
    end_offset: int
    stable_offset: int
    size_bytes: int | None  # like `segments`, unknown on Kafka: its brokers do not report it
    segments: int | None
    open_transactions: int

    @property
    def records_max(self) -> int:
        """The largest possible number of records: compaction and markers leave gaps."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class TopicVersion:
    """One of the topics that a name has referred to, and whether its readers read it now."""

    topic: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    settings: TopicSettings
    partitions: tuple[PartitionInfo, ...]
    folder: Path | None = None
    switched_to: str | None = None  # the topic that readers of this name read instead
    serves: tuple[str, ...] = ()  # the other names whose readers read this topic

    @property
    def size_bytes(self) -> int | None:
        """None if the broker does not report it."""
        sizes = [partition.size_bytes for partition in self.partitions]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def records_max(self) -> int:
        return sum(partition.records_max for partition in self.partitions)
