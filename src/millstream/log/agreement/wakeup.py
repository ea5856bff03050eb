"""Waits until a file changes, without polling where the system supports it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

ASK_SECONDS = 0.01


class Wakeup:
    """Watches files; on Linux the kernel reports writes, elsewhere the caller checks again shortly after."""

    def __init__(self) -> None:
        self._inotify: Any = None
        self._watched: dict[Path, int] = {}
        try:
            from inotify_simple import INotify

            self._inotify = INotify()
        except (ImportError, OSError):  # not Linux, or the user's inotify instances are used up
            pass

    def watch(self, paths: Iterable[Path]) -> None:
        """Watches exactly these files. Earlier changes are not reported: check once after calling this."""
        if self._inotify is None:
            return
        from inotify_simple import flags

        wanted = set(paths)
        for path in self._watched.keys() - wanted:
            watch = self._watched.pop(path)
            try:
                self._inotify.rm_watch(watch)
            except OSError:  # the file is gone, and the watch with it
                continue
        for path in wanted - self._watched.keys():
            try:
                self._watched[path] = self._inotify.add_watch(path, flags.MODIFY)
            except OSError:
                self._inotify.close()
                self._inotify = None
                return

    def wait(self, seconds: float) -> None:
        """Returns when something changed or the time is over; it may return too early, but never too late."""
        if self._inotify is None:
            time.sleep(min(ASK_SECONDS, max(0.0, seconds)))
            return
        with suppress(ValueError, OSError):  # closed meanwhile by another thread
            self._inotify.read(timeout=max(0, round(seconds * 1000)))

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
