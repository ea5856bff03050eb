"""A key per person, outside of the log: once it is deleted, what it encrypted can never be read again."""

from __future__ import annotations

import base64
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from millstream.errors import InvalidInput, StorageError
from millstream.log.storage.disk import storage_errors
from millstream.private_files import PRIVATE, ensure_database_file

BUSY_SECONDS = 60.0
NONCE_BYTES = 12
TABLE = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, subject TEXT NOT NULL UNIQUE, key BLOB NOT NULL
) WITHOUT ROWID
"""


class Keys:
    """The keys of all subjects, in one private file. Copies and backups of it keep keys alive: delete those as well."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        _cipher()
        with storage_errors(self._path):
            ensure_database_file(self._path, PRIVATE)
        self._turn = threading.Lock()
        self._db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        with self._translated():
            # A deleted key must not remain in a journal or a free page.
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(TABLE)

    def seal(self, subject: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields encrypted with the subject's key, which is created if there is none."""
        key_id, key = self._key_of(subject)
        nonce = os.urandom(NONCE_BYTES)
        sealed = _cipher()(key).encrypt(nonce, orjson.dumps(fields), key_id.encode())
        return {"subject": subject, "key": key_id, "fields": list(fields), "sealed": _text(nonce + sealed)}

    def unseal(self, sealed: Mapping[str, Any]) -> dict[str, Any] | None:
        """The fields; None if the key was deleted."""
        with self._turn, self._translated():
            found = self._db.execute("SELECT key FROM keys WHERE id = ?", (sealed["key"],)).fetchone()
        if found is None:
            return None
        content = base64.b64decode(sealed["sealed"])
        plain = _cipher()(found[0]).decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], sealed["key"].encode())
        fields: dict[str, Any] = orjson.loads(plain)
        return fields

    def forget(self, subject: str) -> bool:
        """Deletes the key of a subject; returns whether there was one."""
        with self._turn, self._translated():
            return self._db.execute("DELETE FROM keys WHERE subject = ?", (subject,)).rowcount > 0

    def _key_of(self, subject: str) -> tuple[str, bytes]:
        with self._turn, self._translated():
            made = (os.urandom(8).hex(), subject, os.urandom(32))
            asked = "SELECT id, key FROM keys WHERE subject = ?"
            found = self._db.execute(asked, (subject,)).fetchone()
            if found is None:
                self._db.execute("INSERT OR IGNORE INTO keys VALUES (?, ?, ?)", made)
                found = self._db.execute(asked, (subject,)).fetchone()
            return found[0], found[1]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"the file of the keys cannot be used: {error}",
                where=str(self._path),
                next_step="restore it from a copy: without it personal data cannot be read",
            ) from error

    def close(self) -> None:
        with self._turn:
            self._db.close()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _cipher() -> Any:
    """Imported on use: only stores with personal data need the package."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidInput(
            "personal data needs the package 'cryptography'", next_step="pip install 'millstream[events]'"
        ) from None
    return AESGCM
