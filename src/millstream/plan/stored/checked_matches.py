"""The matches of something that users write while a job runs, and that is checked before it is used."""

from __future__ import annotations

from millstream.plan.stream import Stream


class CheckedMatches(Stream):
    def __init__(self, stream: Stream, checked: Stream) -> None:
        super().__init__(stream.flow, stream.node)
        self._checked = checked

    @property
    def dead(self) -> Stream:
        """The rules or queries that are wrong, with the reason and the place in their text."""
        return self._checked.dead
