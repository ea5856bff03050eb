"""Rows kept in this process, with the record of written batches, for as long as it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from millstream.connectors import arguments
from millstream.connectors.claims import Claim, Found, Keeper, shared
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.sink import Sink
from millstream.connectors.weights import with_weights
from millstream.log import Broker


@dataclass
class Collected:
    """The contents of a memory sink: its rows, and the newest batch of each job, step and run."""

    tables: list[pa.Table] = field(default_factory=list)
    batches: dict[tuple[str, ...], int] = field(default_factory=dict)


_collected: dict[str, Collected] = {}


@dataclass(frozen=True)
class Memory(Connector):
    """Rows kept in this process under a name; `rows()` returns them."""

    label: str
    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"memory {self.label}"

    @property
    def collected(self) -> Collected:
        return _collected.setdefault(self.label, Collected())

    def rows(self) -> list[dict[str, Any]]:
        """All rows written so far, as dicts; those of a changing stream have a weight."""
        return [row for table in self.collected.tables for row in table.to_pylist()]

    def arrow(self) -> pa.Table | None:
        """All rows as an Arrow table; None before the first batch."""
        tables = self.collected.tables
        return pa.concat_tables(tables, promote_options="default") if tables else None

    def clear(self) -> None:
        """Drops the rows; written batches are still not written again."""
        self.collected.tables.clear()

    def open_sink(self, writing: Writing) -> Sink:
        return MemorySink(self.collected, (writing.job, writing.step, writing.run))

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        return MemoryKeeper(self.collected, str(self), claim)

    def __str__(self) -> str:
        return f"memory({self.label})"


def memory(name: str) -> Memory:
    """A sink that keeps the rows in this process: `memory(name).rows()` returns them."""
    return Memory(arguments.text(name, "memory takes a name", "memory('totals')"))


def forget(kept: Memory) -> None:
    """Drops everything that is stored under a name."""
    _collected.pop(kept.label, None)


class MemorySink(Sink):
    def __init__(self, collected: Collected, ledger_key: tuple[str, str, str]) -> None:
        self._collected = collected
        self._ledger_key = ledger_key

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if batch <= self._collected.batches.get(self._ledger_key, -1):
            return
        if rows.num_rows:
            self._collected.tables.append(with_weights(rows, weights))
        self._collected.batches[self._ledger_key] = batch


class MemoryKeeper:
    """A claim would disappear with the process, like the rows."""

    keeps_claims = False

    def __init__(self, collected: Collected, where: str, claim: Claim) -> None:
        self._collected = collected
        self._claim = claim
        self.where = where

    def look(self) -> Found:
        own = self._claim
        return Found(there=True, newest=self._collected.batches.get((own.job, own.step, own.run)))

    def make(self) -> None:
        """The sink cannot store a claim."""

    def check_clear(self) -> None:
        own = (self._claim.job, self._claim.step)
        if self._collected.tables and any(key[:2] != own for key in self._collected.batches):
            raise shared(f"{self.where} also has rows of other jobs", f"step '{own[1]}'", "write to another memory")

    def clear(self) -> None:
        self._collected.tables.clear()
        self._collected.batches.clear()

    def release(self) -> None:
        """There is no claim."""

    def close(self) -> None:
        """The rows stay."""
