"""Whether rows that an engine gave are those that DuckDB gives over the same files."""

from __future__ import annotations

import pickle
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import event_files
import generator
import pyarrow as pa
from expected import bag, expected

# Windows of the last events, which are of a day later, may be open in the end.
TIMES = {"q5": "starttime", "q7": "dateTime", "q8": "starttime", "q11": "starttime"}
LATER = datetime.fromtimestamp(generator.START_MS / 1000, UTC).replace(tzinfo=None) + event_files.LATER / 2
Rows = list[dict[str, Any]]


class Answers:
    """What DuckDB says about one folder of files; each question is asked once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events = event_files.read(folder)
        self._known: dict[str, Counter[Any]] = {}

    def of(self, name: str) -> Counter[Any]:
        if name not in self._known:
            self._known[name] = self._asked(name)
        return self._known[name]

    def _asked(self, name: str) -> Counter[Any]:
        if name == "q12":  # when bids come is not known beforehand; how many come is
            return Counter(self._events["bids"]["bidder"].to_pylist())
        settings = {"side": self._folder / event_files.SIDE} if name == "q13" else {}
        return bag(settled(name, expected(name, self._events, **settings)))

    def difference(self, name: str, file: Path) -> str:
        """What is wrong with the rows in a file, or nothing."""
        with file.open("rb") as opened:
            rows: Rows = pickle.load(opened)
        wanted = self.of(name)
        found = of_bidders(rows) if name == "q12" else bag(settled(name, rows), weight="weight")
        if found == wanted:
            return ""
        missing, more = wanted - found, found - wanted
        return f"{missing.total()} rows missing, {more.total()} too many: {[*missing][:1]} {[*more][:1]}"

    @property
    def bids(self) -> pa.Table:
        return self._events["bids"]


def settled(name: str, rows: Rows) -> Rows:
    column = TIMES.get(name)
    return rows if column is None else [row for row in rows if _plain(row[column]) < LATER]


def of_bidders(rows: Rows) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in rows:
        found[row["bidder"]] += row["bid_count"] * row.get("weight", 1)
    return found


def _plain(time: datetime) -> datetime:
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
