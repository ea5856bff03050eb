"""Connections to an AMQP 0.9.1 broker, as bridges and sinks share them: address, password, certificates."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from millstream.errors import InvalidInput
from millstream.secrets import Secret, shown_address

if TYPE_CHECKING:
    import pika

PASSWORD_VARIABLE = "MILLSTREAM_AMQP_PASSWORD"
PORTS = {"amqp": 5672, "amqps": 5671}
HEARTBEAT_SECONDS = 30
CONNECT_SECONDS = 10.0
DEFAULT_USER = "guest"
"""Which RabbitMQ only accepts on its own machine."""
FINAL_CODES = frozenset({403, 404, 405, 406, 501, 502, 503, 530, 540})
"""Reply codes after which the same request would fail again."""
CLOSED_WITH = re.compile(r"ClosedByBroker: \((\d{3})\)")


@dataclass(frozen=True)
class AmqpBroker:
    """Where a broker is, and how to log in."""

    address: str
    password: Secret | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate: tuple[str, str] | None = None
    """Files with this client's certificate and its key."""
    heartbeat_seconds: int = HEARTBEAT_SECONDS
    """How often a silent connection is checked."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in PORTS or not parts.hostname or parts.password is not None:
            raise InvalidInput(
                f"'{parts.scheme}://{parts.hostname}' is not the address of an AMQP broker, or has a password in it",
                next_step="amqp://user@host:5672/virtual-host, or amqps:// for TLS",
            )
        if parts.scheme == "amqp" and (self.ca_file or self.certificate):
            raise InvalidInput("certificates are for TLS only", next_step="use an address that begins with amqps://")

    def __str__(self) -> str:
        return shown_address(self.address)

    def parameters(self) -> pika.ConnectionParameters:
        client = installed()
        parts = urlsplit(self.address)
        user = unquote(parts.username or DEFAULT_USER)
        password = DEFAULT_USER if self.password is None else self.password.reveal()
        made: pika.ConnectionParameters = client.ConnectionParameters(
            host=parts.hostname,
            port=parts.port or PORTS[parts.scheme],
            virtual_host=unquote(parts.path.removeprefix("/")) or "/",
            credentials=client.PlainCredentials(user, password, erase_on_connect=False),
            heartbeat=self.heartbeat_seconds,
            socket_timeout=CONNECT_SECONDS,
            stack_timeout=CONNECT_SECONDS,
            ssl_options=self._tls(parts.hostname or "") if parts.scheme == "amqps" else None,
        )
        return made

    def _tls(self, host: str) -> Any:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return installed().SSLOptions(context, host)


def is_final(error: BaseException) -> bool:
    """Whether a broker that fails a request with this error would fail it again."""
    from pika import exceptions

    if isinstance(error, exceptions.ProbableAuthenticationError | exceptions.ProbableAccessDeniedError):
        found = CLOSED_WITH.search(str(error))  # without a code, the connection may just have failed at that moment
        return found is not None and int(found[1]) in FINAL_CODES
    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return error.reply_code in FINAL_CODES
    return isinstance(error, exceptions.AuthenticationError)


def reason_of(error: BaseException) -> str:
    """What the broker or the network answered, in one line."""
    from pika import exceptions

    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return str(error.reply_text)
    return " ".join(str(error).split()) or type(error).__name__


def installed() -> Any:
    """The client library."""
    try:
        import pika
    except ImportError as error:
        raise InvalidInput("AMQP needs the package pika", next_step="pip install 'millstream[amqp]'") from error
    return pika
