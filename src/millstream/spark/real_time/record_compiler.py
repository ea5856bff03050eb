"""Compiles a plan of expressions to one DataFrame of Kafka records, for real-time mode.

A record of a source stays one Spark row through all steps: each step adds a column with its result, or null if it has
none. At the end each output that is not null becomes a record. So a source is read once, however many outputs it has.

Spark's writer stops at a record that Kafka refuses. So sizes are compared with the limit first, and a record that is
too large is a dead letter of its output, or named in the error.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql

from millstream.connectors.kafka.sink import OVERHEAD_BYTES
from millstream.connectors.topic.columns import is_metadata
from millstream.expressions.spark_types import backquoted
from millstream.plan import nodes
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.steps.asks import ERROR, REQUEST, ROWS, AnswerByRow
from millstream.plan.walking import in_order
from millstream.records import Schema
from millstream.spark.real_time.json_sql import field_of, is_read, parsed, text_of, type_of, written

MARK = f"MILLSTREAM-RECORD-{secrets.token_hex(16)}:"
"""Delimits the description of a failed record; random, so that no record can imitate it."""
COUNTED = "millstream-rows-"
RECORD, PARSED, REASON, ROW, DEAD, ORIGIN = "__record", "__parsed", "__reason", "__row", "__dead", "__place"
TEXT = f"cast({RECORD}.value as string)"
KEYS = "array_distinct(transform(headers, h -> h.key))"
METADATA = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "headers": (  # map keys are unique: the last one wins
        f"map_from_arrays({KEYS}, transform({KEYS}, k -> element_at(filter(headers, h -> h.key = k), -1).value))"
    ),
}


@dataclass(frozen=True)
class Target:
    """The topic that an output is written to: its columns, and its largest record."""

    topic: str
    schema: Schema
    record_bytes_max: int


def compiled(
    targets: Mapping[Write, Target], frames: Mapping[Read, DataFrame], *, counts_rows: bool = True
) -> DataFrame:
    """The records for Kafka: the topic and the value of each. With `counts_rows`, Spark reports the rows of steps."""
    order, parts = in_order(targets), []
    for number, (source, frame) in enumerate(frames.items()):
        steps = SourceSteps(order, source, frame, targets)
        parts.append(steps.records(f"{COUNTED}{number}" if counts_rows else None))
    return reduce(DataFrame.union, parts)


def counted_rows(observed: Mapping[str, Row]) -> dict[int, int]:
    """By the place of a step in the order of the plan, the rows that it sent, in a report of Spark."""
    found: dict[int, int] = {}
    for name, counts in observed.items():
        for place, count in counts.asDict().items() if name.startswith(COUNTED) else ():
            found[int(place)] = found.get(int(place), 0) + int(count)
    return found


class SourceSteps:
    """The steps after one source. A step may have several columns: a union has those of its inputs."""

    def __init__(self, order: Sequence[Node], source: Read, frame: DataFrame, targets: Mapping[Write, Target]) -> None:
        self._frame = frame
        self._order = order
        self._targets = targets
        self._held: list[str] = []
        self._made: dict[Node, list[str]] = {}
        self._dead_letters: dict[Node, list[str]] = {}
        self._with_dead_letters = {node.inputs[0] for node in order if isinstance(node, nodes.Dead)}
        self._visit_read(source)
        for step in order:
            if any(given in self._made for given in step.inputs):
                self._made[step] = getattr(self, f"_visit_{type(step).__name__.lower()}")(step)

    def records(self, counted_as: str | None) -> DataFrame:
        """With a name for the counts of rows, if they are wanted."""
        if counted_as is not None:
            counts = [
                sql.expr(" + ".join(f"count({column})" for column in columns)).alias(str(place))
                for place, node in enumerate(self._order)
                if (columns := self._made.get(node))
            ]
            self._frame = self._frame.observe(counted_as, *counts)
        parts = [
            f"case when {column} is not null then named_struct('topic', {text_of(target.topic)}, 'value', {column}) end"
            for output, target in self._targets.items()
            for column in self._made.get(output, [])
        ]
        sent = self._frame.selectExpr(f"explode(array_compact(array({', '.join(parts)}))) as sent")
        return sent.select("sent.topic", "sent.value")

    # ------------------------------------------------------------ the source

    def _visit_read(self, node: Read) -> None:
        fields = list(node.schema.arrow)
        known = ", ".join(f"'{name}', {sql}" for name, sql in METADATA.items())
        frame = self._frame.selectExpr(f"named_struct('key', key, 'value', value, {known}) as {RECORD}")
        frame = frame.selectExpr(RECORD, f"case when is_valid_utf8({TEXT}) then {parsed(TEXT, fields)} end as {PARSED}")
        columns = ", ".join(f"{text_of(each.name)}, {_column(each)}" for each in fields)
        frame = frame.selectExpr(RECORD, PARSED, f"named_struct({columns}) as {ROW}")
        frame = frame.selectExpr(RECORD, ROW, f"{_reason(node.schema)} as {REASON}")
        reads_key = any(each.name == "key" and is_metadata(each) for each in fields)
        present = "true" if reads_key else f"{RECORD}.value is not null"  # deletions matter only if the key is read
        bad = "null" if node in self._with_dead_letters else f"raise_error({_failure(node, RECORD, REASON)})"
        self._frame = frame.selectExpr(
            f"case when {REASON} is not null then {bad} when {present} then {ROW} end as {ROW}",
            f"case when {REASON} is not null then {_dead_letter(f'{RECORD}.value', RECORD, REASON)} end as {DEAD}",
            f"named_struct({_origin(RECORD)}) as {ORIGIN}",
        )
        self._held = [ROW, DEAD, ORIGIN]
        self._made[node] = [ROW]
        self._dead_letters[node] = [DEAD]

    # ------------------------------------------------------------ the steps

    def _visit_dead(self, node: nodes.Dead) -> list[str]:
        return self._dead_letters[node.inputs[0]]

    def _visit_where(self, node: nodes.Where) -> list[str]:
        return [
            self._add(column, f"case when ({node.condition.spark}) then {column} end") for column in self._given(node)
        ]

    def _visit_project(self, node: nodes.Project) -> list[str]:
        parts = ", ".join(
            f"{text_of(name)}, cast(({made.spark}) as {type_of(node.schema.field(name).type)})"
            for name, made in node.columns
        )
        return [self._add(column, f"named_struct({parts})") for column in self._given(node)]

    def _visit_union(self, node: nodes.Union) -> list[str]:
        return self._given(node)

    def _visit_answerbyrow(self, node: AnswerByRow) -> list[str]:
        """One answer for each request, with the rows that its steps made of it; none if they dropped it."""
        requests, found = (self._made[given] for given in node.inputs)
        kind = node.schema.field(ROWS).type
        names = [each.name for each in kind.value_type]
        rows = []
        for column in found:
            parts = ", ".join(f"{text_of(name)}, {column}.{backquoted(name)}" for name in names)
            rows.append(f"case when {column} is not null then named_struct({parts}) end")
        made = f"cast(array_compact(array({', '.join(rows)})) as {type_of(kind)})"
        return [
            self._hold(
                f"case when {asked} is not null then named_struct({text_of(REQUEST)}, {asked}.{REQUEST}, "
                f"{text_of(ROWS)}, {made}, {text_of(ERROR)}, cast(null as string)) end"
            )
            for asked in requests
        ]

    def _visit_write(self, node: Write) -> list[str]:
        """The values of the records that Kafka accepts."""
        target, fitting = self._targets[node], []
        self._dead_letters[node] = []
        for column in self._given(node):
            value = self._hold(f"case when {column} is not null then {_value(column, node, target.schema)} end")
            size = f"octet_length({value})"
            reason = (
                f"concat('as a record of Kafka it has ', {size}, ' bytes, and the limit of topic ', "
                f"{text_of(target.topic)}, ' is {target.record_bytes_max}')"
            )
            is_fit = f"coalesce({size} + {OVERHEAD_BYTES} <= {target.record_bytes_max}, true)"
            if node in self._with_dead_letters:
                dead_letter = _dead_letter(
                    f"cast({value} as binary)", ORIGIN, f"concat({text_of(f'{node.name}: ')}, {reason})"
                )
                self._dead_letters[node].append(self._hold(f"case when not {is_fit} then {dead_letter} end"))
                fitting.append(self._hold(f"case when {is_fit} then {value} end"))
            else:
                failure = f"raise_error({_failure(node, ORIGIN, reason)})"
                fitting.append(self._hold(f"case when {is_fit} then {value} else {failure} end"))
        return fitting

    def _given(self, node: Node) -> list[str]:
        return [column for given in node.inputs for column in self._made.get(given, [])]

    def _hold(self, made: str) -> str:
        """Adds a column with an expression over other columns."""
        name = f"__step{len(self._held)}"
        self._frame = self._frame.selectExpr(*self._held, f"{made} as {name}")
        self._held.append(name)
        return name

    def _add(self, given: str, made: str) -> str:
        """Adds a column with an expression over the fields of the row in another column."""
        name = f"__step{len(self._held)}"
        opened = self._frame.select(*self._held, f"{given}.*")
        self._frame = opened.selectExpr(*self._held, f"case when {given} is not null then {made} end as {name}")
        self._held.append(name)
        return name


def _column(field: pa.Field) -> str:
    """The field of the JSON object, or the record's metadata of that name."""
    own = field_of(PARSED, field)
    if not is_metadata(field):
        return f"cast({own} as {type_of(field.type)})"
    known = f"{RECORD}.{backquoted(field.name)}"
    if field.name == "key" and field.type == pa.string():
        known = f"try_validate_utf8(cast({known} as string))"
    return f"coalesce({own}, cast({known} as {type_of(field.type)}))"


def _reason(schema: Schema) -> str:
    """Why a record is not a valid row; null if it is."""
    wanted = text_of(f"not a JSON object with the columns {schema}")
    fields = list(schema.arrow)
    cases = [
        f"when {RECORD}.value is not null and {PARSED} is null then 'not valid UTF-8'",
        f"when {RECORD}.value is not null and not {is_read(PARSED, fields)} then {wanted}",
    ]
    reads_key = any(each.name == "key" and is_metadata(each) for each in fields)
    if not reads_key:
        cases.append(f"when {RECORD}.value is null then null")
    elif schema.field("key").type == pa.string():
        lost = f"{RECORD}.key is not null and {ROW}.key is null"
        cases.append(f"when {lost} then 'the key is not valid UTF-8'")
    for each in fields:
        if not each.nullable:
            missing = text_of(f"column '{each.name}' is NOT NULL, and it is missing or null")
            cases.append(f"when {ROW}.{backquoted(each.name)} is null then {missing}")
    return f"case {' '.join(cases)} end"


def _origin(record: str) -> str:
    return ", ".join(f"'{name}', {record}.{name}" for name in ("topic", "partition", "offset"))


def _dead_letter(value: str, record: str, reason: str) -> str:
    return f"named_struct('value', {value}, {_origin(record)}, 'reason', {reason}, 'at', current_timestamp())"


def _failure(node: Node, record: str, reason: str) -> str:
    """The error message for a bad record whose dead letter is not consumed."""
    document = f"to_json(named_struct('step', {text_of(node.name)}, {_origin(record)}, 'reason', {reason}))"
    return f"concat('{MARK}', {document}, '{MARK}')"


def _value(column: str, output: Write, target: Schema) -> str:
    """The JSON of a row, with the columns that the topic has."""
    return written(
        [
            (
                each.name,
                f"cast({column}.{backquoted(each.name)} as {type_of(each.type)})"
                if each.name in output.schema
                else f"cast(null as {type_of(each.type)})",
                each.type,
            )
            for each in target.arrow
        ]
    )
