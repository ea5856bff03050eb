"""Follows a job's recorded batches, repeats them without Spark, and writes what its time plane shows, a line for each.

It runs in a process of its own, with the lowest priority: nothing is asked of the job, which does not know of it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO

from millstream.connectors.source import Offsets
from millstream.errors import MillstreamError
from millstream.jobs.job_folder import newest_number
from millstream.plan.flow import Flow
from millstream.provenance.batches import RecordedBatch, recorded_batches
from millstream.provenance.history import History
from millstream.provenance.replaying import Replay
from millstream.web_console.plane import PlaneStep

LOOK_S = 0.3
ROWS_BEFORE_MAX = 2_000_000
"""What was read before the recorded batches is repeated as well, unless it is more than that."""


def write_plane(flow: Flow, step: str | None, folder: str, log_address: str, job: str, out: IO[str]) -> None:
    """Writes a heading, then a line for each batch, for as long as they are read."""
    os.nice(19)
    history = History(flow, broker=log_address, folder=folder, job=job)
    plane = PlaneStep.of(history, step)
    batches = FollowedBatches(history)
    note = None if batches.is_complete else f"from batch {batches.first} on: windows that were open then lack rows"
    _write(out, {"heading": {**plane.heading(), "note": note}})
    replay = Replay(plane.observed, history.steps, batches, folder=history.folder.path, broker=history.broker)
    for moment in replay.moments():
        _write(out, plane.batch(moment, replay))


@contextmanager
def failure(out: IO[str]) -> Iterator[None]:
    """An error is the last line; a reader that has left is not an error."""
    with suppress(BrokenPipeError):
        try:
            yield
        except MillstreamError as error:
            _write(out, {"error": {"what": error.what, "where": error.where, "next": error.next_step}})


def _write(out: IO[str], document: object) -> None:
    out.write(json.dumps(document) + "\n")
    out.flush()


class FollowedBatches:
    """The completed batches of a job, and then those that it completes: iterating waits for them.

    It ends if the supervisor has gone, since nobody reads what is made of them.
    """

    def __init__(self, history: History) -> None:
        self._parent = os.getppid()
        self._folder = history.folder
        self._known = recorded_batches(history.folder)
        first = self._known[0]
        self.is_complete = first.is_whole or _rows_up_to(first.ends) <= ROWS_BEFORE_MAX
        if not self.is_complete and len(self._known) > 1:
            self._known = self._known[1:]

    @property
    def first(self) -> int:
        return self._known[0].number

    def __iter__(self) -> Iterator[RecordedBatch]:
        given = -1
        while True:
            for batch in self._known:
                if batch.number > given:
                    given = batch.number
                    yield batch
            while newest_number(self._folder.checkpoint / "commits") <= given:
                if os.getppid() != self._parent:  # the supervisor was killed
                    return
                time.sleep(LOOK_S)
            self._known = recorded_batches(self._folder)


def _rows_up_to(ends: Mapping[str, Offsets]) -> int:
    return sum(sum(each.values()) for each in ends.values())
