"""An archive in an object store or HDFS: segments are uploaded whole, and copied to this machine to be read.

The name of a segment there also has its newest timestamp, so that a time is found without reading all of them. What was
listed once stays: archived segments never change.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from millstream.errors import NotFound
from millstream.log.storage.archive import MARK, archived, away, start_of, with_offset
from millstream.log.storage.segment import Segment, SegmentName, delete
from millstream.remote_folders import RemoteFolder, error_text
from millstream.secrets import shown_address

COPIES_MAX = 4  # segments of a partition that are kept here to be read; one that is mapped lives on without its name
STORED = re.compile(r"(\d{20})-(\d{20})\.(-?\d+)\.seg")


@contextmanager
def _failures(address: str) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise away(shown_address(address), error.what) from error
    except (OSError, pa.ArrowException) as error:
        raise away(shown_address(address), error_text(error)) from error


def prepare(address: str) -> None:
    """Marks an archive as one; the bucket must exist."""
    folder = RemoteFolder(address)
    with _failures(address):
        folder.check()
        if folder.about(MARK) is None:
            folder.write(MARK, b"an archive of Millstream\n")


class RemoteArchive:
    def __init__(self, address: str, below: str) -> None:
        self._address = address
        self._root = RemoteFolder(address)
        self._below = below
        self._newest: dict[SegmentName, int] = {}  # as listed last
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self._used: OrderedDict[SegmentName, None] = OrderedDict()  # the copies, the last used at the end
        self._turn = threading.Lock()

    def start(self, live: int) -> int:
        names = sorted(self._newest)
        if not names or names[-1].end != live:  # archived since, perhaps by another process
            names = self._names()
        return start_of(names, live)

    def find(self, offset: int) -> SegmentName | None:
        found = with_offset(sorted(self._newest), offset) or with_offset(self._names(), offset)
        return None if found is None else self._copied(found)

    def since(self, timestamp: int, live: int) -> Iterator[SegmentName]:
        for name in archived(self._names(), live):
            if self._newest[name] >= timestamp:
                yield self._copied(name)

    def store(self, name: SegmentName, end: int) -> None:
        segment = Segment(name)
        kept = SegmentName(name.base, end, self._folder())
        newest = segment.max_timestamp(segment.size_bytes())
        with _failures(self._address):
            self._check_mark()
            target = self._path(kept, newest)
            about = self._root.about(target)
            if about is None or about.size_bytes != segment.size_bytes():
                self._root.copy_from(name.path, target)

    def _names(self) -> list[SegmentName]:
        """The segments there, in order; their paths are those of copies here."""
        with _failures(self._address):
            self._check_mark()
            try:
                listed = [about.path for about in RemoteFolder(f"{self._address}/{self._below}").listed()]
            except FileNotFoundError:
                listed = []
        matches = [match for match in map(STORED.fullmatch, listed) if match]
        folder = self._folder()
        self._newest = {SegmentName(int(match[1]), int(match[2]), folder): int(match[3]) for match in matches}
        return sorted(self._newest)

    def _check_mark(self) -> None:
        if self._root.about(MARK) is None:
            raise away(shown_address(self._address), f"it has no object '{MARK}'")

    def _path(self, name: SegmentName, newest: int) -> str:
        return f"{self._below}/{name.stem}.{newest}.seg"

    # ------------------------------------------------------------ copies

    def _folder(self) -> Path:
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="millstream-archive-")
        return Path(self._copies.name)

    def _copied(self, name: SegmentName) -> SegmentName:
        with self._turn:
            if name not in self._used or not name.path.exists():
                draft = name.path.with_suffix(".copying")
                with _failures(self._address):
                    self._root.copy_to(self._path(name, self._newest[name]), draft)
                draft.replace(name.path)
            self._used[name] = None
            self._used.move_to_end(name)
            while len(self._used) > COPIES_MAX:
                delete(self._used.popitem(last=False)[0])
            return name
