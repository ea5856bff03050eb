"""A sink that sends every row as a webhook: at least once, with an id that is the same when a batch is repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from millstream.alerts.targets import WebhookTarget
from millstream.bridges.identified import identified, run_of
from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.refusals import AS_TEXT, Refuse, refusals_of, stop, unfit
from millstream.connectors.sink import Sink
from millstream.connectors.weights import with_weights
from millstream.secrets import Secret, shown_address
from millstream.webhooks.pacing import Pace, RateLimit
from millstream.webhooks.sender import TRIES, WebhookRefused, WebhookSender, host_of


@dataclass(frozen=True)
class Webhook(WebhookTarget, Connector):
    """A sink, and a target of alerts."""

    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"webhook {host_of(self.url)}"

    def open_sink(self, writing: Writing) -> Sink:
        return WebhookSink(self, writing)

    def __str__(self) -> str:
        return f"webhook({shown_address(self.url)})"


def webhook(
    url: str,
    *,
    secret: str | Secret | None = None,
    headers: Mapping[str, str] | None = None,
    limit: str | None = None,
    tries: int = TRIES,
    ca_file: str | None = None,
) -> Webhook:
    """A sink that posts every row as JSON to a URL, in order, signed with a secret.

    A request that fails is tried `tries` times, with pauses that grow, and then with the whole batch again, until the
    receiver accepts it. A row that the receiver rejects becomes a dead letter. Headers, such as `Authorization`,
    are never shown. `limit`, such as "30 per minute", is how many rows are sent at most. `ca_file` has the
    certificates to trust, if not those of the system.
    """
    text = arguments.text(url, "a webhook needs a URL", "webhook('https://example.org/hook')")
    count = arguments.whole_number(tries, "tries", "for example webhook(…, tries=5)")
    return Webhook.of(text, secret=secret, headers=headers, limit=limit, tries=max(count, 1), ca_file=ca_file)


class DeliveringSink(Sink):
    """One request for each row, in order."""

    _content_type = "application/json"

    def __init__(self, sender: WebhookSender, tries: int, limit: RateLimit | None, writing: Writing) -> None:
        self._sender = sender
        self._tries = tries
        self._pace = Pace(limit)
        self._sleep: Callable[[float], object] = time.sleep
        self._ledger = writing.ledger
        self._run = run_of(writing)
        self._done: tuple[int, dict[str, str | None]] = (-1, {})
        """The ids of the last batch that were answered, with the reason if they were rejected."""

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if self._ledger.has(batch):
            return
        refused = unfit(rows, AS_TEXT)
        if self._done[0] != batch:
            self._done = (batch, {})
        answered = self._done[1]
        sent, left_out = self._sent(rows, weights)
        for row, (id, body) in enumerate(identified(self._run, batch, sent, left_out | set(refused))):
            if id is None:
                continue
            if id not in answered:
                answered[id] = self._reason(id, self._body(body))
            if (reason := answered[id]) is not None:
                refused[row] = reason
        refuse(refusals_of(refused))
        self._ledger.record(batch)
        self._done = (batch, {})

    def _sent(self, rows: pa.Table, weights: pa.Array | None) -> tuple[pa.Table, set[int]]:
        """The rows with the columns that are sent, and those that are not sent."""
        return with_weights(rows, weights), set()

    def _body(self, row: bytes) -> bytes:
        """What is sent for a row, which is JSON."""
        return row

    def _reason(self, id: str, body: bytes) -> str | None:
        """Why the receiver rejects a message; None: it has accepted it."""
        self._sleep(self._pace.wait_s())
        self._pace.note()
        try:
            self._sender.deliver(id, body, self._content_type, tries=self._tries)
        except WebhookRefused as error:
            return error.what
        return None

    def close(self) -> None:
        self._sender.close()


class WebhookSink(DeliveringSink):
    def __init__(self, endpoint: Webhook, writing: Writing) -> None:
        super().__init__(endpoint.sender(), endpoint.tries, endpoint.limit, writing)
