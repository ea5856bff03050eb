"""Goal: a really full disk raises a clear error, nothing acknowledged is lost, and with room work continues."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from millstream.errors import DiskFull
from millstream.log.storage.compaction import compact
from millstream.log.storage.retention import delete_old
from small_disk import fill as fill_disk
from small_disk import mounted

from .support import frame, keyed, opened, read_all, values_of


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "small", "1m") as place:
        yield place


def fill(partition, *, sync):
    """Appends until the disk is full; returns what was acknowledged."""
    stored = []

    def store_more():
        while True:
            value = (b"%06d" % len(stored) * 2000)[: 1 + len(stored) * 997 % 12_000]
            partition.append([frame(value, times=[len(stored)])], sync=sync)
            stored.append(value)
            assert len(stored) < 10_000

    with pytest.raises(DiskFull) as refused:
        store_more()
    assert "free some space" in refused.value.next_step
    return stored


@pytest.mark.parametrize("sync", [True, False])
def test_a_full_disk_and_room_again(small_disk, sync):
    """Full, then more refusals of all sizes, then room from outside, then full again, then room by retention."""
    folder = small_disk / "0"
    partition = opened(folder, 64 << 10)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    stored = fill(partition, sync=sync)
    for size in (200_000, 50_000, 20_000):
        with pytest.raises(DiskFull):
            partition.append([frame(b"x" * size)], sync=sync)
        with pytest.raises(DiskFull):
            opened(folder, 64 << 10).append([frame(b"x" * size), frame(b"y")], sync=sync)
    assert values_of(partition) == values_of(opened(folder)) == stored
    ballast.unlink()
    offset = partition.append([frame(b"there is room")], sync=sync)
    assert offset == [len(stored)]
    stored.append(b"there is room")
    stored += fill(partition, sync=sync)
    assert values_of(opened(folder)) == stored
    assert delete_old(partition, None, bytes_max=500_000)
    start = partition.start_offset()
    partition.append([frame(b"end")], sync=sync)
    assert [record[1:] for record in read_all(opened(folder), start)] == [
        record[1:] for record in read_all(partition, start)
    ]
    assert values_of(opened(folder), start) == [*stored[start:], b"end"]


def test_compaction_without_room_leaves_everything_as_it_was(small_disk):
    """The new file does not fit: refused, nothing lost, and compacted later when there is room."""
    folder = small_disk / "0"
    partition = opened(folder, 64 << 10)
    for number in range(60):
        partition.append([keyed([(b"%d" % (number % 40), b"%d" % number * 3000)])], sync=False)
    before = read_all(partition)
    partition.roll()
    ballast = fill_disk(small_disk)
    with pytest.raises(DiskFull):
        compact(partition, tombstones_before_us=0)
    assert read_all(opened(folder)) == before
    ballast.unlink()
    assert compact(partition, tombstones_before_us=0)
    assert {record.key: record for record in read_all(opened(folder))} == {record.key: record for record in before}


LIMITED = """
    import resource, sys
    from pathlib import Path
    from millstream.errors import DiskFull
    from tests_support import *

    folder = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    partition = opened(folder, 1 << 20)
    stored = 0
    try:
        while True:
            partition.append([frame(b"%06d" % stored * 50)], sync=False)
            stored += 1
    except DiskFull as error:
        assert "free some space" in error.next_step
    for _ in range(3):
        try:
            partition.append([frame(b"small"), frame(b"x" * 5000)], sync=True)
        except DiskFull:
            pass
        else:
            raise AssertionError("there was no room for it")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    partition.append([frame(b"room again")], sync=True)
    print(stored)
"""


def test_a_limit_on_the_size_of_files(folder):
    """Works for every user: the system refuses to let a file grow in a process of its own, then allows it again."""
    here = Path(__file__).parent
    script = textwrap.dedent(LIMITED).replace("tests_support", f"{__package__}.support")
    package_home = here.parents[__package__.count(".")]
    paths = [str(package_home), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count = int(done.stdout)
    assert count > 20
    assert values_of(opened(folder)) == [b"%06d" % number * 50 for number in range(count)] + [b"room again"]
