"""Values in Confluent's wire format, with the schemas of a registry.

The registry here is a stand-in: a small HTTP server on this machine that answers `GET /schemas/ids/N` as one does.
"""

from __future__ import annotations

import base64
import io
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, BaseServer, ThreadingTCPServer
from typing import Any

import fastavro
import pytest

from kafka_cluster import KafkaCluster
from millstream.connectors.kafka.schema_registry import Registry as SchemaRegistry
from millstream.errors import InvalidSetting, KafkaUnavailable, NoAccess
from millstream.secrets import Secret

from .support import made, numbers, opened, row, send, slabs

OLD = {"type": "record", "name": "Score", "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Score",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "more", "type": ["null", "double"], "default": None},
        {"name": "user", "type": ["null", "string"]},
    ],
}
SCHEMAS: dict[int, dict[str, Any]] = {
    1: {"schema": json.dumps(OLD)},
    300: {"schema": json.dumps(NEW), "schemaType": "AVRO"},
    7: {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
    8: {"schema": json.dumps(NEW), "references": [{"name": "other", "subject": "other", "version": 1}]},
    9: {"schema": '"string"'},
}
USER = "ann:a secret"


class Registry:
    """What was asked for is in `asked`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.user: str | None = None
        self.elsewhere: str | None = None
        """Where it sends on to."""
        registry = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/schemas/types":  # whether there is a registry
                    registry.asked.append(self.path)
                said = self.headers.get("Authorization")
                known = SCHEMAS.get(int(self.path.rpartition("/")[2])) if "/ids/" in self.path else None
                if registry.elsewhere:
                    self.send_response(302)
                    self.send_header("Location", registry.elsewhere)
                    self.end_headers()
                elif registry.user and said != "Basic " + base64.b64encode(registry.user.encode()).decode():
                    self._answer(401, {"error_code": 401, "message": "Unauthorized"})
                elif self.path == "/schemas/types":
                    self._answer(200, ["AVRO"])
                elif known is None:
                    self._answer(404, {"error_code": 40403, "message": "Schema not found"})
                else:
                    self._answer(200, known)

            def _answer(self, status: int, said: Any) -> None:
                body = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def running(server: BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def serving(handler: type[BaseRequestHandler]) -> Iterator[str]:
    server = ThreadingTCPServer(("127.0.0.1", 0), handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def registry() -> Iterator[Registry]:
    made_here = Registry()
    with running(made_here.server):
        yield made_here


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def avro(number: int, value: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(SCHEMAS[number]["schema"])), value)
    return framed(number, target.getvalue())


def test_each_value_is_read_with_its_writers_schema(kafka: KafkaCluster, registry: Registry) -> None:
    topic = made(kafka.bootstrap)
    first, second = {"user": "ann", "n": 1}, {"n": 2, "more": 0.5, "user": "bob"}
    sent = [avro(1, first), avro(300, second), row("plain", 3), b"\0\0", None, framed(1, b"\x01"), avro(1, first)]
    send(kafka.bootstrap, topic, sent)
    schema = "user string, n bigint, more double"
    with opened(kafka.bootstrap, topic, schema, format="avro", registry=registry.url + "/") as source:
        [slab] = slabs(source)
        assert [slab.rows.num_rows] == [len(found.rows) for found in slabs(source)]
    assert slab.rows.to_pylist() == [{**first, "more": None}, second, {**first, "more": None}]
    assert list(slab.offsets) == [0, 1, 6]
    assert slab.dead is not None
    reasons = {letter["offset"]: letter["reason"] for letter in slab.dead.to_pylist()}
    assert sorted(reasons) == [2, 3, 5]
    assert "does not start with a schema id" in reasons[2] == reasons[3]
    assert sorted(registry.asked) == ["/schemas/ids/1", "/schemas/ids/300"]  # once each


def test_json_behind_the_header(kafka: KafkaCluster, registry: Registry) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [framed(5, row("ann", 1)), row("bob", 2), framed(6, row("ann", 3))])
    with opened(kafka.bootstrap, topic, registry=registry.url) as source:
        [slab] = slabs(source)
    assert numbers([slab]) == [1, 3]
    assert slab.dead is not None
    assert slab.dead.column("offset").to_pylist() == [1]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (2, "the schema registry has no schema 2"),
        (0xFFFFFFFF, "the schema registry has no schema 4294967295"),
        (7, "the schema 7 .* cannot be used: it is PROTOBUF"),
        (8, "the schema 8 .* refers to version 1 of 'other', which is not there"),
        (9, "the schema 9 .* not the schema of a record"),
    ],
)
def test_a_value_with_an_unusable_schema_is_a_dead_letter(
    kafka: KafkaCluster, registry: Registry, number: int, said: str
) -> None:
    topic = made(kafka.bootstrap)
    good = avro(1, {"user": "ann", "n": 1})
    send(kafka.bootstrap, topic, [good, framed(number, b"\x02"), good])
    with opened(kafka.bootstrap, topic, format="avro", registry=registry.url) as source:
        [slab] = slabs(source)
    assert numbers([slab]) == [1, 1]
    assert slab.dead is not None
    [letter] = slab.dead.to_pylist()
    assert (letter["offset"], letter["value"]) == (1, framed(number, b"\x02"))
    assert re.search(said, letter["reason"])


def test_a_registry_may_want_a_user(kafka: KafkaCluster, registry: Registry) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [avro(1, {"user": "ann", "n": 1})])
    registry.user = USER
    settings = {"basic.auth.user.info": USER, "basic.auth.credentials.source": "USER_INFO"}
    with opened(kafka.bootstrap, topic, settings=settings, format="avro", registry=registry.url) as source:
        assert numbers(slabs(source)) == [1]
    with (
        opened(kafka.bootstrap, topic, format="avro", registry=registry.url) as source,
        pytest.raises(NoAccess, match=r"basic\.auth\.user\.info"),
    ):
        slabs(source)


def test_a_password_does_not_follow_to_another_host(registry: Registry) -> None:
    """A registry that sends on to another: that one is not even asked."""
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))

        def log_message(self, format: str, *args: Any) -> None: ...

    with serving(Other) as other:
        registry.elsewhere = f"{other}/schemas/ids/1"
        asked = SchemaRegistry(registry.url, Secret(USER))
        with pytest.raises(InvalidSetting, match=f"redirects to {other}"):
            asked.avro(1)
    assert seen == []


def test_something_that_is_not_a_registry_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)

    class Babbles(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(b"220 mail.example.com ESMTP\r\n")

    with serving(Babbles) as url, pytest.raises(KafkaUnavailable, match=r"does not answer: 220 mail.*ESMTP"):
        SchemaRegistry(url).avro(1)


def test_a_registry_that_is_away(kafka: KafkaCluster) -> None:
    topic = made(kafka.bootstrap)
    send(kafka.bootstrap, topic, [avro(1, {"user": "ann", "n": 1})])
    with (
        opened(kafka.bootstrap, topic, format="avro", registry="http://127.0.0.1:1") as source,
        pytest.raises(KafkaUnavailable, match="the schema registry does not answer"),
    ):
        slabs(source)


@pytest.mark.parametrize("url", ["localhost:8081", "http://ann:secret@localhost:8081"])
def test_addresses_that_are_refused(kafka: KafkaCluster, url: str) -> None:
    with pytest.raises(InvalidSetting) as refused, opened(kafka.bootstrap, "scores", format="avro", registry=url):
        pass
    assert "secret" not in str(refused.value)
