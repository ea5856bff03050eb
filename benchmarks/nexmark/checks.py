"""Whether rows that an engine gave are those that DuckDB gives over the same files: all of them, and no others."""

from __future__ import annotations

import pickle
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import event_files
import generator
from expected import bag, expected

# A window ends when later events come, so those of the last events, which are of a day later, may stay open. Flink ends
# all when its input does. A row that comes has to be right in any case.
TIMES = {"q5": "starttime", "q7": "dateTime", "q8": "starttime", "q11": "starttime"}
ENDS_ALL = frozenset({"flink"})
LATER = datetime.fromtimestamp(generator.START_MS / 1000, UTC).replace(tzinfo=None) + event_files.LATER / 2
BY_ARRIVAL = "q12"
WINDOW = timedelta(seconds=10)
EPOCH = datetime(1970, 1, 1)
Rows = list[dict[str, Any]]
Bag = Counter[Any]


class Answers:
    """What DuckDB says about one folder of files; each question is asked once. It is made before engines are asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events = event_files.read(folder)
        self._made = _now()
        self._known: dict[str, Rows] = {}

    def of(self, name: str) -> Rows:
        if name not in self._known:
            settings = {"side": self._folder / event_files.SIDE} if name == "q13" else {}
            self._known[name] = expected(name, self._events, **settings)
        return self._known[name]

    def difference(self, name: str, file: Path, engine: str) -> str:
        """What is wrong with the rows in a file, or nothing."""
        with file.open("rb") as opened:
            rows: Rows = pickle.load(opened)
        if name == BY_ARRIVAL:  # arrival times are not known in advance, only the counts
            bids = self._events["bids"]["bidder"].to_pylist()
            return out_of_time(rows, self._made, _now()) or _compared(Counter(bids), of_bidders(rows))
        wanted = self.of(name)
        column = None if engine in ENDS_ALL else TIMES.get(name)
        may_miss = bag(row for row in wanted if column is not None and _plain(row[column]) > LATER)
        return _compared(bag(wanted), bag(rows, weight="weight"), may_miss)


def _compared(wanted: Bag, found: Bag, may_miss: Bag | None = None) -> str:
    missing, more = wanted - found - (may_miss or Counter()), found - wanted
    if not missing and not more:
        return ""
    return f"{missing.total()} rows missing, {more.total()} too many: {[*missing][:1]} {[*more][:1]}"


def of_bidders(rows: Rows) -> Bag:
    found: Bag = Counter()
    for row in rows:
        found[row["bidder"]] += row["bid_count"] * row.get("weight", 1)
    return found


def out_of_time(rows: Rows, since: datetime, until: datetime) -> str:
    """What is wrong with windows of processing time: each is ten whole seconds of this run, with one count a bidder."""
    counts: Bag = Counter()
    for row in rows:
        starts, ends = _plain(row["starttime"]), _plain(row["endtime"])
        if ends - starts != WINDOW or (starts - EPOCH) % WINDOW:
            return f"no window of ten seconds: {starts} to {ends}"
        if ends < since or starts > until:
            return f"a window out of this run: {starts} to {ends}"
        counts[row["bidder"], starts] += row.get("weight", 1)
    often = [each for each, times in counts.items() if times not in (0, 1)]
    return f"{len(often)} windows with several counts of a bidder: {often[:1]}" if often else ""


def _plain(time: datetime) -> datetime:
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)
