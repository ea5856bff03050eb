"""Stored queries on every runner: which query matches which document, while queries come and go."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidPlan
from millstream.testing import Add, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMAS = {
    "documents": "title string, body string, price int, at timestamp",
    "queries": "id string, query string, condition string, owner string, since timestamp, at timestamp",
}
TIMES = {"documents": "at", "queries": "at"}


def document(second: int, title: str, body: str = "", price: int = 1) -> Add:
    return Add([{"title": title, "body": body, "price": price, "at": t(second)}], to="documents")


def put(second: int, name: str, text: str | None, where: str | None = None, **more: Any) -> Add:
    row = {"id": name, "query": text, "condition": where, "owner": None, "since": None, "at": t(second)}
    return Add([{**row, **more}], to="queries")


def removed(second: int, name: str) -> Add:
    return put(second, name, None)


def found(steps: list[Any], **options: Any) -> list[list[str]]:
    """What each step emits: the query and the title."""

    def build(documents: Any, queries: Any) -> Any:
        return documents.match_queries(queries.to_table(key="id"), text=["title", "body"], **options)

    out = play(build, steps, schema=SCHEMAS, event_time=TIMES)
    return [sorted(f"{row['query']}: {row['title']}" for row in step) for step in out]


@pytest.mark.on_spark("more")
def test_queries_are_put_changed_and_removed_while_documents_come() -> None:
    steps = [
        put(0, "a", "spark"),
        document(1, "Spark one"),
        Watermark(t(2)),
        put(3, "b", "body:flink OR title:spa*"),
        document(4, "spark two", "and flink"),
        put(5, "a", "flink"),
        document(6, "spark three"),
        document(6, "flink four"),
        Watermark(t(7)),
        removed(8, "b"),
        document(8, "spark five"),
        document(9, "flink six"),
        Watermark(None),
    ]
    assert [each for each in found(steps) if each] == [
        ["a: Spark one"],
        ["a: flink four", "a: spark two", "b: spark three", "b: spark two"],
        ["a: flink six"],
    ]


def test_a_query_is_in_force_from_its_time_on_whenever_it_comes() -> None:
    documents = [document(second, f"spark {second}") for second in range(6)]
    steps = [*documents, put(4, "a", None), put(2, "a", "spark"), Watermark(None)]
    assert found(steps)[-1] == ["a: spark 2", "a: spark 3"]
    assert found([put(2, "a", "spark"), put(4, "a", None), *documents, Watermark(None)])[-1] == found(steps)[-1]


def test_a_query_that_comes_behind_the_watermark_starts_there() -> None:
    steps = [document(1, "spark 1"), document(4, "spark 4"), Watermark(t(3)), put(0, "a", "spark"), Watermark(None)]
    assert found(steps)[-1] == ["a: spark 4"]


@pytest.mark.on_spark("more")
def test_a_new_query_finds_documents_of_the_past_that_are_held() -> None:
    steps = [
        document(1, "spark 1"),
        document(5, "spark 5"),
        document(6, "flink 6"),
        Watermark(t(8)),
        put(10, "new", "spark", since=t(0)),
        put(10, "bounded", "spark", since=t(3)),
        put(10, "live", "spark"),
        document(9, "spark 9"),
        document(11, "spark 11"),
        Watermark(t(12)),
        removed(13, "new"),
        Watermark(None),
    ]
    live = ["bounded: spark 11", "live: spark 11", "new: spark 11"]
    assert found(steps)[9] == live
    assert found(steps, history="6 seconds")[9] == sorted(
        ["bounded: spark 5", "bounded: spark 9", "new: spark 5", "new: spark 9", *live]
    )
    assert "new: spark 1" in found(steps, history="1 hour")[9]
    assert found(steps, history="1 hour")[10:] == [[], []]
    assert found(steps, history="log") == found(steps, history="1 hour")


def test_a_query_over_the_log_finds_documents_that_were_late() -> None:
    steps = [
        Watermark(t(8)),
        document(1, "spark 1"),
        put(10, "new", "spark", since=t(0)),
        Watermark(t(12)),
        document(9, "spark 9"),
        Watermark(None),
    ]
    assert found(steps, history="log") == [[], [], [], ["new: spark 1"], [], []]
    assert found(steps, history="1 hour")[3] == []


def test_documents_of_the_log_must_be_in_topics_and_come_without_state() -> None:
    flow = ms.Flow("alerts")
    articles = flow.read("articles", SCHEMAS["documents"], event_time="at")
    queries = flow.read("alerts", SCHEMAS["queries"], event_time="at").to_table(key="id")
    with pytest.raises(InvalidPlan, match="keeps state"):
        articles.distinct("title", within="1 hour").match_queries(queries, text="title", history="log")
    generated = flow.read(ms.rate(1), "title string, at timestamp", event_time="at")
    with pytest.raises(InvalidPlan, match="not in a topic"):
        generated.match_queries(queries, text="title", history="log")


@pytest.mark.on_spark("more")
def test_conditions_in_spark_sql_are_checked_besides() -> None:
    steps = [
        put(0, "dear", "spark", "price > 10"),
        put(0, "any", "*:*", "price % 2 = 1 and title like 's%'"),
        put(0, "failing", "spark", "10 / (price - 20) > 0"),
        document(1, "spark cheap", price=5),
        document(1, "spark dear", price=20),
        document(1, "flink", price=21),
        Watermark(None),
    ]
    assert found(steps)[-1] == ["any: spark cheap", "dear: spark dear"]


@pytest.mark.on_spark("more")
def test_score_fragments_and_owner_are_columns() -> None:
    def build(documents: Any, queries: Any) -> Any:
        made = documents.match_queries(
            queries.to_table(key="id"), "title", analysers="english", score=True, highlight=True
        )
        return made.select("query", "owner", "fragments", "title", score="round(score, 3)")

    steps = [put(0, "a", "stream^2", owner="ann"), document(1, "Streams are streaming"), Watermark(None)]
    assert play(build, steps, schema=SCHEMAS, event_time=TIMES)[-1] == [
        {
            "query": "a",
            "owner": "ann",
            "fragments": [{"field": "title", "fragment": "<em>Streams</em> are <em>streaming</em>"}],
            "title": "Streams are streaming",
            "score": 0.791,
        }
    ]


@pytest.mark.on_spark("more")
def test_text_inside_of_structs_and_lists_has_its_own_analyser() -> None:
    def build(documents: Any, queries: Any) -> Any:
        text = {"author.about": "german", "parts.heading": "english"}
        stored = queries.to_table(key="id")
        made = documents.match_queries(stored, ["title", *text], analysers=text, highlight=True)
        return made.select("query", found="transform(fragments, each -> each.fragment)")

    row = {
        "title": "Houses",
        "author": {"name": "Ann Lee", "about": "Sie baut Häuser"},
        "parts": [{"heading": "First steps", "pages": 3}, {"heading": "On walls", "pages": 40}],
        "at": t(1),
    }
    queries = ["author.about:hauses", "parts.heading:wall^2", "title:house"]
    queries += ['author.name:"Ann Lee"', "parts.pages:{3 TO 50}", "author.name:Ann"]
    puts = [put(0, f"q{number}", text) for number, text in enumerate(queries)]
    steps = [*puts, Add([row], to="documents"), Watermark(None)]
    schemas = SCHEMAS | {
        "documents": "title string, author struct<name: string, about: string>, "
        "parts array<struct<heading: string, pages: int>>, at timestamp"
    }
    out = play(build, steps, schema=schemas, event_time=TIMES)
    assert sorted((row["query"], row["found"]) for row in out[-1]) == [
        ("q0", ["Sie baut <em>Häuser</em>"]),
        ("q1", ["On <em>walls</em>"]),
        ("q3", []),
        ("q4", []),
    ]


@pytest.mark.on_spark("more")
def test_a_wrong_query_is_a_dead_letter_and_the_others_go_on() -> None:
    def build(documents: Any, queries: Any) -> Any:
        made = documents.match_queries(queries.to_table(key="id"), text="title")
        return {"found": made, "dead": made.dead, "late": made.late}

    steps = [
        put(0, "good", "spark"),
        put(0, "bad", "spark AND (prize:1)"),
        put(0, "worse", "spark", "prize > 1"),
        document(1, "spark"),
        Watermark(t(2)),
        document(1, "too late"),
        put(3, "bad", "spark"),
        document(4, "spark"),
        Watermark(None),
    ]
    out = play(build, steps, schema=SCHEMAS, event_time=TIMES)
    reasons = [row["reason"].splitlines()[0].split("WrongQuery: ")[1] for step in out for row in step["dead"]]
    assert reasons == [
        "column 12: there is no field 'prize' to search",
        "the condition: there is no column 'prize', in 'prize > 1'",
    ]
    assert [row["query"] for step in out for row in step["found"]] == ["good", "bad", "good"]
    assert [(row["title"], row["reason"]) for step in out for row in step["late"]] == [("too late", "expired")]


def test_matches_are_counted_in_windows() -> None:
    def build(documents: Any, queries: Any) -> Any:
        made = documents.match_queries(queries.to_table(key="id"), text="title")
        return made.key_by("query").window(ms.fixed("10 seconds")).agg(n=ms.count())

    steps = [put(0, "a", "spark"), document(1, "spark"), document(12, "spark"), document(13, "spark"), Watermark(None)]
    out = play(build, steps, schema=SCHEMAS, event_time=TIMES)
    assert [row["n"] for row in out[-1]] == [1, 2]


def test_documents_may_be_retracted() -> None:
    def build(documents: Any, queries: Any) -> Any:
        windows = documents.key_by("title").window(ms.fixed("10 seconds")).trigger(ms.repeatedly(ms.after_count(1)))
        counts = windows.retracting().agg(n=ms.count())
        return counts.match_queries(queries.to_table(key="id"), text="title").to_table()

    steps = [put(0, "a", "n:>1"), document(1, "spark"), document(2, "spark"), document(3, "spark"), Watermark(None)]
    out = play(build, steps, schema=SCHEMAS, event_time=TIMES)
    assert [row["n"] for step in out for row in step] == [3]


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ({"text": []}, "match_queries needs the fields to search"),
        ({"text": "titel"}, "there is no field 'titel' to search"),
        ({"text": "price"}, "the field 'price' is not a string"),
        ({"text": "title", "analysers": "klingon"}, "there is no analyser 'klingon'"),
        ({"text": "title", "analysers": {"body": "english"}}, "'body' is not a field of text="),
    ],
)
def test_a_wrong_step_is_refused_when_the_flow_is_built(options: dict[str, Any], mistake: str) -> None:
    flow = ms.Flow("wrong")
    documents = flow.read("documents", SCHEMAS["documents"], event_time="at")
    queries = flow.read("queries", SCHEMAS["queries"], event_time="at").to_table(key="id")
    with pytest.raises(ms.MillstreamError) as refused:
        documents.match_queries(queries, **options)
    assert refused.value.what == mistake
    assert __file__ in str(refused.value.where)
    with pytest.raises(InvalidPlan, match="not str"):
        documents.match_queries("queries", text="title")  # type: ignore[arg-type]
