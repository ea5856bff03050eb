"""Accounts for a supervisor that several people share: who may look, and who may change something.

Passwords are stored as argon2 hashes, in a file that only the user of the supervisor can read. The owner's token works
beside them.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

from millstream.errors import AlreadyExists, DamagedState, InvalidInput, NotFound
from millstream.log.storage.disk import FileLock, read_document, write_document
from millstream.serving.access import Access, Denied, Headers
from millstream.user_lines import what_exists

ACCOUNTS = "accounts.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
PASSWORD_CHARACTERS_MIN, PASSWORD_CHARACTERS_MAX = 12, 1000
READING = ("GET", "HEAD")
CHECKED_MAX = 1000


class Role(Enum):
    VIEWER = "viewer"
    """May look at everything."""
    OPERATOR = "operator"
    """May also submit, change and delete jobs."""


@dataclass(frozen=True)
class Account:
    name: str
    role: Role
    password_hash: str = field(repr=False)


class Accounts:
    """The accounts in a folder. Another process may change them: they are read for each request."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ACCOUNTS
        self._lock = FileLock(folder / f"{ACCOUNTS}.lock")
        self._salt = secrets.token_bytes(32)
        self._checked: dict[bytes, str] = {}
        self._checking = threading.Lock()
        self._nobody: str | None = None

    def known(self) -> list[Account]:
        if not self._path.exists():
            return []
        try:
            found = read_document(self._path)["accounts"]
            return [Account(str(name), Role(each["role"]), str(each["password"])) for name, each in found.items()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedState(
                f"the accounts cannot be read: {error}",
                where=str(self._path),
                next_step="restore the file from a copy, or remove it and add the accounts again",
            ) from error

    def add(self, name: str, password: str, role: Role) -> Account:
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"{name[:80]!r} cannot be the name of an account", next_step="use letters, digits and _.@-"
            )
        if not PASSWORD_CHARACTERS_MIN <= len(password) <= PASSWORD_CHARACTERS_MAX:
            raise InvalidInput(
                f"a password has {PASSWORD_CHARACTERS_MIN} to {PASSWORD_CHARACTERS_MAX:,} characters",
                next_step="choose a longer one: a few random words",
            )
        made = Account(name, role, _hasher().hash(password))
        with self._lock:
            known = self.known()
            if any(each.name == name for each in known):
                raise AlreadyExists(
                    f"there is already an account '{name}'", next_step=f"millstream accounts remove {name}"
                )
            self._write([*known, made])
        return made

    def remove(self, name: str) -> None:
        with self._lock:
            known = self.known()
            if not any(each.name == name for each in known):
                raise NotFound(
                    f"there is no account '{name}'",
                    next_step=what_exists(name, [each.name for each in known], kind="accounts"),
                )
            self._write([each for each in known if each.name != name])

    def checked(self, name: str, password: str) -> Account | None:
        """The account, if the password is right. A password that was not checked before takes long, on purpose."""
        known = self.known()
        if not known:
            return None
        account = next((each for each in known if each.name == name), None)
        stored = self._of_nobody() if account is None else account.password_hash
        seen = hmac.digest(self._salt, f"{name}\0{password}".encode(), sha256)
        if account is not None and self._checked.get(seen) == stored:
            return account
        with self._checking:  # one at a time: guessing must not use up the machine
            is_right = _is_right(stored, password)
        if account is None or not is_right:
            return None
        if len(self._checked) >= CHECKED_MAX:
            self._checked.clear()
        self._checked[seen] = stored
        return account

    def _of_nobody(self) -> str:
        """The hash of a password that nobody has: an unknown name takes as long as a wrong password."""
        if self._nobody is None:
            self._nobody = _hasher().hash(secrets.token_urlsafe())
        return self._nobody

    def _write(self, accounts: Sequence[Account]) -> None:
        stored = {each.name: {"role": each.role.value, "password": each.password_hash} for each in accounts}
        write_document(self._path, {"accounts": stored})


@dataclass(frozen=True)
class SharedAccess:
    """Admits the owner by the token, and others by their accounts."""

    access: Access
    accounts: Accounts

    def admitted(self, headers: Headers, method: str) -> str | None:
        """The name of the account, None for the owner. Raises Denied."""
        given = [value for name, value in headers if name.lower() == b"authorization"]
        scheme, _, credentials = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if scheme.lower() != b"basic":
            return self.access.admitted(headers, method)
        self.access.check_address(headers)
        account = self._account(credentials.strip())
        if account is None:
            raise Denied(401, "the name or the password is wrong", "ask the owner of the supervisor for an account")
        if account.role is Role.VIEWER and method not in READING:
            raise Denied(403, "a viewer cannot change anything", "ask the owner for the role operator")
        return account.name

    def _account(self, credentials: bytes) -> Account | None:
        try:
            name, separator, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return self.accounts.checked(name, password) if separator else None


def _hasher() -> Any:
    try:
        from argon2 import PasswordHasher
    except ImportError as error:
        raise InvalidInput(
            "accounts need the package argon2-cffi", next_step="pip install 'millstream[accounts]'"
        ) from error
    return PasswordHasher()


def _is_right(stored: str, password: str) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return bool(_hasher().verify(stored, password))
    except (VerificationError, InvalidHashError):
        return False
