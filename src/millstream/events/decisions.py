"""Decides whether appends are recorded, one after the other, as if each were alone.

A pure function of what the index knows and of the appends decided before in the same commit; it stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.errors import EventIdReused, EventRefused, MillstreamError, StreamClosed, WrongVersion
from millstream.events.event import Appended
from millstream.events.index import Index
from millstream.events.layout import CLOSED, Row


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an append for one stream, serialized. Its rows have neither versions nor times yet."""

    stream: str
    rows: tuple[Row, ...]
    expected_version: int | None
    is_own: bool = False
    """Whether its rows are the store's own, such as the end of a stream: they take no version."""


@dataclass(slots=True, eq=False)
class Request:
    """One append of one caller: all of its parts are recorded, or none."""

    parts: Sequence[Part]
    rows: list[Row] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Of each part's stream after it, once the rows are stored."""
    outcome: list[Appended] = field(default_factory=list)
    error: BaseException | None = None


class Decisions:
    """The appends of one commit."""

    def __init__(self, index: Index, fetch: Callable[[Sequence[int]], list[Row]], now_us: int) -> None:
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
            # It is decided again after a lost race on Kafka.
            request.rows, request.versions, request.outcome, request.error = [], [], [], None
            try:
                self._decide(request)
            except MillstreamError as error:
                request.error = error
                continue
            if request.rows:
                accepted.append(request)
        return accepted

    def _decide(self, request: Request) -> None:
        count = repeated = 0
        for part in request.parts:
            for row in part.rows:
                count += 1
                repeated += row.id in self._known or row.id in self._new
        if repeated and repeated == count:
            request.outcome = [self._repeated(part) for part in request.parts]
            return
        if repeated:
            raise EventIdReused(
                "some of the events were recorded before, others were not",
                where=f"stream '{request.parts[0].stream}'",
                next_step="repeat an append as it was, or give new events new ids",
            )
        for part in request.parts:
            self._check(part)
        for part in request.parts:
            request.versions.append(self._recorded(part, request.rows))

    def _check(self, part: Part) -> None:
        state = self._index.state(part.stream)
        if state.is_closed or part.stream in self._closed:
            raise StreamClosed(
                f"stream '{part.stream}' is closed", where=f"version {state.version}", next_step="begin another stream"
            )
        current = self._versions.get(part.stream, state.version)
        if part.expected_version is not None and part.expected_version != current:
            raise WrongVersion(
                f"stream '{part.stream}' has version {current}, not {part.expected_version}",
                where=f"stream '{part.stream}'",
                next_step="read the events since then, decide again, and append with the current version",
                stream=part.stream,
                expected_version=part.expected_version,
                current_version=current,
            )

    def _recorded(self, part: Part, rows: list[Row]) -> int:
        """The version of the stream after the part, whose rows are added to `rows`."""
        version = self._versions.get(part.stream)
        if version is None:
            version = self._index.state(part.stream).version
        for row in part.rows:
            if not part.is_own:
                version += 1
            number = None if part.is_own else version
            stored = Row(row.stream, number, row.type, row.format, row.id, row.data, row.metadata, self._at_us)
            if stored.type == CLOSED:
                self._closed.add(part.stream)
            self._new[row.id] = stored
            rows.append(stored)
        self._versions[part.stream] = version
        return version

    def _repeated(self, part: Part) -> Appended:
        """The events are as they were recorded, in the same order: a retry. Otherwise somebody wants to change them."""
        positions = [self._known.get(row.id, -1) for row in part.rows]
        recorded = iter(self._fetch([at for at in positions if at >= 0]))
        version = 0
        for row, at in zip(part.rows, positions, strict=True):
            found = next(recorded) if at >= 0 else self._new[row.id]
            differs = (found.stream, found.type) != (part.stream, row.type) or not _same_data(found.data, row.data)
            if differs or (version and found.version != version + 1):
                raise EventIdReused(
                    f"there is an event with the id '{row.id}' that differs from this one",
                    where=f"stream '{found.stream}', version {found.version}",
                    next_step="recorded events cannot be changed or deleted: append another event that corrects it",
                )
            version = found.version or 0
        return Appended(part.stream, version, max(positions), is_repeated=True)


def _same_data(recorded: str, given: str) -> bool:
    # Every encryption of the same personal data is another text.
    return recorded == given or '"$personal"' in recorded


def checked_parts(parts: Sequence[Part]) -> Sequence[Part]:
    """Refuses what cannot be decided whatever the store contains."""
    if len(parts) == 1 and len(parts[0].rows) == 1:
        return parts
    streams = [part.stream for part in parts]
    if len(set(streams)) != len(streams):
        raise EventRefused(
            "a stream is named twice in one append", next_step="give all events of a stream in one part of the append"
        )
    ids = [row.id for part in parts for row in part.rows]
    if len(set(ids)) != len(ids):
        raise EventIdReused("two events of one append have the same id", next_step="give each event an id of its own")
    return parts
