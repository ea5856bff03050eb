"""Webhooks into topics, over a real server: signatures, ids, bodies with many events, limits, and a full buffer."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millstream.bridges.http.bodies import EventFormat
from millstream.bridges.http.listener import Rules, listener
from millstream.bridges.landing import Landing
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog
from millstream.secrets import Secret
from millstream.serving.access import Access, ListenAddress
from millstream.webhooks.signatures import Verifier, signed_headers
from waiting import until

from .support import Answered, records, request, serving, values

SECRET = Secret("a-secret-of-the-tests")
ACCESS = Access.at(ListenAddress.of("127.0.0.1", 0))


@contextmanager
def listening(log: EmbeddedLog, *topics: str, waiting_bytes_max: int = 1 << 20, **rules: Any) -> Iterator[int]:
    given = {"access": ACCESS, **rules}
    with (
        Landing(log, "http", topics) as landing,
        listener(landing, Rules(**given), waiting_bytes_max=waiting_bytes_max) as application,
        serving(application) as port,
    ):
        yield port


def post(port: int, path: str, body: bytes | str, kind: str = "application/json", **headers: str) -> Answered:
    return request(port, "POST", path, body, Content_Type=kind, **headers)


@pytest.fixture
def clicks(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("clicks")
    return log


def test_a_body_is_one_event_or_many(clicks: EmbeddedLog) -> None:
    with listening(clicks, "clicks", kept_headers=["X-Event"]) as port:
        assert post(port, "/clicks", '{"n": 1}', X_Event="push").json == {"stored": 1, "duplicates": 0, "dead": 0}
        assert post(port, "/clicks", '[{"n": 2}, {"n":  3}]').json["stored"] == 2
        assert post(port, "/clicks", '{"n": 4}\n\n{"n": 5}\r\n', "application/x-ndjson").json["stored"] == 2
        assert post(port, "/clicks", b"\x00\x01", "application/octet-stream").json["stored"] == 1
        assert post(port, "/clicks", "[]").json == {"stored": 0, "duplicates": 0, "dead": 0}
    found = records(clicks, "clicks")
    assert [record.value for record in found] == [
        b'{"n": 1}',
        b'{"n": 2}',
        b'{"n":  3}',
        b'{"n": 4}',
        b'{"n": 5}',
        b"\x00\x01",
    ]
    assert [record.headers for record in found[:2]] == [(("x-event", b"push"),), ()]


def test_a_repeated_request_is_stored_once(clicks: EmbeddedLog) -> None:
    with listening(clicks, "clicks") as port:
        for expected in ({"stored": 2, "duplicates": 0, "dead": 0}, {"stored": 0, "duplicates": 2, "dead": 0}):
            assert post(port, "/clicks", "[1, 2]", Idempotency_Key="k-1").json == expected
        assert post(port, "/clicks", "3", Idempotency_Key="with space").status == 400
    with listening(clicks, "clicks") as port:
        assert post(port, "/clicks", "[1, 2]", Idempotency_Key="k-1").json["duplicates"] == 2
    assert values(clicks, "clicks") == [b"1", b"2"]


def test_ids_and_keys_from_fields(clicks: EmbeddedLog) -> None:
    with listening(clicks, "clicks", format=EventFormat(id_field="id", key_field="user")) as port:
        body = '[{"id": 1, "user": "ann"}, {"id": 1, "user": "ann"}, {"id": "2"}, {"user": "bob"}, 7]'
        assert post(port, "/clicks", body).json == {"stored": 2, "duplicates": 1, "dead": 2}
    assert [record.key for record in records(clicks, "clicks")] == [b"ann", None]
    reasons = {letter["reason"] for letter in values(clicks, "clicks.dead")}
    assert reasons == {"the event has no field 'id' with its id"}


def test_unreadable_events_become_dead_letters(log: EmbeddedLog) -> None:
    log.create_topic("scores", schema="user string, score int")
    with listening(log, "scores") as port:
        assert post(port, "/scores", '[{"user": "ann", "score": 1}, {"score": "x"}]').json["dead"] == 1
        assert post(port, "/scores", '[{"user": "ann"').json == {"stored": 0, "duplicates": 0, "dead": 1}
        assert post(port, "/scores", "").json["dead"] == 1
    assert values(log, "scores") == [{"user": "ann", "score": 1}]
    letters = values(log, "scores.dead")
    assert [letter["value"] for letter in letters] == [b'{"score": "x"}', b'[{"user": "ann"', b""]
    assert {letter["topic"] for letter in letters} == {"http 127.0.0.1"}


def test_only_signed_requests_are_stored(clicks: EmbeddedLog) -> None:
    old = Secret("the-secret-before-it")
    now = int(time.time())
    with listening(clicks, "clicks", verifier=Verifier("standard", [SECRET, old])) as port:

        def send(headers: dict[str, str], body: bytes = b"1") -> int:
            return post(port, "/clicks", body, **headers).status

        good = signed_headers(SECRET, "id-1", b"1", now)
        assert [send(good), send(good), send(signed_headers(old, "id-2", b"1", now))] == [200, 200, 200]
        for wrong in (
            {},
            {"webhook-id": "id-3"},
            good | {"webhook-id": "id-3"},
            good | {"webhook-timestamp": "soon"},
            good | {"webhook-signature": good["webhook-signature"].replace("v1", "v2")},
            signed_headers(Secret("of somebody else"), "id-3", b"1", now),
            signed_headers(SECRET, "id-3", b"1", now - 3600),
        ):
            assert send(wrong) == 401
        assert send(good, b"2") == 401
    assert values(clicks, "clicks") == [b"1", b"1"]


@pytest.mark.parametrize("scheme", ["github", "stripe"])
def test_signatures_of_other_services(scheme: str, clicks: EmbeddedLog) -> None:
    body, now = b'{"n": 1}', str(int(time.time()))
    key = SECRET.reveal().encode()
    if scheme == "github":
        headers = {"X-Hub-Signature-256": "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()}
    else:
        digest = hmac.new(key, f"{now}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {"Stripe-Signature": f"t={now},v1={digest},v0=old"}
    with listening(clicks, "clicks", verifier=Verifier(scheme, [SECRET])) as port:
        assert post(port, "/clicks", body, **headers).status == 200
        assert post(port, "/clicks", body + b" ", **headers).status == 401


def test_what_is_refused(clicks: EmbeddedLog) -> None:
    with listening(clicks, "clicks", body_bytes_max=1000, format=EventFormat(event_bytes_max=100)) as port:
        assert post(port, "/other", "1").status == 404
        assert request(port, "GET", "/clicks").status == 405
        assert post(port, "/clicks", "1" * 1001).status == 413
        assert post(port, "/clicks", f'["{"x" * 200}"]').status == 413
        assert post(port, "/clicks", "1", Host="elsewhere.example").status == 400
        assert post(port, "/clicks", "1", Origin="http://elsewhere.example").status == 403
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:  # no length is given
            connection.sendall(b"POST /clicks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            connection.sendall(b"3e8\r\n%b\r\n" % (b"1" * 1000) * 2)
            assert b" 413 " in connection.recv(100)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"POST /clicks HTTP/1.1\r\nX: ")
            answer = b""
            while not answer:
                connection.sendall(b"x" * 30_000)
                connection.settimeout(0.2)
                try:
                    answer = connection.recv(100)
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
    assert values(clicks, "clicks") == []


def test_a_slow_disk_is_answered_with_429(clicks: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: storing blocks until the buffer has refused a request."""
    blocked, release = threading.Event(), threading.Event()
    land = Landing.land

    def slow(self: Landing, arrivals: Any) -> Any:
        blocked.set()
        release.wait()
        return land(self, arrivals)

    monkeypatch.setattr(Landing, "land", slow)
    answers: list[int] = []
    with listening(clicks, "clicks", waiting_bytes_max=2000) as port:
        senders = [threading.Thread(target=lambda: answers.append(post(port, "/clicks", "1" * 1500).status))]
        senders[0].start()
        until(blocked.is_set, "the first request is being stored")
        refused = post(port, "/clicks", "2" * 1500)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        release.set()
        senders[0].join()
        assert answers == [200]
        assert post(port, "/clicks", "2" * 1500).status == 200
    assert [value[:1] for value in values(clicks, "clicks")] == [b"1", b"2"]


def test_no_answer_in_time_is_not_a_loss(clicks: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is given up is stored all the same, and its repetition is a duplicate."""
    release = threading.Event()
    land = Landing.land

    def slow(self: Landing, arrivals: Any) -> Any:
        release.wait()
        return land(self, arrivals)

    monkeypatch.setattr(Landing, "land", slow)
    with listening(clicks, "clicks", store_seconds=0.05) as port:
        assert post(port, "/clicks", "1", Idempotency_Key="a").status == 503
        release.set()
        until(lambda: values(clicks, "clicks"), "it is stored")
    with listening(clicks, "clicks") as port:
        assert post(port, "/clicks", "1", Idempotency_Key="a").json["duplicates"] == 1


def test_many_connections_share_commits(clicks: EmbeddedLog) -> None:
    def send(port: int, first: int) -> None:
        for number in range(first, first + 10):
            assert post(port, "/clicks", json.dumps({"n": number}), Idempotency_Key=f"k{number}").status == 200

    with listening(clicks, "clicks") as port:
        senders = [threading.Thread(target=send, args=(port, 10 * each)) for each in range(8)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    assert sorted(json.loads(value)["n"] for value in values(clicks, "clicks")) == list(range(80))


def test_an_open_door_needs_a_secret() -> None:
    address = ListenAddress.of("192.0.2.1", 0)
    with pytest.raises(InvalidInput):
        Access.at(address)
    assert Access.at(address, is_signed=True).token is None
    with pytest.raises(InvalidInput, match="scheme"):
        Verifier("none", [SECRET])
    with pytest.raises(InvalidInput, match="base64"):
        Verifier("standard", [Secret("whsec_%%%")])
