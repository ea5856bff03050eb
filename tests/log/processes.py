"""What child processes of the tests do. They are forked from a server that has everything imported, and can be killed.

A child tells what it has done through a file that it appends lines to: these outlive it.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import time
from contextlib import contextmanager
from pathlib import Path

from millstream.log import EmbeddedLog
from waiting import exit_code_of_child, until

from .disks import DeadlyDisk, Steps

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["pytest", "millstream.log", __name__])
UNTIL_KILLED_SECONDS = 3600


def start(work, *args):
    process = context.Process(target=work, args=args, daemon=True)
    process.start()
    return process


def run(work, *args):
    """The exit code of a child; -9 if it was killed."""
    process = start(work, *args)
    return exit_code_of_child(process, work.__name__)


@contextmanager
def running(*processes):
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def wait_until(holds, what="what the line above waits for"):
    return until(holds, what, look_s=0.01)


class Diary:
    """Lines that survive the death of who wrote them."""

    def __init__(self, path):
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def write(self, line):
        os.write(self._fd, f"{line}\n".encode())


def lines(path):
    return path.read_text().split("\n")[:-1] if path.exists() else []


# ---------------------------------------------------------------- producing


def produce_for_ever(folder, diary, topic, who, acks, partitions):
    """Notes each number once it is acknowledged."""
    diary = Diary(diary)
    with EmbeddedLog(folder) as log, log.producer(acks=acks, linger="0 seconds") as producer:
        number = 0
        while True:
            receipts = [
                producer.send(topic, b"%s:%d" % (who.encode(), number + i), partition=(number + i) % partitions)
                for i in range(20)
            ]
            for receipt in receipts:
                receipt.wait()
                diary.write(number)
                number += 1


def produce_until_step(folder, diary, acks, last):
    """Sends one record after the other, and dies at a step of the disk."""
    diary = Diary(diary)
    disk = DeadlyDisk()
    log = EmbeddedLog(folder, disk=disk, upkeep=False)
    producer = log.producer(acks=acks, linger="0 seconds")
    disk.step = Steps(last)
    for number in range(6):
        producer.send("t", b"%d" % number).wait()
        diary.write(number)


def send(folder, topic, count, prefix):
    with EmbeddedLog(folder) as log, log.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%s%d" % (prefix.encode(), number))


# ---------------------------------------------------------------- transactions


def transactions_until_step(folder, diary, last):
    """Commits, aborts and commits over three partitions of two topics; dies at a step of disk or coordinator."""
    diary = Diary(diary)
    disk = DeadlyDisk()
    log = EmbeddedLog(folder, disk=disk, upkeep=False)
    step = Steps(last)
    disk.step = step
    log.coordinator._db.set_trace_callback(lambda statement: step() if statement == "COMMIT" else None)
    producer = log.producer(name="p", linger="0 seconds")
    for number, good in ((1, True), (2, False), (3, True)):
        try:
            with producer.transaction():
                producer.send("a", b"%d" % number, partition=0)
                producer.flush()
                producer.send("a", b"%d" % number, partition=1)
                producer.send("b", b"%d" % number)
                if not good:
                    raise ValueError
            diary.write(number)
        except ValueError:
            pass
    os._exit(0)


def open_transaction(folder, diary, topic, value, name, partition=0):
    """Stays inside a transaction until it is killed."""
    log = EmbeddedLog(folder)
    producer = log.producer(name=name)
    with producer.transaction():
        producer.send(topic, value, partition=partition).wait()
        Diary(diary).write("open")
        time.sleep(UNTIL_KILLED_SECONDS)


def die_after_verdict(folder, topic, value, name):
    """Dies when the verdict is given and no partition knows it."""
    disk = DeadlyDisk()
    log = EmbeddedLog(folder, disk=disk, upkeep=False)
    producer = log.producer(name=name)

    def watch(statement):
        if "committing" in statement:
            disk.step = Steps(1)

    log.coordinator._db.set_trace_callback(watch)
    with producer.transaction():
        producer.send(topic, value).wait()


# ---------------------------------------------------------------- consuming


def consume(folder, diary, group, delivery, pause):
    """Notes every value it gets, for ever."""
    diary = Diary(diary)
    with EmbeddedLog(folder) as log, log.consumer("t", group=group, delivery=delivery) as consumer:
        while True:
            for record in consumer.poll(timeout=0.5, max_records=7):
                diary.write(record.value.decode())
            if pause:
                time.sleep(random.random() * pause)


def follow_idly(folder, diary, group, seconds):
    """Waits for records that do not come, and notes the CPU seconds that took."""
    with EmbeddedLog(folder) as log, log.consumer("t", group=group) as consumer:
        consumer.poll(timeout=0.3)
        before = time.process_time()
        consumer.poll(timeout=seconds)
        Diary(diary).write(time.process_time() - before)


def wait_idly_for_messages(folder, diary, queue, seconds):
    with EmbeddedLog(folder) as log, log.queue(queue) as messages:
        messages.receive(timeout=0.3)
        before = time.process_time()
        messages.receive(timeout=seconds)
        Diary(diary).write(time.process_time() - before)


def transform(folder, name):
    """Reads, doubles and writes, exactly once, for ever."""
    log = EmbeddedLog(folder)
    consumer = log.consumer("in", group="doubling", delivery="exactly_once")
    producer = log.producer(name=name)
    while True:
        records = consumer.poll(timeout=0.5, max_records=random.randrange(1, 20))
        if not records:
            continue
        try:
            with producer.transaction(consumer):
                for record in records:
                    producer.send("out", b"%d" % (2 * int(record.value)), key=record.key)
        except Exception as error:
            if type(error).__name__ != "PartitionsRevoked":
                raise


# ---------------------------------------------------------------- queues


def work_off(folder, diary, queue, answer_share):
    """Acknowledges messages, and forgets to answer some."""
    diary = Diary(diary)
    with EmbeddedLog(folder) as log, log.queue(queue) as messages:
        while True:
            for message in messages.receive_many(5, timeout=0.5):
                if random.random() < answer_share:
                    message.acknowledge()
                    diary.write(message.value.decode())


def hold_messages(folder, diary, queue, count):
    diary = Diary(diary)
    with EmbeddedLog(folder) as log, log.queue(queue) as messages:
        for message in messages.receive_many(count, timeout=UNTIL_KILLED_SECONDS):
            diary.write(message.value.decode())
        time.sleep(UNTIL_KILLED_SECONDS)


# ---------------------------------------------------------------- other


def open_and_create(folder, diary, topic):
    """Opens a log that others open at the same moment."""
    try:
        with EmbeddedLog(folder) as log:
            log.create_topic(topic)
            with log.producer(acks="all") as producer:
                producer.send(topic, b"x").wait()
    except Exception as error:
        Diary(diary).write(repr(error))
        os._exit(1)


def hold_the_coordinator(folder, diary, seconds):
    log = EmbeddedLog(folder)
    with log.coordinator.change():
        Diary(diary).write("held")
        time.sleep(seconds)


def fork_with_waiting_records(folder, diary):
    """The parent has records in its buffer when it forks; the child must neither hang, store them, nor send."""
    log = EmbeddedLog(folder)
    producer = log.producer(name="parent", linger="10 minutes")
    producer.send("t", b"from the parent")
    child = os.fork()
    if child == 0:
        try:
            producer.send("t", b"from the child")
        except Exception as error:
            Diary(diary).write(type(error).__name__)
        producer.close()
        os._exit(0)
    os.waitpid(child, 0)
    producer.close()


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


# ---------------------------------------------------------------- switches


def consume_name(folder, diary, name, group):
    """Like `consume`, of a name that is switched meanwhile."""
    diary = Diary(diary)
    with EmbeddedLog(folder) as log, log.consumer(name, group=group) as consumer:
        while True:
            for record in consumer.poll(timeout=0.5, max_records=7):
                diary.write(record.value.decode())
            consumer.commit()


def switch_until_step(folder, name, topic, last):
    """Dies at a step of the disk: before a file is made durable, before it takes its place, before that is durable."""
    step = Steps(last)
    log = EmbeddedLog(folder, upkeep=False)
    fsync, replace = os.fsync, Path.replace
    os.fsync = lambda fd: step() or fsync(fd)
    Path.replace = lambda path, target: step() or replace(path, target)
    log.switch(name, topic)
    os._exit(0)


def switch_for_ever(folder, diary, name, topics):
    diary = Diary(diary)
    log = EmbeddedLog(folder)
    for topic in itertools.cycle(topics):
        log.switch(name, topic)
        diary.write(topic)
