"""The query language: what a query means, and where a wrong one is wrong."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidQuery
from millstream.records import Schema
from millstream.search.checked import condition_of
from millstream.search.fields import Document, Searched, documents, field_of
from millstream.search.fragments import fragments
from properties import examples

SEARCHED = Searched(
    Schema.of(
        "title string, body string, price int, weight double, sold boolean, at timestamp, day date, "
        "tags array<string>, author struct<name: string, age: int>, parts array<struct<kind: string>>, "
        "labels map<string, string>"
    ),
    ("title", "body"),
)
ROW: dict[str, Any] = {
    "title": "Apache Spark Streaming",
    "body": "A used book: how to stream events, and to stream them again. Naïve Zürich!",
    "price": 20,
    "weight": 0.1,
    "sold": False,
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "day": datetime(2026, 1, 31, tzinfo=UTC).date(),
    "tags": ["new", "Big Data"],
    "author": {"name": "ann", "age": 30},
    "parts": [{"kind": "cover"}, {"kind": "page"}],
    "labels": {"color": "red"},
}


def document(row: dict[str, Any] = ROW) -> Document:
    (made,) = documents([row], [field_of(SEARCHED, name) for name in SEARCHED.text])
    return made


def matches(text: str) -> bool:
    return condition_of(text, SEARCHED).matches(document())


@pytest.mark.parametrize(
    "text",
    [
        "spark",
        "SPARK",
        "title:spark",
        "nothing spark",
        "nothing OR spark",
        "spark AND used",
        "spark && used",
        "nothing || used",
        "+spark -nothing",
        "spark NOT nothing",
        "spark !nothing",
        "spark AND (nothing OR used)",
        "spark AND (NOT nothing)",
        "-nothing",
        "*:*",
        '"spark streaming"',
        '"streaming spark"~2',
        '"apache streaming"~1',
        "body:(used book)",
        "spar*",
        "s?ark",
        "*ark",
        "sprak~",
        "sprak~1",
        "/s[a-p]+rk/",
        "price:20",
        "price:[10 TO 50]",
        "price:{19 TO 21}",
        "price:[20 TO *]",
        "price:>=20",
        "price:<20.5",
        "weight:0.1",
        "sold:false",
        "at:[2026-01-01 TO 2026-01-31]",
        "at:2026-01-31",
        'at:>"2026-01-31T11:00:00Z"',
        "at:[2026 TO 2026-01]",
        "at:{2025 TO 2027}",
        "at:2026-01",
        "at:[2026-01-31 TO 9999-12-31]",
        "at:<=9999",
        "day:2026-01-31",
        "day:[2025-12 TO 2026]",
        "day:{2026-01-30 TO 2026-02}",
        'tags:"Big Data"',
        "tags:Big*",
        "author.name:ann",
        "author.age:[20 TO 40]",
        "parts.kind:page",
        "labels.color:red",
        "_exists_:price",
        "price:*",
        "spark^3",
        "price:>=20^2",
        r"\u0053park",
        r"\u0073\u0070ark \ud83d\ude00",
        r'"apache \u0053park"',
        "zürich naïve",
        "spark-streaming",
        'title:"spark streaming" AND price:[10 TO 50] -missing',
        r"author.name:a\nn",
    ],
)
def test_it_matches(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "body:spark",
        "spark AND nothing",
        "spark -used",
        "-used",
        "nothing OR spark AND missing",
        '"streaming spark"',
        '"streaming spark"~1',
        '"again again"~5',
        "sprak~0",
        "/spar/",
        "price:{20 TO 50]",
        "sold:true",
        "at:{2026-01-31 TO *}",
        "at:{2026-01 TO *}",
        "at:[* TO 2026}",
        "at:{9999 TO *}",
        "day:{2026-01-31 TO 9999-12-31]",
        "day:{9999-12-31 TO *}",
        "tags:big",
        "tags:Data",
        "labels.size:red",
        "author.name:Ann",
        "...",
        'title:"spark streaming" AND price:[10 TO 50] -used',
    ],
)
def test_it_does_not_match(text: str) -> None:
    assert not matches(text)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "column 1: the query is empty"),
        ("(a", "column 1: the parenthesis is not closed"),
        ("a)", "column 2: ')' has no beginning"),
        ("a ()", "column 3: there is nothing between the parentheses"),
        ('a "b', "column 3: the quotation is not closed"),
        ("AND a", "column 1: AND has nothing before it"),
        ("a AND", "column 6: a clause is missing at the end"),
        ("a AND OR b", "column 7: OR follows another operator"),
        ("a NOT AND b", "column 7: AND follows another operator"),
        (r"a \ud83d", r"column 3: \ud83d is half of a character"),
        ("at:2026-13", "column 1: '2026-13' is not a timestamp, as 'at' is"),
        ("day:[* TO 2026-02-30]", "column 1: '2026-02-30' is not a date, as 'day' is"),
        ("a OR NOT", "column 9: a clause is missing at the end"),
        ("price:[1 2]", "column 10: TO is missing in the range"),
        ("price:[1 TO 2", "column 7: the range is not closed"),
        ("a price:x", "column 3: 'x' is not a number, as 'price' is"),
        ("price:nan", "column 1: 'nan' is not a number, as 'price' is"),
        ("prize:1", "column 1: there is no field 'prize' to search"),
        ("author:ann", "column 1: there is no field 'author' to search"),
        ("author.nam:ann", "column 1: there is no field 'author.nam' to search"),
        ("title:", "column 7: the field title has no value"),
        ("a~3", "column 4: a fuzzy word has at most 2 edits"),
        ("a^x", "column 3: ^ is followed by a number"),
        ("/(/", "column 1: the regular expression cannot be read: unclosed group"),
        ("a/@/ title:/@/", "column 13: '@' is an operator of Lucene that is not supported"),
        ("price:2*", "column 1: 'price' is a number, which has no wildcard queries"),
        ("(" * 60, "column 51: parentheses are nested more than 50 deep"),
        ("a\\", "column 2: there is nothing after the backslash"),
    ],
)
def test_a_wrong_query_is_refused_with_the_column_of_the_mistake(text: str, mistake: str) -> None:
    with pytest.raises(InvalidQuery) as refused:
        condition_of(text, SEARCHED)
    assert refused.value.what == mistake


PIECES = r"""
    a spark AND OR NOT ( ) " ~ ~1 ^ ^x [ ] { } TO * ? \ \u \u0041 \ud83d / /a.*/ : title: price: at: day: weight: sold:
    author.name: parts.kind: _exists_: *:* 10 1e400 1e999999999 nan 2026 2026-13 9999-12-31 + - ! && || > >= ü # @
"""


@given(st.lists(st.sampled_from([*PIECES.split(), " "]), max_size=9).map("".join))
@examples(300)
def test_any_text_is_a_query_or_is_refused(text: str) -> None:
    with suppress(InvalidQuery):
        condition = condition_of(text, SEARCHED)
        if condition.matches(document()):
            condition.score(document())


def test_a_hostile_pattern_takes_no_longer_than_others() -> None:
    row = {**ROW, "title": "a" * 5000}
    for text in ("title:/(a+)+b/", "title:" + "*a" * 40 + "*b"):
        assert not condition_of(text, SEARCHED).matches(document(row))


def shown(text: str, row: dict[str, Any] = ROW) -> list[str]:
    made = fragments(condition_of(text, SEARCHED), document(row), [field_of(SEARCHED, name) for name in SEARCHED.text])
    return [f"{each['field']}: {each['fragment']}" for each in made]


def test_fragments_show_the_words_that_have_matched() -> None:
    assert shown("spark -nothing") == ["title: Apache <em>Spark</em> Streaming"]
    assert shown('"spark streaming" OR zürich') == [
        "title: Apache <em>Spark</em> <em>Streaming</em>",
        "body: …how to stream events, and to stream them again. Naïve <em>Zürich</em>!",
    ]
    assert shown("price:20") == []


def test_matches_far_apart_are_fragments_of_their_own() -> None:
    row = {**ROW, "title": f"first {'x ' * 200} second"}
    assert shown("first second", row) == [
        f"title: <em>first</em> {'x ' * 28}x…",
        f"title: …{'x ' * 29} <em>second</em>",
    ]


def test_boosts_and_repetitions_raise_the_score() -> None:
    def score(text: str) -> float:
        return condition_of(text, SEARCHED).score(document())

    assert score("title:spark^3") == pytest.approx(3 * score("title:spark"))
    assert score("body:stream") > score("body:used")
    assert score("price:20") == 1.0
