"""Batches in Kafka topics: committed readers see each row once, whatever dies or hangs."""

import json
import os
import shutil
import signal
import threading
import time
import uuid
from contextlib import contextmanager

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import millstream as ms
from connectors.support import SCORES, Target, committed, table, weights
from connectors.test_kills import expected_rows, found_rows, killed_and_finished
from millstream.connectors.kafka import markers as kafka_markers
from millstream.connectors.kafka import sink as kafka_sink
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidInput, InvalidSchema, ProducerFenced, SinkFailed, SinkUnavailable
from millstream.log.kafka.topics import change_settings, kept_settings
from millstream.records import Schema
from waiting import PATIENCE_S, until

from . import dying

A, B, C = ({"team": "a", "score": 1}, {"team": "b", "score": 2}, {"team": "a", "score": 3})


@pytest.fixture
def opened(log, topic, tmp_path):
    """Opens the sink of a job of its own, as often as it is called."""
    made = []

    def opened(schema=SCORES, *, folder="job", place=None, **more):
        given = {"job": topic, "step": "out", "broker": log, "folder": tmp_path / folder, **more}
        made.append(open_sink(place or topic, Schema.of(schema), **given))
        return made[-1]

    yield opened
    for sink in made:
        sink.close()


@pytest.fixture
def records(kafka, topic):
    return lambda: [(key, value and json.loads(value)) for key, value in committed(kafka.bootstrap, topic)]


@pytest.fixture
def rows(records):
    return lambda: [value for _, value in records()]


# ---------------------------------------------------------------- what stands in the topic


def test_a_topic_is_made_with_the_schema_of_the_rows(log, opened, topic, records):
    sink = opened(keys=["team"])
    sink.write(0, table(SCORES, [A, B]), None)
    assert log.describe_topic(topic).settings.schema == SCORES
    assert records() == [(b"a", A), (b"b", B)]


def test_a_topic_is_created_with_the_partitions_it_is_opened_for(log, opened, topic):
    opened(partitions=3)
    opened(partitions=7, folder="later")  # it exists by now
    assert len(log.describe_topic(topic).partitions) == 3


@pytest.mark.more
def test_rows_of_a_key_stay_in_one_partition_and_in_order(log, opened, topic, records):
    log.create_topic(topic, schema=SCORES, partitions=5)
    given = [{"team": team, "score": number} for number in range(50) for team in ("", "a", "b", "c", None)]
    opened(keys=["team"]).write(0, table(SCORES, given), None)
    found = records()
    assert len(found) == len(given)
    for key in (b"", b"a", b"b", b"c", b"\0null"):
        assert [value["score"] for own, value in found if own == key] == list(range(50))
    ends = [part.end_offset for part in log.describe_topic(topic).partitions]
    assert len([end for end in ends if end]) > 1


def test_retracted_rows_have_their_weight_in_a_column(log, opened, topic, rows):
    sink = opened(keys=["team"])
    sink.write(0, table(SCORES, [A]), None)
    sink.write(1, table(SCORES, [A, B]), weights(-1, 1))
    assert rows() == [A, {**A, "weight": -1}, {**B, "weight": 1}]
    assert log.describe_topic(topic).settings.schema == Schema.of("team string, score int, weight int")


def test_a_table_is_a_compacted_copy_with_tombstones(log, opened, topic, records):
    sink = opened(keys=["team"], table=True)
    assert log.describe_topic(topic).settings.compaction
    sink.write(0, table(SCORES, [A, B]), weights(1, 1))
    sink.write(1, table(SCORES, [A, C, B]), weights(-1, 1, -1))
    assert records() == [(b"a", A), (b"b", B), (b"a", C), (b"b", None)]


def test_a_topic_with_wider_columns_takes_the_rows_and_another_schema_is_refused(log, opened, topic, rows):
    log.create_topic(topic, schema="at timestamp, score bigint, team string")
    opened().write(0, table(SCORES, [A]), None)
    assert rows() == [{"at": None, **A}]
    with pytest.raises(InvalidSchema, match="step 'other' do not fit topic"):
        opened("team int, score int", step="other")


def test_a_topic_that_others_made_gets_json(kafka, opened, topic, rows):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    opened().write(0, table(SCORES, [A]), None)
    assert rows() == [A]


@pytest.mark.more
def test_a_batch_larger_than_what_the_client_holds(opened, rows, monkeypatch):
    monkeypatch.setitem(kafka_sink.DEFAULTS, "queue.buffering.max.messages", 1000)
    monkeypatch.setattr(kafka_sink, "ENCODED_ROWS", 700)
    scores = list(range(20_000))
    many = pa.table({"team": pa.array(["a"] * len(scores)), "score": pa.array(scores, pa.int32())})
    opened(keys=["team"]).write(0, many, None)
    assert [row["score"] for row in rows()] == scores


def test_a_large_record_waits_for_the_room_of_many_small_ones(opened):
    """The client sends one at a time, and only when three are gone there is room."""

    class Small:
        held, taken = 5, ()

        def __len__(self):
            return self.held

        def poll(self, _):
            self.held -= 1

        def purge(self): ...

        def produce(self, _, value, key, headers, timestamp):
            if self.held > 2:
                raise BufferError
            self.taken += ((value, key),)

    sink = opened()
    sink._producer = small = Small()
    sink._produce([(b"large", b"k", None, kafka_sink.NOW)])
    assert small.taken == ((b"large", b"k"),)


@pytest.mark.more
def test_a_record_that_the_client_cannot_hold_is_refused(opened, rows, monkeypatch):
    monkeypatch.setitem(kafka_sink.DEFAULTS, "queue.buffering.max.kbytes", 100)
    sink = opened()
    with pytest.raises(SinkFailed, match=r"a record of step 'out' has 200,\d+ bytes") as refused:
        sink.write(0, table(SCORES, [A, {"team": "b" * 200_000, "score": 2}]), None)
    assert "queue.buffering.max.kbytes" in refused.value.next_step
    sink.write(0, table(SCORES, [B]), None)
    assert rows() == [B]


# ---------------------------------------------------------------- once


def test_a_repeated_batch_has_no_second_effect(opened, rows):
    """Neither in the same process nor in the next; one without rows counts as written too."""
    sink = opened()
    for number, given in enumerate(([A], [B], [])):
        sink.write(number, table(SCORES, given), None)
    sink.write(1, table(SCORES, [B]), None)
    again = opened()
    for number, given in enumerate(([A], [B], [A], [C])):
        again.write(number, table(SCORES, given), None)
    assert rows() == [A, B, C]


@pytest.mark.more
def test_a_run_from_scratch_starts_over_and_the_one_before_is_still_known(opened, rows):
    opened(folder="one").write(0, table(SCORES, [A]), None)
    opened(folder="two").write(0, table(SCORES, [B]), None)
    opened(folder="one").write(0, table(SCORES, [A]), None)
    opened(folder="two").write(0, table(SCORES, [B]), None)
    assert rows() == [A, B]


def test_steps_and_jobs_have_markers_of_their_own(opened, rows):
    for number, (job, step) in enumerate((("one", "x"), ("one", "y"), ("two", "x"))):
        opened(job=f"{job}-{uuid.uuid4()}", step=step, folder=str(number)).write(0, table(SCORES, [A]), None)
    assert rows() == [A, A, A]


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.more), "after"])
def test_a_process_killed_around_a_commit(kafka, tmp_path, moment):
    """Twice in a row, each time with the same batches; then a surviving process writes them again and continues."""
    target = Target("kafka", tmp_path, kafka.bootstrap)
    batches = {0: [A, B], 1: [C, {"team": "b", "score": 4}]}
    for _ in range(2):
        # Killed after the commit of batch 1, the second process has nothing to commit and exits normally.
        assert dying.run(kafka.bootstrap, tmp_path, batches, moment) in ((-9,) if moment == "before" else (-9, 0))
    assert dying.run(kafka.bootstrap, tmp_path, {**batches, 2: [A]}, None) == 0
    assert target.rows() == [A, B, *batches[1], A]


@pytest.mark.soak
def test_a_process_killed_at_every_batch(kafka, tmp_path):
    """Each finds the last one's batch undecided, or decided and not known."""
    target = Target("kafka", tmp_path, kafka.bootstrap)
    batches = {number: [{"team": team, "score": number} for team in "ab"] for number in range(6)}
    for number in batches:
        given = {each: batches[each] for each in range(number + 1)}
        assert dying.run(kafka.bootstrap, tmp_path, given, "after" if number % 2 else "before") == -9
    assert dying.run(kafka.bootstrap, tmp_path, batches, None) == 0
    assert target.rows() == [row for number in batches for row in batches[number]]


@pytest.mark.soak
@pytest.mark.parametrize("changing", [False, True])
def test_no_kill_loses_or_duplicates_a_row(kafka, tmp_path, changing):
    """Killed at lines spread over all that a sink does."""

    def new_folder(_, name):
        (tmp_path / name).mkdir()
        return tmp_path / name, kafka.bootstrap, tmp_path / f"{name}.diary"

    target = killed_and_finished("kafka", None, changing, new_folder)
    assert found_rows(target) == expected_rows(changing, None)


# ---------------------------------------------------------------- the marker


def test_markers_are_compacted_and_never_expire(log, opened):
    opened()
    settings = kept_settings(log.clients, kafka_markers.TOPIC)
    assert settings["cleanup.policy"] == "compact"
    topics = log.clients.admin.list_topics(timeout=PATIENCE_S).topics
    assert topics[kafka_markers.TOPIC].partitions.keys() == set(range(16))
    assert kafka_markers.TOPIC not in log.topics()


def test_a_topic_of_markers_that_forgets_is_refused(log, opened):
    opened()
    change_settings(log.clients, kafka_markers.TOPIC, {"cleanup.policy": "delete"})
    try:
        with pytest.raises(SinkFailed, match=r"cleanup\.policy is 'delete'"):
            opened(step="other")
    finally:
        change_settings(log.clients, kafka_markers.TOPIC, {"cleanup.policy": "compact"})


@pytest.mark.more
def test_the_open_transaction_of_another_job_hides_no_marker(kafka, opened, rows, monkeypatch):
    """Goal: a marker that readers do not get to yet is not taken for one that is not there. Method: another job has
    begun a transaction before ours, in the same partition, and does not end it."""
    sink = opened()
    sink.write(0, table(SCORES, [A]), None)
    other = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"other-{uuid.uuid4()}"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(**{**sink._marker.record(7), "key": b"another job"})
    other.flush(30)
    sink.write(1, table(SCORES, [B]), None)
    monkeypatch.setattr(kafka_markers, "HELD_BACK_S", 0.5)
    again = opened()
    with pytest.raises(SinkUnavailable, match="transaction of another job"):
        again.write(1, table(SCORES, [B]), None)
    other.abort_transaction(30)
    again.write(1, table(SCORES, [B]), None)
    again.write(2, table(SCORES, [C]), None)
    assert rows() == [A, B, C]


# ---------------------------------------------------------------- two at once


def test_an_old_process_cannot_write_after_a_new_one(opened, rows, topic):
    first = opened()
    first.write(0, table(SCORES, [A]), None)
    second = opened()
    second.write(1, table(SCORES, [B]), None)
    with pytest.raises(ProducerFenced) as refused:
        first.write(1, table(SCORES, [C]), None)
    assert f"step 'out' of job '{topic}'" in refused.value.what
    second.write(2, table(SCORES, [C]), None)
    assert rows() == [A, B, C]


@pytest.mark.more
def test_a_writer_fenced_in_the_middle_of_a_batch_leaves_nothing_of_it(opened, rows, monkeypatch):
    first, took_over = opened(), []
    whole = type(first)._put

    def put(self, given, keys):
        refused = whole(self, given, keys)
        if not took_over:
            took_over.append(opened())
        return refused

    monkeypatch.setattr(type(first), "_put", put)
    with pytest.raises(ProducerFenced):
        first.write(0, table(SCORES, [A]), None)
    took_over[0].write(0, table(SCORES, [B]), None)
    assert rows() == [B]


# ---------------------------------------------------------------- down, slow, and refusing


@contextmanager
def hanging(kafka):
    os.killpg(kafka.pid(1), signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(kafka.pid(1), signal.SIGCONT)


@pytest.mark.more
def test_a_broker_that_hangs_holds_the_batch_back(kafka, opened, rows, monkeypatch):
    monkeypatch.setattr(kafka_sink, "PROGRESS_S", 1)
    sink = opened()
    sink.write(0, table(SCORES, [A]), None)
    with hanging(kafka), pytest.raises(SinkUnavailable):
        sink.write(1, table(SCORES, [B]), None)
    monkeypatch.setattr(kafka_sink, "PROGRESS_S", 30)

    def written():
        try:
            sink.write(1, table(SCORES, [B]), None)
        except SinkUnavailable:
            return False
        return True

    until(written, "the broker that hung to take the batch")
    sink.write(2, table(SCORES, [C]), None)
    assert rows() == [A, B, C]


def test_a_commit_without_an_answer_is_looked_up(kafka, opened, rows, monkeypatch):
    """The broker says yes while nobody listens any more."""
    sink = opened()
    sink.write(0, table(SCORES, [A]), None)
    real = sink._producer

    class Unheard:
        def __getattr__(self, name):
            return getattr(real, name)

        def __len__(self):
            return len(real)

        def commit_transaction(self, timeout):
            real.commit_transaction(timeout)
            from confluent_kafka import KafkaError, KafkaException

            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    sink._producer = Unheard()
    with pytest.raises(SinkUnavailable):
        sink.write(1, table(SCORES, [B]), None)
    sink.write(1, table(SCORES, [B]), None)
    assert rows() == [A, B]


@pytest.mark.more
def test_a_job_does_not_start_while_kafka_is_down(tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.log.kafka.clients.OPEN_SECONDS", 0.1)
    place = ms.kafka("127.0.0.1:1", topic="scores")
    with pytest.raises(SinkUnavailable, match="topic 'scores' cannot be written") as raised:
        open_sink(place, SCORES, job="j", step="s", broker=tmp_path / "log", folder=tmp_path)
    assert "127.0.0.1:1" in raised.value.where


def large(size_bytes):
    return {"team": os.urandom(size_bytes // 2).hex(), "score": 1}


@pytest.mark.more
def test_a_row_that_is_too_large_ends_the_batch_and_leaves_nothing_of_it(opened, rows):
    sink = opened()
    with pytest.raises(SinkFailed, match=r"has 3,000,\d+ bytes, and more than message.max.bytes"):
        sink.write(0, table(SCORES, [A, large(3_000_000)]), None)
    sink.write(0, table(SCORES, [B]), None)
    assert rows() == [B]


@pytest.mark.more
@pytest.mark.parametrize("limit", ["the client's", "the topic's"])
def test_rows_that_are_too_large_are_left_out_with_dead_letters(kafka, opened, topic, rows, limit):
    settings = {"message.max.bytes": "10000000", "compression.type": "none"} if limit == "the topic's" else {}
    sink = opened(place=ms.kafka(kafka.bootstrap, topic=topic, settings=settings))
    refused = []
    given = table(SCORES, [A, large(3_000_000), B, large(2_000_000), C])
    for _ in range(2):
        sink.write(0, given, None, refused.append)
    sink.write(1, table(SCORES, [A]), None, refused.append)
    assert [refusal.row for refusal in refused[-2]] == [1, 3]
    assert refused[-1] == []
    assert rows() == [A, B, C, A]


@pytest.mark.soak
def test_a_transaction_that_kafka_ended_for_its_length_is_tried_again(kafka, opened, topic, rows, monkeypatch):
    """Readers would wait for it: Kafka looks every ten seconds for those that are over their time."""
    place = ms.kafka(kafka.bootstrap, topic=topic, settings={"transaction.timeout.ms": "1000"})
    sink = opened(place=place)
    slow = threading.Event()
    whole = type(sink)._put

    def put(self, given, keys):
        refused = whole(self, given, keys)
        self._flush()
        slow.wait(25)
        slow.set()
        return refused

    monkeypatch.setattr(type(sink), "_put", put)
    with pytest.raises(SinkUnavailable, match="aborted a batch that took"):
        sink.write(0, table(SCORES, [A]), None)
    sink.write(0, table(SCORES, [A]), None)
    assert rows() == [A]


def test_an_endpoint_without_servers_needs_a_kafka_broker(tmp_path):
    place = ms.kafka(topic="scores")
    with pytest.raises(InvalidInput, match="the job's own broker is not Kafka"):
        open_sink(place, SCORES, job="j", step="s", broker=tmp_path / "log", folder=tmp_path)
    shutil.rmtree(tmp_path / "log", ignore_errors=True)


def test_an_endpoint_without_servers_uses_the_jobs_broker(opened, topic, rows):
    opened(place=ms.kafka(topic=topic)).write(0, table(SCORES, [A]), None)
    assert rows() == [A]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_killed_brokers_lose_and_duplicate_nothing(kafka3, tmp_path, topic):
    """Goal: batches continue while one of three brokers is killed, with its leaders and coordinators, and comes back.
    Method: each broker in turn, while one thread writes batch after batch and tries again as a job does."""
    place = ms.kafka(kafka3.bootstrap, topic=topic)
    sink = open_sink(place, SCORES, job=topic, step="out", broker=tmp_path / "log", folder=tmp_path, keys=["team"])
    over, failures, written = threading.Event(), [], 0

    def write():
        nonlocal written
        while not over.is_set():
            given = [{"team": team, "score": written} for team in "abcde"]
            try:
                sink.write(written, table(SCORES, given), None)
                written += 1
            except SinkUnavailable:
                time.sleep(0.1)
            except Exception as error:
                failures.append(error)
                return

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for number in (1, 2, 3):
            before = written
            kafka3.kill(number)
            until(lambda before=before: written >= before + 5 or failures, f"five batches without broker {number}")
            kafka3.restart(number)
            kafka3.wait_in_sync()
    finally:
        over.set()
        writing.join(PATIENCE_S)
    assert not writing.is_alive(), f"a batch was not written within {PATIENCE_S} s"
    assert failures == []
    sink.close()
    found = [json.loads(value) for _, value in committed(kafka3.bootstrap, topic)]
    assert [row["score"] for row in found if row["team"] == "a"] == list(range(written))
    assert len(found) == 5 * written
