"""What the steps of a running job hold for a key now: read from the files of its state, without disturbing it.

A worker writes each version of the state to files that never change, before the batch is complete. So the newest
version has everything up to the last complete batch, and perhaps the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.connectors.lookups import Key
from millstream.errors import InvalidInput, NotFound, StorageError
from millstream.jobs.measuring.job_progress import Progress
from millstream.operators.stateful import Answering, Stateful, stateful
from millstream.plan.nodes import Node, WindowedAggregate, Write
from millstream.plan.time.bundles import BEGINNING, moment
from millstream.records import batch_to_rows
from millstream.spark.query.physical_plan import labels
from millstream.spark.query.state_runner import Shipment
from millstream.state.hashing import key_groups
from millstream.state.run_files import Runs
from millstream.user_lines import what_exists

NOTHING_DUE = (BEGINNING, 0)
ATTEMPTS = 5
"""A version may be replaced, and its files deleted, while it is read."""


@dataclass(frozen=True)
class Held:
    """The rows of a key, and how far the job had come: everything up to that batch is in them, and perhaps the next."""

    table: pa.Table
    batch: int
    watermark: datetime | None
    as_of: datetime | None
    """When that batch began, by the clock of the job; None if no batch is known."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for part in self.table.to_batches() for row in batch_to_rows(part)]


class CurrentState:
    """Of a job that runs in this process."""

    def __init__(self, shipment: Shipment, progress: Progress) -> None:
        self._shipment = shipment
        self._progress = progress
        self._steps: dict[str, Stateful] = {}
        self._lock = threading.Lock()

    def held(self, *, step: str | None, table: str | None, key: Any, window: datetime | None) -> Held:
        """The rows of a key in a step, or in the windows of a table that the job writes; of one window, or of all."""
        as_of, batch, reached = self._progress.as_of, self._progress.batch, self._progress.watermark
        node = self._node(step, table)
        if window is not None and not isinstance(node, WindowedAggregate):
            raise InvalidInput(f"the step '{node.name}' has no windows", next_step="leave out window=")
        with self._lock:
            found = self._found(node, key)
        if window is not None:
            found = found.filter(pl.col("window").struct.field("start") == window)
        columns = pa.schema([node.schema.field(name) for name in found.columns])
        watermark = None if reached is None or reached <= BEGINNING else moment(reached)
        return Held(found.to_arrow().cast(columns), batch, watermark, as_of)

    def _node(self, step: str | None, table: str | None) -> Node:
        chain = self._shipment.physical_plan.chain
        if step is not None:
            names = [node.name for node in chain]
            if step not in names:
                raise NotFound(
                    f"the job has no step '{step}' with state", next_step=what_exists(step, names, kind="steps")
                )
            return chain[names.index(step)]
        outputs = [output for output in self._shipment.physical_plan.outputs if isinstance(output, Write)]
        written = {output.sink.topic_name or output.sink.name: output.inputs[0] for output in outputs}
        if table not in written:
            raise NotFound(f"the job writes no '{table}'", next_step=what_exists(table, written, kind="outputs"))
        node = written[table]
        if not isinstance(node, WindowedAggregate):
            raise InvalidInput(
                f"'{table}' is not written by a step with windows, but by '{node.name}'",
                next_step="leave out window=, or name the step with the windows: step=…",
            )
        return node

    def _found(self, node: Node, key: Any) -> pl.DataFrame:
        answering = self._steps.get(node.name)
        if answering is None:
            answering = stateful(node, whole_rows=self._shipment.physical_plan.takes_late(node))
            assert answering is not None
            self._steps[node.name] = answering
        if not isinstance(answering, Answering):
            raise InvalidInput(
                f"the state of the step '{node.name}' cannot be asked for ({node.label})",
                next_step="ask a step with windows, group_by(…).agg(…) or to_table(key=…); "
                "`millstream jobs state` shows the state of any step",
            )
        empty = answering.tables()[answering.current_table]
        asked = _asked(node, key, empty.select(answering.keys).schema)
        return answering.current(self._rows(node, answering, answering.current_table, asked))

    def _rows(self, node: Node, step: Stateful, table: str, asked: pl.DataFrame) -> pl.DataFrame:
        groups = self._shipment.physical_plan.groups
        group = int(key_groups(asked, step.keys, groups)[0])
        folder = self._shipment.folder / node.name / str(labels(groups, self._shipment.partitions)[group])
        if not folder.parent.is_dir() and self._progress.rows_held.get(node.name):
            raise StorageError(
                f"the state of the step '{node.name}' is on other machines",
                next_step="`millstream jobs state` reads it from the checkpoint",
            )
        empty = step.tables()
        defaults = getattr(step, "defaults", {}) if node.name in self._shipment.evolved else None
        for _ in range(ATTEMPTS):
            version = _newest(folder)
            if version is None:
                return empty[table]
            runs = Runs(folder, step.keys, empty, step.own_keys, defaults)
            try:
                runs.open(version, _replaced)
            except _Replaced:
                continue
            return runs.held({table: asked}, NOTHING_DUE, NOTHING_DUE)[table]
        raise StorageError(f"the state of the step '{node.name}' was replaced while it was read", next_step="ask again")


class _Replaced(Exception):
    """The files of a version are gone."""


def _replaced() -> Iterable[bytes]:
    raise _Replaced


def _newest(folder: Path) -> str | None:
    """The version that was written last."""
    ages = {}
    for path in folder.glob("*.json"):
        try:
            ages[path.stem] = path.stat().st_mtime_ns
        except FileNotFoundError:  # just deleted, since there are newer ones
            continue
    return max(ages, key=lambda version: ages[version], default=None)


def _asked(node: Node, key: Any, wanted: pl.Schema) -> pl.DataFrame:
    """A key as the columns of state have it. A step without key columns has one key, for which any row stands."""
    names: tuple[str, ...] = getattr(node, "keys", ())
    if not names:
        if key is not None:
            raise InvalidInput(f"the step '{node.name}' has no key: it is over all rows", next_step="leave out key=")
        return pl.DataFrame({"": [0]})
    asked = pl.from_arrow(Key(node.name, pa.schema([node.schema.field(name) for name in names])).batch(key))
    assert isinstance(asked, pl.DataFrame)
    return asked.rename(dict(zip(names, wanted.names(), strict=True))).cast(dict(wanted))  # type: ignore[arg-type]
