"""A sink that sends every row to a push or SMS gateway: at least once, and never faster than its rate limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import orjson
import pyarrow as pa

from millstream.alerts.push import Encoding, PushTarget
from millstream.bridges.http.webhook_sink import DeliveringSink
from millstream.bridges.topic_pattern import check_column
from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.sink import Sink
from millstream.records import Schema
from millstream.webhooks.sender import TRIES, host_of


@dataclass(frozen=True)
class Push(PushTarget, Connector):
    """A sink, and a target of alerts."""

    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"push {host_of(self.url)}"

    def check_written(self, schema: Schema) -> None:
        for column in self.names:
            check_column(schema, column, str(self))

    def open_sink(self, writing: Writing) -> Sink:
        return PushSink(self, writing)

    def __str__(self) -> str:
        return f"push({host_of(self.url)})"


def push(
    url: str,
    message: Mapping[str, str] | str,
    *,
    encoding: Encoding = "json",
    headers: Mapping[str, str] | None = None,
    limit: str | None = None,
    tries: int = TRIES,
    ca_file: str | None = None,
) -> Push:
    """A gateway for push messages or SMS: `push(url, {"to": "{phone}", "text": "{amount} are due"})`.

    As a sink, every row is one request, and names in braces are columns; as a target of alerts they are `title` and
    `text`. `encoding` is "json", "form", or "text" with one text as the message. With `limit`, rows wait their turn,
    and alerts that come too early are sent later, together. The URL and the headers, such as `Authorization`, are never
    shown.
    """
    text = arguments.text(url, "a gateway needs a URL", "push('https://example.org/send', {'message': '{text}'})")
    count = arguments.whole_number(tries, "tries", "for example push(…, tries=5)")
    return Push.of(text, message, encoding=encoding, headers=headers, limit=limit, tries=max(count, 1), ca_file=ca_file)


class PushSink(DeliveringSink):
    """People cannot unread a message: retractions are not sent."""

    def __init__(self, endpoint: Push, writing: Writing) -> None:
        super().__init__(endpoint.sender(), endpoint.tries, endpoint.limit, writing)
        self._endpoint = endpoint
        self._content_type = endpoint.content_type

    def _sent(self, rows: pa.Table, weights: pa.Array | None) -> tuple[pa.Table, set[int]]:
        retracted = [] if weights is None else weights.to_pylist()
        return rows, {row for row, weight in enumerate(retracted) if weight < 0}

    def _body(self, row: bytes) -> bytes:
        return self._endpoint.body(orjson.loads(row))
