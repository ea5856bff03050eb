"""Plays a script: each step is one bundle for every input, and the output of the observed streams is its result.

Only `Watermark` moves a watermark and only `Clock` the clock, and neither goes back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from millstream.errors import InvalidInput
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import frame_of
from millstream.operators.source_watermarks import SourceWatermark
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, Read, WithEventTime
from millstream.plan.on_spark.needs_spark import needs_spark
from millstream.plan.steps.keyed import Keyed, Windowed
from millstream.plan.stream import Stream
from millstream.plan.tables import Table
from millstream.plan.time.timing import Timed, timing
from millstream.plan.time.watermarks import Watermark as Strategy
from millstream.plan.walking import in_order
from millstream.records import batch_to_rows, rows_to_batch
from millstream.reference import BEGINNING, END, Bundle, Reference, Row, micros
from millstream.reference.operator import timed_at
from millstream.testing.drawing import figure_of, recording_of
from millstream.testing.played import Played, checked_path
from millstream.testing.steps import Add, Batch, Clock, Partition, Step, Watermark
from millstream.user_lines import users_line

INPUT = "input"
WHOLE = ""  # the only partition of a script that names none


def play(
    build: Callable[..., Any],
    steps: Sequence[Step],
    *,
    schema: Any,
    event_time: Any = None,
    on: str = "local",
    draw: str | Path | bool | None = None,
    watermark: Strategy | None = None,
) -> Played:
    """Builds a flow over a test stream and plays the steps; the i-th result is the list of rows that step i emitted.

    `build` takes the test stream and returns the stream to observe, its `.late`, or a dict of streams; then each result
    is a dict of lists. With several inputs `schema` and `event_time` are dicts by input name, `build` takes the inputs
    by name, and `Add(rows, to=name)` feeds one. `on` is "local", "reference" or "spark". `draw` names an .svg file for
    a figure of event time against processing time, or of the matches of a pattern; with `draw=True` a notebook shows
    it, and `save("name.svg")` of the result writes it. With a `watermark` such as `ms.bounded("10 seconds")` the rows
    and the clock also move the watermark, as in a running job.
    """
    run = _engine(on)
    script = Script(build, schema, event_time, watermark, weighted=_weighted_inputs(steps))
    script.check(steps)
    observed = list(script.observed.values())
    path = None if draw is None or isinstance(draw, bool) else checked_path(draw)
    recording = recording_of(script.flow, observed) if draw else None
    played = [(bundles, script.partitions) for bundles in script.bundles(steps, run)]
    bundles = [given for given, _ in played]
    results = Played(script.results(sent) for sent in run(observed, bundles))
    if recording:  # all engines emit the same, so the figure uses the one that is always available
        for sent, (_, partitions) in zip(_engine("local")(list(recording.nodes), bundles), played, strict=True):
            recording.note(sent, partitions)
        results.figure = figure_of(recording)
        if path is None:
            results.display()
        else:
            results.save(path)
    return results


def _weighted_inputs(steps: object) -> set[str | None]:
    """The inputs with retracted rows, None for the only input; `check` validates the rest."""
    parts = [part for step in steps for part in _parts(step)] if isinstance(steps, Sequence) else []
    inner = [getattr(part, "step", part) for part in parts]
    return {step.to for step in inner if isinstance(step, Add) and step.weights is not None}


def _parts(step: Any) -> Sequence[Any]:
    """The steps that happen in one bundle."""
    return step.steps if isinstance(step, Batch) else [step]


Engine = Callable[[list[Node], Sequence[dict[Node, Bundle]]], Iterable[Mapping[Node, Bundle]]]


def _engine(on: str) -> Engine:
    """Runs a plan, given the nodes to observe and the output of the sources in each step."""
    if on == "reference":
        return lambda observed, steps: map(Reference(observed).step, steps)
    if on == "local":
        from millstream.local import Local  # imports polars operators, which the reference does not need

        return lambda observed, steps: map(Local(observed).step, steps)
    if on == "spark":
        from millstream.testing.on_spark import played  # imports Spark

        return played
    raise InvalidInput(
        f"there is no engine {on!r}",
        where=users_line(),
        next_step="choose on='local', 'reference' or 'spark': they emit the same rows, and only 'spark' needs a JVM",
    )


def _is_among(name: str, inputs: Set[str | None], schemas: Sized) -> bool:
    return name in inputs or (len(schemas) == 1 and None in inputs)


class Script:
    """The flow under test, its inputs, and the current watermarks and clock."""

    def __init__(
        self,
        build: Callable[..., Any],
        schema: Any,
        event_time: Any,
        watermark: Strategy | None = None,
        *,
        weighted: Set[str | None] = frozenset(),
    ) -> None:
        """`weighted` names the inputs with retracted rows; None is the only input."""
        schemas, times = _inputs(schema, event_time)
        self.flow = Flow("play")
        self.streams = {
            name: self.flow.read(name, text, times.get(name), watermark, changes=_is_among(name, weighted, schemas))
            for name, text in schemas.items()
        }
        self.follows_rows = watermark is not None
        self.reads = {name: _read(stream) for name, stream in self.streams.items()}
        built = _call(build, self.streams, by_name=isinstance(schema, Mapping))
        self.is_single = not isinstance(built, Mapping)
        self.observed = {name: self._observe(name, it) for name, it in _named(built).items()}
        self.tables = {name for name, it in _named(built).items() if isinstance(it, Table)}
        self.partitions: dict[str, int] = {}
        self.clock = 0

    def _observe(self, name: str, built: object) -> Node:
        what = f"build returned {_shown(built)}" + (f" as '{name}'" if name else "")
        if isinstance(built, Keyed):
            raise _refuse(what, "finish it with .window(…).agg(…)")
        if isinstance(built, Windowed):
            raise _refuse(what, "finish it with .agg(…), for example .agg(n=ms.count())")
        if not isinstance(built, Stream):
            raise _refuse(what, "return a stream, its .late, or a dict of streams")
        if built.flow is not self.flow:
            raise _refuse(f"{what} of flow '{built.flow.name}'", "build it from the stream that build is given")
        return built.node

    # ------------------------------------------------------------ checking

    def check(self, steps: Sequence[Step]) -> None:
        """Validates a script before any of it is played."""
        if not isinstance(steps, Sequence) or isinstance(steps, str | bytes):
            raise _refuse(f"steps must be a list, not {_shown(steps)}", "write [Add([…]), Watermark(…), Clock(…)]")
        for number, step in enumerate(steps):
            if not isinstance(step, Add | Watermark | Clock | Partition | Batch):
                raise _refuse(
                    f"step {number} is {_shown(step)}", "a step must be an Add, Watermark, Clock, Partition or Batch"
                )
            for part in _parts(step):
                inner = part.step if isinstance(part, Partition) else part
                if isinstance(inner, Add):
                    self._input_of(inner)

    def _input_of(self, step: Add) -> str:
        known = ", ".join(self.reads)
        if step.to is None and len(self.reads) > 1:
            raise step.refuse("rows are added to one of several inputs", f"name it: Add(…, to=…), one of {known}")
        if step.to is not None and step.to not in self.reads:
            raise step.refuse(f"there is no input {step.to!r}", f"inputs that exist: {known}")
        return step.to or next(iter(self.reads))

    # ------------------------------------------------------------ playing

    def bundles(self, steps: Sequence[Step], run: Engine) -> Iterator[dict[Node, Bundle]]:
        """The output of every input in each step."""
        parts = [part for step in steps for part in _parts(step)]
        names = dict.fromkeys(part.name for part in parts if isinstance(part, Partition)) or {WHOLE: None}
        self.partitions = dict.fromkeys(names, BEGINNING)
        timed = self._timed()
        sources = {name: SourceWatermark(node, names, self.clock) for name, node in timed.items()}
        reached = dict.fromkeys(self.reads, BEGINNING)
        for number, step in enumerate(steps):
            clock_before, before = self.clock, dict(reached)
            rows: dict[str, list[Row]] = {}
            for part in _parts(step):
                inner = part.step if isinstance(part, Partition) else part
                touched = [part.name] if isinstance(part, Partition) else list(self.partitions)
                if isinstance(inner, Add):
                    name, made = self._input_of(inner), self._rows(inner, number)
                    rows[name] = [*rows.get(name, []), *made]
                    if name in sources:
                        sources[name].observe(touched[0], self._timed_rows(timed[name], name, made, run), self.clock)
                elif isinstance(inner, Watermark):
                    to = END if inner.to is None else micros(inner.to)
                    self.partitions = self.partitions | {name: max(self.partitions[name], to) for name in touched}
                elif isinstance(inner, Clock):
                    self.clock = max(self.clock, micros(inner.to))
            for name in self.reads:
                by_rows = sources[name].now(self.clock) if name in sources else BEGINNING
                reached[name] = max(reached[name], min(self.partitions.values()), by_rows)
            idle = {name for name, source in sources.items() if source.is_idle(self.clock)}
            if idle and len(idle) < len(sources):  # an idle source is ignored while another one is active
                slowest = min(reached[name] for name in sources if name not in idle)
                reached |= {name: max(reached[name], slowest) for name in idle}
            yield {
                node: Bundle(rows.get(name, []), before[name], reached[name], clock_before, self.clock)
                for name, node in self.reads.items()
            }

    def _timed(self) -> dict[str, Timed]:
        """By input whose watermark follows its rows, the node that gives these their event time."""
        found = timing(in_order([*self.observed.values(), *self.reads.values()]))
        named = {name: found[node] for name, node in self.reads.items() if node in found}
        return {
            name: node
            for name, node in named.items()
            if (node.follows_rows if isinstance(node, WithEventTime) else self.follows_rows)
        }

    def _timed_rows(self, timed: Timed, name: str, rows: list[Row], run: Engine) -> pl.DataFrame:
        """New rows of an input as its watermark sees them."""
        if isinstance(timed, Read):
            return frame_of(_with_times(rows), timed)
        given: dict[Node, Bundle] = {
            node: Bundle([], BEGINNING, BEGINNING, 0, self.clock) for node in self.reads.values()
        }
        given[self.reads[name]] = Bundle(rows, BEGINNING, BEGINNING, 0, self.clock)
        in_spark = any(map(needs_spark, in_order([timed])))
        (made,) = run([timed], [given]) if in_spark else [Reference([timed]).step(given)]
        return frame_of(_with_times(made[timed].rows), timed)

    def _rows(self, step: Add, number: int) -> list[Row]:
        node = self.reads[self._input_of(step)]
        batch, failures = rows_to_batch(step.rows, node.schema)
        if failures:
            failure = failures[0]
            raise step.refuse(
                f"row {failure.index} of step {number} does not fit: {failure.reason}",
                f"the schema is {node.schema}",
            )
        weights = step.weights or [1] * len(step.rows)
        times = [row[node.event_time] if node.event_time else None for row in batch_to_rows(batch)]
        return [
            Row(row, timed_at(None if time is None else micros(time), node, self.clock), weight)
            for row, time, weight in zip(batch_to_rows(batch), times, weights, strict=True)
        ]

    def results(self, sent: Mapping[Node, Bundle]) -> Any:
        rows = {name: sent[node].rows for name, node in self.observed.items()}
        rows |= {name: net(rows[name]) for name in self.tables}
        found = {name: [_result(row) for row in sent_] for name, sent_ in rows.items()}
        return found[""] if self.is_single else found


def net(rows: Sequence[Row]) -> list[Row]:
    """The net change of a table: each row once, retractions first."""
    found: dict[str, Row] = {}
    for row in rows:
        same = repr(sorted(row.values.items()))
        before = found[same].weight if same in found else 0
        found[same] = replace(row, weight=before + row.weight)
    return sorted((row for row in found.values() if row.weight), key=lambda row: row.weight > 0)


def _with_times(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{**row.values, TIME: row.time, WEIGHT: row.weight} for row in rows]


def _result(row: Row) -> dict[str, Any]:
    """A row as the user sees it: a retraction is marked, even if the stream has no such column."""
    return row.values if row.weight == 1 or "weight" in row.values else {**row.values, "weight": row.weight}


# ---------------------------------------------------------------- arguments of play


def _inputs(schema: Any, event_time: Any) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Schemas and event times by the name of the input."""
    if not isinstance(schema, Mapping):
        if isinstance(event_time, Mapping):
            raise _refuse(
                "event_time is a dict, but schema is not", "with several inputs both must be dicts, by input name"
            )
        return {INPUT: schema}, {INPUT: event_time}
    if not schema:
        raise _refuse("schema names no input", "write schema={'clicks': '…', 'views': '…'}")
    if event_time is not None and not isinstance(event_time, Mapping):
        raise _refuse(
            f"event_time is {event_time!r}, but there are several inputs",
            f"write event_time={{{', '.join(f'{name!r}: …' for name in schema)}}}",
        )
    times = dict(event_time or {})
    unknown = [name for name in times if name not in schema]
    if unknown:
        raise _refuse(f"event_time names {unknown[0]!r}", f"inputs that exist: {', '.join(map(str, schema))}")
    return dict(schema), times


def _read(stream: Stream) -> Read:
    return next(node for node in in_order([stream.node]) if isinstance(node, Read))


def _call(build: Callable[..., Any], streams: Mapping[str, Stream], *, by_name: bool) -> Any:
    if not callable(build):
        raise _refuse(f"build is {_shown(build)}", "it must be a function of the test stream")
    given = () if by_name else tuple(streams.values())
    named = dict(streams) if by_name else {}
    try:
        inspect.signature(build).bind(*given, **named)
    except TypeError:
        wanted = f"by name: {', '.join(streams)}" if by_name else "one stream"
        raise _refuse(f"build takes {inspect.signature(build)}", f"it is given {wanted}") from None
    except ValueError:
        pass  # a builtin without a signature
    return build(*given, **named)


def _named(built: Any) -> dict[str, Any]:
    if not isinstance(built, Mapping):
        return {"": built}
    if not built:
        raise _refuse("build returned an empty dict", "return a stream, its .late, or a dict of streams")
    return dict(built)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    if isinstance(value, type):
        return f"the class {name}"
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _refuse(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)
