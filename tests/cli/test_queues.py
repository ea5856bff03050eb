"""Goal: a message is acknowledged when its work is done, and only then."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog

from .conftest import Run, start


@pytest.fixture
def queue(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("jobs", schema="id int")
    with log.producer() as producer:
        for n in range(3):
            producer.send("jobs", {"id": n}, f"k{n}")
    log.create_queue("work", "jobs", max_tries=2)
    return log


def test_queues_are_created_listed_and_deleted(ms: Run, queue: EmbeddedLog) -> None:
    created = ms(
        *("queues", "create", "mails", "--topic", "jobs", "--timeout", "5 minutes", "--max-tries", 3),
        *("--dead-letters", "bad-mails", "--max-in-flight", 7, "--from", "latest", "--json"),
    )
    assert created.json["settings"] == {
        "timeout": "5 minutes",
        "max_tries": 3,
        "dead_letters": "bad-mails",
        "max_in_flight": 7,
        "start": "latest",
    }
    assert [info["name"] for info in ms("queues", "list", "--json").json] == ["mails", "work"]
    assert ms("queues", "create", "mails", "--topic", "jobs").code == 4
    assert ms("queues", "delete", "mails").code == 0
    assert ms("queues", "describe", "mails").code == 3
    assert "waiting:       3\n" in ms("queues", "describe", "work").out


def test_printed_messages_are_acknowledged(ms: Run, queue: EmbeddedLog) -> None:
    assert ms("queues", "receive", "work", "--ack").out == '{"id":0}\n'
    rest = [json.loads(line) for line in ms("queues", "receive", "work", "--ack", "--max", 0, "--json").lines]
    assert [(message["value"]["id"], message["key"], message["tries"]) for message in rest] == [
        (1, "k1", 1),
        (2, "k2", 1),
    ]
    assert ms("queues", "receive", "work", "--ack").out == ""
    assert queue.describe_queue("work").acknowledged == 3


def test_looking_at_messages_returns_them_and_counts_as_a_try(ms: Run, queue: EmbeddedLog) -> None:
    assert len(ms("queues", "receive", "work", "--max", 5).lines) == 3
    assert queue.describe_queue("work").waiting == 3
    again = [json.loads(line) for line in ms("queues", "receive", "work", "--max", 5, "--json").lines]
    assert [message["tries"] for message in again] == [2, 2, 2]
    assert queue.describe_queue("work").dead == 3


def test_commands_acknowledge_with_exit_code_0(process: Run, queue: EmbeddedLog, tmp_path: Path) -> None:
    """Method: the command fails for one message, whose tries are then used up."""
    out = tmp_path / "out"
    command = f'read line; echo "$MILLSTREAM_KEY $MILLSTREAM_TRIES $line" >> {out}; test "$MILLSTREAM_OFFSET" != 1'
    done = process("queues", "receive", "work", "--exec", command, "--max", 0, "--json")
    assert (done.code, done.json) == (6, {"queue": "work", "acknowledged": 2, "refused": 2})
    assert sorted(out.read_text().splitlines()) == [
        'k0 1 {"id":0}',
        'k1 1 {"id":1}',
        'k1 2 {"id":1}',
        'k2 1 {"id":2}',
    ]
    info = queue.describe_queue("work")
    assert (info.acknowledged, info.dead, info.waiting) == (2, 1, 0)
    with queue.consumer("work.dead") as consumer:
        [letter] = consumer.until_caught_up()
    assert "exit code 1" in letter.value["reason"]


def test_a_command_that_succeeds_is_not_a_failure(process: Run, queue: EmbeddedLog) -> None:
    done = process("queues", "receive", "work", "--exec", "cat", "--max", 2)
    assert (done.code, done.out) == (0, '{"id":0}{"id":1}')
    assert done.err == "acknowledged 2, rejected 0\n"


def test_a_slow_command_keeps_its_message(process: Run, queue: EmbeddedLog) -> None:
    queue.create_queue("quick", "jobs", timeout="600 milliseconds")
    done = process("queues", "receive", "quick", "--exec", "sleep 1.5")
    assert (done.code, done.err) == (0, "acknowledged 1, rejected 0\n")


@pytest.mark.parametrize(
    ("key", "reason"),
    [(b"k" * 200_000, "the key has 200,000 bytes"), (b"a\0b", "the key has a NUL character")],
    ids=["long", "NUL"],
)
def test_a_key_that_no_command_can_be_given_is_a_dead_letter(
    process: Run, log: EmbeddedLog, key: bytes, reason: str
) -> None:
    log.create_topic("jobs")
    with log.producer() as producer:
        for each in (b"first", key, b"last"):
            producer.send("jobs", b"value\n", each)
    log.create_queue("work", "jobs", max_tries=3)
    done = process("queues", "receive", "work", "--exec", 'cat; echo "$MILLSTREAM_KEY"', "--max", 0)
    assert (done.code, done.err) == (6, "acknowledged 2, rejected 1\n")
    assert done.out.splitlines() == ["value", "first", "value", "last"]
    with log.consumer("work.dead") as letters:
        [letter] = [record.value for record in letters.until_caught_up()]
    assert (letter["value"], letter["offset"]) == (b"value\n", 1)
    assert reason in letter["reason"]


def test_exec_and_ack_do_not_go_together(ms: Run, queue: EmbeddedLog) -> None:
    assert ms("queues", "receive", "work", "--exec", "true", "--ack").code == 2


def test_waiting_ends(ms: Run, queue: EmbeddedLog) -> None:
    ms("queues", "receive", "work", "--ack", "--max", 3)
    began = time.monotonic()
    assert ms("queues", "receive", "work", "--wait", "0.3").code == 0
    assert 0.3 <= time.monotonic() - began < 3


def test_ctrl_c_gives_the_message_back(queue: EmbeddedLog, tmp_path: Path) -> None:
    began = tmp_path / "began"
    with start("queues", "receive", "work", "--exec", f"touch {began}; exec sleep 60", "--follow") as worker:
        while not began.exists():
            time.sleep(0.02)
        worker.send_signal(signal.SIGINT)
        worker.communicate(timeout=20)
    assert worker.returncode == 130
    with queue.queue("work") as other:
        assert len(other.receive_many(5)) == 3


def test_a_queue_that_cannot_wait_longer_says_so_once(
    ms: Run, queue: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one on Kafka: the command continues, and what it did in time counts. Method: waits that end at once."""
    waits: list[float | None] = []
    ended = subprocess.Popen.communicate

    def communicate(process: subprocess.Popen[bytes], content: bytes | None, timeout: float | None) -> object:
        waits.append(timeout)
        if len(waits) < 3:
            raise subprocess.TimeoutExpired("", timeout or 0)
        return ended(process)

    def refused(*_: object) -> None:
        raise InvalidInput("the time of a message cannot be extended", next_step="make it longer")

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    monkeypatch.setattr("millstream.log.queues.Queue.extend", refused)
    done = ms("queues", "receive", "work", "--exec", "true")
    assert (done.code, waits) == (0, [10.0] * 3)
    assert done.err.count("warning: the time of a message cannot be extended") == 1
    assert "acknowledged 1, rejected 0" in done.err
