"""Checks the queries against a small fixed data set whose rows are known.

usage: oracle.py FOLDER

The folder holds `input/{person,auction,bid}.jsonl` and `expected/qN.txt`, one row a line. Each query sees all events at
once; some at a time, as the watermark moves on; and each kind after the other, with the watermark standing still.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import queries
from generator import SCHEMAS
from playing import played
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.records import Schema

FILES = {"persons": "person", "auctions": "auction", "bids": "bid"}
NAMES = {
    "item_name": "itemName", "initial_bid": "initialBid", "date_time": "dateTime",
    "email_address": "emailAddress", "credit_card": "creditCard",
}  # fmt: skip
TIMES = ("dateTime", "expires")
SETTINGS: dict[str, dict[str, Any]] = {
    "q2": {"chosen": "auction in (1007, 1020, 2001, 2019, 2087)"},
    "q3": {"states": "'or', 'id', 'ca'"},
    "q6_group_top1": {"best": "price"},
    "q10": {"hour": "hh:mm"},
}
"""Where the data set asks for something else than the query usually does."""
RANKS = "{0} rank1_{0} rank2_{0} rank3_{0}"
BID = "auction bidder price channel url dateTime extra"
COLUMNS = {
    "q0": "auction bidder price dateTime",
    "q1": "auction bidder price dateTime",
    "q2": "auction price",
    "q3": "name city state id",
    "q4": "category final",
    "q5": "auction num",
    "q6_group_top1": "seller final",
    "q7": "auction price bidder dateTime",
    "q8": "id name starttime",
    "q9": "id itemName description initialBid reserve dateTime expires seller category auction bidder price "
    "bid_dateTime",
    "q10": "auction bidder price dateTime dt hm",
    "q14": "auction bidder price bidTimeType dateTime c_counts",
    "q15": " ".join(["day", *(f"total_{RANKS.format(each)}" for each in ("bids", "bidders", "auctions"))]),
    "q16": " ".join(["channel", "day", *(f"total_{RANKS.format(each)}" for each in ("bids", "bidders", "auctions"))]),
    "q17": f"auction day total_{RANKS.format('bids')} min_price max_price avg_price sum_price",
    "q18": BID,
    "q19": f"{BID} rank_number",
    "q20": f"{BID} itemName description initialBid reserve dateTime_auction expires seller category extra_auction",
    "q21": "auction bidder price channel channel_id",
    "q22": "auction bidder price channel dir1 dir2 dir3",
    "q101": "id itemName highest",
    "q102": "id itemName bid_count",
    "q103": "id itemName",
    "q104": "id itemName",
    "q105": "id itemName bid_count",
    "q106": "min_final",
}
"""The columns of the expected rows, in their order. q16 has a third one besides, which says nothing."""
NUMBER = re.compile(r"-?\d+(\.\d+)?")
TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d{3})\d*)?")


def events(folder: Path) -> dict[str, pa.Table]:
    return {topic: _table(folder / "input" / f"{file}.jsonl", SCHEMAS[topic]) for topic, file in FILES.items()}


def _table(path: Path, schema: str) -> pa.Table:
    rows = []
    for line in path.read_text().splitlines():
        row = {NAMES.get(name, name): value for name, value in json.loads(line).items()}
        for name in TIMES:
            if name in row:
                row[name] = datetime.fromisoformat(row[name]).replace(tzinfo=UTC)
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=Schema.of(schema).arrow)


def ways(given: Mapping[str, pa.Table]) -> dict[str, tuple[list[dict[str, pa.Table]], timedelta | None]]:
    """Bundles, and how far the watermark stays behind."""
    by_time = {topic: table.sort_by("dateTime") for topic, table in given.items()}
    moments = sorted({time for table in by_time.values() for time in table["dateTime"].to_pylist()})
    few = 5
    pieces = [moments[at : at + few] for at in range(0, len(moments), few)]
    moving = [
        {topic: table.filter(pa.compute.is_in(table["dateTime"], pa.array(piece, table.schema.field("dateTime").type)))
         for topic, table in by_time.items()}
        for piece in pieces
    ]  # fmt: skip
    apart = [
        {topic: given[topic].slice(at, few)}
        for topic in ("bids", "auctions", "persons")
        for at in range(0, given[topic].num_rows, few)
    ]
    return {"at once": ([dict(given)], None), "as time goes on": (moving, timedelta(0)), "kind by kind": (apart, None)}


def words(text: str) -> tuple[str, ...]:
    """A row as its words; of numbers the value counts, not how they are written."""
    return tuple(f"{float(word):.12g}" if NUMBER.fullmatch(word) else word for word in text.split())


def rows_of(found: Counter[Any], name: str) -> Counter[tuple[str, ...]]:
    made: Counter[tuple[str, ...]] = Counter()
    for row, times in found.items():
        values = dict(row)
        made[words(" ".join(_said(values[column]) for column in COLUMNS[name].split()))] += times
    return made


def _said(value: str) -> str:
    if found := TIME.fullmatch(value):
        return " ".join(found.group(1, 2)) + ("" if found[3] in (None, "000") else f".{found[3]}")
    return "NULL" if value == "None" else value


def expected_rows(folder: Path, name: str) -> Counter[tuple[str, ...]]:
    rows = [words(line) for line in (folder / "expected" / f"{name}.txt").read_text().splitlines() if line.strip()]
    return Counter((*row[:2], *row[3:]) if name == "q16" else row for row in rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--query", help="one of them")
    chosen = options.parse_args()
    given = events(chosen.folder)
    table = Table("query", "rows", *ways(given))
    wrong = []
    for name in [chosen.query] if chosen.query else COLUMNS:
        wanted = expected_rows(chosen.folder, name)
        said = []
        for way, (bundles, delay) in ways(given).items():
            flow = ms.Flow(name)
            query = queries.build(name.split("_")[0], flow, **SETTINGS.get(name, {}))
            found = rows_of(played(query, bundles, delay=delay), name)
            said.append("right" if found == wanted else "wrong")
            if found != wanted:
                wrong.append(f"{name} {way}: missing {list(wanted - found)[:3]}, too many {list(found - wanted)[:3]}")
        table.add_row(name, str(sum(wanted.values())), *said)
    Console().print(table)
    print("\n".join(wrong))
    print(json.dumps({"benchmark": "nexmark oracle", "queries": table.row_count, "wrong": len(wrong)}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
