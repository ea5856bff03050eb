"""`millstream consume`: prints records to stdout; a group's offsets are committed after they were written there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from millstream.cli.failures import warn
from millstream.cli.session import Session, TopicName, command, complete_groups
from millstream.cli.starts import FORMS, read_start
from millstream.errors import PartitionsRevoked
from millstream.terminal import escaped

if TYPE_CHECKING:
    from millstream.cli.rendering import Rendering
    from millstream.log import Broker, Consumer

POLL_SECONDS = 1.0
RecordFormat = Annotated[
    Literal["value", "json", "full"],
    typer.Option(
        "--format",
        help="value: the value, as JSON if the topic has a schema; json: the whole record, as with --json; full: "
        "partition, offset, time, key, value and headers, separated by tabs.",
    ),
]
WithKey = Annotated[bool, typer.Option("--with-key", help="Print the key before the value.")]
KeySeparator = Annotated[str, typer.Option(metavar="TEXT", help="Separator between key and value.")]
NullValue = Annotated[str, typer.Option(metavar="TEXT", help="How a missing key or a tombstone is printed.")]
Isolation = Annotated[
    Literal["read_committed", "read_uncommitted"],
    typer.Option(help="Whether to skip records of open and aborted transactions."),
]


Pinned = Annotated[
    bool,
    typer.Option("--pinned", help="Read the topic of exactly this name, even if its readers were switched to another."),
]


def register(app: typer.Typer) -> None:
    command(app, "consume")(consume)


def consume(
    session: Session,
    topic: TopicName,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this group.", autocompletion=complete_groups)
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="START", help=f"{FORMS}; a group resumes at its committed offsets.")
    ] = "earliest",
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition; repeatable.")] = None,
    max_records: Annotated[int | None, typer.Option("--max", min=0, help="Stop after this many records.")] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--until-caught-up",
            "-f",
            help="Keep waiting for new records, or stop at the current end of the topic.",
        ),
    ] = False,
    delivery: Annotated[
        Literal["at_least_once", "at_most_once"],
        typer.Option(help="Whether offsets are committed after or before the output."),
    ] = "at_least_once",
    isolation: Isolation = "read_committed",
    on_lost: Annotated[
        Literal["error", "earliest", "latest"],
        typer.Option(help="What to do when retention has deleted records before they were read."),
    ] = "error",
    pinned: Pinned = False,
    format: RecordFormat = "value",
    with_key: WithKey = False,
    key_separator: KeySeparator = "\t",
    null_value: NullValue = "null",
) -> None:
    """Print the records of a topic, one per line.

    With --group, offsets are committed only after the records were written and flushed, so a kill loses nothing; when
    the reader of a pipe goes away, exactly what was written to it is committed. A reader such as head may take more
    from the pipe than it prints: use --max N to take exactly N.

    A name that is switched (millstream switch) is resolved to its current topic; with --follow, later switches are
    followed.

    With --json, each record is one JSON object; bytes that are not UTF-8 are {"base64": "…"}.

    \b
    Example:
      millstream consume scores --from 2025-06-01T12:00:00Z | jq .team
      millstream consume scores --group mails --max 100 --json
    """
    from millstream.cli.rendering import Rendering

    with (
        session.log() as log,
        log.consumer(
            topic,
            group=group,
            start=read_start(start),
            partitions=partition or None,
            delivery=delivery,
            isolation=isolation,
            on_lost=on_lost,
            pinned=pinned,
        ) as consumer,
    ):
        rendering = Rendering(None, "json" if session.json else format, with_key, key_separator, null_value)
        [read] = consumer.topics
        ends = None if follow else end_offsets(log, read, committed=isolation == "read_committed")
        print_records(session, log, consumer, rendering, ends, max_records)


def end_offsets(log: Broker, topic: str, *, committed: bool) -> dict[int, int]:
    infos = log.describe_topic(topic).partitions
    return {info.number: info.stable_offset if committed else info.end_offset for info in infos}


def print_records(
    session: Session,
    log: Broker,
    consumer: Consumer,
    rendering: Rendering,
    ends: dict[int, int] | None,
    records_max: int | None,
) -> None:
    """Prints records up to `ends`, or without end; at most so many."""
    from millstream.cli.rendering import OutputClosed, write_lines
    from millstream.log.agreement.groups import TopicPartition

    commits = consumer.group is not None and consumer.delivery == "at_least_once"
    left = records_max
    renderings: dict[str, Rendering] = {}  # each topic that the consumer is switched to has its own schema
    begun = consumer.topics  # `ends` belong to these: if readers are switched meanwhile, reading stops
    while left != 0 and (ends is None or (consumer.topics == begun and not is_caught_up(consumer, ends))):
        # Records before `ends` can be read without waiting; the wait only prevents a busy loop after a fault.
        batches = consumer.poll_batches(POLL_SECONDS if ends is None else 0.01, max_records=left)
        written: dict[TopicPartition, int] = {}
        try:
            for batch in batches:
                place = TopicPartition(batch.topic, batch.partition)
                if batch.topic not in renderings:
                    renderings[batch.topic] = replace(rendering, schema=log.topic(batch.topic).settings.schema)
                try:
                    write_lines(renderings[batch.topic].batch(batch))
                except OutputClosed as closed:
                    if closed.lines:
                        written[place] = int(batch.offsets[closed.lines - 1]) + 1
                    raise
                written[place] = batch.next_offset
                left = None if left is None else left - len(batch)
        finally:
            if written and commits:
                try:
                    consumer.commit(written)
                except PartitionsRevoked as error:  # another member prints them again: at least once
                    warn(escaped(error.what), as_json=session.json)


def is_caught_up(consumer: Consumer, ends: dict[int, int]) -> bool:
    return all(consumer.position(*place) >= ends.get(place.partition, 0) for place in consumer.assignment)
