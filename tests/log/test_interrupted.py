"""Goal: whatever is raised inside a poll, in whichever line, nothing counts as handed out that its caller never got."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from alarms import Alarm, ringing
from millstream.errors import InvalidRecord
from millstream.log import EmbeddedLog
from millstream.log.storage.disk import FileLock

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # alarms in finalizers
COUNT = 10_000
YEAR_10000_US = 253_402_300_800_000_000
ODD = "i int, at timestamp"


@pytest.fixture
def odd(log):
    """Three rows in one batch, of which Python cannot hold the second; then a fourth."""
    log.create_topic("odd", schema=ODD)
    at = pa.array([0, YEAR_10000_US, 2], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with log.producer() as producer:
        producer.send_batch("odd", pa.table({"i": pa.array([1, 2, 3], pa.int32()), "at": at}))
        producer.flush()
        producer.send("odd", {"i": 4, "at": datetime(2025, 6, 1, tzinfo=UTC)})
    return log


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
def test_a_value_that_python_cannot_hold_is_given_raw(odd, delivery):
    with odd.consumer("odd", group="g", delivery=delivery) as consumer:
        records = [record for _ in range(3) for record in consumer.poll()]
    assert [record.value["i"] for record in records] == [1, 2, 3, 4]
    assert [record.offset for record in records] == [0, 1, 2, 3]
    assert records[1].value["at"] == YEAR_10000_US
    assert records[2].value["at"] == datetime(1970, 1, 1, microsecond=2, tzinfo=UTC)


def test_a_queue_delivers_a_value_that_python_cannot_hold(odd):
    odd.create_queue("q", "odd", max_tries=1)
    with odd.queue("q") as queue:
        messages = [queue.receive() for _ in range(4)]
        assert sorted(message.value["i"] for message in messages) == [1, 2, 3, 4]
        odd_one = next(message for message in messages if message.value["i"] == 2)
        odd_one.refuse("odd", dead=True)
    with odd.consumer("q.dead") as letters:
        [letter] = letters.until_caught_up()
    assert letter.value["offset"] == 1


def test_text_that_is_not_utf8_is_refused_before_it_is_stored(log):
    log.create_topic("t", schema="s string")
    offsets = pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0")
    text = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"\xff\xfeb"))
    with log.producer() as producer, pytest.raises(InvalidRecord, match="not UTF-8"):
        producer.send_batch("t", pa.table({"s": text}))


# ---------------------------------------------------------------- alarms


@pytest.fixture
def numbered(log):
    log.create_topic("t", partitions=3)
    with log.producer(batch_bytes=20_000) as producer:
        for number in range(COUNT):
            producer.send("t", str(number), partition=number % 3)
    return log


def retried(call):
    """As often as it takes."""
    while True:
        try:
            return call()
        except Alarm:
            continue


def test_polls_that_alarms_interrupt(numbered):
    """With a group and without: each record comes once, for the consumer knows what its caller got."""
    for group in (None, "g"):
        got = []
        with numbered.consumer("t", group=group) as consumer, ringing(seed=1, seconds_mean=0.001) as alarms:
            dice = random.Random(2)
            while len(got) < COUNT:
                take = dice.choice(["poll", "batches"])
                try:
                    if take == "poll":
                        records = consumer.poll(max_records=dice.choice([1, 50, 500]))
                        got += [int(record.value) for record in records]
                    else:
                        batches = consumer.poll_batches()
                        got += [int(value) for batch in batches for value in batch.columns.column("value").to_pylist()]
                except Alarm:
                    continue
            assert alarms.count
        assert sorted(got) == list(range(COUNT))


def test_loops_that_alarms_interrupt(numbered):
    got = []
    with numbered.consumer("t", group="g") as consumer, ringing(seed=3, seconds_mean=0.004) as alarms:
        while len(got) < COUNT:
            try:
                for record in consumer.until_caught_up():
                    got.append(int(record.value))
            except Alarm:
                continue
        assert alarms.count
    assert sorted(got) == list(range(COUNT))
    assert numbered.describe_group("g").lag == 0


def test_what_was_committed_is_what_the_callers_got(numbered):
    """Consumers that end after an alarm, one after the other: each resumes where the caller of the previous one was."""
    got = Counter()
    dice = random.Random(4)
    while numbered_left(got):
        with numbered.consumer("t", group="g") as consumer, ringing(seed=dice.random(), seconds_mean=0.01):
            try:
                for _ in range(40):
                    records = consumer.poll(max_records=300)
                    got.update(int(record.value) for record in records)
                    if not records:
                        break
                consumer.commit()
            except Alarm:
                pass
    assert got.keys() == set(range(COUNT))


def numbered_left(got):
    return len(got) < COUNT


def test_transactions_that_alarms_interrupt(numbered, read):
    numbered.create_topic("out")
    with (
        numbered.consumer("t", group="g", delivery="exactly_once") as consumer,
        retried(lambda: numbered.producer(name="p")) as producer,
        ringing(seed=5, seconds_mean=0.01) as alarms,
    ):
        done = False
        while not done:
            try:
                with producer.transaction(consumer):
                    records = [record for _ in range(3) for record in consumer.poll(max_records=400)]
                    for record in records:
                        producer.send("out", record.value)
                done = not records
            except Alarm:
                continue
        assert alarms.count
    assert sorted(int(value) for value in read(numbered, "out")) == list(range(COUNT))
    assert numbered.describe_group("g").lag == 0


def test_queues_that_alarms_interrupt(numbered):
    """Each message once, none of its tries used up by a call that raised."""
    numbered.create_queue("q", "t", timeout="10 minutes", max_tries=1)
    got = []
    with numbered.queue("q") as queue, ringing(seed=6, seconds_mean=0.005) as alarms:
        while len(got) < 4000:
            try:
                messages = queue.receive_many(100)
            except Alarm:
                continue
            got += retried(lambda messages=messages: [int(message.value) for message in messages])
            retried(lambda messages=messages: acknowledged(queue, messages))
        assert alarms.count
    assert len(set(got)) == len(got)
    assert numbered.describe_queue("q").dead == 0


def acknowledged(queue, messages):
    from millstream.errors import DeliveryExpired

    try:
        queue.acknowledge(messages)
    except DeliveryExpired:  # an alarm came after they were
        return


def test_a_consumer_that_was_interrupted_serves_another_thread(tmp_path):
    """The turn that the alarm left behind does not stay taken."""
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("t")
        with log.consumer("t") as consumer, ringing(seed=7, seconds_mean=0.001):
            for _ in range(200):
                try:
                    consumer.poll(0.01)
                except Alarm:
                    continue


def test_a_lock_that_alarms_interrupt_is_free_afterwards(tmp_path):
    """No signal handler leaves it held: an interrupted producer would wait in `close` for its own lock for ever."""
    lock = FileLock(tmp_path / "lock")
    with ThreadPoolExecutor(1) as other, ringing(seed=11, seconds_mean=0.003) as alarms:
        while alarms.count < 300:
            try:
                for _ in range(1000):
                    with lock.backstop, lock, lock:
                        pass
            except Alarm:
                retried(lambda: other.submit(is_free, lock).result(timeout=10))


def is_free(lock):
    with lock.attempt() as free:
        assert free
