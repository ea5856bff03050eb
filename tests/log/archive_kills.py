"""Processes that archive to a remote folder and kill themselves in the middle, and what must be true afterwards."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from typing import Any

from millstream import remote_folders
from millstream.log import EmbeddedLog
from millstream.log.storage import retention
from millstream.remote_folders import RemoteFolder
from millstream.webhdfs import WebHdfs

from .processes import run
from .test_archive import numbers, send

PIECE_BYTES = 700  # of an upload: a segment has several


class Countdown:
    """The process dies when it is called for the n-th time."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Watched:
    """An object that counts before one of its methods is called, or in files that another returns."""

    def __init__(self, watched: Any, method: str, count: Countdown) -> None:
        self._watched, self._method, self._count = watched, method, count

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._watched, name)
        if name == self._method:
            return lambda *args: (self._count(), found(*args))[1]
        if name == "open_output_stream":
            return lambda *args: Watched(found(*args), self._method, self._count)
        return found

    def __enter__(self) -> Watched:
        self._watched.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._watched.__exit__(*raised)


class Slow:
    """A file that is sent in small pieces."""

    def __init__(self, file: Any, count: Countdown) -> None:
        self._file, self._count = file, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int) -> Any:
        self._count()
        return self._file.read(min(size, PIECE_BYTES))


def archive_and_die(folder: str, step: str, after: int, settings: dict[str, str]) -> None:
    """Dies at a step of archiving: in an upload, before a rename, before the start is moved, before a deletion."""
    os.environ.update(settings)  # the server that it is forked from may be older than they are
    count = Countdown(after)
    remote_folders.CHUNK_BYTES = PIECE_BYTES
    if step in ("write", "move"):
        files = RemoteFolder.files.fget  # type: ignore[attr-defined]
        RemoteFolder.files = property(lambda self: Watched(files(self), step, count))  # type: ignore[assignment]
    elif step == "put":
        put = WebHdfs.put
        WebHdfs.put = lambda self, path, content: put(self, path, Slow(content, count))  # type: ignore[method-assign]
    elif step == "delete":
        delete = retention.delete
        retention.delete = lambda name: (count(), delete(name))[1]  # type: ignore[attr-defined, assignment]
    with EmbeddedLog(folder, upkeep=False) as log:
        partition = log.topic("t").partition(0)
        if step == "begin_at":
            begin_at = partition.begin_at
            partition.begin_at = lambda offset: (count(), begin_at(offset))[1]  # type: ignore[method-assign, assignment]
        log.clean("t")


def check_kills(log: EmbeddedLog, kills: list[tuple[str, int]], settings: dict[str, str], each: int = 30) -> None:
    """Sends, archives, dies, and reads everything from the beginning and from a time, again and again."""
    sent = 0
    for step, after in kills:
        send(log, range(sent, sent + each))
        sent += each
        assert run(archive_and_die, log.path, step, after, settings) == -signal.SIGKILL
        check(log, sent)
    log.clean("t")
    check(log, sent)
    assert log.topic("t").partition(0).own_start_offset() > sent - each


def check(log: EmbeddedLog, sent: int) -> None:
    with EmbeddedLog(log.path, upkeep=False) as other:
        assert numbers(other) == list(range(sent))
        assert numbers(other, start=datetime.fromtimestamp(sent - 10, UTC)) == list(range(sent - 11, sent))
        assert other.describe_topic("t").partitions[0].start_offset == 0
