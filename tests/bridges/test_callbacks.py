"""Callback URLs: registered over HTTP, each with its own position; a receiver that is away holds back no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.bridges.arrivals import Counts
from millstream.bridges.http.callbacks import Callbacks
from millstream.bridges.http.gateway import gateway
from millstream.log import EmbeddedLog
from millstream.secrets import Secret
from millstream.serving.access import Access, ListenAddress
from millstream.webhooks.signatures import Verifier
from waiting import until

from .receiver import Receiver, receiving
from .support import records, request, serving

SECRET, TOKEN = "a-secret-of-the-test", "0123456789abcdef"
ADDRESS = ListenAddress.of("127.0.0.1", 0)


@contextmanager
def opened(log: EmbeddedLog, file: Path, *, token: str | None = None, **more: Any) -> Iterator[int]:
    with (
        closing(Callbacks(log, file, **more)) as callbacks,
        gateway(log, Access.at(ADDRESS, token=token), callbacks=callbacks) as application,
        serving(application) as port,
    ):
        yield port


@pytest.fixture
def clicks(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("clicks", partitions=2)
    return log


def produce(log: EmbeddedLog, *values: int) -> None:
    with log.producer(acks="all") as producer:
        for value in values:
            producer.send("clicks", str(value).encode(), partition=0)


def register(port: int, url: str, **more: Any) -> Any:
    answer = request(port, "POST", "/v1/callbacks", json.dumps({"topic": "clicks", "url": url, **more}))
    assert answer.status == 200, answer.body
    return answer.json


def got(receiver: Receiver) -> list[int]:
    return [json.loads(body)["value"] for _, body in receiver.got]


def test_records_are_posted_signed_and_in_order_until_it_is_removed(clicks: EmbeddedLog, tmp_path: Path) -> None:
    produce(clicks, 1, 2)
    with receiving() as receiver, opened(clicks, tmp_path / "callbacks.db") as port:
        made = register(port, receiver.url, secret=SECRET, start="earliest", headers={"X-Key": "very-hidden"})
        produce(clicks, 3)
        until(lambda: got(receiver) == [1, 2, 3], "all records are posted")
        headers, body = receiver.got[0]
        raw = {name.encode(): value.encode() for name, value in headers.items()}
        assert Verifier("standard", [Secret(SECRET)]).check(raw, body) == "clicks-0-0"
        assert headers["x-key"] == "very-hidden"
        listed = request(port, "GET", "/v1/callbacks")
        assert (listed.json[0]["id"], listed.json[0]["signed"]) == (made["id"], True)
        for hidden in (SECRET, "hush", "very-hidden"):
            assert hidden not in listed.body.decode() + json.dumps(made)
        assert request(port, "DELETE", f"/v1/callbacks/{made['id']}").status == 200
        assert request(port, "GET", f"/v1/callbacks/{made['id']}").status == 404
        produce(clicks, 4)
        again = register(port, receiver.url, start="0:3,1:0")  # what comes now was not posted by the removed one
        until(lambda: request(port, "GET", f"/v1/callbacks/{again['id']}").json["position"] == "0:4,1:0", "posted")
        assert got(receiver) == [1, 2, 3, 4]


def test_a_receiver_that_is_away_holds_back_no_other(clicks: EmbeddedLog, tmp_path: Path) -> None:
    with receiving() as receiver, opened(clicks, tmp_path / "callbacks.db") as port:
        away = register(port, "http://127.0.0.1:9/hook", start="earliest")
        register(port, receiver.url, start="earliest")
        produce(clicks, 1, 2, 3)
        until(lambda: got(receiver) == [1, 2, 3], "the other gets its records")
        assert request(port, "GET", f"/v1/callbacks/{away['id']}").json["position"] == "0:0,1:0"


def test_it_is_known_how_far_the_last_receiver_is_behind(clicks: EmbeddedLog, tmp_path: Path) -> None:
    produce(clicks, 1, 2, 3)
    counts = Counts()
    with receiving() as receiver, closing(Callbacks(clicks, tmp_path / "callbacks.db", counts=counts)) as callbacks:
        callbacks.register("clicks", "http://127.0.0.1:9/hook", start="earliest")
        callbacks.register("clicks", receiver.url, start="earliest")
        until(lambda: counts.sent == 3, "the other gets its records")
        assert callbacks.behind() == (3, "records")


def test_a_restart_continues_at_the_position_of_each(clicks: EmbeddedLog, tmp_path: Path) -> None:
    file = tmp_path / "callbacks.db"
    with receiving() as receiver:
        with opened(clicks, file) as port:
            made = register(port, receiver.url, secret=SECRET, start="earliest")
            produce(clicks, 1)
            until(lambda: request(port, "GET", f"/v1/callbacks/{made['id']}").json["position"] == "0:1,1:0", "kept")
        assert file.stat().st_mode & 0o077 == 0
        produce(clicks, 2)
        with opened(clicks, file):
            until(lambda: got(receiver) == [1, 2], "it goes on with the next record")
        assert all("webhook-signature" in headers for headers, _ in receiver.got)


def test_what_is_rejected_or_tried_for_too_long_is_a_dead_letter(clicks: EmbeddedLog, tmp_path: Path) -> None:
    with receiving() as receiver, opened(clicks, tmp_path / "callbacks.db", retry_for="1 millisecond") as port:
        receiver.answer([200, 400, *[500] * 5, 200])
        made = register(port, receiver.url, start="earliest")
        produce(clicks, 1, 2, 3, 4)
        until(lambda: len(got(receiver)) == 8 and got(receiver)[-1] == 4, "all have been tried")
        until(lambda: request(port, "GET", f"/v1/callbacks/{made['id']}").json["dead"] == 2, "two are dead")
    letters = records(clicks, "clicks.dead")
    assert [(each.value["value"], each.value["offset"]) for each in letters] == [(b"2", 1), (b"3", 2)]
    assert dict(letters[0].headers)["callback"] == made["id"].encode()
    assert "hush" not in str([each.value for each in letters])


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "clicks", "url": "ftp://host/"},
        {"topic": "clicks", "url": "http://user:hush@host/"},
        {"topic": "clicks", "url": "http://elsewhere.example/"},
        {"topic": "clicks", "url": "http://here.example/", "secret": "whsec_?"},
        {"topic": "clicks", "url": "http://here.example/", "start": "soon"},
        {"topic": "clicks", "url": "http://here.example/", "more": 1},
    ],
)
def test_what_cannot_be_registered(clicks: EmbeddedLog, tmp_path: Path, given: dict[str, Any]) -> None:
    with opened(clicks, tmp_path / "callbacks.db", hosts=["here.example"]) as port:
        answer = request(port, "POST", "/v1/callbacks", json.dumps(given))
        assert answer.status == 400
        assert answer.json["error"]["next"]
        assert b"hush" not in answer.body
        assert request(port, "GET", "/v1/callbacks").json == []


def test_a_token_is_needed_and_the_gateway_must_have_callbacks(clicks: EmbeddedLog, tmp_path: Path) -> None:
    with opened(clicks, tmp_path / "callbacks.db", token=TOKEN) as port:
        assert request(port, "GET", "/v1/callbacks").status == 401
        assert request(port, "GET", "/v1/callbacks", Authorization=f"Bearer {TOKEN}").json == []
    with gateway(clicks, Access.at(ADDRESS)) as application, serving(application) as port:
        assert request(port, "GET", "/v1/callbacks").status == 404
