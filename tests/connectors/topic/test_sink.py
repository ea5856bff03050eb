"""Batches in topics: the schema they are made with, keys, weights, and topics that were there before."""

import json

import pytest

from connectors.support import SCORES, table, weights
from millstream.connectors.opening import open_sink
from millstream.connectors.topic.records_sink import producer_name
from millstream.errors import InvalidSchema, InvalidSetting, ProducerFenced, SinkUnavailable, StorageError
from millstream.log import EmbeddedLog
from millstream.log.storage.disk import Disk
from millstream.records import Schema

A, B = {"team": "a", "score": 1}, {"team": "b", "score": 2}


@pytest.fixture
def opened(log, tmp_path):
    def opened(topic="scores", schema=SCORES, broker=log, **more):
        return open_sink(topic, Schema.of(schema), job="job", step="out", broker=broker, folder=tmp_path, **more)

    return opened


def records(log, topic="scores"):
    with log.consumer(topic) as consumer:
        return list(consumer.until_caught_up())


def test_a_topic_is_made_with_the_schema_of_the_rows(log, opened):
    opened().close()
    info = log.describe_topic("scores")
    assert info.settings.schema == SCORES
    assert len(info.partitions) == 1


def test_a_topic_is_created_with_the_partitions_it_is_opened_for(log, opened):
    opened(partitions=3).close()
    opened("copy", keys=["team"], table=True, partitions=4).close()
    opened(partitions=7).close()  # it exists by now
    assert [len(log.describe_topic(topic).partitions) for topic in ("scores", "copy")] == [3, 4]


def test_more_partitions_than_the_log_takes_are_refused_with_the_way_out(log, opened):
    with pytest.raises(InvalidSetting, match="at most 1000 partitions, not 1001") as refused:
        opened(partitions=1001)
    assert "step 'out'" in refused.value.where
    assert "write(…, partitions=…)" in refused.value.next_step
    assert log.topics() == []


def test_rows_of_a_copy_with_several_partitions_follow_their_key(log, opened):
    sink = opened(keys=["team"], table=True, partitions=4)
    teams = [{"team": f"team {number}", "score": number} for number in range(20)]
    sink.write(0, table(SCORES, teams), weights(*[1] * 20))
    sink.write(1, table(SCORES, teams), weights(*[-1] * 20))
    places = {}
    for record in records(log):
        places.setdefault(record.key, []).append((record.partition, record.value is None))
    assert len(places) == 20
    assert len({partition for found in places.values() for partition, _ in found}) > 1
    assert all([gone for _, gone in found] == [False, True] for found in places.values())
    assert all(len({partition for partition, _ in found}) == 1 for found in places.values())


def test_one_key_column_is_the_records_key_as_its_text(log, opened):
    sink = opened(keys=["score"])
    sink.write(0, table(SCORES, [A, B, {"team": "c", "score": None}]), None)
    assert [record.key for record in records(log)] == [b"1", b"2", b"\0null"]


def test_a_text_as_key_goes_where_a_producer_sends_that_key(log, opened):
    log.create_topic("scores", schema=SCORES, partitions=5)
    teams = [f"team {number}" for number in range(20)]
    sink = opened(keys=["team"])
    sink.write(0, table(SCORES, [{"team": team, "score": 1} for team in teams]), None)
    with log.producer() as producer:
        for team in teams:
            producer.send("scores", {"team": team, "score": 2}, key=team)
    places = {}
    for record in records(log):
        places.setdefault(record.key, set()).add(record.partition)
    assert len(places) == 20
    assert all(len(partitions) == 1 for partitions in places.values())


def test_several_key_columns_are_a_json_object(log, opened):
    sink = opened(keys=["team", "score"])
    sink.write(0, table(SCORES, [A]), None)
    (record,) = records(log)
    assert json.loads(record.key) == A
    assert record.value == A


def test_a_key_that_is_not_a_column_is_refused(opened):
    with pytest.raises(InvalidSchema, match="no column 'squad'"):
        opened(keys=["squad"])


def test_retracted_rows_have_their_weight_in_a_column(log, opened):
    sink = opened(keys=["team"])
    sink.write(0, table(SCORES, [A]), None)
    sink.write(1, table(SCORES, [A, B]), weights(-1, 1))
    assert [record.value.get("weight") for record in records(log)] == [None, -1, 1]
    assert log.describe_topic("scores").settings.schema == Schema.of("team string, score int, weight int")


def test_a_weight_that_is_a_column_already_stays_one(log, opened):
    schema = "team string, weight int"
    sink = opened(schema=schema)
    sink.write(0, table(schema, [{"team": "a", "weight": -1}]), weights(-1))
    assert [record.value for record in records(log)] == [{"team": "a", "weight": -1}]


def test_a_topic_with_wider_columns_takes_the_rows(log, opened):
    log.create_topic("scores", schema="at timestamp, score bigint, team string")
    opened().write(0, table(SCORES, [A]), None)
    assert [record.value for record in records(log)] == [{"at": None, **A}]


def test_a_topic_with_another_schema_is_refused(log, opened):
    log.create_topic("scores", schema="team int")
    with pytest.raises(InvalidSchema) as refused:
        opened()
    assert "step 'out' do not fit topic 'scores'" in refused.value.what
    assert "'score' was removed" in refused.value.what
    assert "team int" in refused.value.where


def test_a_topic_without_a_schema_gets_json(log, opened):
    log.create_topic("scores")
    sink = opened(keys=["team"])
    sink.write(0, table(SCORES, [A, B]), None)
    assert [(record.key, json.loads(record.value)) for record in records(log)] == [(b"a", A), (b"b", B)]


def test_a_compacted_topic_gets_keys(log, opened):
    log.create_topic("scores", schema=SCORES, compaction=True)
    sink = opened(keys=["team", "score"])
    sink.write(0, table(SCORES, [{"team": None, "score": 1}]), None)
    assert [json.loads(record.key) for record in records(log)] == [{"team": None, "score": 1}]


def test_a_large_batch_is_sent_in_pieces(log, opened, monkeypatch):
    monkeypatch.setattr("millstream.connectors.topic.sink.BATCH_ROWS", 100)
    rows = [{"team": "a", "score": number} for number in range(1050)]
    for batch, keys in enumerate(([], ["team"])):
        opened(keys=keys).write(batch, table(SCORES, rows), None)
    assert [record.value["score"] for record in records(log)] == [*range(1050), *range(1050)]


def test_a_second_process_of_the_job_fences_the_first(log, opened, tmp_path):
    first = opened()
    first.write(0, table(SCORES, [A]), None)
    with EmbeddedLog(log.path, upkeep=False) as other:
        second = opened(broker=other)
        second.write(1, table(SCORES, [B]), None)
        with pytest.raises(ProducerFenced):
            first.write(2, table(SCORES, [A]), None)
        second.close()
    assert [record.value for record in records(log)] == [A, B]


class FailingDisk(Disk):
    """Refuses to write while `full` is set."""

    full = False

    def write(self, fd, buffers, position):
        if self.full:
            raise OSError(28, "No space left on device")
        super().write(fd, buffers, position)


def test_a_full_disk_is_tried_again_with_the_same_batch(tmp_path, opened):
    disk = FailingDisk()
    with EmbeddedLog(tmp_path / "other", upkeep=False, disk=disk) as log:
        sink = opened(broker=log)
        sink.write(0, table(SCORES, [A]), None)
        disk.full = True
        for _ in range(2):
            with pytest.raises(SinkUnavailable) as away:
                sink.write(1, table(SCORES, [B]), None)
            assert isinstance(away.value.__cause__, StorageError)
        disk.full = False
        sink.write(1, table(SCORES, [B]), None)
        sink.write(1, table(SCORES, [B]), None)
        assert [record.value for record in records(log)] == [A, B]


@pytest.mark.parametrize(
    "names", [("a.b", "c"), ("a", "b.c"), ("a b", "c"), ("a_b", "c"), ("..", "ö"), ("", "x" * 300)]
)
def test_names_of_producers_are_legal_and_differ(names, log):
    log.named_producer(producer_name(*names)).close()
    assert producer_name(*names) != producer_name(*names[::-1])
    assert producer_name("a.b", "c") != producer_name("a", "b.c")
