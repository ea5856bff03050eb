"""Waits for sockets and pipes with poll, which takes any descriptor: select raises for 1024 and above."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol

READ = select.POLLIN | select.POLLPRI | select.POLLHUP | select.POLLERR | select.POLLNVAL


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def wait_readable(
    sources: Sequence[int | HasDescriptor], seconds: float, *, writing: HasDescriptor | None = None
) -> set[int]:
    """The descriptors of `sources` that can be read or have ended. Also returns once `writing` takes more."""
    poll = select.poll()
    descriptors = {source if isinstance(source, int) else source.fileno() for source in sources}
    write = None if writing is None else writing.fileno()
    for descriptor in descriptors:
        poll.register(descriptor, READ | (select.POLLOUT if descriptor == write else 0))
    if write is not None and write not in descriptors:
        poll.register(write, select.POLLOUT)
    return {
        descriptor for descriptor, events in poll.poll(seconds * 1000) if events & READ and descriptor in descriptors
    }
