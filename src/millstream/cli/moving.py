"""`millstream topics move`: moves topics, and the jobs that read them, from the embedded log to Kafka."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.output import count_text, show_done
from millstream.cli.progress import ImportProgress
from millstream.cli.session import Session, complete_topics
from millstream.errors import InvalidInput

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC... kafka://HOST:PORT", autocompletion=complete_topics, help="The last one is the target."
    ),
]


def move(session: Session, names: Names) -> None:
    """Move topics to Kafka, with their groups, and with the jobs that read them.

    Records keep their order, partitions, keys and headers, and their times to the millisecond. Groups and jobs continue
    where they were; topics that those jobs write are moved too. The records here stay readable, and writers get an
    error with the new address. An interrupted move starts over when it is called again.

    \b
    Example:
      millstream topics move scores kafka://broker:9092
    """
    from millstream.jobs.move_to_kafka import move as moved
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


class Counted(ImportProgress):
    """Progress of a move, by records."""

    def __init__(self, topics: str) -> None:
        super().__init__(topics, None)
        self._records = 0

    def count(self, _: str, records: int) -> None:
        self._records += records
        self.show(0, self._records)
