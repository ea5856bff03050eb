"""Access control of the server: allowed host names, origins and the token.

Every program on the machine can reach a loopback server, including browsers, which run untrusted code. So a request
must name this server in its Host header (against DNS rebinding), and must not come from a page of another origin.
"""

from __future__ import annotations

import hmac
import os
import re
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from millstream.errors import InvalidInput

TOKEN_VARIABLE = "MILLSTREAM_TOKEN"
TOKEN_CHARACTERS_MIN = 16
TOKEN_BYTES_MAX = 1024
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what RFC 6750 allows after "Bearer"
MAKE_TOKEN = "(umask 077; python -c 'import secrets; print(secrets.token_urlsafe(32))' > token)"
HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?")
OWN_SITES = (b"same-origin", b"none")  # "none": typed into the address bar

Headers = Sequence[tuple[bytes, bytes]]


class Denied(Exception):
    """A request that is rejected before any lookup; its text never repeats what was sent."""

    def __init__(self, status: int, what: str, next_step: str) -> None:
        super().__init__(what)
        self.status, self.what, self.next_step = status, what, next_step


@dataclass(frozen=True)
class ListenAddress:
    """Where a server listens: the resolved IP address and port, and the host as the user wrote it."""

    host: str
    port: int
    family: socket.AddressFamily
    ip: IPv4Address | IPv6Address

    @classmethod
    def of(cls, host: str, port: int) -> ListenAddress:
        """Resolves the host, so that the checked address is the bound one: `127.1`, `0` and names included."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            found = socket.getaddrinfo(host or None, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            ip = ip_address(str(found[0][4][0]))
        except (OSError, OverflowError, ValueError) as error:
            raise unusable(host, port, error) from error
        return cls(host, port, family, ip)

    @property
    def is_local(self) -> bool:
        return self.ip.is_loopback


def unusable(host: str, port: int, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
        next_step="choose another with --host and --port; --port 0 picks a free port",
    )


def require_token(address: ListenAddress, token: str | None) -> None:
    """Rejects an address that other machines can reach without a token."""
    if not address.is_local and token is None:
        raise InvalidInput(
            f"{address.host or address.ip} can be reached from other machines, but no token is set",
            next_step=f"create one, {MAKE_TOKEN}, and pass --token-file token, or set {TOKEN_VARIABLE}; "
            "or listen on this machine only: --host 127.0.0.1",
        )


@dataclass(frozen=True)
class Access:
    """What a request must contain."""

    hosts: frozenset[str]
    any_loopback: bool
    """Whether every loopback address and `localhost` are names of this server."""
    token: bytes | None = field(default=None, repr=False)

    @classmethod
    def at(
        cls,
        address: ListenAddress,
        *,
        allowed_hosts: Sequence[str] = (),
        token: str | None = None,
        is_signed: bool = False,
    ) -> Access:
        """Rejects an address that other machines can reach, unless the names are known and there is a token, or every
        request is signed."""
        named = {_checked_host(host) for host in allowed_hosts}
        if not is_signed:
            require_token(address, token)
        if address.ip.is_unspecified:
            if not named:
                raise InvalidInput(
                    f"{address.host or address.ip} means every address of this machine, so its host "
                    "names are not known",
                    next_step="list each with --allowed-host, for example --allowed-host tables.example.org",
                )
        elif not address.is_local:
            named |= {str(address.ip), address.host.lower()}
        return cls(frozenset(named), address.is_local, None if token is None else token.encode())

    def check(self, headers: Headers) -> None:
        """Raises Denied."""
        self.check_address(headers)
        if self.token is not None:
            self._check_token(_values(headers, b"authorization"))

    def check_address(self, headers: Headers) -> None:
        """Only whether the request names this server, and does not come from a page of another origin."""
        self._check_origin(headers, self._check_host(_values(headers, b"host")))

    def _check_host(self, given: list[bytes]) -> str:
        host = given[0].decode("latin-1").lower() if len(given) == 1 else ""
        found = HOST.fullmatch(host)
        if found is None or not self._is_ours(found["name"].strip("[]")):
            raise Denied(
                400,
                "this server does not answer to the name in the Host header",
                "use the address it printed when it started; other names are allowed with --allowed-host",
            )
        return host

    def _is_ours(self, name: str) -> bool:
        address = _address(name)
        if (name if address is None else str(address)) in self.hosts:
            return True
        return self.any_loopback and (name == "localhost" if address is None else address.is_loopback)

    def _check_origin(self, headers: Headers, host: str) -> None:
        sites = _values(headers, b"sec-fetch-site")
        origins = [origin.decode("latin-1").lower() for origin in _values(headers, b"origin")]
        own = {f"http://{host}", f"https://{host}"}  # https: behind a proxy that adds TLS
        if not own.issuperset(origins) or any(site not in OWN_SITES for site in sites):
            raise Denied(
                403,
                "requests from pages of other origins are rejected",
                "send it from a program, or from a page on the same host and port",
            )

    def _check_token(self, given: list[bytes]) -> None:
        assert self.token is not None
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        same = hmac.compare_digest(token.strip(), self.token)
        if scheme.lower() != b"bearer" or not same:
            raise Denied(401, "a valid token is required", "send the header Authorization: Bearer TOKEN")


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for each, value in headers if each.lower() == name]


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _checked_host(given: str) -> str:
    name = given.strip().lower()
    if (address := _address(name.strip("[]"))) is not None:
        return str(address)
    if not re.fullmatch(r"[a-z0-9_.-]+", name):
        hint = urlsplit(name if "//" in name else f"//{name}")
        raise InvalidInput(
            f"'{given}' is not a host name or an address",
            next_step=f"leave out scheme, port and wildcards: --allowed-host {hint.hostname or 'tables.example.org'}",
        )
    return name


# ---------------------------------------------------------------- the token


def read_token(file: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> str | None:
    """From the file if one is given, else from the environment: arguments can be read by every user of the machine."""
    if file is not None:
        return _checked_token(_private_text(file), str(os.fspath(file)))
    given = environment.get(TOKEN_VARIABLE)
    return None if given is None else _checked_token(given, f"variable {TOKEN_VARIABLE}")


def _private_text(file: str | os.PathLike[str]) -> str:
    where = str(os.fspath(file))
    try:
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not hang the start
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"the token cannot be read: {reason}", where=where, next_step=MAKE_TOKEN) from error
    try:
        _refuse_untrusted(os.fstat(opened), where)
        return os.read(opened, TOKEN_BYTES_MAX + 2).decode("latin-1")
    finally:
        os.close(opened)


def _refuse_untrusted(found: os.stat_result, where: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput("the token is not in a regular file", where=where, next_step=MAKE_TOKEN)
    if found.st_uid not in (os.geteuid(), 0):
        raise InvalidInput(
            f"the token file belongs to user {found.st_uid}, who can change it", where=where, next_step=MAKE_TOKEN
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidInput(
            f"the token file is open to other users (mode {stat.S_IMODE(found.st_mode):o})",
            where=where,
            next_step=f"create a new token, since this one may be known: {MAKE_TOKEN}; or chmod 600 the file",
        )


def _checked_token(text: str, where: str) -> str:
    token = text.strip()
    if len(token) < TOKEN_CHARACTERS_MIN:
        fault = f"the token is shorter than {TOKEN_CHARACTERS_MIN} characters"
    elif len(token) > TOKEN_BYTES_MAX:
        fault = f"the token is longer than {TOKEN_BYTES_MAX} characters"
    elif not TOKEN.fullmatch(token):
        fault = "the token has invalid characters; use letters, digits and ._~+/-"
    else:
        return token
    raise InvalidInput(fault, where=where, next_step=f"create one: {MAKE_TOKEN}")
