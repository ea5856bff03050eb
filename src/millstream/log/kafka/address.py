"""The address of a Kafka cluster and its client settings: `kafka://host:9092,other:9092?name=value`.

Settings have librdkafka's names. An address is displayed and stored, so it must not contain secrets: those are in a
file (`?settings=client.properties`, or named by MILLSTREAM_KAFKA_SETTINGS), or given in the flow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from millstream.errors import InvalidInput, InvalidSetting, NotFound
from millstream.secrets import Secret, hidden, is_secret, revealed

SCHEME = "kafka://"
SETTINGS_VARIABLE = "MILLSTREAM_KAFKA_SETTINGS"
PORT = 9092
OF_REGISTRY = ("basic.auth.", "bearer.auth.", "schema.registry.")  # often in the same file as Kafka's settings
CLIENT_DEFAULTS = {
    "client.id": "millstream",
    "reconnect.backoff.max.ms": 2000,  # find a broker soon after it comes back
    "log_level": 3,
}


@dataclass(frozen=True)
class KafkaAddress:
    """Its text is the given address without secrets: it can be sent, displayed and parsed again."""

    servers: str
    settings: Mapping[str, str | Secret] = field(default_factory=dict)
    written: str = ""

    @classmethod
    def of(cls, address: str) -> KafkaAddress:
        if not address.startswith(SCHEME):
            raise InvalidSetting(f"'{address}' is not a Kafka address", next_step=f"for example {SCHEME}host:{PORT}")
        servers, _, query = address.removeprefix(SCHEME).rstrip("/").partition("?")
        if "@" in servers:
            raise InvalidSetting(
                "an address must not contain a user or password: it is displayed and stored",
                where=SCHEME + servers.rpartition("@")[2],
                next_step=f"put them in a file and name it: {SCHEME}host:{PORT}?settings=FILE",
            )
        options = dict(parse_qsl(query.rstrip("/"), keep_blank_values=True))
        file = options.pop("settings", None) or os.environ.get(SETTINGS_VARIABLE)
        for name in options:
            if is_secret(name):
                raise InvalidSetting(
                    f"setting '{name}' may be secret, and an address is displayed and stored",
                    where=SCHEME + servers,
                    next_step=f"put it in a file and name that: {SCHEME}{servers}?settings=FILE",
                )
        settings = {**(properties(Path(file)) if file else {}), **options}
        return cls(with_ports(servers), hidden(settings), address)

    def client(self, **more: Any) -> dict[str, Any]:
        """Client settings for confluent-kafka, secrets in clear text; dots in names become underscores."""
        plain = {name.replace("_", "."): value for name, value in more.items()}
        own = {name: value for name, value in revealed(self.settings).items() if not name.startswith(OF_REGISTRY)}
        return {"bootstrap.servers": self.servers, **CLIENT_DEFAULTS, **own, **plain}

    def __str__(self) -> str:
        return self.written or SCHEME + self.servers


def as_kafka(broker: str | KafkaAddress | None) -> KafkaAddress | None:
    """The broker's address, if it is Kafka."""
    if isinstance(broker, str) and broker.startswith(SCHEME):
        return KafkaAddress.of(broker)
    return broker if isinstance(broker, KafkaAddress) else None


def address_of(
    servers: str | None,
    settings: Mapping[str, str | Secret],
    broker: str | KafkaAddress | None,
    *,
    topic: str,
    step: str,
) -> KafkaAddress:
    """The address of a flow's topic: at these servers, or at the job's own broker."""
    if servers is not None:
        return KafkaAddress(with_ports(servers), settings)
    own = as_kafka(broker)
    if own is None:
        raise InvalidInput(
            f"kafka(topic='{topic}') names no servers, and the job's own broker is not Kafka",
            where=f"step '{step}'",
            next_step=f"write kafka('host:{PORT}', topic='{topic}'), or run with broker='{SCHEME}host:{PORT}'",
        )
    return replace(own, settings={**own.settings, **settings})


def with_ports(servers: str) -> str:
    """Servers separated by commas, each with a port; rejects anything else."""
    found = []
    for server in servers.split(","):
        host, _, port = (
            server.strip().partition(":") if not server.strip().startswith("[") else (server.strip(), "", "")
        )
        if not host or "/" in host or (port and not port.isdigit()):
            raise InvalidSetting(
                f"'{server}' is not a Kafka server", where=servers, next_step=f"for example host:{PORT}"
            )
        found.append(f"{host}:{port or PORT}" if not host.startswith("[") else host)
    return ",".join(found)


def properties(file: Path) -> dict[str, str]:
    """The settings in a file, one `name=value` per line; lines that start with # are comments."""
    try:
        lines = file.expanduser().read_text().splitlines()
    except OSError as error:
        raise NotFound(
            f"the Kafka settings cannot be read: {error.strerror}", where=str(file), next_step="name another file"
        ) from error
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise InvalidSetting("a line is not 'name=value'", where=f"{file}:{number}", next_step="fix the line")
        found[name.strip()] = value.strip()
    return found
