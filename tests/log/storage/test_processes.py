"""Goal: any number of processes append to one partition and may die at any time; what was acknowledged is stored.

Method: real processes that write down what was acknowledged to them, some of them killed with SIGKILL.
"""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.log.storage.reader import PartitionReader

from .support import drain, frame, keyed, opened, read_all, records_of, segments, values_of

SCRIPT = Path(__file__).with_name("appender.py")


def started(folder, name, count, *, sync=False, segment_bytes=16 << 10):
    arguments = [str(folder), name, str(count), "sync" if sync else "no", str(segment_bytes)]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout.readline() == "ready\n"
    return process


def go(*processes):
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def acknowledged(process):
    """Offset and number of each record that was acknowledged to the process; an incomplete last line does not count."""
    text = process.communicate()[0]
    return [tuple(map(int, line.split())) for line in text.split("\n")[:-1]]


def check(folder, reported):
    """Every acknowledged record is at its offset; the records of each process are in order, each once."""
    stored = read_all(opened(folder))
    assert [record.offset for record in stored] == list(range(len(stored)))
    numbers = {}
    for record in stored:
        numbers.setdefault(record.key.decode(), []).append(int(record.value.split(b":")[0]))
    by_offset = {record.offset: record for record in stored}
    for name, answers in reported.items():
        own = numbers.get(name, [])
        assert own == list(range(len(own))), name
        assert len(answers) <= len(own)
        for offset, number in answers:
            assert by_offset[offset].key.decode() == name
            assert int(by_offset[offset].value.split(b":")[0]) == number
    return numbers


@pytest.mark.more
def test_several_at_once(folder):
    """Four processes into small segments: nothing lost, nothing twice, each one's records in order."""
    opened(folder)
    processes = {str(number): started(folder, str(number), 600, sync=number == 0) for number in range(4)}
    go(*processes.values())
    reported = {name: acknowledged(process) for name, process in processes.items()}
    assert all(len(answers) == 600 for answers in reported.values())
    numbers = check(folder, reported)
    assert {name: len(own) for name, own in numbers.items()} == dict.fromkeys(processes, 600)
    assert len(segments(folder)) > 20


class Forked:
    """A process that appends until it is killed, and writes what was acknowledged to it into a pipe."""

    def __init__(self, folder, name, *, sync):
        self.name = name
        self._pipe, answers = os.pipe()
        self.id = os.fork()
        if self.id == 0:
            try:
                self._append(opened(folder, 64 << 10), answers, sync)
            finally:
                os._exit(1)
        os.close(answers)

    def _append(self, partition, answers, sync):
        for first in range(0, 240, 3):
            numbers = range(first, first + 3)
            drafts = [keyed([(self.name.encode(), b"%d:" % n + b"x" * (n * 41 % 600))]) for n in numbers]
            offsets = partition.append(drafts, sync=sync)
            reported = "".join(f"{offset} {number}\n" for offset, number in zip(offsets, numbers, strict=True))
            os.write(answers, reported.encode())
        signal.pause()

    def kill(self):
        os.kill(self.id, signal.SIGKILL)
        os.waitpid(self.id, 0)

    def acknowledged(self):
        with os.fdopen(self._pipe) as answers:
            return [tuple(map(int, line.split())) for line in answers.read().split("\n")[:-1]]


def kill_at_random(folder, rounds, seed):
    """Two at a time, each killed some milliseconds after its start and replaced; then one that keeps running."""
    opened(folder)
    dice = random.Random(seed)
    reported = {}
    reader = PartitionReader(opened(folder), 0, committed=True)
    seen = []
    running = [Forked(folder, f"{number}", sync=False) for number in range(2)]
    try:
        for turn in range(rounds):
            time.sleep(dice.random() * 0.02)
            killed = running.pop(0)
            killed.kill()
            reported[killed.name] = killed.acknowledged()
            running.append(Forked(folder, f"{turn + 2}", sync=turn % 3 == 0))
            seen += records_of(reader, max_bytes=1 << 20)
    finally:
        for process in running:
            process.kill()
            reported[process.name] = process.acknowledged()
    seen += drain(reader)
    opened(folder).append([keyed([(b"last", b"0:")])], sync=False)
    numbers = check(folder, {**reported, "last": [(opened(folder).end_offset() - 1, 0)]})
    assert read_all(opened(folder))[: len(seen)] == seen
    assert sum(map(len, reported.values())) > 100
    assert len(numbers) > rounds // 2


@pytest.mark.more
def test_killed_at_random_moments(folder):
    """Appenders are repeatedly killed in the middle of their work; others continue after them."""
    kill_at_random(folder, rounds=60, seed=4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_killed_at_random_moments_for_long(folder, seed, rounds):
    kill_at_random(folder, rounds=rounds(500, 50), seed=seed)


def append_in_child(partition, name, count):
    for number in range(count):
        partition.append([frame(b"%s:%d" % (name, number))], sync=False)


def test_a_handle_inherited_by_a_forked_process(folder):
    """Parent and child have the same open files; the lock must still keep them apart."""
    partition = opened(folder, 1 << 20)
    partition.append([frame(b"first:0")], sync=False)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=append_in_child, args=(partition, name, 400)) for name in (b"one", b"two")]
    for child in children:
        child.start()
    append_in_child(partition, b"parent", 400)
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    values = values_of(opened(folder))
    assert len(values) == 1201
    for name in (b"one", b"two", b"parent"):
        own = [value for value in values if value.startswith(name)]
        assert own == [b"%s:%d" % (name, number) for number in range(400)]
