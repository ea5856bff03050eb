"""Retention moves segments to an object store, on a real server that speaks S3; one that is away loses nothing."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from millstream.errors import ArchiveUnavailable, InvalidInput
from millstream.log import EmbeddedLog
from millstream.log.storage.segment import segment_names
from millstream.remote_folders import RemoteFolder

from .archive_kills import check_kills
from .test_archive import SETTINGS, numbers, send

AWAY = "http://127.0.0.1:1"


@pytest.fixture
def root(s3, monkeypatch):
    for name, value in s3.settings.items():
        monkeypatch.setenv(name, value)
    return f"s3://tests/archive-{uuid.uuid4().hex}"


@pytest.fixture
def filled(log, root):
    log.create_topic("t", **SETTINGS, retention_archive=root)
    send(log, range(60))
    log.clean("t")
    return log


@pytest.mark.more
def test_a_replay_crosses_over_from_the_object_store(filled, root, other):
    partition = filled.topic("t").partition(0)
    assert partition.own_start_offset() > 30
    assert len(segment_names(partition.folder)[0]) <= 2
    for log in (filled, other):
        assert numbers(log) == list(range(60))
        assert numbers(log, start=37) == list(range(37, 60))
        assert numbers(log, start=datetime.fromtimestamp(12, UTC)) == list(range(11, 60))
        assert log.describe_topic("t").partitions[0].start_offset == 0
    send(filled, range(60, 90))
    filled.clean("t")
    assert numbers(other) == list(range(90))
    with EmbeddedLog(filled.path, upkeep=False) as next_process:
        assert numbers(next_process) == list(range(90))


@pytest.mark.more
def test_a_store_that_is_away_is_named_and_nothing_is_lost(filled, root, monkeypatch):
    own = filled.topic("t").partition(0).own_start_offset()
    send(filled, range(60, 80))
    with monkeypatch.context() as patch, EmbeddedLog(filled.path, upkeep=False) as cut_off:
        patch.setenv("AWS_ENDPOINT_URL", AWAY)
        with pytest.raises(ArchiveUnavailable) as raised:
            numbers(cut_off)
        assert raised.value.where == root
        assert numbers(cut_off, start=own) == list(range(own, 80))
        with pytest.raises(ArchiveUnavailable):
            cut_off.clean("t")
        assert cut_off.topic("t").partition(0).own_start_offset() == own
    filled.clean("t")
    assert filled.topic("t").partition(0).own_start_offset() > own
    assert numbers(filled) == list(range(80))


@pytest.mark.more
def test_an_emptied_bucket_is_not_taken_for_an_archive_without_segments(filled, root):
    RemoteFolder(root).delete(".millstream-archive")
    with EmbeddedLog(filled.path, upkeep=False) as other, pytest.raises(ArchiveUnavailable, match="no object"):
        numbers(other)


@pytest.mark.more
def test_a_bucket_that_does_not_exist_is_refused_when_the_topic_is_created(log, root):
    with pytest.raises(ArchiveUnavailable, match="no bucket"):
        log.create_topic("t", **SETTINGS, retention_archive="s3://missing/archive")
    assert log.topics() == []


def test_an_unknown_kind_of_address_is_refused(log):
    with pytest.raises(InvalidInput, match="ftp://"):
        log.create_topic("t", **SETTINGS, retention_archive="ftp://host/archive")


@pytest.mark.more
def test_kills_while_archiving_lose_and_double_nothing(log, root, s3):
    """In the first and a later piece of an upload, between two uploads and what follows, and between deletions."""
    log.create_topic("t", **SETTINGS, retention_archive=root)
    check_kills(log, [("write", 1), ("write", 11), ("begin_at", 1), ("delete", 2), ("write", 21)], s3.settings)


@pytest.mark.more
def test_an_upload_that_fails_leaves_no_part_of_a_segment(filled, root, monkeypatch):
    """Closing the stream would complete the object with what it has."""
    before = {about.path for about in RemoteFolder(root).listed()}
    send(filled, range(60, 80))

    with monkeypatch.context() as patch:
        patch.setattr("millstream.remote_folders.CHUNK_BYTES", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            filled.clean("t")
    assert {about.path for about in RemoteFolder(root).listed()} == before
    filled.clean("t")
    assert numbers(filled) == list(range(80))


class Interrupting:
    """The size of a piece: an interrupt comes before the second one is read."""

    asked = 0

    def __index__(self):
        self.asked += 1
        if self.asked == 2:
            raise KeyboardInterrupt
        return 700
