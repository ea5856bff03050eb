"""Opens the sources and sinks of a flow through their connectors."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millstream.connectors.claims import Claim, Keeper
from millstream.connectors.connector import Reading, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.registry import connector_of
from millstream.connectors.sink import RecordedSink, Sink
from millstream.connectors.source import Source
from millstream.errors import ConnectorFailed, MillstreamError
from millstream.log import Broker
from millstream.log.kafka.address import KafkaAddress
from millstream.records import Schema


def open_source(
    endpoint: Any,
    schema: Schema,
    *,
    broker: str | KafkaAddress | None,
    folder: Path,
    name: str,
    format: str = "json",
    columns: Schema | None = None,
    on_lost: str = "error",
) -> Source:
    """The source of a step. `folder` is where it stores what it needs to replay the same rows."""
    connector = connector_of(endpoint)
    with connector_errors(connector, name):
        return connector.open_source(Reading(schema, name, folder, broker, format, columns, on_lost))


def open_sink(
    endpoint: Any,
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
    """The sink of a step, for rows with exactly the columns of `schema`.

    Its ledger is identified by job, step and run: `folder` is the job's own, and a run with another one starts over. It
    also holds ledgers of sinks that cannot store one.
    """
    connector = connector_of(endpoint)
    connector.check_written(schema)
    opened = os.fspath(broker) if isinstance(broker, os.PathLike) else broker
    ledger = FileLedger(folder, step)
    with connector_errors(connector, step):
        sink = connector.open_sink(Writing(schema, job, step, ledger, opened, keys, table, partitions))
    return RecordedSink(sink, ledger) if connector.has_default_keeper and not connector.leaves_no_trace else sink


def keeper_of(endpoint: Any, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
    connector = connector_of(endpoint)
    with connector_errors(connector, claim.step):
        return connector.keeper(claim, ledger, broker)


@contextmanager
def connector_errors(endpoint: Any, step: str) -> Iterator[None]:
    """Reports an error of a connector with the endpoint and the step; errors of Millstream pass unchanged."""
    try:
        yield
    except MillstreamError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise ConnectorFailed(
            f"{endpoint} failed with {type(error).__name__}: {error}",
            where=f"step '{step}', {frame.filename}:{frame.lineno}",
            next_step="fix the connector, or what it connects to, and run the job again: it continues from its last "
            "complete batch. A connector raises SourceUnavailable or SinkUnavailable to be retried",
        ) from error
