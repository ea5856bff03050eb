"""The tables of a server, with a limit on the memory of their indexes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from millstream.connectors.catalog import Remembered
from millstream.connectors.lookups import Lookup, Row
from millstream.serving.following import Following
from millstream.serving.tables import Tables

TABLES_MAX = 64
INDEX_BYTES_MAX = 1 << 30


class Served:
    """The named tables, or else all tables of jobs, including jobs that start later.

    At most `tables_max` are open, and their indexes take at most `index_bytes_max` in total: the least recently used
    are closed first. A table that still does not fit is looked up without an index.
    """

    def __init__(
        self,
        tables: Tables,
        names: Sequence[str] = (),
        *,
        tables_max: int = TABLES_MAX,
        index_bytes_max: int = INDEX_BYTES_MAX,
    ) -> None:
        self._tables = tables
        self._named = {name: tables.find(name) for name in names}
        self._tables_max, self._index_bytes_max = tables_max, index_bytes_max
        self._open: dict[Remembered, Lookup] = {}  # least recently used first
        self._users: Counter[Remembered] = Counter()
        self._lock = threading.Lock()

    def listed(self) -> dict[str, Remembered]:
        known = self._tables.known(fresh=False)
        if not self._named:
            return {name: table for name, table in known.items() if table.job is not None}
        # A name keeps referring to the same table, even if another one gets that name later; but a changed job may have
        # recorded another key.
        current = {_identity(table): table for table in known.values()}
        return {name: current.get(_identity(table), table) for name, table in self._named.items()}

    def find(self, name: str) -> Remembered | None:
        return self.listed().get(name)

    def row(self, name: str, key: Any) -> Row | None:
        """Also None if the table is not listed: callers cannot tell the difference."""
        table = self.find(name)
        if table is None:
            return None
        with self._in_use(table) as lookup:
            return lookup.row(key)

    def followed(self, name: str, position: str | None) -> Following | None:
        """A table whose changes the caller reads and closes; None if it is not listed."""
        table = self.find(name)
        return None if table is None else self._tables.followed(table, position)

    @property
    def open_tables(self) -> list[str]:
        with self._lock:
            return [table.name for table in self._open]

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return self._held_bytes()

    def close(self) -> None:
        with self._lock:
            closing, self._open = list(self._open.values()), {}
        for lookup in closing:
            lookup.close()

    @contextmanager
    def _in_use(self, table: Remembered) -> Iterator[Lookup]:
        with self._lock:
            lookup = self._open.pop(table, None) or self._tables.opened(table, room=self._make_room)
            self._open[table] = lookup
            self._users[table] += 1
        try:
            yield lookup
        finally:
            with self._lock:
                self._users[table] -= 1
                if not self._users[table]:
                    del self._users[table]
            self._make_room()

    def _make_room(self) -> bool:
        """Closes unused tables until the limits hold; called before an index grows, and returns whether it may."""
        closing = []
        with self._lock:
            while self._held_bytes() > self._index_bytes_max or len(self._open) > self._tables_max:
                idle = next((table for table in self._open if table not in self._users), None)
                if idle is None:
                    break
                closing.append(self._open.pop(idle))
            fits = self._held_bytes() <= self._index_bytes_max
        for lookup in closing:
            lookup.close()
        return fits

    def _held_bytes(self) -> int:
        return sum(lookup.held_bytes for lookup in self._open.values())


def _identity(table: Remembered) -> tuple[str, str, str]:
    return table.kind, table.where, table.name
