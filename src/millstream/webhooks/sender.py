"""Sends webhooks: signed requests with a stable id, repeated until the receiver has answered with success.

The id is the same for every attempt, so a receiver that remembers ids handles each message once. Imports nothing of the
log or of flows: alerts and other senders use it too.
"""

from __future__ import annotations

import http.client
import random
import ssl
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from millstream.errors import InvalidInput, MillstreamError, SinkUnavailable
from millstream.secrets import Secret, revealed, shown_address
from millstream.webhooks.signatures import secret_bytes, signed_headers

TIMEOUT_SECONDS = 10.0
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.2, 30.0
TRIES = 5
ANSWER_BYTES_MAX = 1 << 16
PASSING_STATUSES = frozenset({408, 423, 425, 429})
"""Of the 4xx: the same request may succeed later."""


class WebhookRefused(MillstreamError):
    """The receiver rejects a message, and would reject it again."""


class Target(NamedTuple):
    """Where requests go, from a URL."""

    is_secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> Target:
        if not isinstance(url, str):
            raise InvalidInput(f"{url!r} is not the URL of a webhook", next_step="for example https://example.org/hook")
        shown = shown_address(url)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidInput(f"'{shown}' is not a URL: {error}", next_step="https://example.org/hook") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(
                f"'{shown}' is not the URL of a webhook", next_step="give one that begins with https:// or http://"
            )
        if parts.username is not None:
            raise InvalidInput(
                f"the URL '{shown}' has a user or a password",
                next_step="pass it as a header: headers={'Authorization': …}",
            )
        if any(character <= " " or character == "\x7f" for character in url):
            raise InvalidInput(f"'{shown}' has spaces or control characters", next_step="escape them, such as %20")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        is_secure = parts.scheme == "https"
        return cls(is_secure, parts.hostname, port or (443 if is_secure else 80), path)


class WebhookSender:
    """Sends to one URL over one connection, which is kept open. For one thread at a time."""

    def __init__(
        self,
        url: str,
        secret: Secret | None = None,
        *,
        headers: Mapping[str, str | Secret] | None = None,
        ca_file: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.target = Target.of(url)
        self._shown = shown_address(url)
        if secret is not None:
            secret_bytes(secret)
        self._secret = secret
        self._headers = dict(headers or {})
        self._ca_file = ca_file
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None

    def deliver(self, id: str, body: bytes, content_type: str = "application/json", *, tries: int = TRIES) -> None:
        """Returns when the receiver has answered with a status of 2xx.

        Raises WebhookRefused if it never will, and SinkUnavailable if it did not in so many tries.
        """
        pause = PAUSE_SECONDS
        for attempt in range(1, tries + 1):
            try:
                return self.send_once(id, body, content_type)
            except _Unavailable as failure:
                if attempt == tries:
                    raise SinkUnavailable(
                        failure.what, where=self._shown, next_step="check the receiver; it is tried again"
                    ) from failure
                # Not all senders at the same moment.
                wait = max(failure.retry_after, random.uniform(pause / 2, pause))
                self._sleep(min(wait, PAUSE_SECONDS_MAX))
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
        raise InvalidInput(f"a webhook cannot be tried {tries} times", next_step="give tries=1 or more")

    def send_once(self, id: str, body: bytes, content_type: str = "application/json") -> None:
        headers = revealed(self._headers)
        headers |= {"Content-Type": content_type, "webhook-id": id}
        if self._secret is not None:
            headers |= signed_headers(self._secret, id, body, int(time.time()))
        status, retry_after = self._request(body, headers)
        if 200 <= status < 300:
            return
        if status >= 500 or status in PASSING_STATUSES:
            raise _Unavailable(f"the receiver answers with status {status}", retry_after)
        raise WebhookRefused(
            f"the receiver rejects the message with status {status}",
            where=self._shown,
            next_step="check the URL, the secret and what the receiver accepts",
        )

    def _request(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, float]:
        was_open = self._connection is not None
        try:
            return self._answer(body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # The receiver may have closed an idle connection: that is no failure of this request.
            if was_open and isinstance(error, http.client.RemoteDisconnected | ConnectionError):
                try:
                    return self._answer(body, headers)
                except (OSError, http.client.HTTPException) as second:
                    self.close()
                    error = second
            raise _Unavailable(f"the receiver cannot be reached: {error or type(error).__name__}", 0.0) from error

    def _answer(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, float]:
        if self._connection is None:
            self._connection = self._opened()
        self._connection.request("POST", self.target.path, body, dict(headers))
        with self._connection.getresponse() as answer:
            if len(answer.read(ANSWER_BYTES_MAX)) == ANSWER_BYTES_MAX:
                self.close()  # rather than read what nobody needs
            return answer.status, _seconds(answer.getheader("Retry-After"))

    def _opened(self) -> http.client.HTTPConnection:
        host, port, timeout = self.target.host, self.target.port, self._timeout_seconds
        if not self.target.is_secure:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(
            host, port, timeout=timeout, context=ssl.create_default_context(cafile=self._ca_file)
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def host_of(url: str) -> str:
    """What may be shown of a URL with a token in its path."""
    return Target.of(url).host


class _Unavailable(Exception):
    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(what)
        self.what, self.retry_after = what, retry_after


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdecimal() else 0.0
