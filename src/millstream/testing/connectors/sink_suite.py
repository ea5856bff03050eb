"""What every sink with a server promises: each row arrives, also if the job is killed, or the server or network fails.

A row that arrives twice has the same id, so that a receiver can tell. A protocol without acknowledgements declares what
it may lose, and loses nothing else.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import ClassVar, NamedTuple

import pyarrow as pa

from millstream.connectors.connector import Connector
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import open_sink
from millstream.connectors.refusals import Refusal, Refuse, stop
from millstream.errors import SinkUnavailable
from millstream.records import Schema
from millstream.testing.connectors.processes import KILLED, STEPS, Child, Jumps, Ready, Step, killed_around
from millstream.testing.connectors.proxy import FaultProxy
from millstream.testing.connectors.waiting import MOMENT_SECONDS, PATIENCE_SECONDS, meanwhile, until

SCHEMA = Schema.of("name string, n int")
ROWS = 10
RETRY_SECONDS = 0.1
HOUR_SECONDS = 3600.0


class Delivered(NamedTuple):
    """A row as the server has it."""

    id: str | None
    n: int


class SinkUnderTest(ABC):
    """A sink and its server. `port` is always that of the proxy in front of `server_port`."""

    has_ids: ClassVar[bool] = True
    may_lose: ClassVar[str] = ""
    """What is lost in a protocol without acknowledgements. What is sent while nothing fails arrives all the same."""
    large_bytes: ClassVar[int] = 3 << 20
    """The size of a row that may be too large for the server."""
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
        self._expected: set[int] = set()
        self._at_risk: set[int] = set()

    def write(self, *, killed: Step | None = None, is_at_risk: bool = False) -> None:
        """The next batch, in this process; in one that is killed first, if so."""
        batch, self._batch = self._batch, self._batch + 1
        numbers = range(batch * ROWS, (batch + 1) * ROWS)
        is_at_risk = bool(self.sink.may_lose) and (is_at_risk or killed is not None)
        (self._at_risk if is_at_risk else self._expected).update(numbers)
        connector = self.sink.connector(self.proxy.port)
        if killed is not None:
            victim = Child(_write_and_die, connector, self._folder, batch, killed)
            assert victim.wait_until_dead() == KILLED
        _write(connector, self._folder, batch, _rows(numbers))

    def write_large(self) -> list[Refusal]:
        """A batch of which one row may be too large. Returns what was refused."""
        batch, self._batch = self._batch, self._batch + 1
        numbers = range(batch * ROWS, (batch + 1) * ROWS)
        self._expected.update(numbers[1:])
        self._at_risk.add(numbers[0])
        refused: list[Refusal] = []
        rows = _rows(numbers, "x" * self.sink.large_bytes)
        _write(self.sink.connector(self.proxy.port), self._folder, batch, rows, refused.extend)
        if not refused and not self.sink.may_lose:
            self._expected.add(numbers[0])
        return refused

    def writing(self) -> AbstractContextManager[None]:
        """Meanwhile, the next batch is written; at the end it was."""
        return meanwhile(partial(self.write, is_at_risk=True), "the batch is written")

    def check(self) -> None:
        expected = self._expected
        until(lambda: expected <= {row.n for row in self.sink.delivered()}, "all rows have arrived")
        ids: dict[int, set[str | None]] = defaultdict(set)
        for row in self.sink.delivered():
            ids[row.n].add(row.id)
        assert expected <= set(ids) <= expected | self._at_risk
        if self.sink.has_ids:
            assert all(len(found) == 1 and None not in found for found in ids.values()), f"other ids: {ids}"
            assert len({id for found in ids.values() for id in found}) == len(ids), "two rows have the same id"


@contextmanager
def sink_bench_of(sink: SinkUnderTest, folder: Path) -> Iterator[SinkBench]:
    bench = SinkBench(sink, folder)
    with bench.proxy:
        yield bench
        bench.check()


def _rows(numbers: Sequence[int], first: str | None = None) -> pa.Table:
    """With another name for the first one, if it is given."""
    names = [f"row-{number}" for number in numbers]
    columns = [pa.array([first or names[0], *names[1:]]), pa.array(numbers, pa.int32())]
    return pa.Table.from_arrays(columns, schema=SCHEMA.arrow)


def _write(connector: Connector, folder: Path, batch: int, rows: pa.Table, refuse: Refuse = stop) -> None:
    """As a job does it: a server that is away is waited for."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with closing(
        open_sink(connector, SCHEMA, job="job", step="out", broker=folder / "log", folder=folder / "job")
    ) as to:
        while True:
            try:
                return to.write(batch, rows, None, refuse)
            except SinkUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)


def _write_and_die(ready: Ready, connector: Connector, folder: Path, batch: int, step: Step) -> None:
    """It dies around the moment when the batch is recorded as written: that is after its rows were sent."""
    FileLedger.record = killed_around(FileLedger.record, step)  # type: ignore[method-assign]
    _write(connector, folder, batch, _rows(range(batch * ROWS, (batch + 1) * ROWS)))
    while True:
        time.sleep(1)


class UnconnectedSinkSuite:
    """For sinks without connections that a proxy could break. Give it a fixture `sink` with a SinkUnderTest."""

    kills: ClassVar[int] = 5

    def test_killed_at_every_step(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        with sink_bench_of(sink, tmp_path) as bench:
            for _, step in zip(range(self.kills), cycle(STEPS), strict=False):
                bench.write(killed=step)

    def test_a_slow_server(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        with sink_bench_of(sink, tmp_path) as bench:
            bench.proxy.delay_seconds = MOMENT_SECONDS / 10
            bench.write()

    def test_a_row_that_is_too_large(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        """It arrives, or is refused with a reason; the others arrive."""
        with sink_bench_of(sink, tmp_path) as bench:
            refused = bench.write_large()
            assert [each.row for each in refused] in ([], [0])
            assert all(each.reason for each in refused)
            bench.write()

    def test_a_clock_that_jumps(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        now = time.time
        jump = Jumps(HOUR_SECONDS)
        try:
            with sink_bench_of(sink, tmp_path) as bench:
                for _ in range(3):
                    bench.write()
                    jump()
        finally:
            time.time = now


class SinkSuite(UnconnectedSinkSuite):
    """Subclass it in a file of tests, and give it a fixture `sink` with a SinkUnderTest."""

    def test_a_server_that_restarts(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        with sink_bench_of(sink, tmp_path) as bench:
            bench.write()
            bench.check()
            with bench.writing():
                sink.restart_server()
            bench.write()

    def test_connections_that_fail(self, sink: SinkUnderTest, tmp_path: Path) -> None:
        with sink_bench_of(sink, tmp_path) as bench:
            bench.write()
            bench.check()
            for direction in ("to_server", "to_client"):
                bench.proxy.hold(direction)
                with bench.writing():
                    time.sleep(MOMENT_SECONDS)
                    bench.proxy.cut()
                    bench.proxy.heal()
