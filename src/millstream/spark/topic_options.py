"""The options of topics in plain PySpark, validated. Options of Spark itself are left to Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from millstream.errors import InvalidSetting, MillstreamError
from millstream.log.kafka.address import KafkaAddress, as_kafka
from millstream.user_lines import what_exists

READ_OPTIONS = (
    "topic",
    "broker",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerBatch",
    "format",
    "badRecords",
    "tasks",
)
WRITE_OPTIONS = ("topic", "broker", "key", "partitions", "txnAppId", "txnVersion")
OPTIONS = tuple(dict.fromkeys([*READ_OPTIONS, *WRITE_OPTIONS]))
SPARKS_OWN = ("checkpointlocation", "asyncprogresstracking")
"""How the names of Spark's own options start, in lower case: they come along with those of a source or sink."""


@contextmanager
def without_traceback() -> Iterator[None]:
    """Reports a user's mistake without a stack trace; the Spark process that this runs in ends with it."""
    try:
        yield
    except MillstreamError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@dataclass(frozen=True)
class Settings:
    """The validated options."""

    topic: str
    broker: str
    registered: KafkaAddress | None = field(hash=False)
    """The broker, if it is Kafka and was given to `register`: all processes have its secrets."""
    starting: str
    ending: str
    limit_rows: int | None
    format: str | None
    fails_on_bad: bool
    tasks: int
    key: tuple[str, ...]
    partitions: int | None
    transaction: tuple[str, int] | None
    """The application and the number of the batch, as given with txnAppId and txnVersion."""
    given: frozenset[str]
    """The options that were set, in lower case."""

    @classmethod
    def of(cls, options: Mapping[str, str], default_broker: str, default_kafka: KafkaAddress | None = None) -> Settings:
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in OPTIONS}
        topic = given.pop("path", None)  # the argument of load()
        for name in given:
            if name not in known and not name.startswith(SPARKS_OWN):
                raise InvalidSetting(
                    f"there is no option '{name}'", next_step=what_exists(name, OPTIONS, kind="options")
                )
        topic = given.get("topic", topic)
        if not topic:
            raise InvalidSetting("no topic is given", next_step='add one: .option("topic", "scores")')
        bad = given.get("badrecords", "fail")
        if bad not in ("fail", "drop"):
            raise InvalidSetting(f"badRecords must be 'fail' or 'drop', not {bad!r}")
        limit, partitions = given.get("maxrecordsperbatch"), given.get("partitions")
        return cls(
            topic=topic,
            broker=given.get("broker", default_broker),
            registered=None if "broker" in given else default_kafka,
            starting=given.get("startingoffsets", "earliest"),
            ending=given.get("endingoffsets", "latest"),
            limit_rows=None if limit is None else _number("maxRecordsPerBatch", limit),
            format=given.get("format"),
            fails_on_bad=bad == "fail",
            tasks=_number("tasks", given["tasks"]) if "tasks" in given else os.cpu_count() or 1,
            key=tuple(filter(None, map(str.strip, given.get("key", "").split(",")))),
            partitions=None if partitions is None else _number("partitions", partitions),
            transaction=_transaction(given),
            given=frozenset(given),
        )

    def check_only(self, usable: Sequence[str], verb: str) -> None:
        """Rejects an option of the other direction, which would have no effect."""
        for name in OPTIONS:
            if name.lower() in self.given and name not in usable:
                raise InvalidSetting(
                    f"the option '{name}' has no meaning when a topic is {verb}",
                    where=f"topic '{self.topic}'",
                    next_step=f"remove it; the options are {', '.join(usable)}",
                )

    @property
    def kafka(self) -> KafkaAddress | None:
        """The broker, if it is Kafka. One given as an option is resolved in each process: its secrets are not sent."""
        return self.registered or as_kafka(self.broker)


def _transaction(given: Mapping[str, str]) -> tuple[str, int] | None:
    application, version = given.get("txnappid"), given.get("txnversion")
    if application is None and version is None:
        return None
    if not application or version is None or not version.strip().isdecimal():
        raise InvalidSetting(
            "txnAppId and txnVersion identify a batch together: a name, and a number that increases",
            next_step='in foreachBatch: .option("txnAppId", "totals").option("txnVersion", batch_id)',
        )
    return application, int(version)


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidSetting(f"{name} must be a positive integer, not {text!r}")
    return int(text)
