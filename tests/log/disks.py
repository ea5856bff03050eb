"""Disks that are slow, fail, or take the process with them, at a moment the test chooses."""

from __future__ import annotations

import errno
import os
import signal
import threading

from millstream.log.storage.disk import Disk


class GatedDisk(Disk):
    """Writes nothing while the gate is shut."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def write(self, fd, buffers, position):
        if not self.gate.is_set():
            self.reached.set()
            self.gate.wait()
        super().write(fd, buffers, position)


class SickDisk(Disk):
    """Fails every call while it is sick."""

    def __init__(self):
        self.error = None
        self.failures = 0

    def _check(self):
        if self.error is not None:
            self.failures += 1
            raise OSError(self.error, os.strerror(self.error))

    def write(self, fd, buffers, position):
        self._check()
        super().write(fd, buffers, position)

    def sync(self, fd):
        self._check()
        super().sync(fd)


class FailingDisk(Disk):
    """Fails the calls with certain numbers, once each: before they do anything, half way, or after all was done."""

    def __init__(self, moment):
        self.moment = moment
        self.calls = 0
        self.numbers = set()
        self.failed = 0

    def fail(self, *numbers):
        """Counts calls from here on."""
        self.calls, self.numbers, self.failed = 0, set(numbers), 0

    def _fails(self):
        self.calls += 1
        if self.calls in self.numbers:
            self.failed += 1
            return True
        return False

    def write(self, fd, buffers, position):
        if not self._fails():
            return super().write(fd, buffers, position)
        content = b"".join(buffers)
        written = {"before": 0, "half": len(content) // 2, "after": len(content)}[self.moment]
        os.pwrite(fd, content[:written], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, fd):
        fails = self._fails()
        if not fails or self.moment == "after":
            super().sync(fd)
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Steps:
    """Kills this process, as kill -9 does, when it comes to step number `last`."""

    def __init__(self, last):
        self.last = last
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, *_):
        with self._lock:
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


class DeadlyDisk(Disk):
    """Every write has three steps (before, half way, after), every sync two."""

    def __init__(self):
        self.step = lambda: None

    def write(self, fd, buffers, position):
        self.step()
        content = b"".join(buffers)
        os.pwrite(fd, content[: len(content) // 2], position)
        self.step()
        super().write(fd, buffers, position)
        self.step()

    def sync(self, fd):
        self.step()
        super().sync(fd)
        self.step()
