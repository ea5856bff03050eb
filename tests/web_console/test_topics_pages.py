"""Topics, groups, queues and tables: found, shown and produced; a record is shown as text, whatever it contains."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

import millstream as ms

from .axe import violations
from .conftest import Console
from .flows import HTML
from .pictures import picture

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCHEMA = "user string, score int, at timestamp"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def filled(console: Console) -> None:
    with ms.connect(console.log) as log:
        log.create_topic("points", partitions=2, schema=SCHEMA)
        log.create_topic("raw", partitions=1)
        with log.producer() as producer:
            for number in range(100):
                value = {"user": HTML if number == 99 else f"user {number}", "score": number, "at": NOON}
                producer.send("points", value, f"key {number % 10}", partition=number % 2)
            producer.send("raw", b"\xff\x00", headers={HTML: HTML.encode()})
            producer.send("raw", HTML.encode())
        with log.consumer("raw", group="readers") as consumer:
            consumer.poll(timeout=10)
            consumer.commit()
        log.create_queue("work", "raw")


def found(console: Console, topic: str, **asked: Any) -> tuple[int, Any]:
    status, _, answer = console.ask("GET", f"/v1/topics/{topic}/records?{urlencode(asked)}", **console.logged_in())
    return status, answer


def test_records_are_found(console: Console) -> None:
    filled(console)
    status, answer = found(console, "points", limit=3)
    assert status == 200
    assert len(answer["records"]) == 3
    offsets = [each["offset"] for each in found(console, "points", partition=1, offset=10, limit=3)[1]["records"]]
    assert offsets == [10, 11, 12]
    scores = [
        each["value"]["score"] for each in found(console, "points", where="score between 20 and 22")[1]["records"]
    ]
    assert sorted(scores) == [20, 21, 22]
    by_key = found(console, "points", key="key 3", limit=100)[1]["records"]
    assert sorted(each["value"]["score"] for each in by_key) == list(range(3, 100, 10))
    assert [each["value"]["score"] for each in found(console, "points", text="USER 42")[1]["records"]] == [42]
    assert found(console, "points", since="2020-01-01", limit=1)[1]["complete"] is False
    assert found(console, "points", since="2100-01-01")[1]["records"] == []
    raw = found(console, "raw")[1]["records"]
    assert {each["value"] for each in raw} == {"0xff00", HTML}
    assert [[HTML, HTML]] in [each["headers"] for each in raw]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"where": "score >"}, 400),
        ({"where": "nothing = 3"}, 400),
        ({"where": "score"}, 400),
        ({"partition": 7}, 400),
        ({"offset": "x"}, 400),
        ({"since": "yesterday"}, 400),
    ],
)
def test_wrong_searches_are_refused(console: Console, asked: dict[str, Any], status: int) -> None:
    filled(console)
    assert found(console, "points", **asked)[0] == status
    assert found(console, "nothing")[0] == 404
    assert found(console, "..%2f..%2fetc")[0] in (400, 404)


def test_a_record_is_produced(console: Console) -> None:
    filled(console)
    session = console.logged_in()
    value = {"user": "new", "score": 7, "at": "2026-01-31T12:00:00Z"}
    body = json.dumps({"key": "k", "value": value, "partition": 1})
    status, _, sent = console.ask("POST", "/v1/topics/points/records", body, **session)
    assert (status, sent) == (200, {"partition": 1, "offset": 50})
    newest = found(console, "points", partition=1, limit=1)[1]["records"][0]
    assert (newest["key"], newest["value"]["score"]) == ("k", 7)
    for wrong in (
        {"value": {"score": "many"}},
        {"value": value, "key": 3},
        {"value": value, "partition": "x"},
        {"value": value, "headers": "x"},
        {"value": value, "headers": {"n": 7}},
        {"value": value, "headers": [["n"]]},
    ):
        assert console.ask("POST", "/v1/topics/points/records", json.dumps(wrong), **session)[0] == 400
    nowhere = json.dumps({"value": value, "partition": 2})
    assert console.ask("POST", "/v1/topics/points/records", nowhere, **session)[0] == 404
    assert console.ask("POST", "/v1/topics/points/records", "x" * (2 << 20), **session)[0] == 400
    assert [each["action"] for each in console.supervisor.store.audit()] == ["produce"]


def test_groups_queues_and_tables_are_answered(console: Console) -> None:
    filled(console)
    session = console.logged_in()
    assert console.ask("GET", "/v1/topics", **session)[2] == ["points", "raw", "work.dead"]
    [group] = console.ask("GET", "/v1/groups", **session)[2]
    assert (group["name"], group["lag"]) == ("readers", 0)
    assert group["partitions"][0]["lag_s"] == 0
    [queue] = console.ask("GET", "/v1/queues", **session)[2]
    assert (queue["name"], queue["topic"]) == ("work", "raw")
    assert console.ask("GET", "/v1/tables", **session)[0] == 200
    assert console.ask("GET", "/v1/tables/nothing?key=a", **session)[0] == 404


def test_records_are_counted_over_time(console: Console) -> None:
    filled(console)
    session = console.logged_in()
    counted = console.ask("GET", f"/v1/topics/points/histogram?{urlencode({'where': 'score < 40'})}", **session)[2]
    assert (sum(counted["counts"]), counted["found"], counted["scanned"], counted["complete"]) == (40, 40, 100, True)
    part = console.ask("GET", "/v1/topics/points/histogram?partition=1&offset=10", **session)[2]
    assert (part["found"], part["complete"]) == (40, True)
    assert console.ask("GET", "/v1/topics/points/histogram?since=2100-01-01", **session)[2]["from"] is None


def test_a_group_is_reset_after_a_try(console: Console) -> None:
    filled(console)
    session = console.logged_in()

    def reset(**body: Any) -> tuple[int, Any]:
        status, _, answer = console.ask("POST", "/v1/groups/readers/reset", json.dumps(body), **session)
        return status, answer

    for check in (True, True, False):
        status, answer = reset(topic="raw", to="1", check=check)
        assert (status, answer["reset"]) == (200, not check)
        assert answer["partitions"] == [{"partition": 0, "before": 2, "after": 1, "lag_after": 1}]
    [group] = console.ask("GET", "/v1/groups", **session)[2]
    assert group["lag"] == 1
    assert 0 < group["partitions"][0]["lag_s"] < 600
    for wrong in ({"topic": "raw", "to": "yesterday"}, {"topic": "raw"}, {"to": "latest"}):
        assert reset(**wrong)[0] == 400
    assert reset(topic="nothing", to="earliest")[0] == 404
    assert [each["action"] for each in console.supervisor.store.audit()] == ["reset group"]


def changes(console: Console, page: Page) -> None:
    """A table in a compacted topic: its changes with what they replace, filtered, and the history of a key."""
    with ms.connect(console.log) as log:
        log.create_topic("levels", partitions=1, schema="pump string, litres int", compaction=True)
        with log.producer() as producer:
            for pump, litres in (("a", 1), ("b", 2), ("a", 3)):
                producer.send("levels", {"pump": pump, "litres": litres}, pump)
            producer.send("levels", None, "b")
    page.get_by_role("link", name="Tables").click()
    page.get_by_role("link", name="levels").click()
    page.get_by_label("key", exact=True).fill("a")
    page.get_by_role("button", name="Look up").click()
    page.get_by_role("region", name="The current row").get_by_role("row", name="litres 3").wait_for()
    page.get_by_role("row", name='+ a {"pump":"a","litres":3}').wait_for()
    page.get_by_role("row", name='\N{MINUS SIGN} a {"pump":"a","litres":1}').wait_for()
    page.get_by_label("Filter").fill("b")
    page.get_by_role("row", name='\N{MINUS SIGN} b {"pump":"b","litres":2}').wait_for()
    assert page.get_by_role("region", name="Changes").get_by_role("row", name="litres").count() == 2
    page.get_by_role("button", name="b", exact=True).first.click()
    page.get_by_role("heading", name="The history of b").wait_for()
    page.get_by_role("row", name='+ b {"pump":"b","litres":2}').wait_for()
    picture(page, "table")
    assert violations(page) == []


@pytest.mark.more
def test_topics_in_the_browser(console: Console, page: Page) -> None:
    filled(console)
    page.get_by_role("link", name="Topics").click()
    page.get_by_role("link", name="points").click()
    page.get_by_role("cell", name="taken over").first.wait_for()
    page.get_by_label("Expression").fill("score = 42")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("1 found in 100 records").wait_for()
    page.get_by_role("button", name="0/21").click()
    page.get_by_role("region", name="Record", exact=True).wait_for()
    page.get_by_role("img", name="1 records from").wait_for()
    picture(page, "topic")
    assert violations(page) == []
    for given, text in (
        ({"Text": "user 42"}, "1 found in 100 records"),
        ({"Key": "key 3"}, "10 found in 100 records"),
        ({"Partition": "1", "From offset": "45"}, "5 found in 5 records"),
        ({"From time (UTC)": "2100-01-01"}, "0 found in 0 records"),
    ):
        page.get_by_role("button", name="Newest").click()
        for label, value in given.items():
            page.get_by_label(label, exact=True).fill(value)
        page.get_by_role("button", name="Find").click()
        page.get_by_text(text).wait_for()
    page.get_by_role("button", name="Newest").click()
    page.get_by_text("Produce a record").click()
    page.get_by_label("Value of the new record").fill('{"user": "new one", "score": 1}')
    page.get_by_label("Partition of the new record").select_option("1")
    for name, given in (("trace", "7"), ("unwanted", ""), ("trace", "8")):
        page.get_by_role("button", name="Add a header").click()
        header = page.get_by_role("group", name="Header").last
        header.get_by_label("Name").fill(name)
        header.get_by_label("Value").fill(given)
    page.get_by_role("button", name="Remove header 2").click()
    picture(page, "produce")
    assert violations(page) == []
    page.get_by_role("button", name="Send").click()
    page.get_by_text("Sent as 1/50").wait_for()
    page.get_by_role("cell", name="new one").wait_for()
    page.get_by_role("button", name="1/50").click()
    record = page.get_by_role("region", name="Record", exact=True)
    record.get_by_text('"new one"').wait_for()
    assert record.get_by_role("term").all_inner_texts() == ["trace", "trace"]
    assert record.get_by_role("definition").all_inner_texts() == ["7", "8"]
    page.get_by_role("link", name="Groups and queues").click()
    page.get_by_role("row", name="readers").wait_for()
    page.get_by_role("row", name="work").wait_for()
    page.get_by_text("Reset the offsets of a group").click()
    page.get_by_role("button", name="Try").click()
    page.get_by_role("row", name="0 2 0 2").wait_for()
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("status").filter(has_text="Reset").wait_for()
    assert violations(page) == []
    changes(console, page)
    assert "taken over" not in page.title()
