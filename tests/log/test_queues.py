"""Goal: every message of a queue is handled once by one consumer, or again after a failure, or buried once.

Method: short timeouts and closed or killed consumers; two handles stand for two processes.
"""

# ruff: noqa: PT012 - what is raised has to leave a whole block: a transaction, or sending until there is no room

import threading
from collections import Counter

import pytest

from millstream.errors import (
    AlreadyExists,
    ClosedError,
    DeliveryExpired,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    UnknownQueue,
    UnknownTopic,
)

from .processes import hold_messages, lines, running, start, wait_until, work_off


def fill(log, count, partitions=1, topic="t"):
    with log.producer(linger="1 second") as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=str(number), partition=number % partitions)


def values(messages):
    return sorted(int(message.value) for message in messages)


def test_messages_are_acknowledged_one_by_one(log):
    log.create_topic("t")
    log.create_queue("q", "t")
    fill(log, 10)
    with log.queue("q") as queue:
        messages = queue.receive_many(10)
        assert values(messages) == list(range(10))
        assert {message.tries for message in messages} == {1}
        assert messages[3].key == b"3"
        info = log.describe_queue("q")
        assert (info.waiting, info.in_flight, info.acknowledged, info.consumers) == (0, 10, 0, 1)
        for message in messages[::2]:
            message.acknowledge()
        queue.acknowledge(messages[1::2])
        info = log.describe_queue("q")
        assert (info.waiting, info.in_flight, info.acknowledged) == (0, 0, 10)
        assert queue.receive(0.1) is None


def test_a_refused_message_is_redelivered_with_its_count_after_its_delay(log):
    log.create_topic("t")
    log.create_queue("q", "t")
    fill(log, 2)
    with log.queue("q") as queue:
        first, second = queue.receive_many(2)
        first.refuse("later", delay="1 second")
        second.refuse()
        again = queue.receive()
        assert (again.value, again.tries) == (b"1", 2)
        again.acknowledge()
        assert queue.receive() is None
        late = queue.receive(timeout=30)
        assert (late.value, late.tries) == (b"0", 2)


def test_a_message_is_redelivered_after_its_timeout_and_a_late_answer_is_refused(log, other):
    log.create_topic("t")
    log.create_queue("q", "t", timeout="300 milliseconds")
    fill(log, 1)
    with log.queue("q") as slow, other.queue("q") as quick:
        late = slow.receive()
        again = quick.receive(timeout=30)
        assert again.tries == 2
        for answer in (late.acknowledge, late.refuse, lambda: late.extend("1 second")):
            with pytest.raises(DeliveryExpired, match="offset 0"):
                answer()
        again.acknowledge()
        for answer in (again.acknowledge, again.refuse):
            with pytest.raises(DeliveryExpired):
                answer()
        assert log.describe_queue("q").acknowledged == 1


def test_the_same_consumer_cannot_answer_for_an_older_delivery(log):
    log.create_topic("t")
    log.create_queue("q", "t", timeout="200 milliseconds")
    fill(log, 1)
    with log.queue("q") as queue:
        old = queue.receive()
        new = queue.receive(timeout=30)
        with pytest.raises(DeliveryExpired):
            old.acknowledge()
        new.acknowledge()


def test_an_extended_message_stays(log, other):
    log.create_topic("t")
    log.create_queue("q", "t", timeout="200 milliseconds")
    fill(log, 1)
    with log.queue("q") as slow, other.queue("q") as quick:
        message = slow.receive()
        message.extend("10 minutes")
        assert quick.receive(timeout=0.6) is None
        message.acknowledge()


def test_what_a_consumer_held_goes_out_again_when_it_closes_or_is_killed(tmp_path, log):
    log.create_topic("t")
    log.create_queue("q", "t", timeout="10 minutes")
    fill(log, 6)
    child = start(hold_messages, log.path, tmp_path / "diary", "q", 3)
    with running(child), log.queue("q") as queue:
        wait_until(lambda: len(lines(tmp_path / "diary")) == 3)
        assert values(queue.receive_many(10)) == [3, 4, 5]
        child.kill()
        child.join()
        again = wait_until(lambda: queue.receive_many(10, timeout=1))
        assert values(again) == [0, 1, 2]
        assert {message.tries for message in again} == {2}
        queue.close()
        with log.queue("q") as heir:
            assert values(heir.receive_many(10, timeout=1)) == list(range(6))


def test_dead_letters_after_the_last_try(log, read):
    log.create_topic("t", schema="n int, s string")
    log.create_queue("q", "t", max_tries=3)
    with log.producer() as producer:
        producer.send("t", {"n": 1, "s": "ä"}, key="k")
        producer.send("t", {"n": 2})
    with log.queue("q") as queue:
        for tries in (1, 2, 3):
            messages = queue.receive_many(2)
            assert [message.tries for message in messages] == [tries, tries]
            for message in messages:
                message.refuse(f"broken {tries}")
        assert queue.receive() is None
    with log.consumer("q.dead") as consumer:
        letters = list(consumer.until_caught_up())
    assert [letter.key for letter in letters] == [b"k", None]
    assert [letter.value["offset"] for letter in letters] == [0, 1]
    assert letters[0].value["topic"] == "t"
    assert letters[0].value["value"].decode().replace(" ", "") == '{"n":1,"s":"ä"}'
    assert "3 tries" in letters[0].value["reason"]
    assert "broken 3" in letters[0].value["reason"]
    info = log.describe_queue("q")
    assert (info.dead, info.waiting, info.in_flight) == (2, 0, 0)


def test_a_message_can_become_a_dead_letter_at_once(log, read):
    log.create_topic("t")
    log.create_topic(
        "graves", schema="value binary, topic string, partition int, offset long, reason string, at timestamp"
    )
    log.create_queue("q", "t", dead_letters="graves")
    fill(log, 1)
    with log.queue("q") as queue:
        queue.receive().refuse("poison", dead=True)
        assert queue.receive() is None
    (letter,) = read(log, "graves")
    assert letter["value"] == b"0"
    assert "poison" in letter["reason"]


def test_each_dead_letter_is_written_once_though_many_consumers_find_it(log, other, read):
    log.create_topic("t")
    log.create_queue("q", "t", max_tries=1, timeout="50 milliseconds")
    fill(log, 20)
    queues = [handle.queue("q") for handle in (log, log, other, other)]
    wait_until(lambda: len(queues[0].receive_many(20)) == 20 or True)

    def find(queue):
        for _ in range(8):
            queue.receive_many(20, timeout=0.05)

    threads = [threading.Thread(target=find, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: queues[0].receive_many(20, timeout=0.1) is not None and log.describe_queue("q").dead == 20)
    assert sorted(letter["offset"] for letter in read(log, "q.dead")) == list(range(20))
    for queue in queues:
        queue.close()


def test_many_dead_letters_keep_no_files_open(log):
    import os

    log.create_topic("t")
    log.create_queue("q", "t", max_tries=1)
    fill(log, 25)
    counts = []
    with log.queue("q") as queue:
        for _ in range(25):
            queue.receive().refuse()
            counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    assert counts[-1] <= counts[4] + 3


def test_every_queue_of_a_topic_gets_all_of_it(log):
    log.create_topic("t", partitions=2)
    for name in ("a", "b"):
        log.create_queue(name, "t")
    fill(log, 10, 2)
    log.create_queue("late", "t", start="latest")
    log.create_queue("early", "t", start="earliest")
    for name, count in (("a", 10), ("b", 10), ("late", 0), ("early", 10)):
        with log.queue(name) as queue:
            messages = []
            while found := queue.receive_many(3):
                messages += found
            assert values(messages) == list(range(count))
            queue.acknowledge(messages)
    assert [info.name for info in log.queues()] == ["a", "b", "early", "late"]


def test_no_more_than_max_in_flight_are_delivered_at_once(log, other):
    log.create_topic("t")
    log.create_queue("q", "t", max_in_flight=5)
    fill(log, 20)
    with log.queue("q") as one, other.queue("q") as two:
        messages = one.receive_many(100)
        assert len(messages) == 5
        assert two.receive_many(100) == []
        messages[0].acknowledge()
        messages[1].acknowledge()
        assert len(two.receive_many(100)) == 2


def test_partitions_are_served_in_turn(log):
    log.create_topic("t", partitions=3)
    log.create_queue("q", "t")
    fill(log, 300, 3)
    with log.queue("q") as queue:
        seen = [queue.receive().record.partition for _ in range(30)]
    assert Counter(seen) == {0: 10, 1: 10, 2: 10}


def test_acknowledging_inside_a_transaction(log, read):
    log.create_topic("t")
    log.create_topic("out")
    log.create_queue("q", "t", timeout="10 minutes")
    fill(log, 4)
    with log.queue("q") as queue, log.producer(name="p") as producer:
        messages = queue.receive_many(2)
        with producer.transaction(queue.acknowledging(messages)):
            for message in messages:
                producer.send("out", message.value)
        assert log.describe_queue("q").acknowledged == 2
        failed = queue.receive_many(2)
        with pytest.raises(ValueError, match="no"), producer.transaction(queue.acknowledging(failed)):
            producer.send("out", b"never")
            raise ValueError("no")
        assert log.describe_queue("q").acknowledged == 2
        failed[0].acknowledge()  # still with this consumer
        with pytest.raises(DeliveryExpired), producer.transaction(queue.acknowledging(failed)):
            producer.send("out", b"never")
    assert read(log, "out") == [b"0", b"1"]


def test_records_of_aborted_and_open_transactions_are_not_delivered(log):
    log.create_topic("t")
    log.create_queue("q", "t")
    with log.producer(name="p") as producer, log.queue("q") as queue:
        with pytest.raises(ValueError, match=r"^$"), producer.transaction():
            producer.send("t", b"aborted").wait()
            raise ValueError
        with producer.transaction():
            producer.send("t", b"open").wait()
            assert queue.receive(0.3) is None
        assert queue.receive(1).value == b"open"


def test_records_that_retention_deleted_count_as_lost(log):
    log.create_topic("t", segment_bytes=4096, retention_bytes=4096)
    log.create_queue("q", "t")
    with log.producer(linger="0 seconds") as producer:
        for number in range(20):
            producer.send("t", b"%d" % number + b" " * 1000).wait()
            if number == 0:
                with log.queue("q") as queue:
                    queue.receive()
    log.clean("t")
    with log.queue("q") as queue:
        messages = []
        while found := queue.receive_many(50, timeout=0.3):
            messages += found
            queue.acknowledge(found)
        info = log.describe_queue("q")
        assert info.lost + info.acknowledged == 20
        assert info.lost > 0
        assert info.waiting == 0


def test_partitions_added_later_are_served(log):
    log.create_topic("t")
    log.create_queue("q", "t", start="latest")
    with log.queue("q") as queue:
        assert queue.receive() is None
        log.change_topic("t", partitions=3)
        fill(log, 9, 3)
        messages = []
        wait_until(lambda: messages.extend(queue.receive_many(10)) or len(messages) == 9)


def test_iterating(log):
    log.create_topic("t")
    log.create_queue("q", "t")
    fill(log, 5)
    seen = []
    with log.queue("q") as queue:
        for message in queue:
            message.acknowledge()
            seen.append(int(message.value))
            if len(seen) == 5:
                queue.close()
        with pytest.raises(ClosedError):
            queue.receive()
    assert seen == list(range(5))


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": "0 seconds"},
        {"timeout": "soon"},
        {"max_tries": 0},
        {"max_tries": 1.5},
        {"max_tries": True},
        {"max_in_flight": 0},
        {"start": 5},
        {"start": "middle"},
        {"colour": "red"},
    ],
)
def test_settings_that_make_no_sense_are_refused(log, settings):
    log.create_topic("t")
    with pytest.raises(InvalidInput):
        log.create_queue("q", "t", **settings)
    assert log.queues() == []
    assert log.topics() == ["t"]


def test_misuse_is_refused(log):
    log.create_topic("t")
    log.create_topic("typed", schema="a int")
    with pytest.raises(UnknownTopic):
        log.create_queue("q", "nothing")
    with pytest.raises(InvalidSetting):
        log.create_queue("q", "t", dead_letters="typed")
    with pytest.raises(InvalidName):
        log.create_queue("q" * 240, "t", dead_letters="graves")
    log.create_queue("q" * 200, "t")
    log.create_queue("q", "t")
    with pytest.raises(AlreadyExists):
        log.create_queue("q", "t")
    for use in (log.queue, log.describe_queue, log.delete_queue):
        with pytest.raises(UnknownQueue, match="queues that exist"):
            use("nothing")
    fill(log, 1)
    with log.queue("q") as queue:
        message = queue.receive()
        with pytest.raises(InvalidInput, match="active"):
            log.delete_queue("q")
        message.acknowledge()
    log.delete_queue("q")
    assert [len(info.name) for info in log.queues()] == [200]


def test_a_queue_with_a_long_name_has_dead_letters(log, read):
    log.create_topic("t")
    name = "q" * 200
    log.create_queue(name, "t", max_tries=1)
    fill(log, 1)
    with log.queue(name) as queue:
        queue.receive().refuse()
    assert len(read(log, f"{name}.dead")) == 1


def test_consumers_in_processes_some_killed_handle_everything(tmp_path, log, read):
    log.create_topic("t", partitions=2)
    log.create_queue("q", "t", timeout="400 milliseconds", max_tries=50)
    fill(log, 200, 2)
    diary = tmp_path / "diary"
    workers = [start(work_off, log.path, diary, "q", 0.8) for _ in range(3)]
    with running(*workers):
        for _ in range(2):
            before = len(lines(diary))
            wait_until(lambda before=before: len(lines(diary)) > before + 20)
            workers[0].kill()
            workers[0].join()
            workers.append(start(work_off, log.path, diary, "q", 0.8))
            workers.pop(0)
        wait_until(lambda: log.describe_queue("q").acknowledged == 200)
        for worker in workers:
            worker.kill()
            worker.join()
    done = Counter(map(int, lines(diary)))
    assert max(done.values()) == 1
    assert len(done) >= 200 - 3  # a consumer may die between the answer and its note
    assert read(log, "q.dead") == []
