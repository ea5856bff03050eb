"""Requests to a flow as small transcripts, each played on every runner: what is answered, and in which batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.plan.steps.asks import answered
from millstream.plan.stream import Stream
from millstream.testing import Add, Batch
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMAS = {
    "requests": "request string, url string",
    "posts": "url string, author string",
    "follows": "author string, follower string",
}


def asked(*rows: tuple[str, str]) -> Add:
    return Add([{"request": request, "url": url} for request, url in rows], to="requests")


def posted(*rows: tuple[str, str]) -> Add:
    return Add([{"url": url, "author": author} for url, author in rows], to="posts")


def followed(*rows: tuple[str, str]) -> Add:
    return Add([{"author": author, "follower": follower} for author, follower in rows], to="follows")


def reach(posts: Stream, follows: Stream) -> Callable[[Stream], Stream]:
    authors, followers = posts.to_table(), follows.to_table()

    def function(requests: Stream) -> Stream:
        posters = requests.join(authors, on="url", as_of="now").distinct("request", "author")
        people = posters.join(followers, on="author", as_of="now")
        return people.group_by("request").agg(people=ms.count_distinct("follower"))

    return function


def build(function: Callable[..., Callable[[Stream], Stream]]) -> Callable[..., Stream]:
    return lambda requests, posts, follows: answered(requests, function(posts, follows))


def answers(steps: list[Any]) -> list[list[tuple[Any, ...]]]:
    return [sorted((row["request"], row["rows"], row["error"]) for row in step) for step in steps]


def test_a_request_meets_the_tables_as_they_are_and_is_answered_once() -> None:
    steps = [
        posted(("a", "ann"), ("a", "bob"), ("b", "bob")),
        followed(("ann", "cid"), ("bob", "cid"), ("bob", "dee")),
        asked(("r1", "a"), ("r2", "b"), ("r3", "nowhere")),
        Batch([followed(("ann", "eve")), asked(("r4", "a"))]),
        followed(("ann", "fay")),
    ]
    found = answers(play(build(reach), steps, schema=SCHEMAS))
    assert found == [
        [],
        [],
        [("r1", [{"people": 2}], None), ("r2", [{"people": 2}], None), ("r3", [], None)],
        [("r4", [{"people": 3}], None)],
        [],
    ]


def test_nothing_of_a_request_is_left_for_the_next_one_of_the_same_id() -> None:
    steps = [posted(("a", "ann")), followed(("ann", "cid")), asked(("r1", "a")), asked(("r1", "a"))]
    found = answers(play(build(reach), steps, schema=SCHEMAS))
    assert found[2:] == [[("r1", [{"people": 1}], None)]] * 2


def test_several_rows_are_an_answer_too() -> None:
    def function(posts: Stream, follows: Stream) -> Callable[[Stream], Stream]:
        table = posts.to_table()

        def first(requests: Stream) -> Stream:
            return requests.join(table, on="url", as_of="now").top(2, by="author", per="request").drop("url")

        return first

    steps = [posted(("a", "cid"), ("a", "ann"), ("a", "bob")), asked(("r1", "a"))]
    ((_, rows, error),) = answers(play(build(function), steps, schema=SCHEMAS))[1]
    assert sorted(row["author"] for row in rows) == ["ann", "bob"]
    assert error is None


def test_a_step_that_fails_on_a_request_answers_it_with_the_error() -> None:
    def parsed(row: dict[str, Any]) -> dict[str, Any]:
        return {"request": row["request"], "number": int(row["url"])}

    def function(posts: Stream, follows: Stream) -> Callable[[Stream], Stream]:
        mapped = "request string, number int"
        return lambda requests: requests.map(parsed, mapped, name="parsed").select("request", tenth="10 / number")

    steps = [asked(("r1", "5"), ("r2", "five"), ("r3", "0"))]
    (found,) = answers(play(build(function), steps, schema=SCHEMAS))
    assert found[0] == ("r1", [{"tenth": 2.0}], None)
    assert found[1][:2] == ("r2", [])
    assert "parsed: ValueError: invalid literal for int()" in found[1][2]
    assert found[2][:2] == ("r3", [])
    assert "division by zero" in found[2][2].lower()
