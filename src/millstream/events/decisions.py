"""Decides whether appends are recorded, one after the other, as if each were alone.

A pure function of what the index knows and of the appends decided before in the same commit; it stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from millstream.errors import EventIdReused, EventRefused, InvalidInput, MillstreamError, StreamClosed, WrongVersion
from millstream.events.event import Appended
from millstream.events.index import Index
from millstream.events.layout import CLOSED, PERSONAL, RETENTION, Row


@dataclass(slots=True, eq=False)
class Part:
    """The part of an append for one stream, serialized. Its rows get versions and times when they are accepted."""

    stream: str
    rows: tuple[Row, ...]
    expected_version: int | None
    is_own: bool = False
    """Whether its rows are the store's own, such as the end of a stream: they take no version."""
    version: int = 0
    """Of the stream after it, once the rows are accepted."""
    outcome: Appended | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One append of one caller: all of its parts are recorded, or none."""

    parts: Sequence[Part]
    error: BaseException | None = None

    @property
    def rows(self) -> Sequence[Row]:
        return self.parts[0].rows if len(self.parts) == 1 else [row for part in self.parts for row in part.rows]

    @property
    def outcome(self) -> list[Appended]:
        """One for each part, unless there is an error."""
        return [part.outcome for part in self.parts if part.outcome is not None]


class Decisions:
    """The appends of one commit."""

    def __init__(self, index: Index, fetch: Callable[[Sequence[int]], list[Row | None]], now_us: int) -> None:
        self._index = index
        self._fetch = fetch
        self._at_us = max(now_us, index.newest_us)  # versions and times of a stream never disagree
        self._versions: dict[str, int] = {}
        self._closed: set[str] = set()
        self._new: dict[str, Row] = {}
        self._known: Mapping[str, int] = {}

    def decide(self, requests: Sequence[Request]) -> list[Request]:
        """The requests with rows to store; each of the others has an error, or was recorded before."""
        ids = [row.id for request in requests for part in request.parts for row in part.rows]
        self._known = self._index.prefetch({part.stream for request in requests for part in request.parts}, ids)
        accepted = []
        for request in requests:
            request.error = None  # it is decided again after a lost race on Kafka
            try:
                if self._decide(request):
                    accepted.append(request)
            except MillstreamError as error:
                request.error = error
        return accepted

    def _decide(self, request: Request) -> bool:
        """Whether there is something to store."""
        count, ids = 0, []
        for part in request.parts:
            for row in part.rows:
                count += 1
                if row.id in self._known or row.id in self._new:
                    ids.append(row.id)
        repeated = self._found(ids) if ids else {}
        if repeated and len(repeated) == count:
            for part in request.parts:
                part.outcome = self._repeated(part, repeated)
            return False
        if repeated:
            raise EventIdReused(
                "some of the events were recorded before, others were not",
                where=f"stream '{request.parts[0].stream}'",
                next_step="repeat an append as it was, or give new events new ids",
            )
        for part in request.parts:
            self._check(part)
        for part in request.parts:
            self._accept(part)
        return True

    def _check(self, part: Part) -> None:
        current = self._version(part.stream)
        is_closed = self._index.rules(part.stream).is_closed or part.stream in self._closed
        if is_closed and not all(row.type == RETENTION for row in part.rows):
            raise StreamClosed(
                f"stream '{part.stream}' is closed", where=f"version {current}", next_step="begin another stream"
            )
        if part.expected_version is not None and part.expected_version != current:
            raise WrongVersion(
                f"stream '{part.stream}' has version {current}, not {part.expected_version}",
                where=f"stream '{part.stream}'",
                next_step="read the events since then, decide again, and append with the current version",
                stream=part.stream,
                expected_version=part.expected_version,
                current_version=current,
            )

    def _accept(self, part: Part) -> None:
        version = self._version(part.stream)
        for row in part.rows:
            if not part.is_own:
                version += 1
                row.version = version
            elif row.type == CLOSED:
                self._closed.add(part.stream)
            row.at_us = self._at_us
            self._new[row.id] = row
        self._versions[part.stream] = part.version = version

    def _version(self, stream: str) -> int:
        version = self._versions.get(stream)
        return self._index.version(stream) if version is None else version

    def _found(self, ids: Sequence[str]) -> dict[str, tuple[int, Row]]:
        """The events with these ids. The id of a removed one is forgotten with it, even if the index still has it."""
        found = {each: (-1, self._new[each]) for each in ids if each in self._new}
        stored = {each: self._known[each] for each in ids if each not in found}
        for (each, at), row in zip(stored.items(), self._fetch(list(stored.values())), strict=True):
            if row is not None:
                found[each] = (at, row)
        return found

    def _repeated(self, part: Part, repeated: Mapping[str, tuple[int, Row]]) -> Appended:
        """The events are as they were recorded, in the same order: a retry. Otherwise somebody wants to change them."""
        version, position = 0, -1
        for row in part.rows:
            at, found = repeated[row.id]
            position = max(position, at)
            differs = (found.stream, found.type) != (part.stream, row.type) or not _same_data(found.data, row.data)
            if differs or (version and found.version != version + 1):
                raise EventIdReused(
                    f"there is an event with the id '{row.id}' that differs from this one",
                    where=f"stream '{found.stream}', version {found.version}",
                    next_step="recorded events cannot be changed or deleted: append another event that corrects it",
                )
            version = found.version or 0
        return Appended(part.stream, version, position, is_repeated=True)


def _same_data(recorded: str, given: str) -> bool:
    return recorded == given or (PERSONAL in recorded and _comparable(recorded) == _comparable(given))


def _comparable(data: str) -> bytes:
    """Without encrypted fields: the same personal data is encrypted to a different text each time."""
    fields: dict[str, Any] = orjson.loads(data)
    sealed = fields.pop(PERSONAL, None)
    visible = None if sealed is None else (sealed["subject"], sorted(sealed["fields"]))
    return orjson.dumps((fields, visible), option=orjson.OPT_SORT_KEYS)


def checked_parts(parts: Sequence[Part]) -> Sequence[Part]:
    """Refuses what cannot be decided whatever the store contains."""
    if len(parts) == 1 and len(parts[0].rows) == 1:
        return parts
    if not parts or not all(part.rows for part in parts):
        raise InvalidInput("an append needs at least one event for each stream")
    streams = [part.stream for part in parts]
    if len(set(streams)) != len(streams):
        raise EventRefused(
            "a stream is named twice in one append", next_step="give all events of a stream in one part of the append"
        )
    ids = [row.id for part in parts for row in part.rows]
    if len(set(ids)) != len(ids):
        raise EventIdReused("two events of one append have the same id", next_step="give each event an id of its own")
    return parts
