"""A copy behind HTTP: `PUT address/key` with a row, `DELETE address/key` without. Both may be repeated.

The receiver cannot store marks, so they are in a file of this machine, beside the process that follows.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from millstream.copies.ports import Changes, Mark, Store, cannot_switch
from millstream.errors import SinkFailed, SinkUnavailable
from millstream.log.storage.disk import read_document, write_document
from millstream.private_files import make_folders
from millstream.secrets import Secret, revealed, shown_address
from millstream.webhooks.sender import PASSING_STATUSES, TIMEOUT_SECONDS, Target

ABSENT = (404, 410)


class HttpStore:
    def __init__(self, url: str, marks: Path, headers: Mapping[str, str | Secret] | None = None) -> None:
        self._target = Target.of(url)
        self._url = url
        self._marks = marks.expanduser().absolute()
        self._headers = dict(headers or {})
        self._connection: http.client.HTTPConnection | None = None

    @property
    def where(self) -> str:
        return shown_address(self._url)

    def mark(self, writer: str) -> Mark | None:
        return self._noted().get(writer)

    def writers(self) -> list[str]:
        return sorted(self._noted())

    def _noted(self) -> dict[str, Mark]:
        found: dict[str, Mark] = read_document(self._marks) if self._marks.exists() else {}
        return found

    def apply(self, changes: Changes, writer: str, mark: Mark, before: Mark | None, *, clear: bool = False) -> bool:
        if clear:
            raise SinkFailed(
                "the table was truncated, and a copy behind HTTP does not know its keys",
                where=self.where,
                next_step="empty the receiver by hand, delete the file of marks, and follow the topic again",
            )
        if self.mark(writer) != before:
            return False
        for key, row in changes.items():
            self._send("DELETE" if row is None else "PUT", key, row)
        make_folders(self._marks.parent)
        write_document(self._marks, {**self._noted(), writer: mark})
        return True

    def _send(self, method: str, key: str, row: bytes | None) -> None:
        parts = urlsplit(self._target.path)
        path = f"{parts.path.rstrip('/')}/{quote(key, safe='')}" + (f"?{parts.query}" if parts.query else "")
        headers = {**revealed(self._headers), "Content-Type": "application/json"}
        try:
            if self._connection is None:
                self._connection = self._opened()
            self._connection.request(method, path, row, headers)
            with self._connection.getresponse() as answer:
                answer.read()
                status = answer.status
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise SinkUnavailable(
                f"the receiver cannot be reached: {error or type(error).__name__}",
                where=self.where,
                next_step="check the receiver; it is tried again",
            ) from error
        if 200 <= status < 300 or (method == "DELETE" and status in ABSENT):
            return
        kind = SinkUnavailable if status >= 500 or status in PASSING_STATUSES else SinkFailed
        raise kind(
            f"the receiver answers {method} of key {json.dumps(key)} with status {status}",
            where=self.where,
            next_step="check the address, the headers, and what the receiver accepts",
        )

    def _opened(self) -> http.client.HTTPConnection:
        host, port = self._target.host, self._target.port
        if not self._target.is_secure:
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context())

    def holds(self, key: str, row: bytes) -> bool:
        return True  # receivers need not answer GET

    def empty(self) -> None:
        raise cannot_switch(self.where)

    def replacement(self) -> Store:
        raise cannot_switch(self.where)

    def switch(self) -> None:
        raise cannot_switch(self.where)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
