"""Retention moves segments to an archive, from where they are read as if they had never left."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime

import pytest

from millstream.errors import ArchiveUnavailable, InvalidSetting, OffsetLost
from millstream.log import EmbeddedLog
from millstream.log.storage import archive, retention
from millstream.log.storage.segment import segment_names

from .processes import run

SETTINGS = {"segment_bytes": 4096, "retention_bytes": 4096}


def send(log, numbers, topic="t"):
    with log.producer() as producer:
        for number in numbers:
            producer.send(topic, f"{number:05}" + "x" * 500, timestamp=datetime.fromtimestamp(number + 1, UTC))
            producer.flush()


def numbers(log, **settings):
    with log.consumer("t", **settings) as consumer:
        return [int(record.value[:5]) for record in consumer.until_caught_up()]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "archive"


@pytest.fixture
def filled(log, root):
    log.create_topic("t", **SETTINGS, retention_archive=root)
    send(log, range(100))
    log.clean("t")
    return log


def test_a_replay_crosses_over_from_the_archive(filled, root, other):
    partition = filled.topic("t").partition(0)
    assert partition.own_start_offset() > 50
    assert len(segment_names(partition.folder)[0]) <= 2
    assert len(list(root.glob("t-*/0/*.seg"))) > 10
    for log in (filled, other):
        assert numbers(log) == list(range(100))
        assert numbers(log, start=37) == list(range(37, 100))
        assert numbers(log, start=datetime.fromtimestamp(12, UTC)) == list(range(11, 100))
        assert log.describe_topic("t").partitions[0].start_offset == 0
    send(filled, range(100, 150))
    filled.clean("t")
    assert numbers(other) == list(range(150))


@pytest.mark.parametrize("is_empty", [False, True])
def test_an_archive_that_is_away_is_reported_and_nothing_is_deleted(filled, root, is_empty):
    away = root.rename(root.with_name("away"))
    if is_empty:
        root.mkdir()  # a mount point without its file system
    with pytest.raises(ArchiveUnavailable):
        numbers(filled)
    partition = filled.topic("t").partition(0)
    own = partition.own_start_offset()
    assert numbers(filled, start=own) == list(range(own, 100))
    send(filled, range(100, 120))
    with pytest.raises(ArchiveUnavailable):
        filled.clean("t")
    assert partition.own_start_offset() == own
    if is_empty:
        root.rmdir()
    away.rename(root)
    filled.clean("t")
    assert partition.own_start_offset() > own
    assert numbers(filled) == list(range(120))


def test_what_was_deleted_without_an_archive_stays_lost(log, root):
    log.create_topic("t", **SETTINGS)
    send(log, range(50))
    log.clean("t")
    lost = log.topic("t").partition(0).own_start_offset()
    assert lost > 0
    log.change_topic("t", retention_archive=root)
    send(log, range(50, 100))
    log.clean("t")
    assert numbers(log) == list(range(lost, 100))
    with pytest.raises(OffsetLost):
        numbers(log, start=0)
    log.change_topic("t", retention_archive=None)
    own = log.topic("t").partition(0).own_start_offset()
    assert numbers(log) == list(range(own, 100))


def test_an_archive_needs_a_retention(log, root):
    with pytest.raises(InvalidSetting, match="needs a retention"):
        log.create_topic("t", retention_archive=root)


STEPS = ("copy", "begin_at", "delete")


def clean_and_die(folder, step, after):
    """Kills itself at the given step of archiving, in its `after`-th call."""
    left = [after]

    def deadly(work):
        def act(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                if step == "copy":  # in the middle of one
                    source, target = args
                    target.with_name(f".{target.name}.archiving").write_bytes(source.read_bytes()[:100])
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*args, **kwargs)

        return act

    if step == "copy":
        archive._copy = deadly(archive._copy)
    elif step == "delete":
        retention.delete = deadly(retention.delete)
    with EmbeddedLog(folder, upkeep=False) as log:
        partition = log.topic("t").partition(0)
        if step == "begin_at":
            type(partition).begin_at = deadly(type(partition).begin_at)
        log.clean("t")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [1, pytest.param(2, marks=pytest.mark.more), pytest.param(7, marks=pytest.mark.more)])
def test_a_kill_while_archiving_loses_and_doubles_nothing(log, root, step, after):
    log.create_topic("t", **SETTINGS, retention_archive=root)
    send(log, range(60))
    if step != "begin_at" or after == 1:
        assert run(clean_and_die, log.path, step, after) == -signal.SIGKILL
    assert numbers(log) == list(range(60))
    log.clean("t")
    assert numbers(log) == list(range(60))
    assert log.topic("t").partition(0).own_start_offset() > 0
    assert not list(root.glob("t-*/0/.*.archiving")) or step == "copy"


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_in_a_later_round_hides_nothing_that_was_archived_before(filled, step):
    """The archive has segments that are also still here: what is before them must be found all the same."""
    send(filled, range(100, 130))
    assert run(clean_and_die, filled.path, step, 3 if step == "copy" else 1) == -signal.SIGKILL
    with EmbeddedLog(filled.path, upkeep=False) as other:
        assert other.describe_topic("t").partitions[0].start_offset == 0
        assert numbers(other) == numbers(other, start=0) == list(range(130))
        other.clean("t")
        assert numbers(other) == list(range(130))
