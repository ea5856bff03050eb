"""Where a record came from, and what came of it, across jobs that are chained by topics: found by repeating batches.

A record of an output is recognized by its row: jobs store no link. Equal rows look the same: all are followed, unless
the events of the job name the batch that wrote the record. Events outlive records, and are all that is left of those
that have expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import polars as pl

from millstream.connectors.opening import open_source
from millstream.connectors.source import Slice, Source
from millstream.errors import NotFound
from millstream.jobs.measuring.batch_event import BatchEvent
from millstream.local import Flowing
from millstream.log.kafka.address import as_kafka
from millstream.operators.elementwise import OFFSET, table_of
from millstream.plan.nodes import Dead, Late, Node, Read, WindowedAggregate, Write
from millstream.plan.walking import in_order
from millstream.provenance.events import document, has_touched, range_text
from millstream.provenance.history import History
from millstream.provenance.replaying import OFFSET_BITS, Moment, Origin, Replay
from millstream.provenance.windows import KeyHistory
from millstream.records import Schema, batch_to_rows

FOLLOWED_MAX = 100
"""How many records of one are followed on."""
DEPTH_MAX = 10


@dataclass(frozen=True)
class Place:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int

    def document(self) -> dict[str, Any]:
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset}


@dataclass(frozen=True)
class Link:
    """A step of a job between a record and others."""

    job: str
    output: str
    batch: int
    places: Sequence[Place]
    note: str | None = None

    def document(self, follow: Callable[[Place], dict[str, Any]]) -> dict[str, Any]:
        records = [follow(place) for place in self.places[:FOLLOWED_MAX]]
        left = len(self.places) - len(records)
        notes = [each for each in (self.note, f"{left:,} more records are not followed" if left else None) if each]
        return {"job": self.job, "output": self.output, "batch": self.batch, "records": records, "notes": notes}


class Tracer:
    """Follows records through the jobs whose flows are known."""

    def __init__(self, histories: Sequence[History]) -> None:
        self._histories = histories

    def trace(self, place: Place, *, back: bool = True, forward: bool = True) -> dict[str, Any]:
        """A record, what it came from, and what came of it."""
        self._check(place)
        answer: dict[str, Any] = place.document()
        if back:
            answer["from"] = self._followed(place, self._sources_of, "from", 0)
        if forward:
            answer["to"] = self._followed(place, self._results_of, "to", 0)
        return answer

    def _followed(
        self, place: Place, links: Callable[[Place], Iterator[Link]], name: str, depth: int
    ) -> list[dict[str, Any]]:
        if depth >= DEPTH_MAX:
            return []

        def follow(found: Place) -> dict[str, Any]:
            return {**found.document(), name: self._followed(found, links, name, depth + 1)}

        return [link.document(follow) for link in links(place)]

    def _check(self, place: Place) -> None:
        known = [node for history in self._histories for node in history.steps if _topic(node) == place.topic]
        if not known:
            flows = ", ".join(history.job for history in self._histories) or "none"
            raise NotFound(
                f"no known job reads or writes the topic '{place.topic}': {flows}",
                next_step="name the files of the jobs with --file, one for each",
            )

    # ------------------------------------------------------------ back

    def _sources_of(self, place: Place) -> Iterator[Link]:
        for history in self._histories:
            for output in history.outputs:
                if _topic(output) == place.topic:
                    yield from _link_back(history, output, place)

    # ------------------------------------------------------------ forward

    def _results_of(self, place: Place) -> Iterator[Link]:
        for history in self._histories:
            for output in history.outputs:
                reads = [node for node in in_order([output]) if isinstance(node, Read) and _topic(node) == place.topic]
                if reads:
                    yield from _links_forward(history, output, place)


def _link_back(history: History, output: Write, place: Place) -> Iterator[Link]:
    row = row_at(history, output, place)
    written = _event_of(history, [output], place)
    if row is None:
        yield _gone(history, output, written)
        return
    if isinstance(output.inputs[0], Dead):  # a dead letter names its record
        if row["offset"] is not None:
            origin = Place(row["topic"], row["partition"], row["offset"])
            yield Link(history.job, output.name, _batch_of(history, output, origin), [origin])
        return
    replay = history.replay([output])
    is_found = False
    for at in replay.moments():
        if written is not None and at.batch.number != written.batch:
            continue
        rows = _equal(at.sent[output], output.schema, row)
        if not len(rows):
            continue
        is_found = True
        if OFFSET in rows.columns:
            places = [_place(replay.origin(number)) for number in rows[OFFSET]]
            yield Link(history.job, output.name, at.batch.number, places)
            continue
        step = _windowed(output)
        if step is None or not _names_pane(step, row):
            note = "the step keeps state that is not a window: any earlier record with its key may have contributed"
            yield Link(history.job, output.name, at.batch.number, [], note)
            continue
        found = _of_key(history, step, row)
        for pane in found.panes:
            if pane.moment.batch.number == at.batch.number and _is_pane(pane.values, row):
                origins = [found.arrived[number].origin for number in pane.fired.rows]
                places = [_place(origin) for origin in origins if origin is not None]
                yield Link(history.job, output.name, at.batch.number, places)
    if not is_found:
        gone = "; ".join(["no recorded batch gives this row", *replay.notes])
        yield Link(history.job, output.name, -1, [], gone)


def _links_forward(history: History, output: Write, place: Place) -> Iterator[Link]:
    step = _windowed(output)
    observed: list[Node] = [output] if step is None else [output, step.inputs[0]]
    replay = history.replay(observed)
    wanted: list[dict[str, Any]] = []
    batch: int | None = None
    is_before = False
    for at in replay.moments():
        numbers = replay.numbers_of(place.topic, place.partition, place.offset)
        is_before = is_before or _is_before(at, numbers)
        if not _has_read(at, numbers):
            continue
        batch = at.batch.number
        flowing = at.sent[output]
        if isinstance(output.inputs[0], Dead):
            wanted = []  # found by its origin below
        elif OFFSET in flowing.rows.columns:
            wanted = _dicts(flowing.rows.filter(pl.col(OFFSET).is_in(numbers)), output.schema)
        elif step is not None:
            yield from _links_of_panes(history, output, step, _taken(at, step, numbers, replay))
            return
        else:
            note = "the step keeps state that is not a window: any later result of its key may contain the record"
            yield Link(history.job, output.name, batch, [], note)
            return
        break
    if batch is None:
        reads = [node for node in in_order([output]) if isinstance(node, Read)]
        read = _event_of(history, reads, place)
        if read is not None:
            yield _gone(history, output, read)
        elif is_before:
            yield Link(history.job, output.name, -1, [], "; ".join(["the record has expired", *replay.notes]))
        return
    if isinstance(output.inputs[0], Dead):
        origin = place.document()
        found = list(_found(history, output, lambda row: all(row[name] == value for name, value in origin.items())))
    else:
        found = _find_all(history, output, wanted)
    if found:
        yield Link(history.job, output.name, batch, found)


def _event_of(history: History, steps: Sequence[Node], place: Place) -> BatchEvent | None:
    """The event of the batch in which one of these steps read or wrote a record."""
    names = [step.name for step in steps]
    asked = place.topic, place.partition, place.offset
    return next((event for event in history.events for name in names if has_touched(event, name, *asked)), None)


def _gone(history: History, output: Write, event: BatchEvent | None) -> Link:
    """What the events know of a record that cannot be read any more."""
    if event is None:
        note = "the record has expired, or is not a row of this output"
        return Link(history.job, output.name, -1, [], note)
    reads = [node.name for node in in_order([output]) if isinstance(node, Read)]
    read = range_text([each for name in reads for each in document(event, name)["ranges"]])
    written = document(event, output.name)
    note = f"the content has expired; the batch read {read or 'nothing'}"
    if written["rows_out"] is not None:
        rows = written["rows_out"]
        note += f", and wrote {rows:,} row{'' if rows == 1 else 's'} to {written['target']}"
        note += f" ({range_text(written['ranges'])})" if written["ranges"] else ""
    return Link(history.job, output.name, event.batch, [], note)


def _links_of_panes(
    history: History, output: Write, step: WindowedAggregate, taken: Sequence[tuple[Origin, dict[str, Any]]]
) -> Iterator[Link]:
    """The panes that a row is in, or the late row that it became, as records of the output."""
    for origin, row in taken:
        found = _of_key(history, step, row)
        own = {each.number for each in found.arrived if each.origin == origin}
        if isinstance(output.inputs[0], Late):
            for late in found.late:
                if late.number in own:
                    places = _find_all(history, output, [late.values])
                    yield Link(history.job, output.name, late.moment.batch.number, places)
            continue
        for pane in found.panes:
            if not own.intersection(pane.fired.rows):
                continue
            if not _names_pane(step, output.schema.names):
                yield Link(history.job, output.name, pane.moment.batch.number, [], "its rows do not name their pane")
                continue
            places = list(_found(history, output, lambda made, pane=pane: _is_pane(pane.values, made)))  # type: ignore[misc]
            yield Link(history.job, output.name, pane.moment.batch.number, places)


# ---------------------------------------------------------------- records of an output


def row_at(history: History, output: Write, place: Place) -> dict[str, Any] | None:
    """A record of an output as a row; None if it is gone, or no such row."""
    with closing(_reading(history, output)) as source:
        if place.offset < source.earliest().get(str(place.partition), 0):
            return None
        if place.offset >= source.latest().get(str(place.partition), 0):
            return None
        for slab in source.read(Slice(str(place.partition), place.offset, place.offset + 1)):
            for batch in slab.rows.to_batches():
                for row in batch_to_rows(batch):
                    return row
    return None


def _find_all(history: History, output: Write, rows: Sequence[Mapping[str, Any]]) -> list[Place]:
    """The records of an output that are these rows."""
    wanted = {_text(row, output.schema) for row in rows}
    return list(_found(history, output, lambda row: _text(row, output.schema) in wanted)) if wanted else []


def _found(history: History, output: Write, is_wanted: Callable[[dict[str, Any]], bool]) -> Iterator[Place]:
    topic = _topic(output)
    if topic is None:
        return
    with closing(_reading(history, output)) as source:
        ends = source.latest()
        for partition, start in source.earliest().items():
            for slab in source.read(Slice(partition, start, ends[partition])):
                rows = [row for batch in slab.rows.to_batches() for row in batch_to_rows(batch)]
                for offset, row in zip(slab.offsets.tolist(), rows, strict=True):
                    if is_wanted(row):
                        yield Place(topic, int(partition), offset)


def _reading(history: History, output: Write) -> Source:
    broker = history.broker
    return open_source(
        output.sink,
        output.schema,
        broker=as_kafka(broker) or broker,
        folder=history.folder.path / "sources" / output.name,
        name=output.name,
        on_lost="earliest",
    )


def _equal(flowing: Flowing, schema: Schema, row: Mapping[str, Any]) -> pl.DataFrame:
    wanted = _text(row, schema)
    mask = [_text(each, schema) == wanted for each in _dicts(flowing.rows, schema)]
    return flowing.rows.filter(pl.Series(mask, dtype=pl.Boolean))


def _dicts(rows: pl.DataFrame, schema: Schema) -> list[dict[str, Any]]:
    return [row for batch in table_of(rows, schema).to_batches() for row in batch_to_rows(batch)]


def _text(row: Mapping[str, Any], schema: Schema) -> str:
    return repr([row[name] for name in schema.names])


# ---------------------------------------------------------------- steps


def _topic(node: Node) -> str | None:
    if isinstance(node, Read):
        topic: str | None = node.source.broker_topic
        return topic
    return node.sink.broker_topic if isinstance(node, Write) else None


def _windowed(output: Write) -> WindowedAggregate | None:
    """The windowed step whose panes, or late rows, an output gets; only single-row steps may be between."""
    node: Node = output.inputs[0]
    while not isinstance(node, WindowedAggregate):
        if node.keeps_state or len(node.inputs) != 1:
            return None
        node = node.inputs[0]
    return node


def _names_pane(step: WindowedAggregate, names: Any) -> bool:
    return all(name in names for name in (*step.keys, "window", "pane"))


def _is_pane(pane: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    same = [name for name in pane if name in row and name not in ("weight", "event_time")]
    return all(pane[name] == row[name] for name in same)


def _of_key(history: History, step: WindowedAggregate, row: Mapping[str, Any]) -> KeyHistory:
    return KeyHistory(step, {name: row[name] for name in step.keys}, history.replay([step.inputs[0]]))


def _taken(at: Moment, step: WindowedAggregate, numbers: Sequence[int], replay: Replay) -> list[tuple[Origin, Any]]:
    """The rows of a record in front of a windowed step."""
    rows = at.sent[step.inputs[0]].rows
    if OFFSET not in rows.columns:
        return []
    rows = rows.filter(pl.col(OFFSET).is_in(numbers))
    return list(zip(map(replay.origin, rows[OFFSET]), _dicts(rows, step.inputs[0].schema), strict=True))


def _has_read(at: Moment, numbers: Sequence[int]) -> bool:
    return any(track.has(number) for track in at.tracks for number in numbers)


def _is_before(at: Moment, numbers: Sequence[int]) -> bool:
    """Whether a record is before the first that could be read of its partition."""
    return any(
        number < track.first and number >> OFFSET_BITS == track.first >> OFFSET_BITS
        for track in at.tracks
        for number in numbers
    )


def _batch_of(history: History, output: Write, place: Place) -> int:
    replay = history.replay([output])
    for at in replay.moments():
        if _has_read(at, replay.numbers_of(place.topic, place.partition, place.offset)):
            return at.batch.number
    return -1


def _place(origin: Origin) -> Place:
    read = origin.document()
    return Place(read["topic"], read["partition"], read["offset"])
