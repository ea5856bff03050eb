"""The events that the index's file does not have yet, as numbers: the garbage collector has nothing to visit.

Each event names the one before it in its stream, so a stream is read backwards from its newest event.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

GONE = -1


class Fresh:
    def __init__(self) -> None:
        self.streams: dict[str, int] = {}
        """The numbers of the streams, in order."""
        self._newest = array("q")  # event of each stream, -1 if it has none
        self._stream = array("q")  # of each event, and so on
        self._version = array("q")
        self._position = array("q")
        self._before = array("q")

    def touch(self, stream: str) -> int:
        """The number of a stream, a new one if it has none."""
        number = self.streams.get(stream)
        if number is None:
            number = self.streams[stream] = len(self._newest)
            self._newest.append(-1)
        return number

    def add(self, stream: str, version: int, position: int) -> None:
        number = self.touch(stream)
        self._before.append(self._newest[number])
        self._newest[number] = len(self._stream)
        self._stream.append(number)
        self._version.append(version)
        self._position.append(position)

    def positions(self, stream: str, first: int, last: int) -> dict[int, int]:
        """The positions by version."""
        found = {}
        number = self.streams.get(stream)
        event = -1 if number is None else self._newest[number]
        while event >= 0 and self._version[event] >= first:
            if self._version[event] <= last and self._position[event] != GONE:
                found[self._version[event]] = self._position[event]
            event = self._before[event]
        return found

    def remove(self, stream: str, version: int) -> list[int]:
        """Drops the events of a stream up to a version; returns their positions."""
        found = self.positions(stream, 0, version)
        event = -1 if not found else self._newest[self.streams[stream]]
        while event >= 0:
            if self._version[event] <= version:
                self._position[event] = GONE
            event = self._before[event]
        return list(found.values())

    def entries(self, keys: npt.NDArray[np.int64], reached: int) -> npt.NDArray[np.int64]:
        """What is to be written: the events from a position on, with the keys of their streams."""
        position = np.array(self._position, np.int64)
        later = np.flatnonzero(position >= reached)
        found = np.empty((4, len(later)), np.int64)
        found[:2] = keys[:, np.array(self._stream, np.int64)[later]]
        found[2] = np.array(self._version, np.int64)[later]
        found[3] = position[later]
        return found
