"""Retention moves segments to a real HDFS, from where they are read back; one that is away loses nothing."""

from __future__ import annotations

import pytest

from hdfs_server import HdfsServer
from millstream.errors import ArchiveUnavailable
from millstream.log import EmbeddedLog

from .archive_kills import check_kills
from .test_archive import SETTINGS, numbers, send


@pytest.mark.more
def test_a_replay_crosses_over_from_hdfs(log, other, monkeypatch):
    with HdfsServer() as server:
        for name, value in server.settings.items():
            monkeypatch.setenv(name, value)
        log.create_topic("t", **SETTINGS, retention_archive=f"{server.address}/archive")
        send(log, range(60))
        log.clean("t")
        own = log.topic("t").partition(0).own_start_offset()
        assert own > 30
        assert numbers(log) == numbers(other) == list(range(60))
        send(log, range(60, 80))
    with EmbeddedLog(log.path, upkeep=False) as cut_off:
        with pytest.raises(ArchiveUnavailable):
            numbers(cut_off)
        with pytest.raises(ArchiveUnavailable):
            cut_off.clean("t")
        assert numbers(cut_off, start=own) == list(range(own, 80))


@pytest.mark.more
def test_kills_while_archiving_lose_and_double_nothing(log, monkeypatch):
    """HDFS shows a file while it is written: a part of a segment must never be taken for one."""
    with HdfsServer() as server:
        for name, value in server.settings.items():
            monkeypatch.setenv(name, value)
        log.create_topic("t", **SETTINGS, retention_archive=f"{server.address}/archive")
        check_kills(log, [("put", 3), ("put", 14), ("move", 2), ("begin_at", 1), ("delete", 2)], server.settings)
