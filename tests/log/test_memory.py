"""Goal: a log in memory is a log like any other, in one process, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import InvalidInput, InvalidName, InvalidSetting
from millstream.log import EmbeddedLog, memory

pytestmark = pytest.mark.skipif(not os.path.ismount(memory.ROOT), reason="no file system in memory")
OPEN = "import millstream as ms; log = ms.connect('memory://'); log.create_topic('t'); print(log.path, flush=True); "

IN_A_THREAD = f"import threading; t = threading.Thread(target=lambda: exec({OPEN!r})); t.start(); t.join()"


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A log of its own for each test."""
    name = f"memory://{request.node.name}"
    yield name
    with ms.connect(name) as log:
        for queue in log.queues():
            log.delete_queue(queue.name)
        for topic in log.topics():
            log.delete_topic(topic)


def test_producers_groups_transactions_and_queues_work_in_memory(address: str) -> None:
    with ms.connect(address) as log:
        log.create_topic("t", partitions=2, schema="n int")
        with log.producer(name="p") as producer, producer.transaction():
            for n in range(10):
                producer.send("t", {"n": n}, key=str(n))
        with log.consumer("t", group="g") as consumer:
            assert sorted(record.value["n"] for record in consumer.until_caught_up()) == list(range(10))
            consumer.commit()
        assert log.describe_group("g").lag == 0
        log.create_queue("q", "t", start="earliest")
        with log.queue("q") as queue:
            message = queue.receive(timeout=10)
            assert message is not None
            message.acknowledge()


def test_an_address_means_one_log_as_long_as_the_process_lives(address: str) -> None:
    with ms.connect(address) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"kept")
    with ms.connect(address) as again, again.consumer("t") as consumer:
        assert [record.value for record in consumer.until_caught_up()] == [b"kept"]
    with ms.connect(f"{address}-other") as other:
        assert other.topics() == []


def test_it_is_on_no_disk_and_private(address: str) -> None:
    with ms.connect(address) as log:
        assert isinstance(log, EmbeddedLog)
        assert log.path.is_relative_to(memory.ROOT)
        assert log.path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.more
def test_flows_are_previewed_on_it(address: str) -> None:
    with ms.connect(address) as log:
        log.create_topic("scores", schema="team string, score int")
        with log.producer() as producer:
            for score in (1, 2, 3):
                producer.send("scores", {"team": "x", "score": score})
    flow = ms.Flow("sums", log=address)
    sums = flow.read("scores").group_by("team").agg(total=ms.sum("score"))
    assert sums.preview(seconds=5)["total"].to_list()[-1] == 6


def test_an_event_store_is_kept_in_memory(address: str) -> None:
    with ms.event_store(address, "carts") as store:
        store.append("cart-1", ms.Event("ItemAdded", {"item": "tea"}), expected_version=0)
    with ms.event_store(address, "carts") as store:
        assert [event.data for event in store.read("cart-1")] == [{"item": "tea"}]


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_it_ends_with_its_process_and_that_of_a_killed_one_with_the_next() -> None:
    killed = python(OPEN + "input()")
    try:
        left = folder_of(killed).parent
        assert left.is_dir()
        living = python(OPEN)  # must leave the log of the other alone
        ended = folder_of(living).parent
        assert living.wait(60) == 0
        assert left.is_dir()
        assert ended != left
        assert not ended.exists()
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    after = python(OPEN)
    assert folder_of(after).parent != left
    assert after.wait(60) == 0
    assert not left.exists()


def test_a_name_must_not_leave_the_folder() -> None:
    with pytest.raises(InvalidName):
        ms.connect("memory://../other")


def test_a_machine_without_such_a_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    monkeypatch.setattr(memory, "_place", memory._Place())
    with pytest.raises(InvalidSetting, match="no file system in memory"):
        ms.connect("memory://")


def test_commands_refuse_it() -> None:
    from millstream.cli.session import Session

    with pytest.raises(InvalidInput, match="one process"), Session("memory://", json=False).log(create=True):
        pass


@pytest.mark.parametrize("code", [OPEN, IN_A_THREAD])
def test_a_program_ends_without_messages(code: str) -> None:
    """The lock that shows that its folder is in use is held until the end."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == ""
