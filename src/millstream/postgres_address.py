"""The address of a Postgres database, parsed as libpq does, so that no secret of it is shown.

Only parameters known to be harmless are shown. What cannot be parsed is not shown at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from millstream.secrets import SHOWN

_HARMLESS = """
application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation
gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname
load_balance_hosts max_protocol_version min_protocol_version port replication require_auth requirepeer service ssl
ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey sslmode
sslnegotiation sslrootcert sslsni target_session_attrs tcp_user_timeout user
"""
HARMLESS = frozenset(_HARMLESS.split())
QUIET = frozenset(["oauth_client_id", "oauth_issuer", "oauth_scope", "options", "passfile", "sslkeylogfile"])
"""Not shown, because they are free text; but not secrets either."""
_SPACE = r"[ \t\n\r\f\v]"
_WORDS = re.compile(
    rf"{_SPACE}*(?P<name>[^= \t\n\r\f\v]+){_SPACE}*={_SPACE}*"
    r"(?P<value>'(?:[^'\\]|\\.)*'|(?:[^'\\ \t\n\r\f\v]|\\.)(?:[^\\ \t\n\r\f\v]|\\.)*|)"
    rf"(?:{_SPACE}+|\Z)",
    re.DOTALL,
)
_URL = re.compile(
    r"(?P<scheme>postgres(?:ql)?://)(?:(?P<user>[^:@/?=]*)(?::(?P<password>[^@/?]*))?@)?"
    r"(?P<servers>(?:\[[^\]/?,@]*\]|[^:/?,@\[]*)(?::\d*)?(?:,(?:\[[^\]/?,@]*\]|[^:/?,@\[]*)(?::\d*)?)*)"
    r"(?P<database>/[^?@]*)?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
# Server parameters that affect the meaning of names, and timeouts.
_OPTIONS = re.compile(
    r"(?:\s*-c\s*(?:search_path|statement_timeout|lock_timeout|timezone)\s*=\s*[\w.,\"$-]+)+\s*", re.IGNORECASE
)
_NESTED = re.compile(r"://|password\s*=", re.IGNORECASE)  # an address inside another
UNREADABLE = SHOWN
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*)://")


def scheme_of(address: str) -> str | None:
    """The scheme of the address, if it is a URL."""
    found = _SCHEME.match(address)
    return found[1] if found else None


def is_ambiguous(address: str) -> bool:
    """Whether libpq would take part of a password for the server: write its special characters as %40, %2F, %3F."""
    if scheme_of(address) is None:
        return False
    rest = address.partition("://")[2]
    server, _, database = rest.partition("?")[0].partition("/")
    before = rest.partition("@")[0] if "@" in rest else ""
    return server.count("@") > 1 or "@" in database or "/" in before or "?" in before


def without_password(address: str) -> str:
    """The address as it may be shown and stored: without passwords, keys and anything not known to be harmless."""
    url = _URL.fullmatch(address)
    if url is not None:
        pairs = _queried(url["query"])
        if pairs is None or _NESTED.search(unquote(f"{url['user']}{url['servers']}{url['database']}")):
            return f"{url['scheme']}{UNREADABLE}"
        user = f"{url['user']}@" if url["user"] else ""
        shown = [f"{name}={text if _is_shown(name, unquote(text)) else SHOWN}" for name, text in pairs]
        query = f"?{'&'.join(shown)}" if shown else ""
        return f"{url['scheme']}{user}{url['servers']}{url['database'] or ''}{query}"
    if scheme := scheme_of(address):
        return f"{scheme}://{UNREADABLE}" if scheme in ("postgres", "postgresql") else UNREADABLE
    words = _words(address)
    if words is None:
        return UNREADABLE
    return " ".join(f"{name}={text if _is_shown(name, _plain(text)) else SHOWN}" for name, text in words)


def secrets_of(address: str) -> list[str]:
    """The secrets of an address, both encoded and decoded."""
    url = _URL.fullmatch(address)
    if url is not None:
        written = [text for name, text in _queried(url["query"]) or [] if name not in HARMLESS]
        written += [url["password"]] if url["password"] else []
        return [text for each in written for text in {each, unquote(each)}]
    hidden = [text for name, text in _words(address) or [] if name not in HARMLESS]
    return [text for each in hidden for text in {each, _plain(each)}]


def has_secret(address: str) -> bool:
    """Whether an address has a password or key, or a part that cannot be parsed."""
    url = _URL.fullmatch(address)
    if url is not None:
        pairs = _queried(url["query"])
        return pairs is None or bool(url["password"]) or _any_secret(name for name, _ in pairs)
    words = _words(address)
    return words is None or _any_secret(name for name, _ in words)


def _any_secret(names: Iterable[str]) -> bool:
    return any(name not in HARMLESS and name not in QUIET for name in names)


def _is_shown(name: str, value: str) -> bool:
    if name == "options":
        return _OPTIONS.fullmatch(value) is not None
    return name in HARMLESS and not _NESTED.search(value)


def _queried(query: str | None) -> list[tuple[str, str]] | None:
    """The parameters of a URL: names decoded, values as written."""
    found = []
    for part in query.split("&") if query else []:
        name, separator, value = part.partition("=")
        if not separator or "=" in value:
            return None
        found.append((unquote(name), value))
    return found


def _words(address: str) -> list[tuple[str, str]] | None:
    """The parameters of `name=value name='a value'`, values as written."""
    found, at = [], 0
    while at < len(address.rstrip(" \t\n\r\f\v")):
        word = _WORDS.match(address, at)
        if word is None:
            return None
        found.append((word["name"], word["value"]))
        at = word.end()
    return found


def _plain(value: str) -> str:
    inner = value[1:-1] if value.startswith("'") else value
    return re.sub(r"\\(.)", r"\1", inner, flags=re.DOTALL)
