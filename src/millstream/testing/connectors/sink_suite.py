"""What every sink with a server promises: each row arrives, also if the job is killed, or the server or network fails.

A row that arrives twice has the same id, so that a receiver can tell.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import ClassVar, NamedTuple

import pyarrow as pa

from millstream.connectors.connector import Connector
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import open_sink
from millstream.errors import SinkUnavailable
from millstream.records import Schema
from millstream.testing.connectors.processes import KILLED, STEPS, Child, Ready, Step, killed_around
from millstream.testing.connectors.proxy import FaultProxy
from millstream.testing.connectors.waiting import MOMENT_SECONDS, PATIENCE_SECONDS, meanwhile, until

SCHEMA = Schema.of("name string, n int")
ROWS = 10
RETRY_SECONDS = 0.1


class Delivered(NamedTuple):
    """A row as the server has it."""

    id: str | None
    n: int


class SinkUnderTest(ABC):
    """A sink and its server. `port` is always that of the proxy in front of `server_port`."""

    has_ids: ClassVar[bool] = True
    server_port: int

    @abstractmethod
    def connector(self, port: int) -> Connector:
        """For rows with the columns `name string, n int`."""

    @abstractmethod
    def delivered(self) -> list[Delivered]:
        """What the server has received so far."""

    @abstractmethod
    def restart_server(self) -> None:
        """What it has received is not lost."""


class SinkBench:
    def __init__(self, sink: SinkUnderTest, folder: Path) -> None:
        self.sink = sink
        self.proxy = FaultProxy(sink.server_port)
        self._folder = folder
        self._batch = 0

    def write(self, *, killed: Step | None = None) -> None:
        """The next batch, in this process; in one that is killed first, if so."""
        batch, self._batch = self._batch, self._batch + 1
        connector = self.sink.connector(self.proxy.port)
        if killed is not None:
            victim = Child(_write_and_die, connector, self._folder, batch, killed)
            assert victim.wait_until_dead() == KILLED
        _write(connector, self._folder, batch)

    def writing(self) -> AbstractContextManager[None]:
        """Meanwhile, the next batch is written; at the end it was."""
        return meanwhile(self.write, "the batch is written")

    def check(self) -> None:
        expected = set(range(self._batch * ROWS))
        until(lambda: expected <= {row.n for row in self.sink.delivered()}, "all rows have arrived")
        ids: dict[int, set[str | None]] = defaultdict(set)
        for row in self.sink.delivered():
            ids[row.n].add(row.id)
        assert set(ids) == expected
        if self.sink.has_ids:
            assert all(len(found) == 1 and None not in found for found in ids.values()), f"other ids: {ids}"
            assert len({id for found in ids.values() for id in found}) == len(expected), "two rows have the same id"


@contextmanager
def sink_bench_of(sink: SinkUnderTest, folder: Path) -> Iterator[SinkBench]:
    bench = SinkBench(sink, folder)
    with bench.proxy:
        yield bench
        bench.check()


def _rows(batch: int) -> pa.Table:
    numbers: Sequence[int] = range(batch * ROWS, (batch + 1) * ROWS)
    columns = [pa.array([f"row-{number}" for number in numbers]), pa.array(numbers, pa.int32())]
    return pa.Table.from_arrays(columns, schema=SCHEMA.arrow)


def _write(connector: Connector, folder: Path, batch: int) -> None:
    """As a job does it: a server that is away is waited for."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with closing(
        open_sink(connector, SCHEMA, job="job", step="out", broker=folder / "log", folder=folder / "job")
    ) as to:
        while True:
            try:
                return to.write(batch, _rows(batch), None)
            except SinkUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)


def _write_and_die(ready: Ready, connector: Connector, folder: Path, batch: int, step: Step) -> None:
    """It dies around the moment when the batch is recorded as written: that is after its rows were sent."""
    FileLedger.record = killed_around(FileLedger.record, step)  # type: ignore[method-assign]
    _write(connector, folder, batch)
    while True:
        time.sleep(1)


class SinkSuite:
    """Subclass it in a file of tests, and give it a fixture `sink` with a SinkUnderTest."""

    kills: ClassVar[int] = 5

    def test_killed_at_every_step(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        with sink_bench_of(sink, tmp_path) as bench:
            for _, step in zip(range(self.kills), cycle(STEPS), strict=False):
                bench.write(killed=step)

    def test_a_server_that_restarts(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        with sink_bench_of(sink, tmp_path) as bench:
            bench.write()
            with bench.writing():
                sink.restart_server()
            bench.write()

    def test_a_slow_server(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        with sink_bench_of(sink, tmp_path) as bench:
            bench.proxy.delay_seconds = MOMENT_SECONDS / 10
            bench.write()

    def test_connections_that_fail(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        with sink_bench_of(sink, tmp_path) as bench:
            bench.write()
            for direction in ("to_server", "to_client"):
                bench.proxy.hold(direction)
                with bench.writing():
                    time.sleep(MOMENT_SECONDS)
                    bench.proxy.cut()
                    bench.proxy.heal()
