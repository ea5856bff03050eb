"""Connections to an MQTT broker, as bridges and sinks share them: address, password, certificates, last will."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from millstream.errors import InvalidInput
from millstream.secrets import Secret, shown_address

if TYPE_CHECKING:
    from paho.mqtt.client import Client

PASSWORD_VARIABLE = "MILLSTREAM_MQTT_PASSWORD"
PORTS = {"mqtt": 1883, "mqtts": 8883}
KEEP_ALIVE_SECONDS = 30
IN_FLIGHT_MAX = 1000


@dataclass(frozen=True)
class Will:
    """A message that the broker publishes if the connection ends without a goodbye."""

    topic: str
    payload: str
    qos: int = 1
    retain: bool = True


@dataclass(frozen=True)
class MqttBroker:
    """Where a broker is, and how to log in."""

    address: str
    version: int = 5
    """Of the protocol: 5, or 3 for 3.1.1."""
    password: Secret | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate: tuple[str, str] | None = None
    """Files with this client's certificate and its key."""
    will: Will | None = None
    keep_alive_seconds: int = KEEP_ALIVE_SECONDS
    """How often a silent connection is checked."""

    protocol: ClassVar[str] = "mqtt"

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in PORTS or not parts.hostname or parts.password is not None:
            raise InvalidInput(
                f"'{parts.scheme}://{parts.hostname}' is not the address of an MQTT broker, or has a password in it",
                next_step="mqtt://user@host:1883, or mqtts:// for TLS",
            )
        if parts.scheme == "mqtt" and (self.ca_file or self.certificate):
            raise InvalidInput("certificates are for TLS only", next_step="use an address that begins with mqtts://")
        if self.version not in (3, 5):
            raise InvalidInput(f"there is no MQTT {self.version}", next_step="use 5, or 3 for 3.1.1")

    @property
    def host(self) -> str:
        return str(urlsplit(self.address).hostname)

    @property
    def port(self) -> int:
        parts = urlsplit(self.address)
        return parts.port or PORTS[parts.scheme]

    def __str__(self) -> str:
        return shown_address(self.address)

    @property
    def user(self) -> str | None:
        return urlsplit(self.address).username

    def tls(self) -> ssl.SSLContext | None:
        """What mqtts:// needs."""
        if urlsplit(self.address).scheme != "mqtts":
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return context

    def client(self, client_id: str, **options: Any) -> Client:
        """A client that is not connected yet. The options are those of paho."""
        paho = installed()
        version = paho.MQTTv5 if self.version == 5 else paho.MQTTv311
        made: Client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=version, **options)
        if self.user is not None:
            made.username_pw_set(self.user, None if self.password is None else self.password.reveal())
        if (context := self.tls()) is not None:
            made.tls_set_context(context)
        if self.will is not None:
            made.will_set(self.will.topic, self.will.payload, self.will.qos, self.will.retain)
        made.max_inflight_messages_set(IN_FLIGHT_MAX)
        return made


def is_final(reason: Any) -> bool:
    """Whether a broker that rejects a connection for this reason would reject it again."""
    return any(word in str(reason).lower() for word in ("auth", "password", "identifier", "banned"))


def installed() -> Any:
    """The client library."""
    try:
        from paho.mqtt import client
    except ImportError as error:
        raise InvalidInput("MQTT needs the package paho-mqtt", next_step="pip install 'millstream[mqtt]'") from error
    return client
