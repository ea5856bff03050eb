"""Plays events to a query without Spark, bundle by bundle, and gives what it sent all in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from expected import bag

from millstream.local import Local
from millstream.plan.nodes import Node, Read
from millstream.plan.stream import Stream
from millstream.plan.time.bundles import BEGINNING, END, Bundle, Row, micros

START = datetime(2015, 7, 15, 12, tzinfo=UTC)
BUNDLE_TIME = timedelta(seconds=3)
Engine = Callable[[list[Node]], Any]
Bundles = Sequence[Mapping[str, pa.Table]]


def came(number: int) -> datetime:
    """The processing time at which a bundle comes."""
    return START + BUNDLE_TIME * number


def played(query: Stream, bundles: Bundles, *, delay: timedelta | None, engine: Engine = Local) -> Counter[Any]:
    """The rows that a query leaves when all time is over.

    The watermark follows the newest event by `delay`; if that is None, it stands still until all has come.
    """
    running = engine([query.node])
    sent: list[dict[str, Any]] = []
    for given in steps(reads_of(query.node), bundles, delay):
        sent += [{**row.values, "weight": row.weight} for row in running.step(given)[query.node].rows]
    return bag(sent, weight="weight")


def steps(reads: Mapping[str, Node], bundles: Bundles, delay: timedelta | None) -> Iterator[dict[Node, Bundle]]:
    before, clock_before = BEGINNING, micros(START)
    newest = before
    for number, made in enumerate(bundles):
        rows = {topic: _rows(made[topic]) for topic in made}
        newest = max([newest, *(row.time for each in rows.values() for row in each if row.time is not None)])
        reached = before if delay is None else max(before, newest - delay // timedelta(microseconds=1))
        clock = micros(came(number))
        yield {node: Bundle(rows.get(topic, []), before, reached, clock_before, clock) for topic, node in reads.items()}
        before, clock_before = reached, clock
    tomorrow = micros(START + timedelta(days=1))
    yield {node: Bundle([], before, END, clock_before, tomorrow) for node in reads.values()}


def _rows(table: pa.Table) -> list[Row]:
    return [Row(row, micros(row["dateTime"]), 1) for row in table.to_pylist()]


def reads_of(node: Node) -> dict[str, Node]:
    """The topics that a query reads, and the steps that read them."""
    if isinstance(node, Read):
        return {str(node.source): node}
    return {topic: read for given in node.inputs for topic, read in reads_of(given).items()}
