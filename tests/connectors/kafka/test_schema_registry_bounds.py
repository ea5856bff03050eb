"""What a schema registry answers is bounded, and a schema that is no use costs the values written with it, not the job.

The registry is a small HTTP server on this machine, so that it can answer what no real one would.
"""

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fastavro
import pytest

from millstream.connectors.kafka import schema_registry as module
from millstream.connectors.kafka.schema_registry import Registry, registry_codec
from millstream.errors import InvalidSetting, KafkaUnavailable, NotFound, UnknownSchema, UnusableSchema
from millstream.records import Schema

SCORE = {"type": "record", "name": "Score", "fields": [{"name": "n", "type": "int"}]}
LINKED = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
PIECE = b" " * (1 << 20)


@pytest.fixture
def answers():
    """By id, the status and the pieces of the answer; `asked` are the ids, in order, and `sent` how much went out."""
    known: dict[int, tuple[int, list[bytes]]] = {1: (200, [json.dumps({"schema": json.dumps(SCORE)}).encode()])}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            number = int(self.path.rpartition("/")[2])
            server.asked.append(number)
            status, pieces = known.get(number, (404, [b'{"error_code": 40403}']))
            self.send_response(status)
            self.send_header("Content-Length", str(server.promised or sum(map(len, pieces))))
            self.end_headers()
            for piece in pieces:
                try:
                    self.wfile.write(piece)
                except OSError:
                    return  # the other side has heard enough
                server.sent += len(piece)

        def log_message(self, format, *args): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.known, server.asked, server.sent, server.promised = known, [], 0, None
    server.registry = Registry(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def schema(text):
    return 200, [json.dumps({"schema": text}).encode()]


def framed(number, body):
    return b"\0" + number.to_bytes(4, "big") + body


def score(n):
    target = io.BytesIO()
    fastavro.schemaless_writer(target, SCORE, {"n": n})
    return framed(1, target.getvalue())


def decoded(answers, *values):
    return registry_codec(Schema.of("n int"), "avro", answers.registry).decode(values)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((404, [b""]), "the schema registry has no schema 5"),
        ((422, [b""]), "the schema registry has no schema 5"),
        ((200, [b'{"schema": "', *[PIECE] * 600, b'"}']), "the answer has more than 4 MiB"),
        (schema(" " * (2 << 20)), "it has 2 MiB, more than 1 MiB"),
        (schema("[" * 100_000 + "]" * 100_000), "nested too deeply"),
        (schema(json.dumps(SCORE).replace('"int"', '{"type":"array","items":' * 300 + '"int"' + "}" * 300)), "nested"),
        (schema(json.dumps(SCORE).replace('"int"', '"Score"')), "a record always contains itself"),
        (schema('{"type": "record", "name": "\\ud800", "fields": [{"name": "n", "type": "\\ud800x"}]}'), "cannot be"),
        ((200, [b'{"schema": "", "schemaType": "\\ud800"}']), "it is ?, not Avro"),
        ((200, [b'{"schema": {"type": "int"}}']), "cannot be used"),
        ((200, [b'{"schema": "{}", "references": [{"name": "a", "subject": "a", "version": 1}]}']), "cannot be used"),
        (schema(json.dumps(LINKED)), "nested more than 200 levels deep"),
    ],
    ids=["unknown", "out of range", "600 MB", "large", "deep JSON", "deep", "endless", "surrogate", "kind", "no text",
         "references", "deep data"],
)  # fmt: skip
def test_an_unusable_schema_costs_only_its_own_values(answers, answer, reason):
    answers.known[5] = answer
    bad = framed(5, b"\x02" * 100_000 + b"\x00")
    found = decoded(answers, score(1), bad, score(2), bad)
    assert found.rows.column("n").to_pylist() == [1, 2]
    assert [failure.index for failure in found.failures] == [1, 3]
    assert reason in found.failures[0].reason
    found.failures[0].reason.encode()
    assert answers.sent < 100 << 20


def test_an_unknown_id_is_asked_for_again_after_a_while(answers, monkeypatch):
    assert len(decoded(answers, framed(5, b"\x02"), framed(5, b"\x02")).failures) == 2
    assert len(decoded(answers, framed(5, b"\x02")).failures) == 1
    assert answers.asked == [5]
    answers.known[5] = answers.known[1]
    answers.registry._known.clear()
    monkeypatch.setattr(module, "FORGET_SECONDS", -1.0)
    assert len(decoded(answers, framed(6, b"\x02")).failures) == 1
    answers.known[6] = answers.known[1]
    assert decoded(answers, framed(6, b"\x02")).failures == []


def test_what_is_remembered_is_bounded(answers, monkeypatch):
    monkeypatch.setattr(module, "KNOWN_MAX", 3)
    answers.known |= dict.fromkeys(range(10), answers.known[1])
    for number in [0, 1, 2, 3, 4, 4, 0]:
        answers.registry.avro(number)
    assert answers.asked == [0, 1, 2, 3, 4, 0]
    monkeypatch.setattr(module, "KNOWN_CHARACTERS_MAX", 10)
    answers.registry.avro(9)
    assert answers.registry._known == {}
    assert answers.registry._known_characters == 0


def test_the_errors_by_themselves(answers):
    answers.known[7] = (200, [b'{"schema": "x", "schemaType": "PROTOBUF"}'])
    with pytest.raises(UnknownSchema, match="has no schema 5"):
        answers.registry.avro(5)
    with pytest.raises(UnusableSchema, match="is PROTOBUF"):
        answers.registry.avro(7)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((200, [b"[" * 200_000]), InvalidSetting, "nested too deeply"),
        ((200, [b"<html>"]), InvalidSetting, "not JSON"),
        ((200, [b"[]"]), InvalidSetting, "something other than a schema"),
        ((405, [b""]), NotFound, "HTTP 405"),
        ((429, [b""]), KafkaUnavailable, "does not answer"),
    ],
)
def test_a_server_that_is_not_a_registry_stops_the_job(answers, answer, error, said, monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    answers.known[5] = answer
    with pytest.raises(error, match=said):
        decoded(answers, framed(5, b"\x02"))


def test_an_answer_that_is_cut_off_is_asked_for_again(answers, monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    answers.promised = 10_000
    with pytest.raises(KafkaUnavailable, match="does not answer"):
        decoded(answers, score(1))
    assert answers.asked == [1, 1, 1]
