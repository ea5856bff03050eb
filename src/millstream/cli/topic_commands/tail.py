"""`millstream tail`: the newest records of a topic over all its partitions, and optionally new ones."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.session import Session, TopicName, command
from millstream.cli.topic_commands.consume import (
    Isolation,
    KeySeparator,
    NullValue,
    Pinned,
    RecordFormat,
    WithKey,
    end_offsets,
    is_caught_up,
    print_records,
)

if TYPE_CHECKING:
    from millstream.cli.rendering import Rendering
    from millstream.log import Broker

Line = tuple[int, int, int, bytes]  # time in µs, partition, offset, text


def register(app: typer.Typer) -> None:
    command(app, "tail")(tail)


def tail(
    session: Session,
    topic: TopicName,
    count: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of records.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new records.")] = False,
    isolation: Isolation = "read_committed",
    pinned: Pinned = False,
    format: RecordFormat = "value",
    with_key: WithKey = False,
    key_separator: KeySeparator = "\t",
    null_value: NullValue = "null",
) -> None:
    """Print the last records of a topic in timestamp order, and optionally follow it.

    \b
    Example:
      millstream tail scores -n 3
      millstream tail scores -f --format full
    """
    from millstream.cli.rendering import Rendering, write_lines

    with session.log() as log:
        name, topic = topic, topic if pinned else log.resolve(topic)
        schema = log.topic(topic).settings.schema
        rendering = Rendering(schema, "json" if session.json else format, with_key, key_separator, null_value)
        ends = end_offsets(log, topic, committed=isolation == "read_committed")
        newest: list[Line] = []
        for number in ends:
            newest = nlargest(count, [*newest, *_last(log, topic, number, ends[number], count, isolation, rendering)])
        write_lines([line for *_, line in reversed(newest)])
        if follow:
            with log.consumer(name, start=ends, isolation=isolation, on_lost="earliest", pinned=pinned) as consumer:
                print_records(session, log, consumer, rendering, None, None)


def _last(
    log: Broker, topic: str, number: int, end: int, count: int, isolation: str, rendering: Rendering
) -> list[Line]:
    """The last records of a partition before `end`. Compaction leaves gaps, so it may have to scan further back."""
    first = log.describe_topic(topic).partitions[number].start_offset
    back = count
    while count:
        begin = max(first, end - back)
        lines = _between(log, topic, number, begin, end, count, isolation, rendering)
        if len(lines) >= count or begin == first:
            return lines
        back *= 8
    return []


def _between(
    log: Broker, topic: str, number: int, begin: int, end: int, count: int, isolation: str, rendering: Rendering
) -> list[Line]:
    lines: list[Line] = []
    settings: dict[str, Any] = {"isolation": isolation, "on_lost": "earliest", "pinned": True}
    with log.consumer(topic, partitions=[number], start=begin, **settings) as consumer:
        while not is_caught_up(consumer, {number: end}):
            for batch in consumer.poll_batches(0.01):
                before_end = int((batch.offsets < end).sum())
                kept = batch.split(before_end)[0].split(max(0, before_end - count))[1]
                times = kept.columns.column("timestamp").cast("int64").to_pylist()
                rows = zip(times, kept.offsets.tolist(), rendering.batch(kept), strict=True)
                lines = [*lines, *((time or 0, number, offset, line) for time, offset, line in rows)][-count:]
    return lines
