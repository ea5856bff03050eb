"""Goal: what cannot be opened as a log is refused with the reason, and a log half made is made whole."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from millstream.errors import (
    ClosedError,
    DamagedLog,
    InvalidInput,
    MillstreamError,
    NotALog,
    StorageError,
    UnsupportedFormat,
)
from millstream.log import EmbeddedLog, connect

from .processes import lines, open_and_create, start


def test_a_log_is_made_where_nothing_is_and_opened_again(tmp_path):
    for _ in range(2):
        with EmbeddedLog(tmp_path / "some" / "where") as log:
            assert log.topics() == []


@pytest.mark.parametrize("version", [0, 2, 99, None, "1"])
def test_a_log_of_another_format_is_not_touched(tmp_path, version):
    EmbeddedLog(tmp_path).close()
    (tmp_path / "millstream.json").write_text(json.dumps({"what": "a Millstream log", "format": version}))
    with pytest.raises(UnsupportedFormat, match="format"):
        EmbeddedLog(tmp_path)


@pytest.mark.parametrize("version", [2, 99, -1])
def test_a_coordinator_of_another_format_is_not_touched(tmp_path, version):
    EmbeddedLog(tmp_path).close()
    db = sqlite3.connect(tmp_path / "coordinator.sqlite")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()
    with pytest.raises(UnsupportedFormat, match=f"format {version}"):
        EmbeddedLog(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\x00\x01"])
def test_a_damaged_description_is_reported(tmp_path, content):
    EmbeddedLog(tmp_path).close()
    (tmp_path / "millstream.json").write_text(content)
    with pytest.raises(StorageError, match=r"millstream\.json"):
        EmbeddedLog(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_description_of_a_topic_is_reported(tmp_path, content):
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("t")
        (tmp_path / "topics" / "t" / "topic.json").write_text(content)
    with EmbeddedLog(tmp_path) as log, pytest.raises(StorageError, match=r"topic\.json"):
        log.describe_topic("t")


def test_a_damaged_coordinator_is_reported(tmp_path):
    EmbeddedLog(tmp_path).close()
    (tmp_path / "coordinator.sqlite").write_bytes(b"this is no database" * 1000)
    with pytest.raises(DamagedLog, match=r"coordinator\.sqlite"):
        EmbeddedLog(tmp_path)


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotALog):
            EmbeddedLog(path)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_with_other_things_in_it_stays_as_it_is(tmp_path):
    (tmp_path / "photo.jpg").write_text("mine")
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / "mine").write_text("mine")
    with pytest.raises(NotALog, match=r"photo\.jpg"):
        EmbeddedLog(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.jpg", "topics"]


def test_a_log_whose_making_was_cut_short_is_made_whole(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / "topics").mkdir()
    (tmp_path / "participants").mkdir()
    (tmp_path / ".millstream.json.123.456").write_text("{")
    with EmbeddedLog(tmp_path) as log:
        log.create_topic("t")
    (tmp_path / "coordinator.sqlite").unlink()
    (tmp_path / "coordinator.sqlite").touch()
    with EmbeddedLog(tmp_path) as log:
        assert log.groups() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_folder_without_rights(tmp_path, mode):
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("t")
    tmp_path.chmod(0o755)
    (tmp_path / "log").chmod(mode)
    script = """
import os, sys
from millstream.log import EmbeddedLog
import millstream.log.queues
os.setgid(65534)
os.setuid(65534)
try:
    EmbeddedLog(sys.argv[1])
except Exception as error:
    print(type(error).__name__)
"""
    for path in (tmp_path / "log", tmp_path / "log" / "new"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True, timeout=60
        )
        assert done.stdout == "NoAccess\n"


@pytest.mark.more
def test_many_processes_open_a_new_log_at_once(tmp_path):
    for round_number in range(5):
        folder, diary = tmp_path / f"log-{round_number}", tmp_path / f"diary-{round_number}"
        processes = [start(open_and_create, folder, diary, f"t{number}") for number in range(6)]
        for process in processes:
            process.join(60)
        assert [(process.exitcode, lines(diary)) for process in processes] == [(0, [])] * 6
        with EmbeddedLog(folder) as log:
            assert len(log.topics()) == 6


def test_a_closed_log_raises(tmp_path):
    log = EmbeddedLog(tmp_path)
    log.create_topic("t")
    log.create_queue("q", "t")
    log.close()
    log.close()
    for use in (
        lambda: log.producer(),
        lambda: log.consumer("t"),
        lambda: log.queue("q"),
        lambda: log.topic("t"),
        lambda: log.describe_topic("t"),
        lambda: log.groups(),
        lambda: log.queues(),
        lambda: log.describe_group("g"),
    ):
        with pytest.raises(ClosedError):
            use()


def test_closing_the_log_closes_what_it_made(tmp_path):
    log = EmbeddedLog(tmp_path)
    log.create_topic("t")
    log.create_queue("q", "t")
    producer, consumer, queue = log.producer(name="p"), log.consumer("t", group="g"), log.queue("q")
    log.close()
    for use in (lambda: producer.send("t", b"x"), consumer.poll, queue.receive):
        with pytest.raises(ClosedError):
            use()
    for part in (producer, consumer, queue):
        part.close()
    with EmbeddedLog(tmp_path) as again:
        assert again.describe_group("g").members == ()


def test_addresses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_BROKER", f"file://{tmp_path}/by-variable")
    with connect() as log:
        assert log.path == tmp_path / "by-variable"
    monkeypatch.delenv("MILLSTREAM_BROKER")
    with connect() as log:
        assert log.path == tmp_path / ".millstream"
    with connect(tmp_path / "by-path") as log:
        assert log.path == tmp_path / "by-path"
    with pytest.raises(InvalidInput):
        connect("ftp://somewhere")


def test_errors_name_the_place_and_the_next_step(tmp_path):
    (tmp_path / "other").touch()
    with pytest.raises(MillstreamError) as refusal:
        EmbeddedLog(tmp_path)
    assert str(tmp_path) in str(refusal.value)
    assert refusal.value.next_step


def test_a_log_opened_twice_keeps_its_offsets_when_another_process_closes_it(tmp_path):
    """Closing a descriptor of a file releases SQLite's locks on it; then the other process would remove its log."""
    look = "import sys, millstream as ms\nwith ms.connect(sys.argv[1]) as log: print(*log.groups())"

    def groups_seen() -> str:
        command = [sys.executable, "-c", look, str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    with EmbeddedLog(tmp_path) as log, EmbeddedLog(tmp_path):
        log.create_topic("t", schema="n int")
        assert groups_seen() == ""
        for group in ("a", "b"):
            with log.producer() as producer:
                producer.send("t", {"n": 1})
            with log.consumer("t", group=group) as consumer:
                assert consumer.poll(timeout=5)
                consumer.commit()
        assert groups_seen() == "a b"
