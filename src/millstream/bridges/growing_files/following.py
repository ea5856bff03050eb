"""Lines of files that grow, as `tail -F` reads them: renamed, replaced and truncated files are followed.

A file is known by its inode and the hash of its beginning, not by its name: a rotated file is read to its end under its
new name, if the pattern covers it. Only whole lines are stored, and the position is stored with them.
"""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from millstream import terminal
from millstream.bridges.growing_files.followed import Followed
from millstream.bridges.growing_files.packed import Packed
from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.bridges.growing_files.unpacking import UNPACKED_BYTES_MAX, is_packed
from millstream.bridges.reports import Behind
from millstream.errors import DamagedLog, InvalidInput, NotALog, StorageError

LOOK_SECONDS = 0.2
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.2, 10.0
logger = terminal.logger(__name__)


class FolderFollower:
    """Follows the files that match patterns, also those that appear later."""

    def __init__(
        self,
        landing: PositionedLanding,
        patterns: Sequence[str],
        *,
        bytes_max: int = 1 << 20,
        marker: str | None = None,
        archive: Path | None = None,
        unpack: bool = False,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        """With a `marker`, such as `.done`, a file is read when there is one with that ending as well: it is complete.

        When it is stored, it is moved to the folder `archive`, if there is one. With `unpack`, compressed files and
        archives are read too; without, they are left alone.
        """
        if not patterns:
            raise InvalidInput(
                "there are no files to follow", next_step="name files or patterns, such as 'logs/*.log*'"
            )
        if archive is not None and not marker:
            raise InvalidInput(
                "files that may still grow cannot be moved away", next_step="name the ending of markers: --marker .done"
            )
        self._marker, self._archive = marker, archive
        self._unpack, self._unpacked_bytes_max = unpack, unpacked_bytes_max
        self._skipped: set[str] = set()
        self._landing = landing
        self._patterns = [str(Path(pattern).expanduser().absolute()) for pattern in patterns]
        self._bytes_max = bytes_max
        self._stored = landing.positions()
        self._open: dict[str, Followed] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self, *, once: bool = False) -> None:
        """Until it is stopped; `once`: until everything that is there now is stored."""
        pause = RETRY_SECONDS
        try:
            while not self._stopped.is_set():
                try:
                    stored = self.step(is_ended=once)
                    pause = RETRY_SECONDS
                except StorageError as error:
                    if isinstance(error, DamagedLog | NotALog):
                        raise
                    logger.warning("lines could not be stored yet: %s", error)
                    self._start_again()
                    self._stopped.wait(pause)
                    pause = min(2 * pause, RETRY_SECONDS_MAX)
                    continue
                if not stored:
                    if once:
                        return
                    self._stopped.wait(LOOK_SECONDS)
        finally:
            self._close()

    def step(self, *, is_ended: bool = False) -> int:
        """Stores the next lines of every file; returns how many bytes that were."""
        found = self._look()
        total = 0
        for identity, followed in list(self._open.items()):
            is_gone = identity not in found  # deleted, or renamed to what no pattern covers
            before, offset = followed.progress, followed.offset
            is_complete = is_ended or is_gone or self._marker is not None
            arrivals = followed.lines(self._bytes_max, is_ended=is_complete)
            if followed.progress != before:
                self._landing.land(arrivals, {identity: followed.position()})
                self._stored[identity] = followed.position()
                total += abs(followed.offset - offset) or 1
            elif is_gone or self._archive is not None:
                if not is_gone:
                    self._put_away(Path(followed.path))
                if identity in self._stored:
                    self._landing.land([], {identity: None})
                    del self._stored[identity]
                self._open.pop(identity).close()
        return total

    def _put_away(self, path: Path) -> None:
        """Before its position is removed, so that no line is stored twice. One of the same name gets a number."""
        archive = self._archive
        assert archive is not None
        target = archive / path.name
        for number in count(1):
            if not target.exists():
                break
            target = archive / f"{path.name}.{number}"
        try:
            archive.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            Path(f"{path}{self._marker}").unlink(missing_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"{path} cannot be moved to {archive}: {error.strerror}",
                next_step="name a folder of the same file system that this user may write to",
            ) from error

    def behind(self) -> Behind | None:
        """What is in the files and not stored. From any thread."""
        left = 0
        for followed in list(self._open.values()):
            with suppress(OSError, ValueError):  # it was just closed
                left += followed.left()
        return Behind(left, "bytes")

    def _look(self) -> set[str]:
        """Opens new files; returns all that are there."""
        found = set()
        for path in self._paths():
            try:
                status = path.stat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                identity = f"{status.st_dev}:{status.st_ino}"
                if identity not in self._open:
                    identity = self._opened(path)
            except OSError as error:  # it was just removed, or cannot be read
                if not isinstance(error, FileNotFoundError):
                    logger.warning("%s cannot be read: %s", path, error.strerror)
                continue
            self._open[identity].path = str(path)
            found.add(identity)
        return found

    def _opened(self, path: Path) -> str:
        file, name = path.open("rb", buffering=0), str(path)
        if is_packed(path.name):
            followed: Followed = Packed(self._landing.topic, name, file, unpacked_bytes_max=self._unpacked_bytes_max)
        else:
            followed = Followed(self._landing.topic, name, file)
        identity = followed.identity  # it may have been replaced since
        if identity in self._stored:
            followed.resume(self._stored[identity])
        self._open[identity] = followed
        return identity

    def _paths(self) -> Iterator[Path]:
        for path in self._matching():
            if self._marker is None or (
                not path.name.endswith(self._marker) and Path(f"{path}{self._marker}").exists()
            ):
                if self._unpack or not is_packed(path.name):
                    yield path
                elif str(path) not in self._skipped:
                    self._skipped.add(str(path))
                    logger.warning("%s is compressed, and is left alone: --unpack reads it", path)

    def _matching(self) -> Iterator[Path]:
        for pattern in self._patterns:
            if Path(pattern).is_dir():
                yield from sorted(path for path in Path(pattern).iterdir() if not path.name.startswith("."))
            else:
                yield from sorted(Path("/").glob(pattern[1:]))

    def _start_again(self) -> None:
        """After a failure: from the stored positions."""
        self._close()
        self._stored = self._landing.positions()

    def _close(self) -> None:
        for followed in self._open.values():
            followed.close()
        self._open.clear()
