"""What a question to a flow may do with its requests, and what is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidPlan

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "mixed": (lambda requests, posts: requests.group_by("url").agg(n=ms.count()), "drops the column 'request'"),
    "apart": (lambda requests, posts: requests.distinct("url"), "mix the rows of several requests"),
    "dropped": (lambda requests, posts: requests.select("url"), "drops the column 'request'"),
    "kept": (lambda requests, posts: requests.to_table("request"), "would keep it for longer"),
    "united": (
        lambda requests, posts: requests.union(posts.select("url", request="author")),
        "would keep it for longer",
    ),
    "nothing": (lambda requests, posts: requests.select("request"), "only the column 'request'"),
    "others": (lambda requests, posts: posts, "no stream made of its requests"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_in_one_batch_is_refused(case: str) -> None:
    function, what = REFUSED[case]
    flow = ms.Flow("links")
    posts = flow.read("posts", "url string, author string")
    with pytest.raises(InvalidPlan, match=what):
        flow.ask("reach", "url string", lambda requests: function(requests, posts))


@pytest.mark.parametrize(
    ("name", "schema", "what"),
    [
        ("who is it", "url string", "not a valid name for a question"),
        ("reach", "request string", "cannot have a column 'request'"),
        ("asked", "url string", "two questions named 'asked'"),
    ],
)
def test_names_are_checked(name: str, schema: str, what: str) -> None:
    flow = ms.Flow("links")
    flow.ask("asked", "url string", lambda requests: requests)
    with pytest.raises(InvalidPlan, match=what):
        flow.ask(name, schema, lambda requests: requests)


def test_a_question_has_a_topic_for_requests_and_one_for_answers() -> None:
    flow = ms.Flow("links")
    made = flow.ask("reach", "url string", lambda requests: requests.with_column("length", "length(url)"))
    assert (made.requests_topic, made.answers_topic) == ("links.reach.requests", "links.reach.answers")
    assert made.requests_schema.ddl == "request string, expires timestamp, url string"
    assert made.answers_schema == flow.outputs[0].schema
