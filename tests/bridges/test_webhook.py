"""Webhooks sent by a flow: signed, in order, repeated with the same id, dead letters for what is rejected."""

from __future__ import annotations

import pickle
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.bridges.http.listener import Rules, listener
from millstream.bridges.landing import Landing
from millstream.connectors.opening import open_sink
from millstream.connectors.refusals import Refusal
from millstream.errors import InvalidInput, SinkFailed, SinkUnavailable
from millstream.log import EmbeddedLog
from millstream.records import Schema, rows_to_batch
from millstream.secrets import Secret
from millstream.serving.access import Access, ListenAddress
from millstream.webhooks.sender import PAUSE_SECONDS, WebhookRefused, WebhookSender
from millstream.webhooks.signatures import Verifier

from .receiver import Receiver, receiving
from .support import serving, values

SCORES = Schema.of("team string, score int")
SECRET = "a-secret-of-the-tests"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def rows(*scores: int, team: str = "a") -> pa.Table:
    batch, _ = rows_to_batch([{"team": team, "score": score} for score in scores], SCORES)
    return pa.Table.from_batches([batch])


def sink(endpoint: Any, folder: Path, job: str = "j") -> Any:
    return open_sink(endpoint, SCORES, job=job, step="out", broker=folder / "log", folder=folder / "job")


# ---------------------------------------------------------------- the sender


def test_a_message_is_signed_and_sent_once(receiver: Receiver) -> None:
    sender = WebhookSender(receiver.url, Secret(SECRET), headers={"Authorization": Secret("Bearer hush")})
    sender.deliver("id-1", b'{"n": 1}')
    sender.deliver("id-2", b'{"n": 2}')
    sender.close()
    assert receiver.ids == ["id-1", "id-2"]
    headers, body = receiver.got[0]
    assert headers["authorization"] == "Bearer hush"
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    assert Verifier("standard", [Secret(SECRET)]).check(encoded, body) == "id-1"


def test_it_is_tried_again_with_growing_pauses(receiver: Receiver) -> None:
    pauses: list[float] = []
    receiver.answer([500, 429, 503])
    sender = WebhookSender(receiver.url, sleep=pauses.append)
    sender.deliver("id-1", b"1", tries=4)
    assert receiver.ids == ["id-1"] * 4
    assert len(pauses) == 3
    assert pauses[1] == 3  # as the receiver asked
    assert PAUSE_SECONDS / 2 <= pauses[0] <= PAUSE_SECONDS
    assert 2 * PAUSE_SECONDS <= pauses[2] <= 4 * PAUSE_SECONDS
    receiver.answer([500] * 2)
    with pytest.raises(SinkUnavailable, match="500"):
        sender.deliver("id-2", b"2", tries=2)
    sender.deliver("id-3", b"3")
    sender.close()


@pytest.mark.parametrize("status", [302, 400, 401, 404, 410, 413])
def test_a_rejected_message_is_not_tried_again(receiver: Receiver, status: int) -> None:
    receiver.answer([status])
    sender = WebhookSender(receiver.url)
    with pytest.raises(WebhookRefused, match=str(status)) as refused:
        sender.deliver("id-1", b"1")
    assert "hush" not in str(refused.value)
    assert len(receiver.got) == 1
    sender.close()


def test_a_receiver_that_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        WebhookSender(f"http://127.0.0.1:{port}/", sleep=lambda seconds: None).deliver("id", b"1", tries=2)


def test_an_idle_connection_may_be_closed_by_the_receiver(receiver: Receiver) -> None:
    sender = WebhookSender(receiver.url, sleep=lambda seconds: pytest.fail("it counted as a failure"))
    receiver.answer([200])
    sender.deliver("id-1", b"1")
    assert sender._connection is not None
    assert sender._connection.sock is not None
    sender._connection.sock.shutdown(socket.SHUT_RDWR)
    sender.deliver("id-2", b"2")
    assert receiver.ids == ["id-1", "id-2"]
    sender.close()


def test_only_a_trusted_receiver_gets_it(tmp_path: Path) -> None:
    certificate = certified(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with receiving(context) as receiver:
        url = f"https://127.0.0.1:{receiver.port}/"
        with pytest.raises(SinkUnavailable, match="certificate"):
            WebhookSender(url).deliver("id-1", b"1", tries=1)
        trusting = WebhookSender(url, ca_file=str(certificate))
        trusting.deliver("id-1", b"1")
        trusting.close()
        assert receiver.ids == ["id-1"]


def certified(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "tls.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


# ---------------------------------------------------------------- the sink


def test_a_batch_is_sent_once(receiver: Receiver, tmp_path: Path) -> None:
    for _ in range(2):
        made = sink(ms.webhook(receiver.url, secret=SECRET), tmp_path)
        made.write(0, rows(1, 2, 2), None)
        made.write(1, rows(2), None)
        made.close()
    assert [body for _, body in receiver.got] == [b'{"team":"a","score":%d}' % score for score in (1, 2, 2, 2)]
    assert len(set(receiver.ids)) == 4


def test_a_repeated_batch_has_the_same_ids_in_any_order(receiver: Receiver, tmp_path: Path) -> None:
    """Method: the receiver fails in the middle, and the job starts again before the batch was recorded."""
    receiver.answer([200, 500])
    endpoint = ms.webhook(receiver.url, tries=1)
    first = sink(endpoint, tmp_path)
    with pytest.raises(SinkUnavailable):
        first.write(0, rows(1, 2, 3), None)
    first.write(0, rows(1, 2, 3), None)  # it goes on where it was
    assert [body[-2:-1] for _, body in receiver.got] == [b"1", b"2", b"2", b"3"]
    first.write(1, rows(4, 5), None)
    (tmp_path / "job").joinpath("unrelated").touch()
    before = dict(zip([body for _, body in receiver.got], receiver.ids, strict=True))
    again = sink(endpoint, tmp_path)
    again._ledger.has = lambda batch: False  # as if it had been killed before that
    receiver.got.clear()
    again.write(0, rows(3, 1, 2), None)
    assert all(before[body] == headers["webhook-id"] for headers, body in receiver.got)
    assert len(receiver.got) == 3
    other = sink(endpoint, tmp_path / "other")
    other.write(0, rows(1), None)
    assert receiver.ids[-1] not in before.values()


def test_rejected_rows_are_refused(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer([200, 422])
    made = sink(ms.webhook(receiver.url), tmp_path)
    refused: list[Refusal] = []
    made.write(0, rows(1, 2, 3), None, refused.extend)
    assert refused == [Refusal(1, "the receiver rejects the message with status 422")]
    receiver.answer([404])
    with pytest.raises(SinkFailed, match="404"):
        made.write(1, rows(1), None)


def test_from_a_webhook_sink_to_a_listener(log: EmbeddedLog, tmp_path: Path) -> None:
    """Goal: both sides speak the same scheme, and what is sent twice is stored once."""
    log.create_topic("scores", schema=SCORES)
    access = Access.at(ListenAddress.of("127.0.0.1", 0))
    with (
        Landing(log, "http", ["scores"]) as landing,
        listener(landing, Rules(access, Verifier("standard", [Secret(SECRET)]))) as application,
        serving(application) as port,
    ):
        endpoint = ms.webhook(f"http://127.0.0.1:{port}/scores", secret=SECRET)
        for _ in range(2):
            made = sink(endpoint, tmp_path)
            made._ledger.has = lambda batch: False
            made.write(0, rows(1, 2), None)
    assert values(log, "scores") == [{"team": "a", "score": 1}, {"team": "a", "score": 2}]


def test_nothing_secret_is_shown() -> None:
    url = "https://example.org/hook?key=hush"
    made = ms.webhook(url, secret="hush-hush-hush", headers={"X-Key": "hush"})
    assert str(made) == "webhook(https://example.org/hook?…)"
    assert "hush" not in repr(made)
    assert b"hush-hush" not in pickle.dumps(made)


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "example.org", "https://", "https://a:b@example.org/", "http://[/", "http://a/ b"]
)
def test_what_is_not_a_url(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ms.webhook(url)
    assert "a:b" not in str(refused.value)
