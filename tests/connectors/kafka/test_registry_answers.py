"""How a registry that does not agree, or is away, is reported: answers as Confluent's registry documents them.

They come from a small HTTP server on this machine, since no real registry fails when it is asked to.
"""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millstream.connectors.kafka import registry_client
from millstream.connectors.kafka.registry_client import RegistryClient
from millstream.connectors.kafka.subjects import framed_codec, record_name, subject_of
from millstream.connectors.kafka.wire_format import header, message_indexes
from millstream.errors import IncompatibleSchema, InvalidSchema, InvalidSetting, KafkaUnavailable, NoAccess, NotFound
from millstream.log.kafka.address import KafkaAddress
from millstream.records import Schema
from millstream.records.columns import Refused
from millstream.secrets import hidden

SCHEMA = Schema.of("a int, b string")
INCOMPATIBLE = {
    "is_compatible": False,
    "messages": [
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'b' at path '/fields/1' in the new "
        "schema has no default value and is missing in the old schema', additionalInfo:'b'}",
        "{oldSchemaVersion: 3}",
        "{oldSchema: '{...}'}",
        "{compatibility: 'BACKWARD'}",
    ],
}
ABSENT = (404, {"error_code": 40401, "message": "Subject 't-value' not found."})


@pytest.fixture
def server():
    """`answers` has a list of answers by method and path; the last one stays. `asked` are requests and headers."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer("POST")

        def do_GET(self):
            self._answer("GET")

        def _answer(self, method):
            made.asked.append((method, self.path, self.headers.get("Authorization")))
            known = made.answers.get((method, self.path.partition("?")[0]), [ABSENT])
            status, content = known.pop(0) if len(known) > 1 else known[0]
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args): ...

    made = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    made.answers, made.asked = {("GET", "/schemas/types"): [(200, ["AVRO"])]}, []
    made.url = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def no_pauses(monkeypatch):
    pauses = []
    monkeypatch.setattr(registry_client.time, "sleep", pauses.append)
    return pauses


def registered(server, **more):
    client = RegistryClient.of(server.url, KafkaAddress("host:9092", hidden(more)))
    return framed_codec(client, "avro", "t", {}, "topic", True)(SCHEMA)


def test_the_differences_are_those_of_the_registry(server):
    server.answers["POST", "/compatibility/subjects/t-value/versions/latest"] = [(200, INCOMPATIBLE)]
    with pytest.raises(IncompatibleSchema) as refused:
        registered(server)
    assert refused.value.what == (
        "subject 't-value' of the schema registry rejects the columns: The field 'b' at path '/fields/1' (field 'b') "
        "in the new schema has no default value and is missing in the old schema"
    )
    assert ("POST", "/subjects/t-value/versions", None) not in server.asked


def test_a_registration_that_is_rejected(server):
    path = ("POST", "/subjects/t-value/versions")
    server.answers[path] = [(409, {"error_code": 409, "message": "Schema being registered is incompatible"})]
    with pytest.raises(IncompatibleSchema, match="Schema being registered is incompatible"):
        registered(server)
    server.answers[path] = [(422, {"error_code": 42201, "message": "Invalid schema"})]
    with pytest.raises(InvalidSchema, match=r"HTTP 422, code 42201.*Invalid schema"):
        registered(server)


def test_a_new_schema_is_registered_once(server):
    known = (200, {"subject": "t-value", "version": 1, "id": 7, "schema": ""})
    server.answers["POST", "/subjects/t-value"] = [ABSENT, known]
    server.answers["POST", "/subjects/t-value/versions"] = [(200, {"id": 7})]
    assert registered(server).begin == b"\0\0\0\0\x07"
    assert [path.partition("?")[0] for _, path, _ in server.asked] == [
        "/subjects/t-value",
        "/compatibility/subjects/t-value/versions/latest",
        "/subjects/t-value/versions",
        "/subjects/t-value",
    ]
    server.asked.clear()
    registered(server)
    assert len(server.asked) == 1  # the next start finds it


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"basic.auth.user.info": "ann:x"}, "Basic YW5uOng="),
        ({"schema.registry.basic.auth.user.info": "ann:x"}, "Basic YW5uOng="),
        ({"bearer.auth.token": "abc"}, "Bearer abc"),
        ({"schema.registry.bearer.auth.token": "abc"}, "Bearer abc"),
    ],
)
def test_who_asks(server, settings, sent):
    client = RegistryClient.of(server.url, KafkaAddress("host:9092", hidden(settings)))
    client.check()
    assert [each[2] for each in server.asked] == [sent]
    assert "abc" not in repr(client)
    assert "ann" not in repr(client)
    assert KafkaAddress("host:9092", hidden(settings)).client().keys() & settings.keys() == set()


def test_credentials_that_are_refused(server):
    with pytest.raises(InvalidSetting, match=r"either basic\.auth\.user\.info or bearer\.auth\.token"):
        registered(server, **{"basic.auth.user.info": "a:b", "bearer.auth.token": "c"})
    server.answers["GET", "/schemas/types"] = [(401, {"error_code": 401, "message": "Unauthorized"})]
    with pytest.raises(NoAccess, match="rejected the user or the password"):
        RegistryClient(server.url).check()
    server.answers["GET", "/schemas/types"] = [(404, {})]
    with pytest.raises(NotFound, match="HTTP 404"):
        RegistryClient(server.url).check()
    server.answers["GET", "/subjects"] = [(200, [])]  # an old one
    RegistryClient(server.url).check()


def test_a_registry_that_is_away_is_an_error_before_the_job(no_pauses):
    with pytest.raises(KafkaUnavailable, match="the schema registry does not answer"):
        RegistryClient("http://127.0.0.1:1", wait_seconds=600).check()
    assert len(no_pauses) == registry_client.TRIES - 1


def test_a_running_job_waits_for_it(server, no_pauses):
    busy = (503, {"error_code": 50302, "message": "starting"})
    server.answers["GET", "/schemas/ids/1"] = [busy] * 9 + [(200, {"schema": '"int"'})]
    client = RegistryClient(server.url, wait_seconds=600)
    assert client.ask("/schemas/ids/1") == {"schema": '"int"'}
    assert no_pauses == sorted(no_pauses)
    assert no_pauses[-1] == registry_client.PAUSE_SECONDS_MAX
    server.answers["GET", "/schemas/ids/1"] = [busy]
    client.wait_seconds = 0.01
    with pytest.raises(KafkaUnavailable, match="Service Unavailable"):
        client.ask("/schemas/ids/1")


def test_certificates(server, tmp_path):
    certificate, key = _self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http://127.0.0.1", "https://localhost")
    settings = {"schema.registry.ssl.ca.location": str(certificate)}
    RegistryClient.of(url, KafkaAddress("host:9092", hidden(settings))).check()
    with pytest.raises(InvalidSetting, match="certificate of the schema registry is not trusted"):
        RegistryClient(url).check()
    missing = {"schema.registry.ssl.ca.location": str(tmp_path / "none.pem")}
    with pytest.raises(InvalidSetting, match="certificates for the schema registry cannot be used"):
        RegistryClient.of(url, KafkaAddress("host:9092", hidden(missing))).check()


def _self_signed(folder):
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    begin = datetime.now(UTC) - timedelta(days=1)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return folder / "certificate.pem", folder / "key.pem"


@pytest.mark.parametrize(
    ("indexes", "written"), [((0,), b"\0"), ((1,), b"\x02\x02"), ((2, 0, 300), b"\x06\x04\0\xd8\x04")]
)
def test_the_place_of_a_message(indexes, written):
    assert header(258, indexes) == b"\0\0\0\x01\x02" + written
    assert message_indexes(header(258, indexes) + b"rest") == (indexes, 5 + len(written))


@pytest.mark.parametrize("rest", [b"", b"\x80", b"\x02", b"\x01", b"\x02\x01", b"\xff" * 9, b"\xd8\x04"])
def test_places_that_cannot_be_read(rest):
    with pytest.raises(Refused, match="the place of the message in its schema cannot be read"):
        message_indexes(b"\0\0\0\0\x01" + rest)


def test_names():
    assert [record_name(topic) for topic in ("orders", "shop.orders-v2", "2024")] == [
        "Orders",
        "ShopOrdersV2",
        "Record2024",
    ]
    assert [subject_of(naming, "t", "a.R") for naming in ("topic", "record", "topic_record")] == [
        "t-value",
        "a.R",
        "t-a.R",
    ]
