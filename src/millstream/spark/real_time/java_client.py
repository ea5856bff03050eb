"""Translates settings of librdkafka to those of Kafka's Java client; settings without an equivalent are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.errors import InvalidSetting, NotFound
from millstream.log.kafka.address import KafkaAddress
from millstream.secrets import revealed

SAME_NAME = (
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "security.protocol",
    "ssl.key.password",
    "ssl.keystore.password",
)
RENAMED = {
    "sasl.mechanisms": "sasl.mechanism",
    "metadata.broker.list": "bootstrap.servers",
    "message.max.bytes": "max.request.size",
}
LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
PEM_FILES = {
    "ssl.ca.location": ("ssl.truststore", "certificates"),
    "ssl.certificate.location": ("ssl.keystore", "certificate.chain"),
    "ssl.key.location": ("ssl.keystore", "key"),
}
PEM_TEXTS = {name.replace(".location", ".pem"): part for name, part in PEM_FILES.items()}
IGNORED = ("log_level", "socket.keepalive.enable", "statistics.interval.ms", "broker.address.family")
"""They do not affect how records are read or written, and the Java client does not have them."""


def java_settings(address: KafkaAddress, where: str | None = None) -> dict[str, str]:
    """The settings of a Java client for an address, with secrets in plain text."""
    settings = revealed(address.settings)
    found = {"bootstrap.servers": address.servers}
    for name, value in settings.items():
        if name in SAME_NAME or name in RENAMED:
            found[RENAMED.get(name, name)] = value
        elif name in PEM_FILES or name in PEM_TEXTS:
            store, part = PEM_FILES.get(name) or PEM_TEXTS[name]
            found[f"{store}.type"] = "PEM"
            found[f"{store}.{part}"] = _content(value, name) if name in PEM_FILES else value
        elif name == "ssl.keystore.location":
            found |= {name: value, "ssl.keystore.type": "PKCS12"}
        elif name == "ssl.endpoint.identification.algorithm":
            found[name] = "" if value == "none" else value
        elif name not in ("sasl.username", "sasl.password", *IGNORED):
            raise InvalidSetting(
                f"the setting '{name}' has no equivalent in Kafka's Java client, which real-time mode uses",
                where=where,
                next_step="leave it out, or run without mode='real time'",
            )
    if "sasl.username" in settings or "sasl.password" in settings:
        found["sasl.jaas.config"] = _login(found, settings, where)
    return found


def _login(found: Mapping[str, str], settings: Mapping[str, str], where: str | None) -> str:
    mechanism = found.get("sasl.mechanism", "GSSAPI")
    if mechanism not in LOGINS:
        raise InvalidSetting(
            f"sasl.mechanism={mechanism} does not support a user and a password in real-time mode",
            where=where,
            next_step=f"use one of: {', '.join(LOGINS)}",
        )
    user, password = (_quoted(settings.get(f"sasl.{name}", "")) for name in ("username", "password"))
    return f"{LOGINS[mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _content(file: str, name: str) -> str:
    try:
        return Path(file).expanduser().read_text()
    except OSError as error:
        raise NotFound(
            f"the file of '{name}' cannot be read: {error.strerror}", where=file, next_step="use another file"
        ) from error
