"""What the ports of sources and sinks promise by default, so that every connector keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.connectors import Connector, Prepared, Sink, Slab, Slice, Source, TwoPhaseSink, Writing
from millstream.connectors.claims import Claim
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import connector_errors, keeper_of, open_sink
from millstream.connectors.refusals import Refuse, stop
from millstream.errors import ConnectorFailed, OffsetLost, SinkFailed, StartOverRefused
from millstream.log import EmbeddedLog
from millstream.records import Schema

SCHEMA = Schema.of("n long")


class Numbers(Source):
    def __init__(self, **latest: int) -> None:
        self.offsets = latest
        self.first: dict[str, int] | None = None

    def earliest(self) -> dict[str, int]:
        return super().earliest() if self.first is None else self.first

    def latest(self) -> dict[str, int]:
        return dict(self.offsets)

    def read(self, slice: Slice) -> Iterator[Slab]:
        raise NotImplementedError


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


# ---------------------------------------------------------------- sources


def test_a_partition_that_is_away_keeps_its_offset() -> None:
    source = Numbers(a=6)
    end = source.limited({"a": 5, "b": 5}, None)
    assert end == {"a": 6, "b": 5}
    source.offsets["b"] = 7
    assert source.limited(end, None) == {"a": 6, "b": 7}
    assert source.slices(end, {"a": 6, "b": 7}, 1) == [[Slice("b", 5, 7)]]


def test_partitions_share_the_rows_of_a_batch() -> None:
    assert Numbers(a=100, b=3).limited({}, 10) == {"a": 7, "b": 3}


def test_a_new_partition_starts_at_its_earliest_offset() -> None:
    source = Numbers(a=10)
    source.first = {"a": 4}
    assert source.slices({}, source.limited({}, None), 1) == [[Slice("a", 4, 10)]]
    assert not source.wait({"a": 10}, 0)


def test_rows_of_a_repeated_batch_that_are_gone_are_reported() -> None:
    source = Numbers(a=10)
    source.first = {"a": 8}
    with pytest.raises(OffsetLost, match="no longer available"):
        source.slices({}, {"a": 5}, 1)


# ---------------------------------------------------------------- sinks in two halves


class Shelves(TwoPhaseSink):
    """Keeps everything in memory, and can be killed in the middle of a commit."""

    def __init__(self) -> None:
        self.prepared: dict[str, list[int]] = {}
        self.decided: dict[int, list[str]] = {}
        self.visible: dict[int, list[int]] = {}
        self.dies = False

    def is_decided(self, batch: int) -> bool:
        return batch in self.decided

    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared:
        name = f"{batch}-{shard}-{len(self.prepared)}"
        numbers = rows["n"].to_pylist()
        self.prepared[name] = [number for number in numbers if number >= 0]
        return Prepared({"name": (name,)}, {row: "it is negative" for row, number in enumerate(numbers) if number < 0})

    def commit(self, batch: int, receipts: Sequence[Any]) -> None:
        recorded = self.decided.setdefault(batch, [receipt["name"][0] for receipt in receipts])
        if self.dies:
            raise KeyboardInterrupt
        self.visible[batch] = sorted(number for name in recorded for number in self.prepared[name])


def of_task(sink: Shelves, batch: int, *numbers: int) -> Any:
    return sink.prepare(batch, 1, rows(*numbers), None).receipt


def test_rows_of_tasks_and_of_the_driver_appear_together() -> None:
    sink = Shelves()
    sink.write_prepared(0, rows(3), None, [of_task(sink, 0, 1, 2)])
    assert sink.visible == {0: [1, 2, 3]}


def test_a_batch_that_is_decided_is_completed_with_what_was_recorded() -> None:
    sink = Shelves()
    sink.dies = True
    with pytest.raises(KeyboardInterrupt):
        sink.write_prepared(0, rows(3), None, [of_task(sink, 0, 1, 2)])
    sink.dies = False
    refused: list[Any] = []
    sink.write_prepared(0, rows(3, -1), None, [of_task(sink, 0, 1, 2)], refused.extend)
    assert (sink.visible, refused) == ({0: [1, 2, 3]}, [])


def test_rows_that_are_refused_are_reported_before_the_commit() -> None:
    sink = Shelves()
    with pytest.raises(SinkFailed, match="it is negative"):
        sink.write(0, rows(1, -1), None)
    assert sink.visible == {}
    refused: list[Any] = []
    sink.write(0, rows(1, -1), None, refused.extend)
    assert (sink.visible, [each.row for each in refused]) == ({0: [1]}, [1])


# ---------------------------------------------------------------- other sinks


class Kept(Connector):
    can_write = True

    def __init__(self, password: str) -> None:
        self.password = password

    def open_sink(self, writing: Writing) -> Sink:
        return KeptSink()


class KeptSink(Sink):
    """Knows which batches it has, without the job's ledger."""

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        return None


def test_a_sink_without_commit_refuses_receipts() -> None:
    with pytest.raises(SinkFailed, match="nothing that commits"):
        KeptSink().write_prepared(0, rows(), None, [{"name": "x"}])


def test_what_a_sink_of_another_package_wrote_is_not_written_twice_by_starting_over(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    sink = open_sink(Kept("secret"), SCHEMA, job="j", step="s", broker=log, folder=tmp_path)
    ledger = FileLedger(tmp_path, "s")
    claim = Claim.here("j", "s", ledger.run, tmp_path)
    keeper_of(Kept("secret"), claim, ledger, log).check_clear()
    sink.write(0, rows(1), None)
    with pytest.raises(StartOverRefused, match="cannot undo"):
        keeper_of(Kept("secret"), claim, FileLedger(tmp_path, "s"), log).check_clear()


def test_an_error_of_a_connector_names_it_and_its_step() -> None:
    with (
        pytest.raises(ConnectorFailed, match="kept failed with KeyError: 'amount'") as failed,
        connector_errors(Kept("secret"), "write_kept"),
    ):
        raise KeyError("amount")
    assert "step 'write_kept'" in (failed.value.where or "")


def test_the_fields_of_a_connector_are_not_shown() -> None:
    flow = ms.Flow("f")
    flow.read("in", "n long").write(Kept("hunter2"))
    assert "hunter2" not in flow.explain()
