"""Where a supervisor is: its folder, the token that only its user can read, and the address it answers at."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millstream.connectors.catalog import jobs_folder
from millstream.errors import AlreadyExists, MillstreamError, NotFound
from millstream.log import log_folder
from millstream.log.storage.disk import FileLock, read_document, storage_errors, write_document
from millstream.private_files import make_folders, open_private
from millstream.serving.access import read_token

ADDRESS = "address.json"
TOKEN = "token"
LOCK = "lock"


@dataclass(frozen=True)
class Home:
    folder: Path
    jobs: Path

    @classmethod
    def of(cls, log_address: str) -> Home:
        """Beside the folders of the log's jobs."""
        folder = log_folder(log_address)
        jobs = jobs_folder(log_address if folder is None else folder.absolute())
        return cls(jobs.parent / "supervisor", jobs)

    @contextmanager
    def held(self) -> Iterator[None]:
        """One supervisor at a time."""
        with storage_errors(self.folder):
            make_folders(self.folder)
        with FileLock(self.folder / LOCK).attempt() as free:
            if not free:
                raise AlreadyExists(
                    f"a supervisor is already running at {self.url() or 'another address'}",
                    where=str(self.folder),
                    next_step="use it: millstream jobs list; or stop it first",
                )
            yield

    def token(self) -> str:
        """The token in the supervisor's folder; a random one is made the first time."""
        path = self.folder / TOKEN
        if not path.exists():
            with storage_errors(path), os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        token = read_token(path, {})
        assert token is not None
        return token

    def announce(self, url: str, certificate: Path | None = None) -> None:
        """Lets programs on this machine find the supervisor, and trust its certificate."""
        trusted = None if certificate is None else str(certificate.absolute())
        write_document(self.folder / ADDRESS, {"url": url, "pid": os.getpid(), "certificate": trusted})

    def certificate(self) -> Path | None:
        try:
            found = read_document(self.folder / ADDRESS).get("certificate")
            return None if found is None else Path(found)
        except (MillstreamError, OSError, ValueError, AttributeError):
            return None

    def url(self) -> str | None:
        try:
            return str(read_document(self.folder / ADDRESS)["url"])
        except (MillstreamError, OSError, ValueError, KeyError, TypeError):
            return None

    def known(self) -> tuple[str, str]:
        """The address and the token of the supervisor that runs here."""
        url = self.url()
        if url is None or not (self.folder / TOKEN).exists():
            raise NotFound("no supervisor has run here", where=str(self.folder), next_step="start one: millstream up")
        return url, self.token()
