"""Goal: whichever write or sync fails: a clear refusal, nothing acknowledged is lost, and a retry is stored once."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.errors import DiskFull, NoAccess, StorageError
from millstream.log.storage.disk import Disk

from .support import TINY, FailingDisk, batch, copied, frame, made, opened, read_mark, transactional, values_of


def numbered(*values, first):
    """Frames of one producer with sequence numbers, so that a retry can be distinguished from a new one."""
    return [
        made(batch([value]), producer_id=77, epoch=1, sequence=first + number) for number, value in enumerate(values)
    ]


BEFORE = [b"before" * 200, b"more" * 100]
TRIED = [b"a" * 1500, b"b" * 3000, b"c", b"d" * 5000]
AFTER = [b"after"]


def outcomes(folder, *, sync, share, code):
    """Fails an append over several segments at every call in turn; yields the refusals, checks all the rest."""
    number = 0
    while True:
        copy = copied(folder, "copy")
        disk = FailingDisk()
        partition = opened(copy, disk=disk)
        bystander = opened(copy)
        disk.calls, disk.fails_at, disk.share, disk.code = 0, number, share, code
        since = partition.end_offset()
        refused = None
        try:
            partition.append(numbered(*TRIED, first=0), sync=sync)
        except StorageError as error:
            refused = error
        if refused is None:
            assert disk.calls <= number
            return
        yield refused
        assert values_of(bystander) in (BEFORE, BEFORE + TRIED), "acknowledged records stay, others come whole"
        assert values_of(opened(copy)) in (BEFORE, BEFORE + TRIED)
        if number % 2:  # somebody else comes between
            bystander.append([frame(b"between")], sync=False)
        offsets = partition.append(numbered(*TRIED, first=0), sync=sync, tried_since=since)
        assert partition.append(numbered(*AFTER, first=4), sync=sync) == [partition.end_offset() - 1]
        found = values_of(opened(copy))
        assert [value for value in found if value != b"between"] == BEFORE + TRIED + AFTER
        assert [found[offset] for offset in offsets] == TRIED
        number += 1


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99, 1.0])
def test_a_full_disk_at_every_call(folder, sync, share):
    """No room: refused as such; after that the same append is stored exactly once, with another one in between."""
    partition = opened(folder)
    for value in BEFORE:
        partition.append([frame(value)], sync=True)
    refusals = list(outcomes(folder, sync=sync, share=share, code=errno.ENOSPC))
    assert len(refusals) >= (8 if sync else 6)
    assert all(type(refusal) is DiskFull for refusal in refusals)
    assert all("free some space" in refusal.next_step and str(folder.parent) in refusal.where for refusal in refusals)


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, StorageError), (errno.EDQUOT, DiskFull), (errno.EROFS, NoAccess)]
)
def test_other_failures_at_every_call(folder, code, kind):
    partition = opened(folder)
    for value in BEFORE:
        partition.append([frame(value)], sync=True)
    refusals = list(outcomes(folder, sync=True, share=0.5, code=code))
    assert refusals
    assert all(type(refusal) is kind for refusal in refusals)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_ending_a_transaction_on_a_failing_disk(folder, commit, share):
    """At every call: not ended or ended, never half; trying again ends it."""
    partition = opened(folder)
    partition.append([frame(b"plain"), transactional(b"inside", producer=1), frame(b"behind" * 600)], sync=True)
    ended = [b"plain", b"inside", b"behind" * 600] if commit else [b"plain", b"behind" * 600]
    number = 0
    while True:
        copy = copied(folder, "copy")
        disk = FailingDisk()
        partition = opened(copy, disk=disk)
        disk.fails_at, disk.share = number, share
        try:
            partition.end_transaction(1, 1, commit=commit)
            break
        except DiskFull:
            pass
        assert values_of(opened(copy), committed=True) in ([b"plain"], ended)
        partition.end_transaction(1, 1, commit=commit)
        assert values_of(opened(copy), committed=True) == ended
        assert read_mark(copy).open == ()
        number += 1
    assert number >= 4


def test_syncing_and_rolling_on_a_failing_disk(folder):
    """Neither changes what is stored, whichever call fails."""
    partition = opened(folder)
    for value in BEFORE:
        partition.append([frame(value)], sync=False)
    for act in ("sync", "roll"):
        number = 0
        while True:
            copy = copied(folder, "copy")
            disk = FailingDisk()
            partition = opened(copy, disk=disk)
            disk.fails_at, disk.share = number, 0.5
            try:
                getattr(partition, act)()
                break
            except DiskFull:
                number += 1
            assert values_of(opened(copy)) == BEFORE
            getattr(partition, act)()
            partition.append([frame(b"new")], sync=True)
            assert values_of(opened(copy)) == [*BEFORE, b"new"]
        assert number >= 2


def test_a_disk_that_fails_for_long_uses_up_no_files(folder):
    """Each retry reopens the segment; none of them may leave a file open behind it."""
    disk = FailingDisk()
    partition = opened(folder, disk=disk)
    partition.append([frame(b"first")], sync=False)
    (path,) = folder.glob("*.seg")
    content = path.read_bytes()
    path.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    partition = opened(folder)

    def open_files():
        links = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]  # noqa: PTH115
        return len([link for link in links if link.startswith(str(folder))])

    before = open_files()
    for _ in range(50):
        with pytest.raises(StorageError):
            partition.append([frame(b"x")], sync=True)
    assert open_files() <= before + 3


def test_an_interrupted_append_is_stored_or_not(folder):
    """Ctrl-C between the write of the mark and the return: the records are there, whole, and stay there."""

    class Interrupting(Disk):
        syncs_left = 10**6

        def sync(self, fd):
            self.syncs_left -= 1
            if self.syncs_left == 0:
                raise KeyboardInterrupt

    copies = []
    for number in range(3):
        disk = Interrupting()
        partition = opened(folder, TINY, disk=disk)
        disk.syncs_left = number + 1
        with suppress(KeyboardInterrupt):
            partition.append([frame(b"%d" % number)], sync=True)
        copies.append(values_of(opened(folder)))
        opened(folder).append([frame(b"then")], sync=False)
        assert values_of(opened(folder)) == [*copies[-1], b"then"]
