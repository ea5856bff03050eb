"""Stored queries in a topic: put, removed, listed, and read by flows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import InvalidInput, InvalidQuery

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ARTICLES = "title string, at timestamp"


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def test_queries_are_listed_as_they_are_now(tmp_path: Path) -> None:
    with ms.queries(tmp_path / "data", "alerts") as stored:
        stored.put("b", "spark", owner="ann", where="price > 1", since=NOON, at=at(1))
        stored.put("a", "flink")
        stored.put("c", "storm")
        stored.remove("c")
        stored.put("b", "beam", at=at(0))  # it comes late: the other version is newer
    with ms.queries(tmp_path / "data", "alerts") as stored:
        a, b = stored.list()
        assert (a.id, a.query, a.owner, a.where, a.since) == ("a", "flink", None, None, None)
        assert (b.id, b.query, b.owner, b.where, b.since, b.at) == ("b", "spark", "ann", "price > 1", NOON, at(1))


def test_a_wrong_query_is_not_stored(tmp_path: Path) -> None:
    with ms.queries(tmp_path, "alerts") as stored:
        with pytest.raises(InvalidQuery, match="column 8: a clause is missing") as refused:
            stored.put("a", "spark -")
        assert __file__ in str(refused.value.where)
        for wrong in ({"id": "", "query": "x"}, {"id": "a", "query": ""}, {"id": "a", "query": "x", "where": ""}):
            with pytest.raises(InvalidInput):
                stored.put(**wrong)
        with pytest.raises(InvalidInput, match="time zone"):
            stored.put("a", "x", at=datetime(2026, 1, 31))
        assert stored.list() == []


def test_a_topic_of_something_else_is_refused(tmp_path: Path) -> None:
    with ms.connect(tmp_path) as log:
        log.create_topic("articles", schema=ARTICLES)
    with pytest.raises(InvalidInput, match="does not hold stored queries"):
        ms.queries(tmp_path, "articles")


def test_a_flow_of_another_log_is_refused(tmp_path: Path) -> None:
    flow = ms.Flow("alerts", log=tmp_path / "other")
    articles = flow.read("articles", ARTICLES, event_time="at")
    with ms.queries(tmp_path / "data", "alerts") as stored, pytest.raises(InvalidInput, match="reads from"):
        articles.match_queries(stored, text="title")


@pytest.mark.parametrize("compaction", [True, False])
def test_a_replay_finds_what_was_found_then(tmp_path: Path, compaction: bool) -> None:
    """Goal: each version matches the documents of its time, whenever it is read. Method: a preview reads all."""
    with ms.queries(tmp_path, "alerts", compaction=compaction) as stored, ms.connect(tmp_path) as log:
        log.create_topic("articles", schema=ARTICLES)
        with log.producer() as producer:
            for minute in range(6):
                producer.send("articles", {"title": f"spark flink {minute}", "at": at(minute)})
        stored.put("a", "spark", at=at(1))
        stored.put("a", "flink AND 4", at=at(3))
        stored.remove("a", at=at(5))
        flow = ms.Flow("alerts", log=tmp_path)
        found = flow.read("articles", event_time="at").match_queries(stored, text="title")
        assert sorted(found.preview()["title"]) == ["spark flink 1", "spark flink 2", "spark flink 4"]
