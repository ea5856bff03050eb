"""Passwords and keys: used where they are needed, and never shown or stored.

A secret is sent to another process as a number. The process that created it passes the values to its workers in their
environment (`delivery`), so secrets are not in any plan, log or checkpoint.

Only settings known to be harmless are shown: an unknown one is treated as a secret.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millstream.errors import InvalidSetting

VARIABLE = "MILLSTREAM_SECRETS"
SHOWN = "…"
# Settings of librdkafka, and of Kafka's Java client under the same names, whose values may be shown. Besides secrets,
# this leaves out URLs and commands, in which users write passwords, and free text.
_HARMLESS_KAFKA = """
acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
auto.commit.enable auto.commit.interval.ms auto.offset.reset basic.auth.credentials.source batch.num.messages
batch.size broker.address.family broker.address.ttl broker.version.fallback check.crcs client.dns.lookup client.id
client.rack compression.codec compression.level compression.type connections.max.idle.ms
consume.callback.max.messages coordinator.query.interval.ms debug delivery.report.only.error delivery.timeout.ms
enable.auto.commit enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.metrics.push
enable.partition.eof enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification
enabled_events fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
heartbeat.interval.ms https.ca.location internal.termination.signal isolation.level linger.ms log.connection.close
log.queue log.thread.name log_level max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes
max.poll.interval.ms max.poll.records message.copy.max.bytes message.max.bytes message.send.max.retries
message.timeout.ms metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
partition.assignment.strategy partitioner produce.offset.report queue.buffering.backpressure.threshold
queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes
queued.min.messages queuing.strategy receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms
reconnect.backoff.ms request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.kerberos.keytab sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name
sasl.mechanism sasl.mechanisms sasl.oauthbearer.method sasl.username security.protocol session.timeout.ms
share.acknowledgement.mode socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable
socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
ssl.ca.certificate.stores ssl.ca.location ssl.certificate.location ssl.cipher.suites ssl.crl.location
ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location
ssl.keystore.location ssl.providers ssl.sigalgs.list statistics.interval.ms sticky.partitioning.linger.ms
topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
transaction.timeout.ms transactional.id
"""
HARMLESS_KAFKA = frozenset(_HARMLESS_KAFKA.split())
# Spark has too many settings to list: this matches what is likely to be a secret.
LIKELY = re.compile(
    r"password|passwd|pwd|secret|token|credential|jaas|\.pem$|passphrase|user\.info|private|"
    r"(access|account|encryption|sas|api|shared)[._-]?key|signature|\.sas\.",
    re.IGNORECASE,
)
CONCEALED_CHARACTERS_MIN = 4
"""Shorter values occur in any text."""
ORDINARY = frozenset(["true", "false", "none", "null"])
_CREDENTIALS = re.compile(r"([A-Za-z][\w+.-]*://)[^\s/@?#'\"]*@")
_PASSWORDS = re.compile(r"([A-Za-z][\w+.-]*://[^\s/@:?#'\"]*):[^\s/@?#'\"]+@")
_QUERY = re.compile(r"([A-Za-z][\w+.-]*://[^\s?#'\"]*)[?#][^\s'\"]*")


class Secret:
    """A text that is displayed as `…`."""

    __slots__ = ("_value", "number")

    def __init__(self, value: str, number: str | None = None) -> None:
        self._value = value
        self.number = number or _NUMBERS.get(value) or uuid.uuid4().hex
        _KNOWN[self.number] = value
        _NUMBERS[value] = self.number

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return SHOWN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.number,)


_KNOWN: dict[str, str] = {}
_NUMBERS: dict[str, str] = {}
_BESIDES: set[str] = set()


def _received(number: str) -> Secret:
    value = _KNOWN.get(number)
    if value is None:
        value = json.loads(os.environ.get(VARIABLE, "{}")).get(number)
    if value is None:
        raise InvalidSetting(
            "a password or key was sent by its number, but this process did not receive its value",
            where=f"process {os.getpid()}, variable {VARIABLE}",
            next_step="create the source where the session was created: ms.kafka(…, settings=…) in a flow, or "
            "kafka://host:9092?settings=FILE with a file that every machine has",
        )
    return Secret(value, number)


def delivery() -> dict[str, str]:
    """What a worker's environment needs so that secrets can be resolved there."""
    return {VARIABLE: json.dumps(_KNOWN)} if _KNOWN else {}


def is_secret(name: str) -> bool:
    """Whether the value of a Kafka setting must not be shown."""
    return name not in HARMLESS_KAFKA


def is_likely_secret(name: str) -> bool:
    """Whether a Spark setting is a secret, judging by its name."""
    return LIKELY.search(name) is not None


def hidden(settings: Mapping[str, str | Secret]) -> dict[str, str | Secret]:
    """The settings, with secret values hidden."""
    return {
        name: Secret(value) if isinstance(value, str) and is_secret(name) else value for name, value in settings.items()
    }


def hidden_options(given: Mapping[str, str] | None, besides: Sequence[str] = ()) -> dict[str, str | Secret]:
    """Options of a store or a catalog, with likely secrets hidden, and those named in `besides`."""
    named = {str(name): str(value) for name, value in (given or {}).items()}
    return {
        name: Secret(value) if is_likely_secret(name) or name in besides else value for name, value in named.items()
    }


def revealed(settings: Mapping[str, str | Secret]) -> dict[str, str]:
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in settings.items()}


def concealed(text: str, values: Iterable[str] = ()) -> str:
    """A foreign text, such as a client's message about its settings, without the secrets that it quotes."""
    for form in forms_of([*values, *_KNOWN.values(), *_BESIDES]):
        text = text.replace(form, SHOWN)
    return text


def conceal(values: Iterable[str]) -> None:
    """Lets `concealed` hide these values, too. They are not sent to workers."""
    _BESIDES.update(values)


def forms_of(values: Iterable[str]) -> list[str]:
    """Secrets as they are, as Python prints them, and in JSON, also in JSON within JSON: the longest first.

    Left out are values that ordinary text contains.
    """
    found: set[str] = set()
    for value in values:
        if len(value) >= CONCEALED_CHARACTERS_MIN and value.lower() not in ORDINARY:
            found |= {value, repr(value)[1:-1]}
            for ascii_only in (True, False):
                once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
                found |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    return sorted(found, key=len, reverse=True)


def without_passwords(text: str) -> str:
    """A text without the passwords of URLs in it."""
    return _PASSWORDS.sub(rf"\1:{SHOWN}@", text)


def shown_address(text: str) -> str:
    """A URL, or text with URLs, without users, passwords, queries and signatures."""
    return _QUERY.sub(rf"\1?{SHOWN}", _CREDENTIALS.sub(rf"\1{SHOWN}@", text))
