"""The triggers of a capture: every changed row becomes a row of its table of changes.

REPLACE removes rows without a trigger of theirs (unless `recursive_triggers` is on). So the rows that a new one may
replace are set aside before it is stored; those that are gone afterwards, and for which no trigger has fired, were
removed by it.

    changes   id, table, op, time, b0 b1 … (the image before), a0 a1 … (the image after)
    aside     table, identity, b0 b1 …
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from millstream.capture.changes import DELETE, INSERT, UPDATE
from millstream.capture.sqlite.tables import SqliteTable
from millstream.connectors.databases.sqlite import quoted

CHANGES, ASIDE, CAPTURES = "_millstream_changes_", "_millstream_aside_", "_millstream_captures"
TRIGGER = "_millstream:{name}:{rest}"
"""A name of a capture has no colon, so no name of a trigger starts like one of another capture."""
NOW_MS = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


class Triggers:
    """The objects of one capture in the database. Every method runs in a transaction of the caller."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._db = db
        self._name = name
        self.table = CHANGES + name
        self.changes = quoted(self.table)
        self._aside = quoted(ASIDE + name)

    # ------------------------------------------------------------ tables

    def exist(self) -> bool:
        return bool(self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (CHANGES + self._name,)).fetchone())

    def create(self, identity: str) -> None:
        self._db.execute(
            f"CREATE TABLE IF NOT EXISTS {CAPTURES} (name TEXT PRIMARY KEY, identity TEXT NOT NULL, "
            "position INTEGER NOT NULL) WITHOUT ROWID"
        )
        # Columns without a type store each value as it is.
        self._db.execute(
            f"CREATE TABLE {self.changes} (id INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT, op TEXT, at_ms INTEGER)"
        )
        self._db.execute(f"CREATE TABLE {self._aside} (source TEXT, identity)")
        self._db.execute(f"INSERT INTO {CAPTURES} VALUES (?, ?, 0)", (self._name, identity))

    def drop(self) -> None:
        for trigger in self._installed():
            self._db.execute(f"DROP TRIGGER {quoted(trigger)}")
        self._db.execute(f"DROP TABLE IF EXISTS {self.changes}")
        self._db.execute(f"DROP TABLE IF EXISTS {self._aside}")
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (CAPTURES,)).fetchone():
            self._db.execute(f"DELETE FROM {CAPTURES} WHERE name = ?", (self._name,))
            if not self._db.execute(f"SELECT 1 FROM {CAPTURES}").fetchone():
                self._db.execute(f"DROP TABLE {CAPTURES}")

    def install(self, tables: Sequence[SqliteTable]) -> None:
        """Replaces all triggers by those of these tables, as they are now. Changes nothing if they are the same.

        Two captures of a database would otherwise see each other's triggers as changes of the schema, without end.
        """
        wanted = [sql for table in tables for sql in self._triggers(table)]
        installed = self._installed()
        if sorted(installed.values()) == sorted(wanted):
            return
        for trigger in installed:
            self._db.execute(f"DROP TRIGGER {quoted(trigger)}")
        width = max(len(table.recorded_names) for table in tables)
        for place, kinds in ((self.changes, "ba"), (self._aside, "b")):
            there = {row[1] for row in self._db.execute(f"PRAGMA table_info({place})")}
            for column in (f"{kind}{number}" for kind in kinds for number in range(width)):
                if column not in there:
                    self._db.execute(f"ALTER TABLE {place} ADD COLUMN {column}")
        for sql in wanted:
            self._db.execute(sql)

    def state(self) -> tuple[str, int] | None:
        """What identifies the recorded changes, and up to which they were removed."""
        if not self.exist():
            return None
        found = self._db.execute(f"SELECT identity, position FROM {CAPTURES} WHERE name = ?", (self._name,)).fetchone()
        return None if found is None else (found[0], found[1])

    def newest(self) -> int:
        """The number of the newest change, also of one that was removed."""
        found = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (CHANGES + self._name,)).fetchone()
        return int(found[0]) if found else 0

    def time_of(self, id: int) -> int | None:
        """When a change was made, in milliseconds; None if it is not recorded."""
        found = self._db.execute(f"SELECT at_ms FROM {self.changes} WHERE id = ?", (id,)).fetchone()
        return None if found is None else int(found[0])

    def recorded(self, after: int, width: int) -> sqlite3.Cursor:
        """Id, table, op, time in milliseconds, then the first values of both images."""
        values = ", ".join(f"{kind}{number}" for kind in "ba" for number in range(width))
        select = f"SELECT id, source, op, at_ms, {values} FROM {self.changes} WHERE id > ? ORDER BY id"
        return self._db.execute(select, (after,))

    def forget(self, up_to: int) -> None:
        self._db.execute(f"DELETE FROM {self.changes} WHERE id <= ?", (up_to,))
        self._db.execute(f"UPDATE {CAPTURES} SET position = ? WHERE name = ?", (up_to, self._name))

    def has(self, table: str) -> bool:
        """Whether changes of a table are recorded. Its triggers go with it when it is dropped."""
        on_table = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?)"
        names = {name for (name,) in self._db.execute(on_table, (table,))}
        return not names.isdisjoint(self._installed())

    def _installed(self) -> dict[str, str]:
        """The definitions of the triggers, by name."""
        prefix = TRIGGER.format(name=self._name, rest="")
        found = self._db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        return {name: sql for name, sql in found if name.startswith(prefix)}

    # ------------------------------------------------------------ triggers

    def _triggers(self, table: SqliteTable) -> list[str]:
        source = _text(table.name)
        images = range(len(table.recorded_names))
        before, after = [f"b{n}" for n in images], [f"a{n}" for n in images]
        old, new = _values("OLD", table), _values("NEW", table)
        changes, aside = self.changes, self._aside

        def trigger(when: str, op: str, *statements: str) -> str:
            rest = f"{table.name}:{f'{when} {op}'.strip().lower()}"
            name = quoted(TRIGGER.format(name=self._name, rest=rest))
            body = " ".join(f"{statement};" for statement in statements)
            return f"CREATE TRIGGER {name} {when or 'AFTER'} {op.upper()} ON {quoted(table.name)} BEGIN {body} END"

        def recorded(op: str, columns: list[str], values: list[str]) -> str:
            listed = ", ".join(["source", "op", "at_ms", *columns])
            return f"INSERT INTO {changes} ({listed}) VALUES ({', '.join([source, _text(op), NOW_MS, *values])})"

        def set_aside(also: str) -> list[str]:
            forget = f"DELETE FROM {aside} WHERE source = {source}"
            candidates = _may_be_replaced(table)
            if not candidates:
                return [forget]
            listed = ", ".join([_identity("t", table), *_values("t", table)])
            return [
                forget,
                f"INSERT INTO {aside} (source, identity, {', '.join(before)}) SELECT {source}, {listed} "
                f"FROM {quoted(table.name)} AS t WHERE ({' OR '.join(candidates)}){also}",
            ]

        replaced = (
            f"INSERT INTO {changes} (source, op, at_ms, {', '.join(before)}) "
            f"SELECT {source}, {_text(DELETE)}, {NOW_MS}, {', '.join(before)} FROM {aside} "
            f"WHERE source = {source} AND (identity = {_identity('NEW', table)} OR NOT EXISTS "
            f"(SELECT 1 FROM {quoted(table.name)} AS t WHERE {_identity('t', table)} = identity))"
        )
        not_itself = f" AND {_identity('t', table)} <> {_identity('OLD', table)}"
        return [
            trigger("BEFORE", INSERT, *set_aside("")),
            trigger("", INSERT, replaced, recorded(INSERT, after, new)),
            trigger("BEFORE", UPDATE, *set_aside(not_itself)),
            trigger("", UPDATE, replaced, recorded(UPDATE, before + after, old + new)),
            trigger(
                "",
                DELETE,
                f"DELETE FROM {aside} WHERE source = {source} AND identity = {_identity('OLD', table)}",
                recorded(DELETE, before, old),
            ),
        ]


def _values(row: str, table: SqliteTable) -> list[str]:
    return [f"{row}.{quoted(name)}" for name in table.recorded_names]


def _identity(row: str, table: SqliteTable) -> str:
    if table.rowid is not None:
        return f"{row}.{quoted(table.rowid)}"
    return " || ',' || ".join(f"quote({row}.{quoted(name)})" for name in table.primary_key)


def _may_be_replaced(table: SqliteTable) -> list[str]:
    """Conditions for rows `t` that would be in conflict with the new one."""
    conflicts = [f"t.{quoted(table.rowid)} = NEW.{quoted(table.rowid)}"] if table.rowid is not None else []
    for index in table.unique:
        same = [f"t.{quoted(name)} = NEW.{quoted(name)} COLLATE {collation}" for name, collation in index]
        conflicts.append(f"({' AND '.join(same)})")
    return conflicts


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
