"""Tables of a lake as sources: the table as it is, then what each version adds or changes, the same on every read."""

import json
from collections import Counter

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import millstream as ms
from millstream.errors import InvalidInput, InvalidSchema, NotFound, OffsetLost

from ..support import LAKES, SCORES, Target, table, weights

A, B, C, D = ({"team": team, "score": score} for score, team in enumerate("abcd", 1))
CHANGES = "team string, score int, weight int"


@pytest.fixture(params=LAKES)
def target(request, tmp_path):
    return Target(request.param, tmp_path)


def read(source, start=0, end=None):
    """All rows between two offsets, as dicts."""
    until = source.latest() if end is None else {"table": end}
    found = []
    for task in source.slices({"table": start}, until, 4):
        for part in task:
            for slab in source.read(part):
                assert len(slab.offsets) == slab.rows.num_rows
                found += slab.rows.to_pylist()
    return found


def now(source):
    source._looked_at = 0.0
    return source.latest()["table"]


def test_the_table_and_then_what_is_added(target, open_):
    sink = target.open()
    sink.write(0, table(SCORES, [A]), None)
    sink.write(1, table(SCORES, [B]), None)
    source = open_(target.place(), SCORES)
    assert read(source) == [A, B]
    sink.write(2, table(SCORES, [C, D]), None)
    assert read(source, 2, now(source)) == [C, D]
    again = open_(target.place(), SCORES)  # as after a restart
    assert read(again, 0, 3) == [A, B, C, D]
    assert read(again, 1, 2) == [B]
    assert now(again) == 3


def test_batches_are_bounded_by_rows(target, open_):
    sink = target.open()
    for batch, row in enumerate((A, B, C)):
        sink.write(batch, table(SCORES, [row, row]), None)
    source = open_(target.place(), SCORES)
    assert source.limited({}, 3) == {"table": 2}
    assert source.limited({"table": 2}, 1) == {"table": 3}
    assert source.limited({"table": 3}, 1) == {"table": 3}
    assert source.limited({}, None) == {"table": 3}


def test_an_empty_table_is_read_from_its_first_row(target, open_):
    sink = target.open()
    source = open_(target.place(), SCORES)
    assert now(source) == 0
    sink.write(0, table(SCORES, [A]), None)
    assert now(source) == 1
    assert read(source) == [A]


def test_changes_have_weights(target, open_):
    """Goal: the sum of the weights is the table. Method: rows are added, retracted and replaced."""
    sink = target.open()
    sink.write(0, table(SCORES, [A, B]), None)
    source = open_(target.place(), CHANGES)
    before = now(source)
    sink.write(1, table(SCORES, [A, C]), weights(-1, 1))
    sink.write(2, table(SCORES, [C, D]), weights(-1, 1))
    now(source)
    sums = Counter()
    for row in read(source):
        sums[row["team"]] += row["weight"]
    assert +sums == {"b": 1, "d": 1}
    assert {row["weight"] for row in read(source, before)} == {1, -1}


def test_changes_are_refused_by_a_flow_that_reads_added_rows(target, open_):
    sink = target.open()
    sink.write(0, table(SCORES, [A]), None)
    source = open_(target.place(), SCORES)
    assert read(source) == [A]
    sink.write(1, table(SCORES, [A]), weights(-1))
    with pytest.raises(InvalidInput, match="updates or deletes rows"):
        now(source)
    with pytest.raises(InvalidInput, match="updates or deletes rows"):
        now(open_(target.place(), SCORES))


def test_a_journal_that_was_cut_short_is_completed(target, open_, tmp_path):
    """Goal: a process killed while it notes the files of a version loses none. Method: cut the journal."""
    sink = target.open()
    places = [sink.preparer().prepare(0, shard, table(SCORES, [row]), None) for shard, row in ((1, A), (2, B), (3, C))]
    sink.write_prepared(0, table(SCORES, []), None, [each.receipt for each in places])
    source = open_(target.place(), SCORES)
    assert now(source) == 3
    journal = tmp_path / "kept" / "in" / "table.journal"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(lines[0] + lines[1][:10])
    again = open_(target.place(), SCORES)
    assert Counter(row["team"] for row in read(again)) == {"a": 1, "b": 1, "c": 1}
    assert journal.read_text().splitlines(keepends=True) == lines


def test_columns_of_the_version(target, open_):
    sink = target.open()
    sink.write(0, table(SCORES, [A]), None)
    source = open_(target.place(), "score int, _change_type string, _commit_version long, _commit_timestamp timestamp")
    now(source)
    sink.write(1, table(SCORES, [B]), None)
    now(source)
    found = read(source)
    assert [row["_change_type"] for row in found] == ["insert", "insert"]
    assert found[0]["_commit_version"] != found[1]["_commit_version"]
    assert found[1]["_commit_timestamp"].year >= 2024


def test_rows_without_columns_of_the_table_are_counted(target, open_):
    target.open().write(0, table(SCORES, [A, B]), None)
    assert read(open_(target.place(), "weight int")) == [{"weight": 1}, {"weight": 1}]


def test_mistakes(target, open_):
    with pytest.raises(NotFound, match="no such table"):
        open_(target.place(), SCORES).latest()
    target.open().write(0, table(SCORES, [A]), None)
    with pytest.raises(InvalidSchema, match="no column 'points'"):
        open_(target.place(), "team string, points int").latest()
    with pytest.raises(InvalidSchema, match="does not fit"):
        open_(target.place(), "team int").latest()
    assert read(open_(target.place(), "score long", "wider")) == [{"score": 1}]
    assert target.place().own_schema(None).ddl == "team string, score int"


def test_a_lookup_table(target):
    target.open().write(0, table(SCORES, [A, B]), None)
    assert target.place().load(SCORES).to_pylist() == [A, B]


def test_the_change_feed_of_delta(tmp_path, open_):
    """Versions with change data: updates by another program."""
    path = tmp_path / "lake"
    rows = pa.table({"team": ["a", "b"], "score": pa.array([1, 2], pa.int32())})
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"}, partition_by=["team"])
    source = open_(ms.delta_table(path), CHANGES + ", _change_type string")
    start = now(source)
    DeltaTable(path).update(updates={"score": "score + 10"}, predicate="team = 'a'")
    DeltaTable(path).delete("team = 'b'")
    now(source)
    found = sorted((row["team"], row["score"], row["weight"], row["_change_type"]) for row in read(source, start))
    assert found == [
        ("a", 1, -1, "update_preimage"),
        ("a", 11, 1, "update_postimage"),
        ("b", 2, -1, "delete"),
    ]


def test_compaction_changes_nothing(tmp_path, open_):
    path = tmp_path / "lake"
    for score in range(3):
        write_deltalake(path, pa.table({"team": ["a"], "score": pa.array([score], pa.int32())}), mode="append")
    source = open_(ms.delta_table(path), SCORES)
    assert now(source) == 3
    DeltaTable(path).optimize.compact()
    assert now(source) == 3
    write_deltalake(path, pa.table({"team": ["b"], "score": pa.array([9], pa.int32())}), mode="append")
    assert now(source) == 4
    assert len(read(source)) == 4


def test_rows_that_are_gone_are_reported(tmp_path, open_):
    path = tmp_path / "lake"
    write_deltalake(path, pa.table({"team": ["a"], "score": pa.array([1], pa.int32())}))
    source = open_(ms.delta_table(path), SCORES)
    assert now(source) == 1
    for _ in range(2):
        write_deltalake(path, pa.table({"team": ["b"], "score": pa.array([9], pa.int32())}), mode="append")
    (path / "_delta_log" / f"{1:020d}.json").rename(tmp_path / "hidden.json")
    with pytest.raises(OffsetLost, match="version 1 of the table was removed"):
        source._feed.of(1, whole=False)
    file = json.loads((tmp_path / "kept" / "in" / "table.journal").read_text().splitlines()[0])[0]
    (path / file).unlink()
    with pytest.raises(OffsetLost, match="deleted before it was read"):
        read(source, 0, 1)
