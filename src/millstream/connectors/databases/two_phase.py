"""A batch in several Postgres databases: in all of them, or in none.

prepare: each database applies the batch and prepares its transaction, which from then on survives a crash
decide:  the batch is recorded in the job's folder; this is the commit
commit:  each database commits what it has prepared

After a crash, prepared transactions of a recorded batch are committed, and all others rolled back: until a batch is
recorded, no database has committed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from millstream import terminal
from millstream.connectors import arguments
from millstream.connectors.catalog import Remembered
from millstream.connectors.claims import Claim, Found, Keeper, digest
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.databases.claims import PostgresKeeper, postgres_session
from millstream.connectors.databases.endpoints import Postgres
from millstream.connectors.databases.postgres import UNFIT, PostgresSink, quoted
from millstream.connectors.file_ledger import FileLedger, unavailable_if_refused
from millstream.connectors.refusals import unfit
from millstream.connectors.sink import Prepared, TwoPhaseSink
from millstream.errors import InvalidInput, SinkFailed, SinkUnavailable
from millstream.log import Broker
from millstream.log.storage.disk import read_document, write_document
from millstream.plan.nodes import Write
from millstream.postgres_address import without_password
from millstream.records import Schema

if TYPE_CHECKING:
    import psycopg

SUFFIX = ".two_phase"
STAGE_PREFIX = "_millstream_stage_"
IN_DOUBT = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
logger = terminal.logger(__name__)


def transactions_of(job: str, step: str) -> str:
    """The prefix of the names of prepared transactions; they are unique in a server, not in a database."""
    return f"millstream:{digest(job, step)}:"


@dataclass(frozen=True)
class TwoPhase(Connector):
    tables: tuple[Postgres, ...]
    can_write: ClassVar[bool] = True
    refuses_rows: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "two_phase " + " ".join(table.table for table in self.tables)

    @property
    def target(self) -> tuple[Any, ...]:
        return tuple(table.target for table in self.tables)

    def check_written(self, schema: Schema) -> None:
        for table in self.tables:
            table.check_written(schema)

    def keyed_by(self, key: tuple[str, ...]) -> Self:
        return replace(self, tables=tuple(table.keyed_by(key) for table in self.tables))

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, tables=tuple(table.with_suffix(suffix) for table in self.tables))

    def open_sink(self, writing: Writing) -> TwoPhaseTables:
        return TwoPhaseTables(self, writing)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        return TwoPhaseKeeper(self, claim)

    def remembered(self, output: Write, log: Path | str) -> Remembered | None:
        return self.tables[0].remembered(output, log)

    def __str__(self) -> str:
        return f"two_phase({', '.join(map(str, self.tables))})"


def two_phase(*tables: Postgres) -> TwoPhase:
    """A sink that writes the rows of each batch to tables of several Postgres databases, to all of them or to none.

    For example `two_phase(ms.postgres(here, "orders"), ms.postgres(there, "orders"))`. The servers must allow prepared
    transactions: by default, `max_prepared_transactions` is 0.
    """
    example = "for example two_phase(ms.postgres(here, 'orders'), ms.postgres(there, 'orders'))"
    for table in tables:
        if not isinstance(table, Postgres):
            raise arguments.refused(f"two_phase takes tables of Postgres, not {table}", example)
    if len(tables) < 2:
        raise arguments.refused("two_phase takes at least two tables", example)
    if len({table.target for table in tables}) < len(tables):
        raise arguments.refused("two_phase would write to the same table twice", example)
    return TwoPhase(tables)


# ---------------------------------------------------------------- one database


class Participant(PostgresSink):
    """A table whose transactions are prepared. They must not use temporary tables, so the stage is a permanent one."""

    def __init__(self, endpoint: Postgres, writing: Writing, place: int, decided: Callable[[], int]) -> None:
        self._decided = decided
        self._place = place
        self._transactions = f"{transactions_of(writing.job, writing.step)}{writing.run}:"
        self._applied: int | None = None
        """The batch of the open transaction."""
        self.prepared: str | None = None
        """The name of the prepared transaction of this connection."""
        super().__init__(endpoint, writing)

    def _stage_name(self, prefix: str, writing: Writing) -> str:
        return prefix + stage_of(writing.job, writing.step)

    def _make_stage(self, db: psycopg.Connection[Any]) -> None:
        with db.transaction():
            self._do(db, f"DROP TABLE IF EXISTS {self._stage}")
            self._do(db, f"CREATE UNLOGGED TABLE {self._stage} AS {self._staged_columns()}")

    def _connected(self, db: psycopg.Connection[Any]) -> None:
        """Settles what an earlier connection has left prepared: it holds locks."""
        check_server(db, self._where)
        decided = self._decided()
        for (name,) in self._do(db, IN_DOUBT, (self._transactions,)).fetchall():
            batch, place = map(int, name.removeprefix(self._transactions).split(":"))
            if place == self._place:
                verdict = "COMMIT" if batch <= decided else "ROLLBACK"
                logger.warning("%s: batch %d was in doubt: %s", self._where, batch, verdict.lower())
                self._do(db, f"{verdict} PREPARED '{name}'")

    def apply(self, batch: int, rows: pa.Table, weights: pa.Array | None, refused: dict[int, str]) -> dict[int, str]:
        """Applies a batch in a transaction that stays open; returns the rows that the database refuses."""
        with self._session(batch) as db:
            self._do(db, "BEGIN")
            self._applied = batch
            if not self._is_new(db, batch):
                self.roll_back()
                return {}
            units = self._layout.units(rows, weights, refused)
            found = units.applied(lambda part: self._attempt(db, part, staged=True))
            self._do(db, f"TRUNCATE {self._stage}")
            return found

    def roll_back(self) -> None:
        if self._applied is not None and self._db is not None:
            with self._session(None) as db:
                self._do(db, "ROLLBACK")
        self._applied = None

    def vote(self) -> None:
        """Prepares the open transaction; raises if the database cannot promise to commit it."""
        batch, self._applied = self._applied, None
        if batch is not None:
            name = f"{self._transactions}{batch}:{self._place}"
            with self._session(batch) as db:
                self._do(db, f"PREPARE TRANSACTION '{name}'")
            self.prepared = name

    def commit(self) -> None:
        """Commits what is prepared, also by an earlier connection."""
        with self._session(None) as db:
            if self.prepared is not None:
                self._do(db, f"COMMIT PREPARED '{self.prepared}'")
        self.prepared = None

    def close(self) -> None:
        self._applied = self.prepared = None
        super().close()


def stage_of(job: str, step: str) -> str:
    return quoted(STAGE_PREFIX + digest(job, step))


def check_server(db: psycopg.Connection[Any], where: str) -> None:
    found = db.execute("SELECT current_setting('max_prepared_transactions')").fetchone()
    if found is None or int(found[0]) == 0:
        raise InvalidInput(
            "the server does not prepare transactions: max_prepared_transactions is 0",
            where=where,
            next_step="ALTER SYSTEM SET max_prepared_transactions = 20, then restart Postgres",
        )


# ---------------------------------------------------------------- the coordinator


class Verdicts:
    """The coordinator's log: the newest batch that is to be committed. Batches are decided one by one."""

    def __init__(self, path: Path, step: str) -> None:
        self._path = path
        self._step = step

    def newest(self) -> int:
        if not self._path.exists():
            return -1
        try:
            with unavailable_if_refused("the verdicts of two-phase commits", self._step):
                return int(read_document(self._path)["batch"])
        except (ValueError, LookupError, TypeError) as error:
            raise SinkFailed(
                f"the verdicts of two-phase commits cannot be read: {error}",
                where=str(self._path),
                next_step="restore the file from a backup: it decides about prepared transactions",
            ) from error

    def record(self, batch: int) -> None:
        with unavailable_if_refused("the verdicts of two-phase commits", self._step):
            write_document(self._path, {"batch": batch})


class TwoPhaseTables(TwoPhaseSink):
    def __init__(self, endpoint: TwoPhase, writing: Writing) -> None:
        self._verdicts = Verdicts(writing.ledger.path.with_suffix(SUFFIX), writing.step)
        self._check_servers(endpoint, writing.step)
        made = enumerate(endpoint.tables)
        self._participants = [Participant(table, writing, place, self._verdicts.newest) for place, table in made]

    def _check_servers(self, endpoint: TwoPhase, step: str) -> None:
        """All of them, before a table is created in one."""
        with suppress(SinkUnavailable):  # `prepare` reports it
            for table in endpoint.tables:
                check_table(table, step)

    def is_decided(self, batch: int) -> bool:
        return batch <= self._verdicts.newest()

    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared:
        """Has all databases prepare the batch, without rows that one of them refuses."""
        with self._all_or_none():
            if any(participant.prepared for participant in self._participants):
                self.close()  # of an attempt that was given up: the next connection rolls it back
            refused = unfit(rows, UNFIT)
            while found := self._applied(batch, rows, weights, refused):
                refused |= found
            for participant in self._participants:
                participant.vote()
        return Prepared(None, refused)

    def _applied(self, batch: int, rows: pa.Table, weights: pa.Array | None, refused: dict[int, str]) -> dict[int, str]:
        found: dict[int, str] = {}
        for participant in self._participants:
            found |= participant.apply(batch, rows, weights, refused)
        if found:
            for participant in self._participants:
                participant.roll_back()
        return found

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Without a verdict, closing a connection and opening it again rolls back what it has prepared."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def decide(self, batch: int) -> None:
        """From now on, the batch will be committed in all databases."""
        if not self.is_decided(batch):
            self._verdicts.record(batch)

    def commit(self, batch: int, receipts: Sequence[Any]) -> None:
        self.decide(batch)
        with self._all_or_none():
            for participant in self._participants:
                participant.commit()

    def close(self) -> None:
        for participant in self._participants:
            participant.close()


# ---------------------------------------------------------------- claims


def check_table(table: Postgres, step: str) -> None:
    """Raises if the server of a table cannot prepare transactions."""
    where = f"step '{step}', table '{table.table}' of {without_password(table.dsn.reveal())}"
    with postgres_session(table.dsn.reveal(), step, where, autocommit=True) as db:
        check_server(db, where)


class TwoPhaseKeeper:
    """The claims of all tables: the output is there if all of them are."""

    keeps_claims = True

    def __init__(self, endpoint: TwoPhase, claim: Claim) -> None:
        self._endpoint = endpoint
        self._claim = claim
        self._keepers = [PostgresKeeper(table, claim) for table in endpoint.tables]
        self.where = " and ".join(keeper.where for keeper in self._keepers)

    def look(self) -> Found:
        for table in self._endpoint.tables:
            check_table(table, self._claim.step)
        found = [keeper.look() for keeper in self._keepers]
        claims = [each.claim for each in found if each.claim is not None]
        others = [claim for claim in claims if claim.run != self._claim.run] or claims
        newest = [each.newest for each in found if each.newest is not None]
        return Found(
            there=all(each.there for each in found),
            claim=others[0] if others else None,
            newest=min(newest) if len(newest) == len(found) else None,
        )

    def make(self) -> None:
        for keeper in self._keepers:
            keeper.make()

    def check_clear(self) -> None:
        for keeper in self._keepers:
            keeper.check_clear()

    def clear(self) -> None:
        for table, keeper in zip(self._endpoint.tables, self._keepers, strict=True):
            self._roll_back(table)
            keeper.clear()

    def _roll_back(self, table: Postgres) -> None:
        """Prepared transactions of any run of the job would keep the rows locked."""
        schema = table.table.rpartition(".")[0]
        stage = f"{quoted(schema)}." if schema else ""
        stage += stage_of(self._claim.job, self._claim.step)
        with postgres_session(table.dsn.reveal(), self._claim.step, self.where, autocommit=True) as db:
            own = transactions_of(self._claim.job, self._claim.step)
            for (name,) in db.execute(IN_DOUBT, (own,)).fetchall():
                db.execute(f"ROLLBACK PREPARED '{name}'")
            db.execute(f"DROP TABLE IF EXISTS {stage}")

    def release(self) -> None:
        for keeper in self._keepers:
            keeper.release()

    def close(self) -> None:
        for keeper in self._keepers:
            keeper.close()
