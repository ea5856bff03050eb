"""Where a message broker is, and how to log in; without a password in the address."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self
from urllib.parse import unquote, urlsplit

from millstream.connectors import arguments
from millstream.errors import InvalidInput
from millstream.secrets import Secret, shown_address

HEARTBEAT_SECONDS = 10.0


@dataclass(frozen=True)
class BrokerAddress:
    address: str
    password: Secret | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate: tuple[str, str] | None = None
    """Files with this client's certificate and its key."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    """How often a silent connection is checked, in both directions."""

    protocol: ClassVar[str]
    ports: ClassVar[Mapping[str, int]]
    """By scheme: without TLS first, then with it."""
    password_variable: ClassVar[str]
    """Of the environment, for commands."""

    def __post_init__(self) -> None:
        plain, secure = self.ports
        parts = urlsplit(self.address)
        if parts.scheme not in self.ports or not parts.hostname or parts.password is not None:
            raise InvalidInput(
                f"'{parts.scheme}://{parts.hostname}' is not the address of a broker for {self.protocol}, or has a "
                "password in it",
                next_step=f"{plain}://user@host:{self.ports[plain]}, or {secure}:// for TLS",
            )
        if parts.scheme == plain and (self.ca_file or self.certificate):
            raise InvalidInput(
                "certificates are for TLS only", next_step=f"use an address that begins with {secure}://"
            )

    @classmethod
    def given(
        cls,
        address: object,
        password: str | Secret | None,
        ca_file: str | None,
        certificate: tuple[str, str] | None,
        example: str,
    ) -> Self:
        """As the arguments of a sink."""
        text = arguments.text(address, "the address of a broker must be a string", example)
        return cls(text, Secret(password) if isinstance(password, str) else password, ca_file, certificate)

    @property
    def host(self) -> str:
        return str(urlsplit(self.address).hostname)

    @property
    def port(self) -> int:
        parts = urlsplit(self.address)
        return parts.port or self.ports[parts.scheme]

    @property
    def user(self) -> str | None:
        user = urlsplit(self.address).username
        return None if user is None else unquote(user)

    def tls(self) -> ssl.SSLContext | None:
        if urlsplit(self.address).scheme == next(iter(self.ports)):
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return context

    def __str__(self) -> str:
        return shown_address(self.address)
