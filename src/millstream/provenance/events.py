"""Events of a job's batches: read from its topic, and searched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.errors import UnknownTopic
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.measuring.batch_event import BatchEvent, StepFigures, events_topic, from_bytes
from millstream.log import Broker


def events_of(log: Broker, job: JobFolder) -> Iterator[BatchEvent]:
    """The events of a job, the oldest first, each batch once."""
    topic = events_topic(job)
    try:
        log.topic(topic)
    except UnknownTopic:  # no batch yet, or without provenance
        return
    seen: set[tuple[str, int]] = set()
    with log.consumer(topic) as consumer:
        for record in consumer.until_caught_up():
            try:
                event = from_bytes(record.value)
            except msgspec.MsgspecError:  # written by another version
                continue
            if (event.run, event.batch) not in seen:  # outputs skip a batch that is repeated
                seen.add((event.run, event.batch))
                yield event


@dataclass(frozen=True)
class Search:
    """Which events, and which of their steps. All conditions have to hold."""

    step: str | None = None
    since: float | None = None
    """In seconds since 1970."""
    topic: str | None = None
    """A topic that a step reads or writes."""
    partition: int | None = None
    offset: int | None = None

    def found(self, events: Iterator[BatchEvent]) -> Iterator[dict[str, Any]]:
        """One document for each step of each batch."""
        for event in events:
            if self.since is None or event.at >= self.since:
                yield from (document(event, name) for name in event.steps or event.ends if self._fits(event, name))

    def _fits(self, event: BatchEvent, step: str) -> bool:
        if self.step is not None and step != self.step:
            return False
        if self.topic is None and self.partition is None and self.offset is None:
            return True
        return has_touched(event, step, self.topic, self.partition, self.offset)


def has_touched(
    event: BatchEvent, step: str, topic: str | None, partition: int | None = None, offset: int | None = None
) -> bool:
    """Whether a step of a batch has read or written a topic, one of its partitions, or a record."""
    figures = event.steps.get(step)
    if topic is not None and (figures is None or topic not in _topics(event, step, figures)):
        return False
    if partition is None and offset is None:
        return figures is not None
    ranges = _ranges(event, step, figures)
    return any(
        (topic is None or named is None or named == topic)
        and (partition is None or number == str(partition))
        and (offset is None or start <= offset < end)
        for named, number, start, end in ranges
    )


def document(event: BatchEvent, step: str) -> dict[str, Any]:
    """A step of a batch, as plain data."""
    figures = event.steps.get(step)
    ranges = _ranges(event, step, figures)
    return {
        "batch": event.batch,
        "at": datetime.fromtimestamp(event.at, UTC).isoformat(),
        "step": step,
        "kind": "source" if figures is None else figures.kind,
        "rows_in": None if figures is None else figures.rows_in,
        "rows_out": None if figures is None else figures.rows_out,
        "rows_late": 0 if figures is None else figures.rows_late,
        "rows_dead": 0 if figures is None else figures.rows_dead,
        "target": None if figures is None else figures.target,
        "ranges": [
            {"topic": topic or (figures.topic if figures else None), "partition": number, "start": start, "end": end}
            for topic, number, start, end in ranges
        ],
        "tasks": [
            {
                "task": each.task,
                "rows": each.rows,
                "late": each.rows_late,
                "dead": each.rows_dead,
                "read": [{"partition": name, "start": start, "end": end} for name, start, end in each.read],
                "rows_out": each.rows_out,
            }
            for each in event.tasks
            if each.step == step
        ],
        "idle_batches_before": len(event.ticks),
        "plan": event.plan or None,
        "run": event.run,
    }


def range_text(ranges: Sequence[dict[str, Any]]) -> str:
    """Such as `scores 0: 10-19`, with the last offset included."""
    return ", ".join(
        f"{each['topic'] + ' ' if each['topic'] else ''}{each['partition']}: {each['start']}-{each['end'] - 1}"
        for each in ranges
    )


def _ranges(event: BatchEvent, step: str, figures: StepFigures | None) -> list[tuple[str | None, str, int, int]]:
    """Topic, partition, start and end of what a step has read, or of where it has written."""
    places = event.ranges(step) or (figures.places if figures is not None else {})
    found = []
    for name, (start, end) in places.items():
        topic, _, number = name.rpartition("/")  # a source of several topics names them
        found.append((topic or (figures.topic if figures is not None else None), number, start, end))
    return found


def _topics(event: BatchEvent, step: str, figures: StepFigures) -> set[str | None]:
    return {figures.topic, *(topic for topic, *_ in _ranges(event, step, figures))}
