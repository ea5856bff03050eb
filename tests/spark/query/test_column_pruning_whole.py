"""What is read of a source, where somebody needs more of it than the steps look at."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.connectors.opening import open_source
from millstream.connectors.source import Source
from millstream.log import EmbeddedLog
from millstream.plan.stream import Stream
from millstream.records import Schema
from millstream.spark.query.physical_plan import PhysicalPlan

SCHEMA = "a bigint, b string, at timestamp"


def rows() -> Stream:
    return ms.Flow("f").read("rows", SCHEMA, "at")


@pytest.mark.parametrize(
    "stream",
    [rows(), rows().where("a > 1"), rows().to_table(), (some := rows()).where("a > 1").union(some.where("a < 2"))],
    ids=["read", "where", "all rows", "union"],
)
def test_a_stream_that_is_taken_as_a_dataframe_has_all_its_columns(stream: Stream) -> None:
    (columns,) = PhysicalPlan((stream.node,), 1).reading.values()
    assert columns.names == ("a", "b", "at")


def test_a_stream_that_is_taken_and_looked_at_besides_has_all_its_columns() -> None:
    wanted = rows().where("a > 1")
    (columns,) = PhysicalPlan((wanted.node, wanted.select("a").node), 1).reading.values()
    assert columns.names == ("a", "b", "at")


def dead(source: Source) -> list[dict[str, object]]:
    slices = [each for part in source.slices(source.earliest(), source.latest(), 1) for each in part]
    slabs = [slab for each in slices for slab in source.read(each)]
    return [letter for slab in slabs if slab.dead is not None for letter in slab.dead.to_pylist()]


def test_the_dead_letter_of_a_key_that_is_not_text_has_the_whole_row(tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("s", schema="a int, b string")
        with log.producer() as producer:
            producer.send("s", {"a": 2, "b": "two"}, b"\xff")
    source = open_source(
        "s",
        Schema.of("key string, a int, b string"),
        broker=str(tmp_path / "log"),
        folder=tmp_path,
        name="in",
        columns=Schema.of("a int"),
    )
    (letter,) = dead(source)
    source.close()
    assert letter["value"] == b'{"key":null,"a":2,"b":"two"}'
