"""Push and SMS gateways: one HTTP request for each message, with the fields and the encoding that the gateway wants."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from urllib.parse import urlencode

import orjson

from millstream.alerts.message import Notification
from millstream.alerts.targets import Target, post
from millstream.errors import InvalidInput
from millstream.secrets import Secret, hidden_options
from millstream.user_lines import AtUsersLine, users_line, what_exists
from millstream.webhooks.pacing import RateLimit
from millstream.webhooks.sender import TRIES, WebhookSender, host_of

ENCODINGS = {"json": "application/json", "form": "application/x-www-form-urlencoded", "text": "text/plain"}
Encoding = Literal["json", "form", "text"]
ALERT_FIELDS = ("title", "text")


@dataclass(frozen=True)
class PushTarget(Target):
    url: str = field(repr=False)
    """It often has a token."""
    message: tuple[tuple[str, str], ...] | str
    """The fields of a request, with names in braces: of columns, or `title` and `text` of an alert."""
    encoding: str = "json"
    headers: Mapping[str, str | Secret] = field(default_factory=dict, repr=False, hash=False)
    tries: int = TRIES
    ca_file: str | None = None
    limit: RateLimit | None = None

    @classmethod
    def of(
        cls,
        url: str,
        message: Mapping[str, str] | str,
        *,
        encoding: Encoding = "json",
        headers: Mapping[str, str] | None = None,
        limit: str | None = None,
        tries: int = TRIES,
        ca_file: str | None = None,
    ) -> Self:
        if encoding not in ENCODINGS:
            raise _refused(f"encoding={encoding!r} is unknown", what_exists(str(encoding), list(ENCODINGS)))
        if isinstance(message, str) != (encoding == "text"):
            raise _refused(
                "a message is a dict of fields, or with encoding='text' one text",
                "for example ms.push(url, {'to': '{phone}', 'message': '{text}'})",
            )
        texts = [message] if isinstance(message, str) else list(message.values())
        for text in texts:
            _names(text)
        named = hidden_options(headers, besides=list(headers or {}))
        fields = message if isinstance(message, str) else tuple(message.items())
        with AtUsersLine():
            made = cls(url, fields, encoding, named, tries, ca_file, RateLimit.of(limit))
            made.sender().close()  # a wrong address is reported here
        return made

    @property
    def names(self) -> list[str]:
        """What stands in braces."""
        texts = [self.message] if isinstance(self.message, str) else [text for _, text in self.message]
        return list(dict.fromkeys(name for text in texts for name in _names(text)))

    @property
    def content_type(self) -> str:
        return ENCODINGS[self.encoding]

    def sender(self) -> WebhookSender:
        return WebhookSender(self.url, headers=self.headers, ca_file=self.ca_file)

    def body(self, values: Mapping[str, Any]) -> bytes:
        texts = {name: _text(values.get(name)) for name in self.names}
        if isinstance(self.message, str):
            return self.message.format_map(texts).encode()
        filled = {name: text.format_map(texts) for name, text in self.message}
        return urlencode(filled).encode() if self.encoding == "form" else orjson.dumps(filled)

    def __str__(self) -> str:
        return f"push at {host_of(self.url)}"

    def send(self, notification: Notification) -> None:
        body = self.body({"title": notification.title, "text": notification.text})
        id = hashlib.blake2b(body, digest_size=16).hexdigest()
        post(self, self.sender(), id, body, self.content_type)

    def check_alerts(self) -> None:
        for name in self.names:
            if name not in ALERT_FIELDS:
                raise _refused(f"an alert has no '{name}' for the message of {self}", "alerts have {title} and {text}")


def _names(text: str) -> list[str]:
    try:
        parts = list(string.Formatter().parse(text))
    except (ValueError, TypeError) as error:
        raise _refused(f"{text!r} cannot be part of a message: {error}", "a brace itself is written twice") from None
    for _, name, format, conversion in parts:
        if name == "" or format or conversion:
            raise _refused(f"{text!r} has braces without a name", "a brace itself is written twice")
    return [name for _, name, _, _ in parts if name is not None]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    return "" if value is None else str(value)


def _refused(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)
