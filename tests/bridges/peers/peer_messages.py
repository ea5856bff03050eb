"""What the tests of protocols without a broker share: a bridge that receives trades, and a sink that sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.bridges.landing import Landing
from millstream.bridges.peers.messages import Address, PeerBridge, PeerSource
from millstream.connectors.opening import open_sink
from millstream.log import EmbeddedLog
from millstream.records import Schema, rows_to_batch
from waiting import until

from ..support import in_thread, records

TRADES = Schema.of("symbol string, price int")


@contextmanager
def bridging(
    log: EmbeddedLog, kind: type[PeerBridge[Address]], source: PeerSource[Address]
) -> Iterator[PeerBridge[Address]]:
    with Landing(log, kind.name, ["trades"]) as landing:
        made = kind(source, landing, "trades")
        with in_thread(made):
            yield made


def rows(*given: tuple[str | None, int]) -> pa.Table:
    batch, _ = rows_to_batch([{"symbol": symbol, "price": price} for symbol, price in given], TRADES)
    return pa.Table.from_batches([batch])


def sink(endpoint: Any, folder: Path) -> Any:
    return open_sink(endpoint, TRADES, job="j", step="out", broker=folder / "log", folder=folder / "job")


def stored(log: EmbeddedLog, count: int) -> list[Any]:
    until(lambda: len(records(log, "trades")) >= count, "the messages are stored")
    return records(log, "trades")
