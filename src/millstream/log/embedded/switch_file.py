"""The switches of an embedded log are one small file, replaced as a whole: a crash leaves the old or the new one.

A change is detected by the file's age and inode, so a reader pays one stat per poll.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.errors import DamagedLog, InvalidName
from millstream.log.storage.disk import read_document, storage_errors, write_document
from millstream.log.switches import Switch, Switches

SWITCHES = "switches.json"


class SwitchFile(Switches):
    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: tuple[tuple[int, ...] | None, Mapping[str, Switch]] = (None, {})

    def now(self) -> Mapping[str, Switch]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            version = None
        else:
            version = (found.st_mtime_ns, found.st_ino, found.st_size)
        known = self._known
        if known[0] != version:
            known = self._known = (version, {} if version is None else self._read())
        return known[1]

    def fresh(self) -> Mapping[str, Switch]:
        return self.now()

    def write(self, switches: Mapping[str, Switch]) -> None:
        write_document(self.path, {name: switch.to_document() for name, switch in sorted(switches.items())})
        self._known = ((-1,), {})  # clocks are coarse: this process always rereads its own write

    def _read(self) -> Mapping[str, Switch]:
        try:
            with storage_errors(self.path):
                return {name: Switch.of(name, entry) for name, entry in read_document(self.path).items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, InvalidName) as error:
            raise DamagedLog(
                f"the switches cannot be read: {error}",
                where=str(self.path),
                next_step="restore the file from a copy; without it every name refers to the topic of that name",
            ) from error
