"""From a plan of expressions to one DataFrame of Kafka records, for real-time mode.

A record of a source stays one row of Spark through all steps: each step adds a column, which holds the row that the
step makes of it, or null if it makes none. At the end every output that has one gives a record. So a source is read
once, however many outputs it has.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame

from millstream.connectors.topic.columns import is_metadata
from millstream.plan import nodes
from millstream.plan.nodes import Node, Read, Write
from millstream.records import Schema
from millstream.spark.query.physical_plan import Layout
from millstream.spark.real_time.json_sql import field_of, is_read, name_of, parsed, text_of, type_of, written

MARK = f"MILLSTREAM-RECORD-{secrets.token_hex(16)}:"
"""Before and after what a failing record says of itself; random, so that no record can imitate it."""
RECORD, PARSED, REASON, ROW, DEAD = "__record", "__parsed", "__reason", "__row", "__dead"
TEXT = f"cast({RECORD}.value as string)"
KEYS = "array_distinct(transform(headers, h -> h.key))"
METADATA = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "headers": (  # a map has a key once: the last one counts
        f"map_from_arrays({KEYS}, transform({KEYS}, k -> element_at(filter(headers, h -> h.key = k), -1).value))"
    ),
}


def compiled(
    outputs: Sequence[Write],
    frames: Mapping[Read, DataFrame],
    topics: Mapping[Write, str],
    schemas: Mapping[Write, Schema],
) -> DataFrame:
    """What goes to Kafka: the topic and the value of each record."""
    layout = Layout(tuple(outputs), 1)
    parts = [SourceSteps(layout, source, frame).records(topics, schemas) for source, frame in frames.items()]
    return reduce(DataFrame.union, parts)


class SourceSteps:
    """The steps behind one source. A step may have several columns: those of a union are those of its inputs."""

    def __init__(self, layout: Layout, source: Read, frame: DataFrame) -> None:
        self._layout = layout
        self._frame = frame
        self._held: list[str] = []
        self._made: dict[Node, list[str]] = {}
        self._visit_read(source)
        for step in layout.region(source).steps:
            self._made[step] = getattr(self, f"_visit_{type(step).__name__.lower()}")(step)

    def records(self, topics: Mapping[Write, str], schemas: Mapping[Write, Schema]) -> DataFrame:
        parts = [
            f"case when {column} is not null then named_struct("
            f"'topic', {text_of(topics[output])}, 'value', {_value(column, output, schemas[output])}) end"
            for output in topics
            for column in self._made.get(output, [])
        ]
        sent = self._frame.selectExpr(f"explode(array_compact(array({', '.join(parts)}))) as sent")
        return sent.select("sent.topic", "sent.value")

    # ------------------------------------------------------------ the source

    def _visit_read(self, node: Read) -> None:
        fields = list(node.schema.arrow)
        takes_dead = any(isinstance(each, nodes.Dead) and each.inputs[0] is node for each in self._layout.order)
        known = ", ".join(f"'{name}', {sql}" for name, sql in METADATA.items())
        frame = self._frame.selectExpr(f"named_struct('key', key, 'value', value, {known}) as {RECORD}")
        frame = frame.selectExpr(RECORD, f"case when is_valid_utf8({TEXT}) then {parsed(TEXT, fields)} end as {PARSED}")
        columns = ", ".join(f"{text_of(each.name)}, {_column(each)}" for each in fields)
        frame = frame.selectExpr(RECORD, PARSED, f"named_struct({columns}) as {ROW}")
        frame = frame.selectExpr(RECORD, ROW, f"{_reason(node.schema)} as {REASON}")
        asks_for_key = any(each.name == "key" and is_metadata(each) for each in fields)
        present = "true" if asks_for_key else f"{RECORD}.value is not null"  # a deletion tells others nothing
        bad = "null" if takes_dead else f"raise_error({_told(node)})"
        self._frame = frame.selectExpr(
            f"case when {REASON} is not null then {bad} when {present} then {ROW} end as {ROW}",
            f"case when {REASON} is not null then {_letter()} end as {DEAD}",
        )
        self._held = [ROW, DEAD]
        self._made[node] = [ROW]

    # ------------------------------------------------------------ the steps

    def _visit_dead(self, _: nodes.Dead) -> list[str]:
        return [DEAD]

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

    def _visit_write(self, node: Write) -> list[str]:
        return self._given(node)

    def _given(self, node: Node) -> list[str]:
        return [column for given in node.inputs for column in self._made.get(given, [])]

    def _add(self, given: str, made: str) -> str:
        """A column that holds what an expression makes of the row in another, whose fields it names."""
        name = f"__step{len(self._held)}"
        opened = self._frame.select(*self._held, f"{given}.*")
        self._frame = opened.selectExpr(*self._held, f"case when {given} is not null then {made} end as {name}")
        self._held.append(name)
        return name


def _column(field: pa.Field) -> str:
    """The field of the JSON object, or else what the record knows of itself under that name."""
    own = field_of(PARSED, field)
    if not is_metadata(field):
        return f"cast({own} as {type_of(field.type)})"
    known = f"{RECORD}.{name_of(field.name)}"
    if field.name == "key" and field.type == pa.string():
        known = f"try_validate_utf8(cast({known} as string))"
    return f"coalesce({own}, cast({known} as {type_of(field.type)}))"


def _reason(schema: Schema) -> str:
    """Why a record cannot be a row; null if it can."""
    wanted = text_of(f"not a JSON object with the columns {schema}")
    fields = list(schema.arrow)
    cases = [
        f"when {RECORD}.value is not null and {PARSED} is null then 'not valid UTF-8'",
        f"when {RECORD}.value is not null and not {is_read(PARSED, fields)} then {wanted}",
    ]
    asks_for_key = any(each.name == "key" and is_metadata(each) for each in fields)
    if not asks_for_key:
        cases.append(f"when {RECORD}.value is null then null")
    elif schema.field("key").type == pa.string():
        lost = f"{RECORD}.key is not null and {ROW}.key is null"
        cases.append(f"when {lost} then 'the key is not valid UTF-8'")
    for each in fields:
        if not each.nullable:
            missing = text_of(f"column '{each.name}' is NOT NULL, and it is missing or null")
            cases.append(f"when {ROW}.{name_of(each.name)} is null then {missing}")
    return f"case {' '.join(cases)} end"


def _letter() -> str:
    parts = ", ".join(f"'{name}', {RECORD}.{name}" for name in ("value", "topic", "partition", "offset"))
    return f"named_struct({parts}, 'reason', {REASON}, 'at', current_timestamp())"


def _told(node: Read) -> str:
    """What the job fails with at a record that nobody takes."""
    place = ", ".join(f"'{name}', {RECORD}.{name}" for name in ("topic", "partition", "offset"))
    document = f"to_json(named_struct('step', {text_of(node.name)}, {place}, 'reason', {REASON}))"
    return f"concat('{MARK}', {document}, '{MARK}')"


def _value(column: str, output: Write, target: Schema) -> str:
    """The JSON of a row, with the columns that the topic has."""
    return written(
        [
            (
                each.name,
                f"cast({column}.{name_of(each.name)} as {type_of(each.type)})"
                if each.name in output.schema
                else f"cast(null as {type_of(each.type)})",
                each.type,
            )
            for each in target.arrow
        ]
    )
