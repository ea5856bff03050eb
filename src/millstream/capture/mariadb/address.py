"""The address of a MariaDB database, `mariadb://user:password@host:port/database`; its password is never shown."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from millstream.errors import InvalidInput

SCHEMES = ("mariadb", "mysql")
EXAMPLE = "mariadb://user@host:3306/database"
PORT = 3306
PASSWORD_VARIABLE = "MYSQL_PWD"
CA_FILE = "ssl_ca"


@dataclass(frozen=True)
class Address:
    user: str
    password: str = field(repr=False)
    host: str
    port: int
    database: str
    ca_file: str | None
    """Certificates that the server's must be signed by; without it, the connection is not encrypted."""

    def __str__(self) -> str:
        return f"mariadb://{self.user}@{self.host}:{self.port}/{self.database}"


def parsed(text: str) -> Address:
    """Raises if the text is not such an address."""
    try:
        url = urlsplit(text)
        port = url.port or PORT
    except ValueError:
        raise _refused("the address of the database cannot be read") from None
    if url.scheme not in SCHEMES:
        raise _refused(f"'{url.scheme}://' is not a MariaDB address" if url.scheme else "the address has no scheme")
    database = unquote(url.path.lstrip("/"))
    if not url.username or not url.hostname or not database or "/" in database or "@" in url.netloc.rpartition("@")[0]:
        raise _refused("the address of the database does not have a user, a host and a database")
    password = unquote(url.password or "") or os.environ.get(PASSWORD_VARIABLE, "")
    return Address(unquote(url.username), password, url.hostname, port, database, _ca_file(url))


def _ca_file(url: SplitResult) -> str | None:
    query = parse_qs(url.query, keep_blank_values=True)
    if unknown := [name for name in query if name != CA_FILE]:
        raise _refused(f"the address has an unknown parameter '{unknown[0]}'; the only one is {CA_FILE}")
    return query[CA_FILE][-1] if CA_FILE in query else None


def _refused(what: str) -> InvalidInput:
    return InvalidInput(what, next_step=f"write {EXAMPLE}; in a password, %40 for '@', %2F for '/' and %3A for ':'")
