"""`millstream topics move`: topics and the jobs that read them, from the embedded log to Kafka; on Kafka, replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.output import count_text, show_done
from millstream.cli.progress import ImportProgress
from millstream.cli.session import Session, complete_topics
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC... kafka://HOST:PORT", autocompletion=complete_topics, help="The last one is the target."
    ),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="BROKERS", help="On Kafka: the ids of the brokers to move one topic to, as 1,2,3."),
]
Factor = Annotated[
    int | None,
    typer.Option(help="With --to: on how many brokers each partition is from now on; default: as many as now."),
]


def move(session: Session, names: Names, to: To = None, replication_factor: Factor = None) -> None:
    """Move topics to Kafka, or the partitions of a topic on Kafka to other brokers.

    To Kafka, topics are moved with their groups, and with the jobs that read them.

    Records keep their order, partitions, keys and headers, and their times to the millisecond. Groups and jobs continue
    where they were; topics that those jobs write are moved too. The records here stay readable, and writers get an
    error with the new address. An interrupted move starts over when it is called again.

    With --to, the replicas of a topic on Kafka are moved while it is used. That needs Kafka's own tool
    kafka-reassign-partitions, on the PATH or in $KAFKA_HOME/bin.

    \b
    Example:
      millstream topics move scores kafka://broker:9092
      millstream topics move scores --to 2,3,4 --log kafka://broker:9092
    """
    if to is not None:
        _move_replicas(session, names, to, replication_factor)
        return
    from millstream.jobs.results.move_to_kafka import move as moved
    from millstream.log import connect, open_embedded
    from millstream.log.kafka.log import KafkaLog

    *topics, address = names
    if not topics or not address.startswith("kafka://"):
        raise InvalidInput(
            "the target is missing", next_step="for example: millstream topics move scores kafka://broker:9092"
        )
    with open_embedded(session.existing()) as log, connect(address) as target:
        assert isinstance(target, KafkaLog)
        progress = Counted(", ".join(topics))
        try:
            found = moved(log, target, topics, progress.count)
        finally:
            progress.close()
        jobs = [(job.job, str(job.path)) for job in found.jobs]
    records = sum(each.records for each in found.topics)
    lines = [f"moved {count_text(records, 'record')} of {', '.join(each.topic for each in found.topics)}"]
    if early := sum(each.before_1970 for each in found.topics):
        lines.append(
            f"{count_text(early, 'record')} had times before 1970, which Kafka does not store: they are now at "
            "the start of 1970"
        )
    for group in sorted({group for each in found.topics for group in each.groups}):
        lines.append(f"group '{group}' continues there")
    for name, folder in jobs:
        lines.append(f"continue job '{name}' with: millstream run FLOW.py --log {address} --folder {folder}")
    document = {
        "topics": [{"name": each.topic, "records": each.records, "groups": list(each.groups)} for each in found.topics],
        "jobs": [{"name": name, "folder": folder} for name, folder in jobs],
        "to": address,
    }
    show_done(session, *lines, document=document)


def _move_replicas(session: Session, names: list[str], to: str, factor: int | None) -> None:
    if len(names) != 1:
        raise InvalidInput("--to moves one topic", next_step="call it for each topic")
    try:
        brokers = [int(each) for each in to.split(",")]
    except ValueError:
        raise InvalidInput(f"'{to}' are not ids of brokers", next_step="for example --to 1,2,3") from None
    with on_kafka(session, "only Kafka has brokers to move partitions to") as log:
        moved = log.move_replicas(names[0], brokers, factor=factor)
    lines = [f"partition {number} is on {', '.join(map(str, ids))}" for number, ids in moved.items()]
    document = {"topic": names[0], "replicas": {str(number): list(ids) for number, ids in moved.items()}}
    show_done(session, f"moved topic '{names[0]}'", *lines, document=document)


@contextmanager
def on_kafka(session: Session, why: str) -> Iterator[KafkaLog]:
    """The log, which must be Kafka."""
    if session.kafka() is None:
        raise InvalidInput(
            f"{why}: the embedded log stays on one machine",
            next_step="name a cluster: --log kafka://HOST:PORT",
        )
    from millstream.log.kafka.log import KafkaLog

    with session.log() as log:
        assert isinstance(log, KafkaLog)
        yield log


class Counted(ImportProgress):
    """Progress of a move, by records."""

    def __init__(self, topics: str) -> None:
        super().__init__(topics, None)
        self._records = 0

    def count(self, _: str, records: int) -> None:
        self._records += records
        self.show(0, self._records)
