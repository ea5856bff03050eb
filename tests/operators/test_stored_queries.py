"""The index of stored queries: rebuilt from the state if a process does not have it, and shared by key groups."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import millstream as ms
from millstream.operators import stored_queries
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.clock import Clock
from millstream.operators.stateful import INPUTS, NOTE, NOTES, SENT, held_for
from millstream.operators.stored_queries import MatchQueriesStep
from millstream.plan.search.node import MatchQueries
from millstream.plan.time.bundles import BEGINNING, micros
from millstream.state.tables import Tables
from millstream.testing import Add, Watermark, play
from times import t

SCHEMAS = {"documents": "title string, at timestamp", "queries": "id string, query string, at timestamp"}


def document(second: int, title: str) -> Add:
    return Add([{"title": title, "at": t(second)}], to="documents")


def put(second: int, name: str, text: str | None) -> Add:
    return Add([{"id": name, "query": text, "at": t(second)}], to="queries")


def test_an_index_that_is_missing_is_rebuilt_from_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: no process keeps an index beyond a step."""

    def build(documents: Any, queries: Any) -> Any:
        return documents.match_queries(queries.to_table(key="id"), text="title")

    steps = [put(0, "a", "x"), put(0, "b", "y"), document(1, "x y"), Watermark(t(2)), put(3, "a", None)]
    steps += [document(4, "x y"), Watermark(t(5)), put(6, "c", "x"), document(7, "x"), Watermark(None)]
    options: dict[str, Any] = {"schema": SCHEMAS, "event_time": {"documents": "at", "queries": "at"}}
    expected = play(build, steps, **options)
    assert [row["query"] for step in expected for row in step] == ["a", "b", "b", "c"]
    monkeypatch.setattr(stored_queries, "INDEXES_KEPT", 0)
    assert play(build, steps, **options) == expected


class Group:
    """One key group: its own state, and the step of its process."""

    def __init__(self, step: MatchQueriesStep) -> None:
        self._step = step
        self._tables = Tables(step.keys, step.tables(), step.own_keys)
        self._watermark = BEGINNING

    def run(self, queries: pl.DataFrame, documents: pl.DataFrame, watermark: int) -> list[str]:
        step = self._step
        fed = {INPUTS[0]: step.fed(documents, 0), INPUTS[1]: step.fed(queries, 0, 1)}
        clock = Clock(self._watermark, watermark, 0, 0)
        changes, sent = step.step(held_for(step, self._tables, fed, clock), fed, clock)
        self._tables.become(self._tables.changed(changes, step.marks(clock)).tables)
        self._watermark = watermark
        self.notes = sent[NOTES][NOTE].to_list()
        found: list[str] = sent[SENT]["query"].to_list()
        return found


def node(**options: Any) -> MatchQueries:
    flow = ms.Flow("groups")
    documents = flow.read("documents", SCHEMAS["documents"], event_time="at")
    queries = flow.read("queries", SCHEMAS["queries"], event_time="at")
    made = documents.match_queries(queries.to_table(key="id"), text="title", **options).node
    assert isinstance(made, MatchQueries)
    return made


def changes(*rows: tuple[str, str, int, int]) -> pl.DataFrame:
    """Given as id, query, time and weight."""
    empty = {"condition": pl.String, "owner": pl.String, "since": pl.Datetime("us", "UTC")}
    frame = pl.DataFrame(rows, schema=["id", "query", TIME, "weight"], orient="row")
    types = {"id": pl.String, "query": pl.String, TIME: pl.Int64, "weight": pl.Int32}
    nulls = [pl.lit(None, kind).alias(name) for name, kind in empty.items()]
    return frame.cast(types).with_columns(*nulls, pl.lit(1, pl.Int32).alias(WEIGHT))  # type: ignore[arg-type]


def titled(title: str, time: int) -> pl.DataFrame:
    frame = pl.DataFrame({"title": [title], TIME: [time]})
    at = pl.col(TIME).cast(pl.Datetime("us", "UTC")).alias("at")
    return frame.with_columns(at, pl.lit(1, pl.Int32).alias(WEIGHT))


def test_a_query_of_the_past_is_reported_by_a_step_that_has_none() -> None:
    nothing, since = titled("", 0).clear(), pl.lit(t(0)).dt.cast_time_unit("us")
    put = changes(("a", "x", micros(t(5)), 1)).with_columns(since.alias("since"))
    one = Group(MatchQueriesStep(node()))
    one.run(put, nothing, micros(t(1)))
    assert ["the query 'a' was put with since=" in note for note in one.notes] == [True]
    one.run(put.clear(), nothing, micros(t(9)))
    assert one.notes == []
    other = Group(MatchQueriesStep(node(history="1 hour")))
    other.run(put, nothing, micros(t(1)))
    assert other.notes == []


def test_key_groups_of_a_process_share_an_index_and_a_repeated_batch_finds_its_own() -> None:
    step = MatchQueriesStep(node())
    one, two = Group(step), Group(step)
    nothing = titled("", 0).clear()
    first = changes(("a", "x", 0, 1), ("b", "y", 0, 1))
    assert one.run(first, nothing, 1) == two.run(first, nothing, 1) == []
    assert len(step._indexes) == 1
    second = changes(("a", "x", 5, -1), ("c", "x y", 5, 1))
    assert one.run(second, titled("x", 3), 6) == ["a"]
    assert two.run(second, titled("x y", 5), 6) == ["b", "c"]
    assert len(step._indexes) == 1
    # A process that begins again has the state of a group, and none of the index.
    step._indexes.clear()
    assert one.run(second.clear(), titled("x", 8), 9) == ["c"]
    assert two.run(second.clear(), titled("x", 8), 9) == ["c"]
