"""Goal: nobody but its owner, or the group it is shared with, can read, freeze or change a log or a job's folder.

Method: look at the rights of every file after all kinds of use under a wide umask, and try as another user.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from contextlib import suppress

import pytest

from millstream.errors import InvalidInput, InvalidSetting, MillstreamError, NoAccess
from millstream.log import EmbeddedLog, connect

from .processes import lines, open_and_create, start

SHARED = "12345"  # no such group is needed: a number will do
AS_ROOT = os.geteuid() == 0

AS_ANOTHER = """
import os, sys
import pyarrow.compute  # before the rights to read it may be gone
from millstream.log import EmbeddedLog
import millstream.log.queues
path, group, umask = sys.argv[1], int(sys.argv[2]), int(sys.argv[3], 8)
os.setgroups([])
os.setgid(group)
os.setuid(23456)
os.umask(umask)
try:
    with EmbeddedLog(path, upkeep=False) as log:
        with log.producer(name="other") as producer, producer.transaction():
            producer.send("t", b"of another")
        log.create_topic("other")
        with log.consumer("t", group="g") as consumer:
            print(len(list(consumer.until_caught_up())))
            consumer.commit()
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture(autouse=True)
def wide_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(path.lstat().st_mode)


def use(log):
    """Everything that makes files."""
    log.create_topic("t", segment_bytes="4 KiB")
    log.create_topic("kept", compaction=True, segment_bytes="4 KiB")
    with log.producer() as producer:
        for number in range(300):
            producer.send("kept", b"x" * 50, key=f"{number % 7}")
            if number % 20 == 0:
                producer.flush()
    with log.producer(name="p") as producer:
        with suppress(InterruptedError), producer.transaction():
            producer.send("t", b"x")
            producer.flush()
            raise InterruptedError
        with producer.transaction():
            producer.send("t", b"y")
    log.change_topic("t", partitions=2)
    log.switch("name", "t")
    log.create_queue("q", "t")
    with log.queue("q") as queue, log.consumer("t", group="g") as consumer:
        queue.receive()
        consumer.poll(1.0)
    log.clean("kept")
    log.repair_topic("t")


def rights(folder):
    """The modes of all folders, and of all files."""
    everything = [folder, *folder.rglob("*")]
    return {mode_of(path) for path in everything if path.is_dir()}, {
        mode_of(path) for path in everything if not path.is_dir()
    }


def as_another(path, group=23456, umask="022"):
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, str(path), str(group), umask],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.parametrize("umask", [0, 0o022, 0o277])
def test_a_log_is_for_its_owner_alone_whatever_the_umask(tmp_path, umask):
    os.umask(umask)
    with EmbeddedLog(tmp_path / "log") as log:
        use(log)
        names = {path.name for path in log.path.rglob("*")}
        assert {"coordinator.sqlite-wal", "coordinator.sqlite-shm", "aborted", "switches.json", "lock"} <= names
        assert rights(log.path) == ({0o700}, {0o600})


@pytest.mark.skipif(not AS_ROOT, reason="only root can name a group it is no member of")
@pytest.mark.parametrize("umask", [0, 0o077])
def test_a_shared_log_is_for_its_group_whatever_the_umask(tmp_path, umask):
    os.umask(umask)
    with EmbeddedLog(tmp_path / "log", shared_group=SHARED) as log:
        use(log)
        assert rights(log.path) == ({0o2770}, {0o660})
        assert {path.lstat().st_gid for path in [log.path, *log.path.rglob("*")]} == {int(SHARED)}


@pytest.mark.skipif(not AS_ROOT, reason="only root can become another user")
def test_only_members_of_the_group_can_use_a_shared_log(tmp_path):
    tmp_path.chmod(0o755)
    with connect(tmp_path / "log", shared_group=SHARED) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"mine")
    assert json.loads((tmp_path / "log" / "millstream.json").read_text())["shared_group"] == SHARED
    assert as_another(tmp_path / "log") == "NoAccess"
    assert as_another(tmp_path / "log", int(SHARED), "077") == "2"
    with connect(tmp_path / "log") as log:  # what the other made can be used here
        assert log.topics() == ["other", "t"]
        with log.producer(name="other") as producer, producer.transaction():
            producer.send("other", b"mine")
        assert log.describe_group("g").partitions[0].next_offset == 2
    assert rights(tmp_path / "log") == ({0o2770}, {0o660})
    assert as_another(tmp_path / "log", int(SHARED)) == "AlreadyExists"


@pytest.mark.skipif(not AS_ROOT, reason="only root can become another user")
def test_a_private_log_can_neither_be_read_nor_frozen_by_others(tmp_path):
    tmp_path.chmod(0o755)
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("t")
    assert as_another(tmp_path / "log") == "NoAccess"
    (tmp_path / "log").chmod(0o755)  # nor by what lies inside
    assert as_another(tmp_path / "log") == "NoAccess"
    assert {mode_of(path) & 0o077 for path in (tmp_path / "log").rglob("*")} == {0}


@pytest.mark.skipif(not AS_ROOT, reason="only root can name a group it is no member of")
def test_an_existing_log_is_shared_by_its_owner_on_request(tmp_path):
    with EmbeddedLog(tmp_path / "log") as log:
        use(log)
    with EmbeddedLog(tmp_path / "log", shared_group=SHARED) as log:
        assert rights(log.path) == ({0o2770}, {0o660})
        log.create_topic("later")
        assert rights(log.path) == ({0o2770}, {0o660})
    os.chown(tmp_path / "log", 23456, -1)
    (tmp_path / "log").chmod(0o2770)
    with pytest.raises(NoAccess, match="only the owner"):
        EmbeddedLog(tmp_path / "log", shared_group="12346")


@pytest.mark.skipif(not AS_ROOT, reason="only root can name a group it is no member of")
def test_sharing_a_log_changes_nothing_outside_of_it(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    outside.chmod(0o600)
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("t")
        (log.path / "topics" / "t" / "planted").symlink_to(outside)
        (log.path / "topics" / "t" / "linked").hardlink_to(outside)
    EmbeddedLog(tmp_path / "log", shared_group=SHARED).close()
    assert (mode_of(outside), outside.stat().st_gid) == (0o600, os.getgid())


def test_a_group_that_does_not_exist_is_refused_and_nothing_is_made(tmp_path):
    with pytest.raises(InvalidSetting, match="no group 'nobody-has-it'"):
        EmbeddedLog(tmp_path / "log", shared_group="nobody-has-it")
    assert not (tmp_path / "log").exists()
    with pytest.raises(InvalidInput, match="Kafka"):
        connect("kafka://localhost:1", shared_group="users")


def test_a_log_of_an_older_version_that_others_can_read_is_closed_with_a_warning(tmp_path, caplog):
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("t")
    for path in [tmp_path / "log", *(tmp_path / "log").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    with caplog.at_level(logging.WARNING):
        EmbeddedLog(tmp_path / "log").close()
    assert mode_of(tmp_path / "log") == 0o700
    assert "could read the log" in caplog.text
    assert "--shared-group" in caplog.text
    caplog.clear()
    EmbeddedLog(tmp_path / "log").close()
    assert caplog.text == ""


def test_a_log_that_others_can_write_stays_open_but_its_owner_is_warned(tmp_path, caplog):
    EmbeddedLog(tmp_path / "log").close()
    (tmp_path / "log").chmod(0o775)
    with caplog.at_level(logging.WARNING):
        EmbeddedLog(tmp_path / "log").close()
    assert mode_of(tmp_path / "log") == 0o775
    assert f"chmod 700 {tmp_path / 'log'}" in caplog.text


def test_an_empty_folder_that_becomes_a_log_is_closed_and_one_with_other_things_is_left_alone(tmp_path):
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    (tmp_path / "full" / "photo.jpg").write_text("mine")
    EmbeddedLog(tmp_path / "empty").close()
    with pytest.raises(MillstreamError, match="not a log"):
        EmbeddedLog(tmp_path / "full")
    assert (mode_of(tmp_path / "empty"), mode_of(tmp_path / "full")) == (0o700, 0o755)


def test_processes_that_open_a_new_log_at_once_agree_on_its_rights(tmp_path):
    processes = [start(open_and_create, tmp_path / "log", tmp_path / "diary", f"t{number}") for number in range(4)]
    for process in processes:
        process.join(60)
    assert [(process.exitcode, lines(tmp_path / "diary")) for process in processes] == [(0, [])] * 4
    folders, files = rights(tmp_path / "log")
    assert (folders, files) == ({0o700}, {0o600})
