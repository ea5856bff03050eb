"""Where a Kafka is and how it is talked to: `kafka://host:9092,other:9092?name=value`.

Settings are those of librdkafka, under their own names. Secrets do not stand in an address, which is shown and stored:
they stand in a file (`?settings=client.properties`, or named by MILLSTREAM_KAFKA_SETTINGS), or are given in the flow.
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
OF_REGISTRY = ("basic.auth.", "schema.registry.")  # stand beside Kafka's own in many a file of settings
CLIENT_DEFAULTS = {
    "client.id": "millstream",
    "reconnect.backoff.max.ms": 2000,  # a broker that comes back is found soon
    "log_level": 3,
}


@dataclass(frozen=True)
class KafkaAddress:
    """As text it is the address that was given, without secrets: it can be sent, shown and read again."""

    servers: str
    settings: Mapping[str, str | Secret] = field(default_factory=dict)
    written: str = ""

    @classmethod
    def of(cls, address: str) -> KafkaAddress:
        if not address.startswith(SCHEME):
            raise InvalidSetting(
                f"'{address}' is not the address of a Kafka", next_step=f"for example {SCHEME}host:{PORT}"
            )
        servers, _, query = address.removeprefix(SCHEME).rstrip("/").partition("?")
        if "@" in servers:
            raise InvalidSetting(
                "a user and a password do not belong into an address: it is shown and stored",
                where=SCHEME + servers.rpartition("@")[2],
                next_step=f"write them into a file and name it: {SCHEME}host:{PORT}?settings=FILE",
            )
        said = dict(parse_qsl(query.rstrip("/"), keep_blank_values=True))
        file = said.pop("settings", None) or os.environ.get(SETTINGS_VARIABLE)
        for name in said:
            if is_secret(name):
                raise InvalidSetting(
                    f"'{name}' is not known to be harmless, and an address is shown and stored",
                    where=SCHEME + servers,
                    next_step=f"write it into a file and name that: {SCHEME}{servers}?settings=FILE",
                )
        settings = {**(properties(Path(file)) if file else {}), **said}
        return cls(with_ports(servers), hidden(settings), address)

    def client(self, **more: Any) -> dict[str, Any]:
        """The settings of a client of confluent-kafka, secrets in the clear; dots of names as underscores."""
        plain = {name.replace("_", "."): value for name, value in more.items()}
        own = {name: value for name, value in revealed(self.settings).items() if not name.startswith(OF_REGISTRY)}
        return {"bootstrap.servers": self.servers, **CLIENT_DEFAULTS, **own, **plain}

    def __str__(self) -> str:
        return self.written or SCHEME + self.servers


def as_kafka(broker: str | KafkaAddress | None) -> KafkaAddress | None:
    """The address of a broker, if that is a Kafka."""
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
    """Where a topic is that a flow names: at these servers, or at the job's own broker."""
    if servers is not None:
        return KafkaAddress(with_ports(servers), settings)
    own = as_kafka(broker)
    if own is None:
        raise InvalidInput(
            f"kafka(topic='{topic}') names no servers, and the job's own broker is no Kafka",
            where=f"step '{step}'",
            next_step=f"say kafka('host:{PORT}', topic='{topic}'), or run with broker='{SCHEME}host:{PORT}'",
        )
    return replace(own, settings={**own.settings, **settings})


def with_ports(servers: str) -> str:
    """Servers separated by commas, each with a port; refuses what is none."""
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
    """The settings in a file, one `name=value` in a line; lines that begin with # are remarks."""
    try:
        lines = file.expanduser().read_text().splitlines()
    except OSError as error:
        raise NotFound(
            f"the settings of Kafka cannot be read: {error.strerror}", where=str(file), next_step="name another file"
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
