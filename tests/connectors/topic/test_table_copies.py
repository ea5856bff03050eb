"""The copy of a table in a topic: compacted, a record for each row that is there, a tombstone for a key that went."""

import json

import pytest

from connectors.support import SCORES, table, weights
from millstream.connectors.opening import open_sink
from millstream.log import EmbeddedLog
from millstream.records import Schema


@pytest.fixture
def opened(log, tmp_path):
    def opened(schema=SCORES, keys=("team",), folder="job", **more):
        given = {"job": "job", "step": "out", "broker": log, "folder": tmp_path / folder, "table": True, **more}
        (tmp_path / folder).mkdir(exist_ok=True)
        return open_sink("scores", Schema.of(schema), keys=keys, **given)

    return opened


def score(team, points):
    return {"team": team, "score": points}


def records(log):
    with log.consumer("scores") as consumer:
        return [(record.key, record.value) for record in consumer.until_caught_up()]


def current(log):
    """What the topic says, record after record."""
    rows = {}
    for key, value in records(log):
        rows.pop(key, None)
        if value is not None:
            rows[key] = value
    return rows


def test_the_topic_of_a_table_is_compacted_and_has_the_schema_of_its_rows(log, opened):
    opened()
    settings = log.describe_topic("scores").settings
    assert settings.compaction
    assert settings.schema == SCORES


def test_without_a_key_it_holds_the_changes(log, opened):
    sink = opened(keys=())
    sink.write(0, table(SCORES, [score("a", 1)]), weights(1))
    sink.write(1, table(SCORES, [score("a", 1)]), weights(-1))
    assert not log.describe_topic("scores").settings.compaction
    assert [value["weight"] for _, value in records(log)] == [1, -1]


def test_inserts_updates_and_deletes(log, opened):
    sink = opened()
    sink.write(0, table(SCORES, [score("a", 1), score("b", 2)]), weights(1, 1))
    assert records(log) == [(b"a", score("a", 1)), (b"b", score("b", 2))]
    sink.write(1, table(SCORES, [score("a", 1), score("a", 5)]), weights(-1, 1))
    assert records(log)[2:] == [(b"a", score("a", 5))]
    sink.write(2, table(SCORES, [score("b", 2)]), weights(-1))
    assert records(log)[3:] == [(b"b", None)]
    assert current(log) == {b"a": score("a", 5)}


def test_a_row_has_no_weight_in_a_copy(log, opened):
    sink = opened()
    sink.write(0, table(SCORES, [score("a", 1)]), weights(1))
    sink.write(1, table(SCORES, [score("a", 1), score("a", 2)]), weights(-1, 1))
    assert log.describe_topic("scores").settings.schema == SCORES
    assert all(set(value) == {"team", "score"} for _, value in records(log))


def test_a_batch_may_delete_one_key_and_replace_and_add_others(log, opened):
    sink = opened()
    sink.write(0, table(SCORES, [score("a", 1), score("b", 2)]), weights(1, 1))
    changes = [score("a", 1), score("b", 2), score("b", 3), score("c", 4)]
    sink.write(1, table(SCORES, changes), weights(-1, -1, 1, 1))
    assert current(log) == {b"b": score("b", 3), b"c": score("c", 4)}
    assert records(log).count((b"a", None)) == 1


def test_a_deleted_key_may_return(log, opened):
    sink = opened()
    for batch, weight in enumerate((1, -1, 1)):
        sink.write(batch, table(SCORES, [score("a", 1)]), weights(weight))
    assert [value for _, value in records(log)] == [score("a", 1), None, score("a", 1)]


def test_a_batch_written_twice_changes_nothing(log, opened):
    first, second = table(SCORES, [score("a", 1)]), table(SCORES, [score("a", 1), score("b", 2)])
    sink = opened()
    sink.write(0, first, weights(1))
    sink.write(1, second, weights(-1, 1))
    once = records(log)
    sink.write(1, second, weights(-1, 1))
    sink.close()
    opened().write(1, second, weights(-1, 1))  # as after a crash
    assert records(log) == once


def test_a_batch_is_seen_whole_or_not_at_all(log, opened, tmp_path, monkeypatch):
    """Goal: rows and tombstones of a batch are one transaction. Method: break off between the two."""
    sink = opened()
    sink.write(0, table(SCORES, [score("a", 1)]), weights(1))
    before = records(log)

    def broken(*_):
        raise RuntimeError("out")

    changes, signs = table(SCORES, [score("a", 1), score("b", 2)]), weights(-1, 1)
    with monkeypatch.context() as patched:
        patched.setattr("millstream.log.producer.Producer.send", broken)
        with pytest.raises(RuntimeError):
            sink.write(1, changes, signs)
    assert records(log) == before
    sink.write(1, changes, signs)
    assert current(log) == {b"b": score("b", 2)}


def test_keys_of_several_columns_keep_their_rows_apart(log, opened):
    schema = "region string, rank int, team string"
    rows = [{"region": "north", "rank": rank, "team": team} for rank, team in ((1, "a"), (2, "b"))]
    sink = opened(schema, keys=("region", "rank"))
    sink.write(0, table(schema, rows), weights(1, 1))
    sink.write(1, table(schema, rows[:1]), weights(-1))
    assert [(json.loads(key), value) for key, value in records(log)] == [
        ({"region": "north", "rank": 1}, rows[0]),
        ({"region": "north", "rank": 2}, rows[1]),
        ({"region": "north", "rank": 1}, None),
    ]


def test_a_key_that_is_null_has_a_row_and_goes_like_any_other(log, opened):
    sink = opened()
    sink.write(0, table(SCORES, [score(None, 1)]), weights(1))
    sink.write(1, table(SCORES, [score(None, 1)]), weights(-1))
    assert records(log) == [(b"\0null", score(None, 1)), (b"\0null", None)]


def test_the_changes_of_a_key_stay_in_one_partition(log, opened):
    log.create_topic("scores", schema=SCORES, partitions=5, compaction=True)
    rows = [score(f"team {number}", number) for number in range(20)]
    sink = opened()
    sink.write(0, table(SCORES, rows), weights(*[1] * 20))
    sink.write(1, table(SCORES, rows), weights(*[-1] * 20))
    with log.consumer("scores") as consumer:
        places = {}
        for record in consumer.until_caught_up():
            places.setdefault(record.key, []).append(record.partition)
    assert len(places) == 20
    assert all(len(found) == 2 and len(set(found)) == 1 for found in places.values())


def test_compaction_keeps_the_table(log, opened, tmp_path):
    sink = opened()
    for batch in range(20):
        rows = [score("a", batch - 1), score("a", batch), score(f"once {batch}", 1)]
        sink.write(
            batch, table(SCORES, rows[1:] if batch == 0 else rows), weights(*[1, 1] if batch == 0 else [-1, 1, 1])
        )
    sink.write(20, table(SCORES, [score("once 3", 1)]), weights(-1))
    sink.close()
    before = current(log)
    with EmbeddedLog(tmp_path / "log", upkeep=False) as other:
        other.topic("scores").partition(0).roll()
        other.clean("scores")
        assert len(records(other)) < 41
        assert current(other) == before
    assert len(before) == 20
