"""Stored queries find what Tantivy finds: each document is indexed alone, and each query is run against the index."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
import tantivy
from hypothesis import given
from hypothesis import strategies as st

from millstream.records import Schema
from millstream.search.checked import condition_of
from millstream.search.fields import Searched, documents, field_of
from millstream.search.index import QueryIndex
from properties import examples

WORDS = ["spark", "sparks", "stream", "streaming", "used", "book", "books", "cart", "cat", "zürich", "x9"]
WORDS += ["livre", "livres"]
TEXT = ("title", "body", "writer.about")
SEARCHED = Searched(
    Schema.of(
        "title string, body string, writer struct<about: string>, author string, parts array<struct<kind: string>>, "
        "price int, weight double, at timestamp"
    ),
    TEXT,
    (("body", "english"), ("writer.about", "french")),
)
FLAT = {"writer.about": "about", "parts.kind": "kinds"}
"""Nested fields, and those of Tantivy that have their values."""
Q = tantivy.Query
MUST, SHOULD, MUST_NOT = tantivy.Occur.Must, tantivy.Occur.Should, tantivy.Occur.MustNot


def schema() -> Any:
    made = tantivy.SchemaBuilder()
    made.add_text_field("title", tokenizer_name="default")
    made.add_text_field("body", tokenizer_name="en_stem")
    made.add_text_field("about", tokenizer_name="french")
    made.add_text_field("author", tokenizer_name="raw")
    made.add_text_field("kinds", tokenizer_name="raw")
    made.add_integer_field("price", indexed=True, fast=True)
    made.add_float_field("weight", indexed=True, fast=True)
    made.add_date_field("at", indexed=True, fast=True)
    return made.build()


TANTIVY = schema()


@dataclass(frozen=True)
class Asked:
    """A query as text, and as Tantivy's query."""

    text: str
    query: Any


def in_fields(text: str, make: Any) -> Asked:
    """In both default fields."""
    return Asked(text, Q.boolean_query([(SHOULD, make(name)) for name in TEXT]))


def analyser(language: str) -> Any:
    made = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.lowercase())
    return made.filter(tantivy.Filter.stemmer(language)).build()


ANALYSERS = {"body": analyser("english"), "writer.about": analyser("french")}


def stemmed(field: str, word: str) -> str:
    """Tantivy's queries take terms: those of a language are stems."""
    return ANALYSERS[field].analyze(word)[0] if field in ANALYSERS else word


def term(field: str, word: str) -> Any:
    return Q.term_query(TANTIVY, FLAT.get(field, field), stemmed(field, word))


@st.composite
def words(draw: Any) -> Asked:
    word = draw(st.sampled_from(WORDS))
    field = draw(st.sampled_from([None, *TEXT]))
    written = draw(st.sampled_from([word, word.upper(), word.title(), f"{word}!" if field else word]))
    if field is None:
        return in_fields(written, lambda name: term(name, word))
    return Asked(f"{field}:{written}", term(field, word))


PLACED = ["spark", "used", "book", "cat"]


@st.composite
def phrases(draw: Any) -> Asked:
    field = draw(st.sampled_from(TEXT))
    slop = draw(st.integers(0, 3))
    # With slop, Tantivy counts one place for both of repeated words, and compares three words only in pairs; Lucene
    # does not.
    count = draw(st.integers(2, 2 if slop else 3))
    chosen = draw(st.lists(st.sampled_from(PLACED), min_size=count, max_size=count, unique=slop > 0))
    text = f'{field}:"{" ".join(chosen)}"' + (f"~{slop}" if slop else "")
    return Asked(text, Q.phrase_query(TANTIVY, FLAT.get(field, field), [stemmed(field, each) for each in chosen], slop))


@st.composite
def patterns(draw: Any) -> Asked:
    kind = draw(st.sampled_from(["prefix", "wildcard", "fuzzy", "regex"]))
    if kind == "prefix":
        start = draw(st.sampled_from(["s", "sp", "spar", "boo", "zür", "c"]))
        return Asked(f"title:{start}*", Q.regex_query(TANTIVY, "title", f"{start}.*"))
    if kind == "wildcard":
        text = draw(st.sampled_from(["c?t", "*ing", "b*k", "s*r*m", "ca?t", "*a*r*k*", "?ook"]))
        return Asked(f"title:{text}", Q.regex_query(TANTIVY, "title", text.replace("*", ".*").replace("?", ".")))
    if kind == "regex":
        text = draw(st.sampled_from(["s.*m", "(cat|book)s?", "[a-c].+", "spark{1,2}", "x[0-9]"]))
        return Asked(f"title:/{text}/", Q.regex_query(TANTIVY, "title", text))
    word = draw(st.sampled_from(["sprak", "cat", "bok", "streem", "usd", "zurich"]))
    edits = draw(st.integers(0, 2))
    return Asked(f"title:{word}~{edits}", Q.fuzzy_term_query(TANTIVY, "title", word, edits))


START = datetime(2026, 1, 1, tzinfo=UTC)


@st.composite
def ranges(draw: Any) -> Asked:
    field = draw(st.sampled_from(["price", "weight", "at"]))
    low, high = (draw(st.one_of(st.none(), st.integers(0, 9))) for _ in range(2))
    if low is None and high is None:
        high = 5
    sides = [draw(st.booleans()) or low is None, draw(st.booleans()) or high is None]
    kind = {"price": "Integer", "weight": "Float", "at": "Date"}[field]

    def written(value: int | None) -> str:
        if value is None:
            return "*"
        return {"price": f"{value}", "weight": f"{value / 2}"}.get(field, f"{moment(value):%Y-%m-%dT%H:%M:%SZ}")

    def given_to_tantivy(value: int | None) -> Any:
        return None if value is None else {"price": value, "weight": value / 2}.get(field, moment(value))

    text = f"{'[' if sides[0] else '{'}{written(low)} TO {written(high)}{']' if sides[1] else '}'}"
    limits = given_to_tantivy(low), given_to_tantivy(high)
    made = Q.range_query(TANTIVY, field, getattr(tantivy.FieldType, kind), *limits, *sides)
    return Asked(f"{field}:{text}", made)


def moment(hours: int) -> datetime:
    return START + timedelta(hours=hours)


authors = st.sampled_from(["ann", "Ann Lee"]).map(
    lambda name: Asked(f'author:"{name}"', Q.term_query(TANTIVY, "author", name))
)
kinds = st.sampled_from(["cover", "page one", "page two"]).map(
    lambda kind: Asked(f'parts.kind:"{kind}"', Q.term_query(TANTIVY, "kinds", kind))
)
kinds_like = st.sampled_from(["cov", "page", "pag"]).map(
    lambda start: Asked(f"parts.kind:{start}*", Q.regex_query(TANTIVY, "kinds", f"{start}.*"))
)
leaves = st.one_of(words(), words(), phrases(), patterns(), ranges(), authors, kinds, kinds_like)


def boosted(part: Asked) -> Asked:
    return Asked(f"({part.text})^2", Q.boost_query(part.query, 2.0))


def combined(parts: Any) -> Any:
    return st.one_of(
        st.lists(parts, min_size=2, max_size=3).map(lambda each: joined(each, "AND", MUST)),
        st.lists(parts, min_size=2, max_size=3).map(lambda each: joined(each, "OR", SHOULD)),
        st.tuples(parts, parts, parts).map(signed),
        st.tuples(parts, parts).map(without),
        parts.map(boosted),
    )


def joined(parts: list[Asked], word: str, occur: Any) -> Asked:
    text = f" {word} ".join(f"({each.text})" for each in parts)
    return Asked(text, Q.boolean_query([(occur, each.query) for each in parts]))


def signed(parts: tuple[Asked, ...]) -> Asked:
    one, two, three = parts
    return Asked(
        f"+({one.text}) ({two.text}) -({three.text})",
        Q.boolean_query([(MUST, one.query), (SHOULD, two.query), (MUST_NOT, three.query)]),
    )


def without(parts: tuple[Asked, ...]) -> Asked:
    one, two = parts
    made = Q.boolean_query([(MUST, one.query), (MUST_NOT, two.query)])
    return Asked(f"({one.text}) AND NOT ({two.text})", made)


queries = st.recursive(leaves, combined, max_leaves=6)
texts = st.lists(st.sampled_from([*WORDS, "Spark", "BOOK", "used,", "—"]), max_size=7).map(" ".join)
rows = st.fixed_dictionaries(
    {
        "title": texts,
        "body": texts,
        "writer": st.fixed_dictionaries({"about": texts}),
        "parts": st.lists(
            st.fixed_dictionaries({"kind": st.sampled_from(["cover", "page one", "page two"])}), max_size=3
        ),
        "author": st.sampled_from(["ann", "Ann Lee", "bob"]),
        "price": st.integers(0, 9),
        "weight": st.integers(0, 9).map(lambda number: number / 2),
        "at": st.integers(0, 9).map(moment),
    }
)


def scores(row: dict[str, Any], asked: list[Asked]) -> list[float | None]:
    """Tantivy's score of each query, None if it does not match."""
    index = tantivy.Index(TANTIVY)
    index.register_tokenizer("french", ANALYSERS["writer.about"])
    flat = {name: row[name] for name in row if name not in ("writer", "parts")}
    flat |= {"about": row["writer"]["about"], "kinds": [part["kind"] for part in row["parts"]]}
    writer = index.writer(15_000_000, 1)
    writer.add_document(tantivy.Document(**flat))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    found = [searcher.search(each.query, 1).hits for each in asked]
    return [hits[0][0] if hits else None for hits in found]


@given(rows, st.lists(queries, min_size=1, max_size=20))
@examples(150)
def test_the_same_documents_match_as_in_tantivy(row: dict[str, Any], asked: list[Asked]) -> None:
    """Method: also those that the index of queries offers, of which each one is tried."""
    (document,) = documents([row], [field_of(SEARCHED, name) for name in TEXT])
    index = QueryIndex[int](SEARCHED)
    conditions = [condition_of(each.text, SEARCHED) for each in asked]
    for place, condition in enumerate(conditions):
        index.add(place, condition)
    offered = set(index.candidates(document))
    for place, (each, score) in enumerate(zip(asked, scores(row, asked), strict=True)):
        assert conditions[place].matches(document) == (score is not None), each.text
        assert score is None or place in offered, each.text


@given(st.lists(st.sampled_from(PLACED), max_size=8), st.permutations(PLACED), st.integers(0, 6))
@examples(200)
def test_the_words_of_a_phrase_are_moved_as_in_lucene(title: list[str], order: list[str], slop: int) -> None:
    """Method: Lucene's rule, tried on all places: how far each word is from its place in the phrase, at most `slop`."""
    phrase = order[:3]
    places = [[place - at for place, word in enumerate(title) if word == each] for at, each in enumerate(phrase)]
    expected = any(max(moved) - min(moved) <= slop for moved in product(*places))
    (document,) = documents([{"title": " ".join(title)}], [field_of(SEARCHED, "title")])
    condition = condition_of(f'title:"{" ".join(phrase)}"~{slop}', SEARCHED)
    assert condition.matches(document) == expected


scored = st.one_of(words(), words().map(boosted), st.tuples(words(), words().map(boosted), words()).map(signed))


@given(rows, st.lists(scored, min_size=1, max_size=20))
@examples(50)
def test_the_scores_of_words_and_boosts_are_those_of_tantivy(row: dict[str, Any], asked: list[Asked]) -> None:
    (document,) = documents([row], [field_of(SEARCHED, name) for name in TEXT])
    for each, score in zip(asked, scores(row, asked), strict=True):
        if score is not None:
            assert condition_of(each.text, SEARCHED).score(document) == pytest.approx(score, rel=1e-5), each.text
