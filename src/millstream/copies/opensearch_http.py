"""Requests to OpenSearch, over one connection that is kept open. Errors are those of Millstream, without passwords."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from millstream.errors import MillstreamError, SinkFailed, SinkUnavailable
from millstream.secrets import shown_address
from millstream.webhooks.sender import PASSING_STATUSES

TIMEOUT_SECONDS = 60.0
RAISE: Final = object()
ALREADY = "resource_already_exists_exception"


class OpenSearch:
    def __init__(self, url: str, what: str) -> None:
        """`what` is for messages."""
        self._parts = urlsplit(url)
        self.where = f"{what} at {shown_address(url)}"
        self._headers = {"Accept": "application/json"}
        if self._parts.username is not None:
            login = f"{unquote(self._parts.username)}:{unquote(self._parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        absent: Any = RAISE,
        conflict: Any = RAISE,
        exists: bool = False,
    ) -> Any:
        """The answer. Instead of it `absent` if something does not exist, `conflict` if another process was faster;
        with `exists`, an index that is already there is no error."""
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = self._headers | ({} if body is None else {"Content-Type": kind})
        status, answer = self._sent(method, self._parts.path.rstrip("/") + path, content, headers)
        if 200 <= status < 300:
            return answer
        if status == 404 and absent is not RAISE:
            return absent
        if status == 409 and conflict is not RAISE:
            return conflict
        if exists and ALREADY in json.dumps(answer):
            return answer
        raise self._refused(method, status, answer)

    def _sent(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
        try:
            if self._connection is None:
                self._connection = self._opened()
            self._connection.request(method, path, content, headers)
            with self._connection.getresponse() as answer:
                return answer.status, _document(answer.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise SinkUnavailable(
                f"OpenSearch cannot be reached: {error or type(error).__name__}",
                where=self.where,
                next_step="check that it is up",
            ) from None

    def _opened(self) -> http.client.HTTPConnection:
        host = self._parts.hostname or ""
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, self._parts.port or 9200, timeout=TIMEOUT_SECONDS)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, self._parts.port or 443, timeout=TIMEOUT_SECONDS, context=context)

    def _refused(self, method: str, status: int, answer: Any) -> MillstreamError:
        kind = SinkUnavailable if status >= 500 or status in PASSING_STATUSES else SinkFailed
        error = answer.get("error") if isinstance(answer, dict) else answer
        reason = error.get("reason") if isinstance(error, dict) else error
        return kind(
            f"OpenSearch answers {method} with status {status}: {str(reason)[:500]}",
            where=self.where,
            next_step="check the address, the rights of the user, and what the server's log says",
        )

    def close(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None


def _document(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:  # of a proxy, say
        return content.decode(errors="replace")
