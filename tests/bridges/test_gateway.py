"""The log over HTTP: records in and out, positions that resume, server-sent events, groups, and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest

from millstream.bridges.http.gateway import gateway
from millstream.bridges.http.sessions import Sessions
from millstream.errors import NotFound
from millstream.log import EmbeddedLog
from millstream.serving.access import Access, ListenAddress
from waiting import until

from .support import Answered, records, request, serving

ADDRESS = ListenAddress.of("127.0.0.1", 0)
TOKEN = "0123456789abcdef"


@contextmanager
def opened(log: EmbeddedLog, *topics: str, token: str | None = None, **more: Any) -> Iterator[int]:
    with (
        gateway(log, Access.at(ADDRESS, token=token), topics, **more) as application,
        serving(application) as port,
    ):
        yield port


@pytest.fixture
def port(log: EmbeddedLog) -> Iterator[int]:
    log.create_topic("clicks", partitions=2)
    with opened(log) as made:
        yield made


def produce(port: int, body: Any, topic: str = "clicks") -> Answered:
    return request(port, "POST", f"/v1/topics/{topic}/records", json.dumps(body))


def read(port: int, query: str = "", topic: str = "clicks") -> Any:
    return request(port, "GET", f"/v1/topics/{topic}/records{query}").json


def shown(found: list[dict[str, Any]]) -> list[Any]:
    return sorted(record["value"] for record in found)


def test_records_are_stored_with_key_headers_and_partition(port: int, log: EmbeddedLog) -> None:
    given = [
        {"value": {"n": 1}, "key": "ann", "headers": {"source": "web"}, "partition": 1},
        {"value_base64": "/w==", "key_base64": "/w==", "partition": 0},
        {"value": None, "key": "ann", "partition": 1},
    ]
    assert produce(port, given).json == [
        {"partition": 1, "offset": 0},
        {"partition": 0, "offset": 0},
        {"partition": 1, "offset": 1},
    ]
    assert [(record.key, record.value, record.headers) for record in records(log, "clicks")] == [
        (b"\xff", b"\xff", ()),
        (b"ann", b'{"n": 1}', (("source", b"web"),)),
        (b"ann", None, ()),
    ]
    found = read(port)["records"]
    assert [{name: record.get(name) for name in ("key", "value", "headers")} for record in found[1:]] == [
        {"key": "ann", "value": {"n": 1}, "headers": [["source", "web"]]},
        {"key": "ann", "value": None, "headers": None},
    ]
    assert (found[0]["key_base64"], found[0]["value_base64"]) == ("/w==", "/w==")
    assert produce(port, {"value": "one"}).json[0]["offset"] >= 0


def test_a_topic_with_a_schema(port: int, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema="user string, score int, at timestamp, raw binary, share decimal(4,2)")
    good = {"user": "ann", "score": 1, "at": "2026-01-01T00:00:00Z", "raw": "/w==", "share": 1.5}
    answers = produce(port, [{"value": good}, {"value": {"score": "many"}}], "scores").json
    assert answers[0] == {"partition": 0, "offset": 0}
    assert "score" in answers[1]["error"]
    (found,) = read(port, topic="scores")["records"]
    assert found["value"] == {**good, "share": "1.50"}
    described = request(port, "GET", "/v1/topics/scores").json
    assert described["partitions"] == [{"partition": 0, "first": 0, "next": 1}]
    assert request(port, "GET", "/v1/topics").json == ["clicks", "scores"]


def test_a_reader_resumes_by_position(port: int) -> None:
    produce(port, [{"value": n, "partition": n % 2} for n in range(6)])
    first = read(port, "?limit=4")
    rest = read(port, f"?position={first['position']}")
    assert shown(first["records"] + rest["records"]) == list(range(6))
    assert rest["position"] == "0:3,1:3"
    assert read(port, "?position=0:3,1:3") == {"records": [], "position": "0:3,1:3"}
    assert read(port, "?position=latest") == {"records": [], "position": "0:3,1:3"}
    assert shown(read(port, "?position=0:2")["records"]) == [1, 3, 4, 5]


@contextmanager
def followed(port: int, path: str, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")

    def events() -> Iterator[tuple[str, Any]]:
        id = ""
        while line := answer.readline().decode().strip("\n") or " ":
            if line.startswith("id: "):
                id = line[4:]
            elif line.startswith("data: "):
                yield id, json.loads(line[6:])

    try:
        yield events()
    finally:
        answer.close()
        connection.close()


def test_events_resume_after_the_last_id(port: int) -> None:
    produce(port, [{"value": n, "partition": n % 2} for n in range(4)])
    with followed(port, "/v1/topics/clicks/events?position=earliest") as events:
        seen = [next(events) for _ in range(3)]
    produce(port, {"value": 4, "partition": 0})
    with followed(port, "/v1/topics/clicks/events", Last_Event_ID=seen[-1][0]) as events:
        rest = [next(events) for _ in range(2)]
    assert sorted(record["value"] for _, record in [*seen, *rest]) == [0, 1, 2, 3, 4]
    with followed(port, "/v1/topics/clicks/events") as events:  # what comes from now on
        produce(port, {"value": 5, "partition": 1})
        assert next(events)[1]["value"] == 5


def consumed(port: int, path: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    until(lambda: found.extend(request(port, "GET", f"{path}/records?wait=1").json) or len(found) >= count, "records")
    return found


def test_a_group_shares_and_commits(port: int) -> None:
    produce(port, [{"value": n, "partition": n % 2} for n in range(4)])
    path = "/v1/groups/readers/consumers"
    id = request(port, "POST", path, json.dumps({"topics": ["clicks"]})).json["consumer"]
    assert shown(consumed(port, f"{path}/{id}", 4)) == [0, 1, 2, 3]
    assert request(port, "POST", f"{path}/{id}/commit").json == {"committed": True}
    assert request(port, "DELETE", f"{path}/{id}").json == {"closed": id}
    assert request(port, "GET", f"{path}/{id}/records").status == 404
    produce(port, {"value": 4})
    again = request(port, "POST", path, json.dumps({"topics": ["clicks"]})).json["consumer"]
    assert shown(consumed(port, f"{path}/{again}", 1)) == [4]
    assert request(port, "GET", f"/v1/groups/others/consumers/{again}/records").status == 404


def test_an_abandoned_consumer_is_closed(log: EmbeddedLog) -> None:
    log.create_topic("clicks")
    now = [0.0]
    sessions = Sessions(log, idle_seconds=10, clock=lambda: now[0])
    id = sessions.open("readers", ["clicks"], "earliest")
    now[0] = 9
    with sessions.using("readers", id) as consumer:
        consumer.poll()
    now[0] = 20
    with pytest.raises(NotFound), sessions.using("readers", id):
        pass
    assert log.describe_group("readers").members == ()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/topics/clicks/records", "[", 400),
        ("POST", "/v1/topics/clicks/records", '{"value": 1, "colour": 2}', 400),
        ("POST", "/v1/topics/clicks/records", "{}", 400),
        ("POST", "/v1/topics/clicks/records", '{"value_base64": "%"}', 400),
        ("POST", "/v1/topics/clicks/records", '{"value": 1, "partition": 7}', 404),
        ("POST", "/v1/topics/other/records", '{"value": 1}', 404),
        ("GET", "/v1/topics/other/events", None, 404),
        ("GET", "/v1/topics/clicks/records?position=7", None, 400),
        ("GET", "/v1/topics/clicks/records?position=0:7", None, 400),
        ("GET", "/v1/topics/clicks/records?position=7:0", None, 400),
        ("GET", "/v1/topics/clicks/records?limit=many", None, 400),
        ("POST", "/v1/groups/readers/consumers", '{"topic": "clicks"}', 400),
        ("GET", "/v1/nothing", None, 404),
        ("PUT", "/v1/topics/clicks/records", "1", 404),
    ],
)
def test_what_is_refused(port: int, method: str, path: str, body: str | None, status: int) -> None:
    answer = request(port, method, path, body)
    assert answer.status == status
    assert answer.json["error"]["what"]


def test_tokens_and_limits(log: EmbeddedLog) -> None:
    log.create_topic("clicks")
    log.create_topic("private")
    with opened(log, "clicks", token=TOKEN, read_only=True) as port:
        assert request(port, "GET", "/v1/topics").status == 401
        assert request(port, "GET", "/v1/topics/clicks/events").status == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert request(port, "GET", "/v1/topics", **headers).json == ["clicks"]
        assert request(port, "GET", "/v1/topics/private", **headers).status == 404
        assert request(port, "POST", "/v1/topics/clicks/records", '{"value": 1}', **headers).status == 400
