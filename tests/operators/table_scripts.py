"""Tables and streams made of one input are what SQL makes of all rows so far, after every bundle.

Goal: latest, distinct, take and top are right whatever comes, in whatever order. Method: random bundles go through the
columnar step and through the reference, which must send the same; what was sent adds up to what DuckDB computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

import millstream as ms
from millstream.local import Local, LocalState
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import Bundle, Row
from millstream.reference import Reference
from millstream.reference.tables import frozen
from properties import examples

CHECKED = examples(500)
FEWER = examples(100)

SCHEMA = "id int, k string, v int, tags array<int>, at timestamp"
ARROW = pa.schema(
    {
        "first_step": pa.int64(),
        "n": pa.int64(),
        "id": pa.int32(),
        "k": pa.string(),
        "v": pa.int32(),
        "tags": pa.list_(pa.int32()),
        "t": pa.int64(),
        "w": pa.int64(),
        "watermark": pa.int64(),
        "late": pa.bool_(),
    }
)
ROW = ("id", "k", "v", "tags")
NOW = 1_000
duck = duckdb.connect(config={"threads": 1})

# ---------------------------------------------------------------- what comes

values = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "a", "b", None]),
        "v": st.sampled_from([None, 0, 1, 2, 3]),
        "tags": st.sampled_from([None, [], [1], [1, 2]]),
    }
)
times = st.sampled_from([*range(12), *range(12), None])
added = st.tuples(values, times)
moves = st.sampled_from([0, 0, 2, 5])
bundles = st.lists(st.tuples(st.lists(added, max_size=5), moves), min_size=1, max_size=4)
with_rows_back = st.lists(
    st.tuples(st.lists(st.one_of(added, added, st.integers(0, 9)), max_size=5), moves), min_size=1, max_size=4
)
"""A number takes back one of the rows that are there."""


@dataclass
class Seen:
    """All rows that came, and what was sent for them in each step."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    sent: list[list[Row]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """What SQL makes of the rows that came: `came` has those of each `step` and of all steps before it."""
        duck.register("rows", pa.Table.from_pylist(self.rows, schema=ARROW))
        steps = f"select unnest(range(first_step, {len(self.sent)})) as step, * from rows"
        return duck.execute(f"with came as ({steps}) {sql}").fetchall()

    def expect(self, sql: str, *columns: str) -> None:
        """After each step, what was sent so far adds up to what SQL says is there."""
        expected = Counter(map(frozen, self.query(sql)))
        found: Counter[Any] = Counter()
        for step, rows in enumerate(self.sent):
            for row in rows:
                for later in range(step, len(self.sent)):
                    found[later, *frozen([row.values[name] for name in columns])] += row.weight
        assert {key: n for key, n in found.items() if n} == expected

    def mark_late(self) -> None:
        """Says of each row whether it was late. Of equal rows it is the last: what is late once stays so."""
        late = Counter((frozen([row.values[name] for name in ROW]), row.time) for row in self.late)
        for row in reversed(self.rows):
            same = frozen([row[name] for name in ROW]), row["t"]
            row["late"] = late[same] > 0
            late[same] -= 1


class Plan:
    """A step between a source and nothing, built once and run often."""

    def __init__(self, build: Callable[[Any], Any], *, changes: bool = False, timed: bool = True) -> None:
        flow = ms.Flow("tables")
        stream = flow.read("rows", SCHEMA, "at" if timed else None, changes=changes)
        made = build(stream)
        self.read, self.node, self.changes, self.timed = stream.node, made.node, changes, timed
        self.late: Node | None = made.late.node if _has_late(made.node) else None
        self.observed = [self.node] if self.late is None else [self.node, self.late]
        self.local = Local(self.observed)

    def played(self, script: list[Any], *, ids: bool = False) -> Seen:
        """Feeds both runners bundle by bundle, and gives all that was seen.

        The column of the event time stays empty, so that rows at different times can be equal.
        """
        reference = Reference(self.observed)
        self.local._states = {n: LocalState(state._step, passes_on=False) for n, state in self.local._states.items()}
        seen, present, watermark = Seen(), list[dict[str, Any]](), 0
        for step, (events, move) in enumerate(script):
            rows: list[Row] = []
            for event in events:
                if isinstance(event, int) and not present:
                    continue
                if isinstance(event, int):
                    values, at, weight = present.pop(event % len(present)), event, -1
                else:
                    (values, at), weight = event, 1
                    present.append(values)
                number, time = len(seen.rows), at if self.timed else None
                row = {
                    "id": number if ids else None,
                    "k": values["k"],
                    "v": values["v"],
                    "tags": values["tags"],
                    "at": None,
                }
                rows.append(Row(row, time, weight))
                more = {"first_step": step, "n": number, "t": time, "w": weight, "watermark": watermark, "late": False}
                seen.rows.append({**row, **more})
            bundle = Bundle(rows, watermark, watermark + move, 0, 0)
            watermark += move
            here, there = self.local.step({self.read: bundle}), reference.step({self.read: bundle})
            for node in self.observed:
                assert counted(here[node].rows) == counted(there[node].rows)
            seen.sent.append(here[self.node].rows)
            if self.late is not None:
                seen.late += here[self.late].rows
        return seen


def _has_late(node: Any) -> bool:
    return getattr(node, "by_time", False) or getattr(node, "within", None) is not None


def counted(rows: list[Row]) -> Counter[Any]:
    return Counter(
        (frozen({name: row.values[name] for name in sorted(row.values)}), row.time, row.weight) for row in rows
    )


def held(local: Local, node: Node) -> dict[str, int]:
    return {name: table.rows for name, table in local._states[node].tables.items()}


def rows_of(*pairs: tuple[str, int]) -> list[Row]:
    return [Row({"id": None, "k": k, "v": time, "tags": None, "at": None}, time) for k, time in pairs]
