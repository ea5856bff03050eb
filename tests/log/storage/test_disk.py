"""Goal: writes are whole or refused in clear words; a lock is held by one; files are replaced at once."""

import errno
import os
import threading
from pathlib import Path

import pytest

from millstream.errors import DiskFull, NoAccess, NotALog, StorageError
from millstream.log.storage import partition as partitions
from millstream.log.storage.disk import Disk, FileLock, read_document, storage_error, storage_errors, write_document
from millstream.log.storage.retention import delete_old

from .support import SCHEMA, frame, opened, segments


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EFBIG, DiskFull),
        (errno.EACCES, NoAccess),
        (errno.EROFS, NoAccess),
        (errno.ENOTDIR, NotALog),
        (errno.EIO, StorageError),
    ],
)
def test_system_errors_become_errors_with_a_path_and_a_next_step(code, kind):
    made = storage_error(OSError(code, os.strerror(code)), Path("/some/place"))
    assert type(made) is kind
    assert made.where == "/some/place"
    assert made.next_step


def test_other_errors_pass_as_they_are(tmp_path):
    with pytest.raises(ZeroDivisionError), storage_errors(tmp_path):
        raise ZeroDivisionError


def test_a_write_of_several_buffers_is_one_piece(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    Disk().write(fd, [b"one", b"", memoryview(b"two"), bytearray(b"three")], 5)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"onetwothree"


def test_a_document_is_replaced_and_leaves_no_draft(tmp_path):
    path = tmp_path / "document.json"
    for number in range(3):
        write_document(path, {"number": number})
        assert read_document(path) == {"number": number}
    assert [file.name for file in tmp_path.iterdir()] == ["document.json"]
    with pytest.raises(TypeError):
        write_document(path, {"number": object()})
    assert read_document(path) == {"number": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["document.json"]


def test_a_lock_is_held_by_one_thread_and_one_handle(tmp_path):
    """Within a thread it may be taken again; another thread or another handle does not get it meanwhile."""
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    tried = []

    def attempt(wanted):
        with wanted.attempt() as free:
            tried.append(free)

    with lock:
        with lock:
            for wanted in (lock, other):
                thread = threading.Thread(target=attempt, args=(wanted,))
                thread.start()
                thread.join()
        attempt(other)
    attempt(other)
    with other.attempt() as free:
        tried.append(free)
        attempt(lock)
    assert tried == [False, False, False, True, True, False]


def test_a_new_partition_is_durable_before_anything_is_promised(folder):
    """Every file of it is synced: what is acknowledged later relies on names and headers that survive the machine."""
    synced = set()

    class Watching(Disk):
        def sync(self, fd):
            synced.add(Path(f"/proc/self/fd/{fd}").readlink().name)
            super().sync(fd)

    partitions.create(folder, SCHEMA, Watching())
    assert synced == {f"{0:020}.seg", "mark.new"}


def test_the_size_of_a_partition_whose_files_are_being_deleted(folder):
    """A file listed and then deleted counts for nothing; the size is never an error."""
    partition = opened(folder)
    done = threading.Event()
    sizes = []

    def look():
        while not done.is_set():
            sizes.append(partition.size_bytes())

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(400):
        partition.append([frame(b"x" * 3000, times=[number])], sync=False)
        if number % 20 == 19:
            delete_old(opened(folder), number - 1, None)
    done.set()
    looking.join()
    assert sizes
    assert partition.size_bytes() == sum(path.stat().st_size for path in segments(folder))
