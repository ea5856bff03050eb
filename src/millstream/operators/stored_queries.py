"""Matches documents with stored queries, as of each document's event time.

A document waits until the watermark has passed it, because a query that is in force at its time may still come. The
state has the documents that wait or are history, and every version of a query that is in force or will be. Queries are
found through an index, which a process builds once for all key groups and updates with each change: a token in the
state identifies what the index must hold, and only if the process does not have it are all queries read.

A query that looks back finds the documents that are held as history, or, if the step has a past, those of the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any

import polars as pl

from millstream.errors import ExpressionFailed
from millstream.operators import elementwise, lateness
from millstream.operators.aggregates.accumulators import ORDER, ROW, TIME, WEIGHT
from millstream.operators.clock import Clock, Frames
from millstream.operators.elementwise import computed, types_of
from millstream.operators.event_order import late_rows
from millstream.operators.stateful import INPUTS, LATE, NO_MARKS, NOTE, NOTES, SENT, Past, PlainStep, whole
from millstream.plan.search import node as queries
from millstream.plan.search.node import MatchQueries, change_of, condition, looks_back_to, where_of
from millstream.plan.stored.versions import Change, Version, revised
from millstream.search.conditions import Condition
from millstream.search.fields import Document, Searched, documents, field_of
from millstream.search.fragments import fragments
from millstream.search.index import QueryIndex
from millstream.state.tables import Marks

DOCUMENTS, QUERIES, TOKEN = "documents", "queries", "token"
KEYS = ["key.id", "key.time", "key.order"]
"""A query is found by its id. A document needs no key, but has one, so that few others are read with it."""
START, STOP = "start", "end"
INDEXES_KEPT = 4


@dataclass(eq=False, slots=True)
class Stored:
    """A version of a query in the index."""

    version: Version
    condition: Condition


class LiveIndex:
    """The index of all versions under one token."""

    def __init__(self, searched: Searched, versions: Iterable[Version]) -> None:
        self._searched = searched
        self._found: QueryIndex[Stored] = QueryIndex(searched)
        self._by_id: dict[str, list[Stored]] = {}
        self._ending: list[tuple[int, int, Stored]] = []
        self.update((), versions)

    def update(self, changed: Iterable[str], versions: Iterable[Version]) -> None:
        """The versions of the changed ids are replaced."""
        for name in changed:
            for stored in self._by_id.pop(name, ()):
                self._found.remove(stored, stored.condition)
        for version in versions:
            stored = Stored(version, condition(version, self._searched))
            self._by_id.setdefault(version.content[0], []).append(stored)
            self._found.add(stored, stored.condition)
            if version.end is not None:
                heappush(self._ending, (version.end, id(stored), stored))

    def forget(self, watermark: int) -> None:
        """Drops the versions that ended before the documents that are still to come.

        All key groups have the same watermark: they get it from the same sources.
        """
        while self._ending and self._ending[0][0] <= watermark:
            stored = heappop(self._ending)[2]
            of_id = self._by_id.get(stored.version.content[0], [])
            if stored in of_id:
                of_id.remove(stored)
                self._found.remove(stored, stored.condition)

    def matches(self, document: Document, time: int) -> Iterator[Stored]:
        """The versions in force at a time that the document matches, apart from their conditions in Spark SQL."""
        for stored in self._found.candidates(document):
            version = stored.version
            in_force = version.start <= time and (version.end is None or time < version.end)
            if in_force and stored.condition.matches(document):
                yield stored


@dataclass(frozen=True, slots=True)
class Match:
    """A document, by its place in a frame, and a query; and when both are there."""

    time: int
    place: int
    stored: Stored


@dataclass(frozen=True, slots=True)
class Looking:
    """A query that takes effect, and the first moment before that whose documents it is to find."""

    stored: Stored
    first: int


class MatchQueriesStep(PlainStep):
    own_keys: Mapping[str, list[str]] = MappingProxyType({TOKEN: []})
    keys = KEYS

    def __init__(self, node: MatchQueries) -> None:
        self.node = node
        self._text = [field_of(node.searched, name) for name in node.searched.text]
        self.past: Past | None = None
        self._types: Any = types_of(node.schema)
        self._indexes: OrderedDict[str, LiveIndex] = OrderedDict()
        self.nothing = {
            name: self.fed(elementwise.frame_of([], given), 0, side)
            for side, (name, given) in enumerate(zip(INPUTS, node.inputs, strict=True))
        }

    @property
    def _history(self) -> int:
        """How long documents are held for queries that look back."""
        return self.node.history_us if self.past is None else 0

    def tables(self) -> Frames:
        documents, changes = self.nothing[INPUTS[0]], self.nothing[INPUTS[1]]
        content = [*KEYS, *queries.CONTENT]
        times = [pl.lit(None, pl.Int64).alias(name) for name in (queries.SINCE, START, STOP)]
        return {
            DOCUMENTS: documents,
            QUERIES: changes.select(content).with_columns(times),
            TOKEN: pl.DataFrame(schema={TOKEN: pl.String}),
        }

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        if side:
            keys = [rows[queries.ID].alias(KEYS[0]), *((order * 0).alias(name) for name in KEYS[1:])]
            return rows.select(*queries.CONTENT, queries.WEIGHT, TIME).with_columns(*keys, order)
        whole_row = rows.select(self.node.inputs[0].schema.names).to_struct(ROW)
        keys = [pl.repeat("", len(rows), eager=True, dtype=pl.String).alias(KEYS[0])]
        keys += [rows[TIME].alias(KEYS[1]), order.alias(KEYS[2])]
        return pl.DataFrame([whole_row, *keys, rows[TIME], rows[WEIGHT], order])

    def asked(self, inputs: Frames) -> Frames:
        return {DOCUMENTS: inputs[INPUTS[0]], QUERIES: inputs[INPUTS[1]], TOKEN: pl.DataFrame()}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        never = pl.lit(None, pl.Int64)
        decided_at = pl.when(pl.col(TIME) >= clock.watermark).then(pl.col(TIME) + 1)
        looks_back = pl.col(queries.SINCE).is_not_null() & (pl.col(START) > clock.watermark)
        return {
            DOCUMENTS: Marks(decided_at.otherwise(pl.col(TIME) + self._history + 1), never),
            QUERIES: Marks(pl.min_horizontal(pl.when(looks_back).then(START), STOP), never),
            TOKEN: NO_MARKS,
        }

    def whole_tables(self, held: Frames, inputs: Frames, clock: Clock) -> Sequence[str]:
        change = self._changed(held, inputs, clock)
        wanted = []
        if not change.is_first and not ({change.token, change.token_before} & self._indexes.keys()):
            wanted.append(QUERIES)
        if self._history and any(True for _ in self._looking_back(change, clock)):
            wanted.append(DOCUMENTS)
        return wanted

    # ------------------------------------------------------------ one step

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        change = self._changed(held, inputs, clock)
        index = self._index(change, held)
        index.forget(clock.watermark_before)
        new = inputs[INPUTS[0]]
        in_time = new.select(lateness.is_in_time(clock)).to_series()
        late, new = new.filter(~in_time), new.filter(in_time | self._holds_late_rows(new))
        touched = pl.concat([held[DOCUMENTS].select(new.columns), new]) if len(held[DOCUMENTS]) else new
        is_decided = (touched[TIME] >= clock.watermark_before) & (touched[TIME] < clock.watermark)
        read = Read(touched.filter(is_decided), self)
        matches = [
            Match(time, place, stored)
            for place, (document, time) in enumerate(zip(read.documents, read.times, strict=True))
            for stored in index.matches(document, time)
        ]
        sent, notes = [read.sent(matches)], [*self._without_past(change), *read.notes]
        looking = [
            Looking(Stored(each, condition(each, self.node.searched)), start)
            for each, start in self._looking_back(change, clock)
        ]
        for rows in self._before(held, touched) if looking else ():
            first, end = min(each.first for each in looking), max(each.stored.version.start for each in looking)
            before = Read(rows.filter((rows[TIME] >= first) & (rows[TIME] < end)), self)
            sent.append(before.sent([match for each in looking for match in before.found(each)]))
            notes += before.notes
        changes = self._kept(touched, change, clock)
        found = pl.concat(sent).sort(TIME, OF_DOCUMENT, ORDER, queries.QUERY).drop(OF_DOCUMENT, ORDER)
        lost = late_rows(late).with_columns(late[WEIGHT].cast(pl.Int32))
        return changes, {SENT: found, LATE: lost, NOTES: pl.DataFrame({NOTE: notes}, schema={NOTE: pl.String})}

    def _holds_late_rows(self, rows: pl.DataFrame) -> pl.Series:
        """Rows that are late are in the log, too. They are held where it cannot be read again."""
        holds = self.node.from_log and self.past is None
        return rows.select(~lateness.is_untimed() & pl.lit(holds)).to_series()

    def _kept(self, touched: pl.DataFrame, change: Changed, clock: Clock) -> Frames:
        changes = {DOCUMENTS: touched.filter(touched[TIME] >= clock.watermark - self._history)}
        if change.known or change.made:
            lasting = [each for each in change.versions if each.end is None or each.end > clock.watermark]
            rows = [(each.content[0], 0, 0, *each.content, each.start, each.end) for each in lasting]
            changes[QUERIES] = pl.DataFrame(rows, schema=dict(self.tables()[QUERIES].schema), orient="row")
        if change.made:
            changes[TOKEN] = pl.DataFrame({TOKEN: [change.token]})
        return changes

    def _changed(self, held: Frames, inputs: Frames, clock: Clock) -> Changed:
        columns = [*queries.CONTENT, START, STOP]
        known = [Version(tuple(row[:-2]), *row[-2:]) for row in held[QUERIES].select(columns).rows()]
        made = [change_of(row, row[TIME]) for row in inputs[INPUTS[1]].rows(named=True)]
        versions = revised(known, made, clock.watermark_before) if made else known
        before = held[TOKEN][TOKEN][0] if len(held[TOKEN]) else ""
        token = before
        if made:
            said = sorted(repr((each.content, each.start, each.end)) for each in versions)
            gone = sorted({each.content[0] for each in made})
            token = blake2b(repr((before, gone, said)).encode(), digest_size=16).hexdigest()
        return Changed(known, made, versions, before, token)

    def _index(self, change: Changed, held: Frames) -> LiveIndex:
        """The index after the changes. All key groups have the same changes, so one of them makes it for all."""
        if change.token in self._indexes:
            return self._indexes[change.token]
        index = self._indexes.pop(change.token_before, None)
        if index is None:
            columns = [*queries.CONTENT, START, STOP]
            rows = [] if change.is_first else held[whole(QUERIES)].select(columns).rows()
            index = LiveIndex(self.node.searched, (Version(tuple(row[:-2]), *row[-2:]) for row in rows))
        changed = {each.content[0] for each in (*change.known, *change.versions)}
        index.update({*changed, *(each.content[0] for each in change.made)}, change.versions)
        self._indexes[change.token] = index
        while len(self._indexes) > INDEXES_KEPT:
            self._indexes.popitem(last=False)
        return index

    # ------------------------------------------------------------ the past

    def _looking_back(self, change: Changed, clock: Clock) -> Iterator[tuple[Version, int]]:
        """The versions that take effect in this step and look for documents before them, and from when on."""
        known = {(each.content, each.start) for each in change.known}
        for version in change.versions:
            start = looks_back_to(version, self.node.history_us)
            is_new = (version.content, version.start) not in known
            takes_effect = is_new or version.start > clock.watermark_before
            if start is not None and takes_effect and version.start <= clock.watermark:
                yield version, start

    def _without_past(self, change: Changed) -> Iterator[str]:
        """Says of new queries that look back that the step has nothing to look at."""
        if self.node.history_us:
            return
        known = {(each.content, each.start) for each in change.known}
        for version in change.versions:
            name, *_, since = version.content
            if since is not None and since < version.start and (version.content, version.start) not in known:
                yield (
                    f"{self.node.name}: the query '{name}' was put with since=…, but finds nothing of the past: "
                    "the step has no documents of it without match_queries(…, history='log')"
                )

    def _before(self, held: Frames, touched: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """All documents that can be found now, in pieces."""
        if self.past is not None:
            yield from self.past()
            return
        held_before = held.get(whole(DOCUMENTS), held[DOCUMENTS]).select(touched.columns)
        others = held_before.join(touched.select(KEYS), on=KEYS, how="anti", nulls_equal=True)
        yield pl.concat([others, touched])


@dataclass(frozen=True, slots=True)
class Changed:
    """What becomes of queries in a step: the versions that were held, the changes, and the versions after them."""

    known: list[Version]
    made: list[Change]
    versions: list[Version]
    token_before: str
    token: str

    @property
    def is_first(self) -> bool:
        """Whether there were no queries before."""
        return not self.token_before


OF_DOCUMENT = "__document"
"""The event time of a document: that of a match may be later."""


class Read:
    """Documents that are matched in a step."""

    def __init__(self, rows: pl.DataFrame, step: MatchQueriesStep) -> None:
        self._step, self._node = step, step.node
        self._frame = rows
        self._rows = rows[ROW].struct.unnest()
        self.times: list[int] = rows[TIME].to_list()
        self.documents = documents(self._rows.rows(named=True), step._text)
        self.notes: list[str] = []

    def found(self, looking: Looking) -> list[Match]:
        """The documents that a query matches when it takes effect."""
        stored, end = looking.stored, looking.stored.version.start
        places = (place for place, time in enumerate(self.times) if looking.first <= time < end)
        return [Match(end, place, stored) for place in places if stored.condition.matches(self.documents[place])]

    def sent(self, matches: Sequence[Match]) -> pl.DataFrame:
        matches = self._satisfied(matches)
        places = [each.place for each in matches]
        content = [each.stored.version.content for each in matches]
        columns: dict[str, Any] = {
            queries.QUERY: [each[0] for each in content],
            queries.OWNER: [each[3] for each in content],
        }
        if self._node.score:
            columns[queries.SCORE] = [each.stored.condition.score(self.documents[each.place]) for each in matches]
        if self._node.highlight:
            columns[queries.FRAGMENTS] = [
                fragments(each.stored.condition, self.documents[each.place], self._step._text) for each in matches
            ]
        types = self._step._types
        made = [pl.Series(name, values, types[name]) for name, values in columns.items()]
        rows = self._rows[places].select(self._node.inputs[0].schema.names)
        of_rows = self._frame[places]
        return pl.DataFrame(
            [
                *made,
                *(rows[name].cast(types[name]) for name in rows.columns),
                pl.Series(TIME, [each.time for each in matches], pl.Int64),
                of_rows[WEIGHT].cast(pl.Int32),
                of_rows[TIME].alias(OF_DOCUMENT),
                of_rows[ORDER],
            ]
        )

    def _satisfied(self, matches: Sequence[Match]) -> list[Match]:
        """The matches whose conditions in Spark SQL hold; each is computed once for all of its documents."""
        by_text: dict[str, list[int]] = {}
        for match in matches:
            text = match.stored.version.content[2]
            if text is not None:
                by_text.setdefault(text, []).append(match.place)
        holds = {text: self._holding(text, sorted(set(places))) for text, places in by_text.items()}
        return [
            each for each in matches if (text := each.stored.version.content[2]) is None or each.place in holds[text]
        ]

    def _holding(self, text: str, places: Sequence[int]) -> set[int]:
        given = self._node.inputs[0].schema
        made = [("holds", where_of(text, given))]
        rows = self._rows[places].with_columns(self._frame[places][WEIGHT])
        try:
            held = computed(rows, given, made)["holds"].to_list()
        except ExpressionFailed as error:
            if len(places) == 1:
                self.notes.append(f"the condition '{text}' of a stored query failed for a row: {error.what}")
                return set()
            return set().union(*(self._holding(text, [place]) for place in places))
        return {place for place, holds in zip(places, held, strict=True) if holds}
