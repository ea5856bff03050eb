"""What a job in real-time mode runs: which flows it supports, and the Kafka topics that they read and write."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from millstream.connectors.connector import Connector, KafkaTopic
from millstream.errors import InvalidInput
from millstream.jobs.results.renaming import renamed
from millstream.log import ADDRESS_VARIABLE
from millstream.log.kafka.address import SCHEME
from millstream.plan import nodes
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.on_spark.needs_spark import expressions_of
from millstream.plan.run_settings import REAL_TIME as MODE
from millstream.plan.run_settings import Settings
from millstream.plan.steps.asks import AnswerByRow, answered_by_row
from millstream.plan.walking import in_order
from millstream.records.ddl import time_unit
from millstream.spark.real_time.java_client import java_settings
from millstream.spark.real_time.json_sql import check_type
from millstream.spark.real_time.record_compiler import Target
from millstream.terminal import escaped
from millstream.user_lines import users_line

PROMISE = "each record at least once"


@dataclass(frozen=True)
class RealTimePlan:
    """What a job in real-time mode runs, as far as it is known without Spark or Kafka."""

    name: str
    outputs: tuple[Write, ...]
    sources: dict[Read, KafkaTopic]
    sinks: dict[Write, KafkaTopic]
    targets: dict[Write, Target] = field(default_factory=dict)
    """The topics that are written to; one may have more columns than the rows."""

    def explain(self) -> str:
        lines = [f"flow {self.name}, in real time: {PROMISE}"]
        lines += [f"    reads   {topic}" for topic in self.sources.values()]
        for node in in_order(self.outputs):
            if not isinstance(node, Read | Write):
                lines.append(f"    {node.name}: {node.label}, in Spark SQL")
        lines += [f"    writes  {topic}" for topic in self.sinks.values()]
        return "\n".join(map(escaped, lines)) + "\n"


def real_time_plan(flow: Flow, settings: Settings) -> RealTimePlan:
    """Refuses what real-time mode does not support, and names it."""
    _check_settings(settings)
    outputs, name = answered_by_row(flow, flow.check()), flow.name
    if settings.into is not None:
        outputs, name = renamed(outputs, settings.into), f"{flow.name}.{settings.into}"
    order = in_order(outputs)
    for node in order:
        _check_step(node)
    broker = os.fspath(settings.broker) if settings.broker else os.environ.get(ADDRESS_VARIABLE)
    sources = {node: _topic(node, node.source, broker) for node in order if isinstance(node, Read)}
    sinks = {node: _topic(node, node.sink, broker) for node in outputs}
    first = next(iter(sinks.values()))
    for node, topic in sinks.items():
        if (topic.address.servers, topic.address.settings) != (first.address.servers, first.address.settings):
            raise _refuse(
                node,
                f"it writes to another Kafka cluster than {first}, and all outputs must share one",
                "write it in another flow",
            )
    return RealTimePlan(name, outputs, sources, sinks)


def _check_settings(settings: Settings) -> None:
    unsupported = {
        "until": (settings.until is not None, "a job in real time has no end: stop it with stop() or Ctrl-C"),
        "batch": (settings.batch, "a batch run is bounded"),
        "every": (settings.every is not None, "records are processed one by one"),
        "on_batch": (settings.on_batch is not None, "rows never reach this process"),
    }
    for name, (is_set, why) in unsupported.items():
        if is_set:
            raise InvalidInput(
                f"{name} cannot be combined with mode='{MODE}': {why}",
                where=users_line(),
                next_step=f"leave out {name}, or leave out mode",
            )


def _check_step(node: Node) -> None:
    if isinstance(node, Read):
        if node.changes:
            raise _refuse(node, "it reads changes, which include retractions", "read it without changes=True")
    elif isinstance(node, nodes.Dead):
        if not isinstance(node.inputs[0], Read | Write):
            raise _refuse(node, "only sources and sinks have dead letters here", "leave it out")
    elif node.keeps_state:
        raise _refuse(
            node, f"it keeps state ({node.label})", "do that in a second flow that reads the output of this one"
        )
    elif isinstance(node, nodes.Mapped):
        raise _refuse(
            node, "it is a Python function, which cannot run here", "write it as an expression: select, with_column"
        )
    elif not isinstance(node, nodes.Where | nodes.Project | nodes.Union | AnswerByRow | Write):
        raise _refuse(
            node, f"it is not an expression over one row ({node.label})", "do that in a second flow, in micro-batches"
        )
    if any(made.native is not None or made.calls_python or made.makes_rows for made in expressions_of(node)):
        raise _refuse(
            node,
            "it has a Column of PySpark, a Python function or a function that makes rows",
            "write it as Spark SQL text, or leave out mode",
        )
    if isinstance(node, Read | Write):
        for column in node.schema.arrow:
            check_type(column.type, column.name, node.user_line)
            if isinstance(node, Read) and (unit := time_unit(column)) is not None:
                raise _refuse(
                    node,
                    f"the column '{column.name}' is {unit}, and numbers are not read as timestamps here",
                    "read it as bigint, and convert it: with_column('at', 'timestamp_millis(at)')",
                )


def _topic(node: Node, endpoint: Connector, broker: str | None) -> KafkaTopic:
    on_lost = node.on_lost if isinstance(node, Read) else "error"
    if endpoint.topic_name is None:
        raise _refuse(node, f"{endpoint} is not a Kafka topic", "read and write ms.kafka(…), or leave out mode")
    if on_lost == "latest":
        raise _refuse(node, f"on_lost='{on_lost}' is not supported", "leave out on_lost=")
    if endpoint.terms:
        raise _refuse(node, "limits of a queue are not supported", "read the topic by its name, or leave out mode")
    topic = endpoint.kafka_topic(broker)
    if topic is None:
        raise _refuse(
            node,
            f"{endpoint} is on a broker that is not Kafka",
            f"use ms.kafka('host:9092', topic=…), or for all topics set {ADDRESS_VARIABLE}={SCHEME}host:9092",
        )
    if not topic.is_plain_json:
        raise _refuse(
            node, "its records are not plain JSON", "leave out format=, registry=, headers= and timestamp=, or mode"
        )
    return topic


def kafka_options(topic: KafkaTopic, where: str | None) -> dict[str, str]:
    """The options of a topic for Spark's connector."""
    return {f"kafka.{name}": value for name, value in java_settings(topic.address, where).items()}


def _refuse(node: Node, why: str, next_step: str) -> InvalidInput:
    return InvalidInput(
        f"the step '{node.name}' cannot run with mode='{MODE}': {why}", where=node.user_line, next_step=next_step
    )
