"""A sink writes each batch of a step once: completely or not at all, whatever dies in between.

What makes a batch visible and the note that it was written are one change, or the note is looked up where the rows are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.refusals import Refusal, Refuse, stop
from millstream.errors import InvalidInput
from millstream.log import Broker, EmbeddedLog, connect
from millstream.log.kafka.address import SCHEME, KafkaAddress, address_of
from millstream.plan import endpoints as places
from millstream.records import Schema

__all__ = ["Refusal", "Refuse", "Sink", "open_sink"]


class Sink(Protocol):
    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        """Writes a batch, once: a batch that was written before is not written again.

        Numbers of batches grow. `weights` has a weight for each row, or is None where rows are never taken back.
        Rows that it will never take are left out: `refuse` is called with them, before the rest is final, and not if
        the batch was written before. Raises SinkUnavailable if the same batch should be tried again later, and any
        other error if that is no use.
        """

    def close(self) -> None: ...


def open_sink(
    place: Any,
    schema: Schema,
    *,
    job: str,
    step: str,
    broker: Broker | str | os.PathLike[str],
    folder: Path,
    keys: Sequence[str] = (),
    table: bool = False,
    partitions: int = 1,
) -> Sink:
    """The sink of a place, for rows with exactly the columns of `schema`.

    Job and step name its ledger, and so does the run: `folder` is the job's own, and a run with another one
    starts over. It also holds ledgers that have no better place. `keys` are the columns by which records of a topic
    are keyed; of a `table` with keys a topic is a copy. A topic that does not exist is created with `partitions`. A
    sink that is down is opened all the same: `write` says so.
    """
    if isinstance(place, places.Place):
        place.check_written(schema)
    ledger = FileLedger(folder, step)
    if isinstance(place, str | places.Kafka):
        named = {"job": job, "step": step, "run": ledger.run, "keys": keys, "table": table, "partitions": partitions}
        return _topic_sink(place, schema, broker, **named)
    if isinstance(place, places.Files):
        from millstream.connectors.files.sink import FilesSink

        return FilesSink(place, schema, step=step, ledger=ledger)
    if isinstance(place, places.Sqlite):
        from millstream.connectors.databases.sqlite import SqliteSink

        return SqliteSink(place, schema, job=job, step=step, run=ledger.run)
    if isinstance(place, places.Postgres):
        from millstream.connectors.databases.postgres import PostgresSink

        return PostgresSink(place, schema, job=job, step=step, run=ledger.run)
    if isinstance(place, places.Console):
        from millstream.connectors.console import ConsoleSink

        return ConsoleSink(place, step=step, ledger=ledger)
    if isinstance(place, places.Memory):
        from millstream.connectors.memory import MemorySink

        return MemorySink(place, job=job, step=step, run=ledger.run)
    if isinstance(place, places.Foreach):
        from millstream.connectors.foreach import ForeachSink

        return ForeachSink(place, step=step, ledger=ledger)
    if isinstance(place, places.Discard):
        from millstream.connectors.discard import DiscardSink

        return DiscardSink()
    raise InvalidInput(
        f"rows cannot be written to {place!r}",
        where=f"step '{step}'",
        next_step="write to a topic's name, or to kafka, files, sqlite, postgres, console, memory, foreach or discard",
    )


def _topic_sink(place: str | places.Kafka, schema: Schema, broker: Any, **named: Any) -> Sink:
    """Who is given an address alone opens the broker, and closes it in the end."""
    address = os.fspath(broker) if isinstance(broker, str | os.PathLike) else None
    if isinstance(place, str) and (address is None or not address.startswith(SCHEME)):
        log = broker if address is None else connect(address)
        if isinstance(log, EmbeddedLog):
            from millstream.connectors.topic.sink import TopicSink

            return TopicSink(log, place, schema, owns_log=address is not None, **named)
    from millstream.connectors.kafka.sink import KafkaSink

    if isinstance(place, str):
        return KafkaSink(broker if address is None else KafkaAddress.of(address), place, schema, **named)
    jobs = address if address is not None or isinstance(broker, EmbeddedLog) else broker.address
    own = address_of(place.servers, place.settings, jobs, topic=place.topic, step=named["step"])
    return KafkaSink(own, place.topic, schema, **named)
