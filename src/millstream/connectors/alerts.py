"""Rows as alerts: a batch is stored in an outbox of the job, and sent from there in the background.

A job never waits for a mail server. What could not be sent when it stops is sent by its next run.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from millstream.alerts.message import ROWS, Message
from millstream.alerts.outbox import Outbox
from millstream.alerts.sender import GROUP_S, Sender, SenderThread
from millstream.alerts.targets import Target, targets_of
from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.file_ledger import unavailable_if_refused
from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.sink import Sink
from millstream.connectors.weights import one_batch
from millstream.errors import SinkUnavailable
from millstream.records import batch_to_rows, duration
from millstream.user_lines import AtUsersLine

if TYPE_CHECKING:
    from millstream.plan.steps.written_stream import Written
    from millstream.plan.stream import Stream

ROWS_SHOWN = 50
TEXT_CHARACTERS_MAX = 500
"""Of one row."""


@dataclass(frozen=True, eq=False)
class Alert(Connector):
    """Two alerts are never the same sink: several streams may be sent to the same address."""

    to: tuple[Target, ...]
    title: str | None = None
    by: tuple[str, ...] = ()
    quiet_s: float = 0.0
    can_write: ClassVar[bool] = True
    leaves_no_trace: ClassVar[bool] = True

    def open_sink(self, writing: Writing) -> Sink:
        return AlertSink(self, writing)

    def __str__(self) -> str:
        return f"alert({', '.join(map(str, self.to))})"


def alert(
    stream: Stream,
    to: Target | Sequence[Target],
    *,
    title: str | None = None,
    by: str | Sequence[str] = (),
    quiet: str | timedelta | None = None,
    name: str | None = None,
) -> Written:
    """Sends the rows of a stream as alerts: `ms.alert(broken, to=ms.email("ops@example.org", host=…))`.

    Rows of a few seconds are sent together. With `quiet`, such as "1 hour", a row that is equal to one of this time is
    not sent again; with `by`, one that has the same values in these columns.
    """
    columns = (by,) if isinstance(by, str) else tuple(by)
    for column in columns:
        if column not in stream.schema.names:
            raise arguments.refused(f"there is no column '{column}'", f"columns: {', '.join(stream.schema.names)}")
    if columns and quiet is None:
        raise arguments.refused("by= says which rows are the same, and needs quiet=", "for example quiet='1 hour'")
    with AtUsersLine():
        quiet_s = 0.0 if quiet is None else duration(quiet, what="quiet").total_seconds()
    return stream.write(Alert(targets_of(to), title, columns, quiet_s), name=name)


class AlertSink(Sink):
    def __init__(self, endpoint: Alert, writing: Writing) -> None:
        self._endpoint = endpoint
        self._job = writing.job
        self._step = writing.step
        self._ledger = writing.ledger
        # By position, not by address: a changed address gets what waits for it.
        self._targets = {f"{number}: {target}": target for number, target in enumerate(endpoint.to, 1)}
        with _outbox_errors(self._step):
            self._outbox = Outbox(writing.ledger.path.parent)
        self._sender = Sender(self._outbox, lambda: self._targets)
        self._thread = SenderThread(self._sender)
        self._thread.start()

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if self._ledger.has(batch):
            return
        with _outbox_errors(self._step), self._outbox.transaction() as connection:
            newest = connection.execute("select batch from batches where step = ?", (self._step,)).fetchone()
            if newest is None or newest[0] < batch:
                self._put(rows, weights)
                connection.execute("insert or replace into batches values (?, ?)", (self._step, batch))
        self._ledger.record(batch)

    def _put(self, rows: pa.Table, weights: pa.Array | None) -> None:
        now = time.time()
        if weights is not None:  # a retraction is not news
            rows = rows.filter(pc.greater(weights, 0))
        found = [_plain(row) for row in batch_to_rows(one_batch(rows))]
        if self._endpoint.quiet_s:
            found = [row for row in found if self._outbox.is_new(self._key(row), now, self._endpoint.quiet_s)]
        if not found:
            return
        title = self._endpoint.title or f"{self._job}: {len(found)} row{'' if len(found) == 1 else 's'}"
        lines = [json.dumps(row, ensure_ascii=False)[:TEXT_CHARACTERS_MAX] for row in found[:ROWS_SHOWN]]
        lines += [] if len(found) <= ROWS_SHOWN else [f"and {len(found) - ROWS_SHOWN:,} more"]
        message = Message(ROWS, title, "\n".join(lines), now, self._job, rows=found[:ROWS_SHOWN])
        for target in self._targets:
            self._outbox.put(target, message, now + GROUP_S)

    def _key(self, row: dict[str, Any]) -> str:
        chosen = {name: row[name] for name in self._endpoint.by} or row
        content = json.dumps([self._step, chosen], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def close(self) -> None:
        """Tries once to send what waits; the rest stays for the next run."""
        self._thread.close()
        self._sender.send_due(time.time() + GROUP_S)
        self._outbox.close()


@contextmanager
def _outbox_errors(step: str) -> Iterator[None]:
    with unavailable_if_refused("the outbox of alerts", step):
        try:
            yield
        except sqlite3.Error as error:
            raise SinkUnavailable(
                f"the outbox of alerts cannot be written: {error}",
                where=f"step '{step}'",
                next_step="check that the job's folder is writable and has free space; the batch is retried",
            ) from error


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it."""
    made: dict[str, Any] = json.loads(json.dumps(row, default=str))
    return made
