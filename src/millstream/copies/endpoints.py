"""Copies of a table, as sinks of a flow and as targets of `millstream follow`."""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import pyarrow as pa

from millstream.connectors import arguments
from millstream.connectors.claims import Claim, Found, Keeper, shared
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.refusals import AS_TEXT, Refuse, kept, refusals_of, stop, unfit
from millstream.connectors.sink import Sink
from millstream.connectors.weights import one_batch
from millstream.copies.ports import Store, row_key
from millstream.errors import InvalidInput, InvalidPlan
from millstream.log import Broker
from millstream.records import Schema, batch_to_rows, codec
from millstream.secrets import Secret, shown_address
from millstream.user_lines import users_line, what_exists

_INDEX = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Copy(Connector):
    """A place with the newest row of each key, as JSON."""

    key: tuple[str, ...]
    can_write: ClassVar[bool] = True
    refuses_rows: ClassVar[bool] = True

    @abstractmethod
    def open_store(self) -> Store: ...

    def keyed_by(self, key: tuple[str, ...]) -> Self:
        return self if self.key or not key else replace(self, key=key)

    def check_written(self, schema: Schema) -> None:
        if not self.key:
            raise InvalidPlan(
                f"{self} has a row for each key, and these rows have none",
                where=users_line(),
                next_step="name the columns of the key: key='id'; or write a table",
            )
        for name in self.key:
            if name not in schema:
                raise InvalidPlan(
                    f"the key names '{name}', but the rows for {self} have no such column",
                    where=users_line(),
                    next_step=what_exists(name, schema.names),
                )

    def open_sink(self, writing: Writing) -> Sink:
        return CopySink(self, writing)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        return CopyKeeper(self, claim, ledger)


class CopySink(Sink):
    """A batch that was applied in part is applied again, and ends the same."""

    def __init__(self, endpoint: Copy, writing: Writing) -> None:
        self._endpoint = endpoint
        self._writer = writer_of(writing.job, writing.step)
        self._run = writing.run
        self._ledger = writing.ledger
        self._store = endpoint.open_store()

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        before = self._store.mark(self._writer)
        if before is not None and before["run"] == self._run and before["batch"] >= batch:
            return
        refused = unfit(rows, AS_TEXT)
        if refused:
            chosen = kept(rows.num_rows, refused)
            rows = rows.filter(chosen)
            weights = None if weights is None else weights.filter(chosen)
        refuse(refusals_of(refused))
        changes = self._changes(one_batch(rows), None if weights is None else weights.to_pylist())
        self._store.apply(changes, self._writer, {"run": self._run, "batch": batch}, before)
        self._ledger.record(batch)

    def _changes(self, rows: pa.RecordBatch, weights: list[int] | None) -> dict[str, bytes | None]:
        """The last row of each key that is added and not retracted after that; else the key is deleted."""
        texts: list[bytes] = codec("json", Schema.of(rows.schema)).encode(rows).to_pylist() if rows.num_rows else []
        keys = [row_key(list(row.values())) for row in batch_to_rows(rows.select(list(self._endpoint.key)))]
        changes: dict[str, bytes | None] = {}
        for key, text, weight in zip(keys, texts, weights or [1] * len(keys), strict=True):
            if weight > 0:
                changes[key] = text
            elif key in changes:
                if changes[key] == text:
                    changes[key] = None
            elif self._store.holds(key, text):
                changes[key] = None
        return changes

    def close(self) -> None:
        self._store.close()


class CopyKeeper:
    """A copy has marks of its writers, and no claims."""

    keeps_claims = False

    def __init__(self, endpoint: Copy, claim: Claim, ledger: FileLedger) -> None:
        self._endpoint = endpoint
        self._claim = claim
        self._ledger = ledger
        self.where = str(endpoint)

    def look(self) -> Found:
        return Found(there=True, newest=self._ledger.newest())

    def make(self) -> None:
        """The copy has no claims."""

    def check_clear(self) -> None:
        store = self._endpoint.open_store()
        try:
            others = [name for name in store.writers() if name != writer_of(self._claim.job, self._claim.step)]
        finally:
            store.close()
        if others:
            raise shared(
                f"{self.where} also has rows of others: {', '.join(others)}",
                f"step '{self._claim.step}'",
                "write to a copy of its own",
            )

    def clear(self) -> None:
        store = self._endpoint.open_store()
        try:
            store.empty()
        finally:
            store.close()

    def release(self) -> None:
        """There is no claim."""

    def close(self) -> None:
        """There is nothing to close."""


def writer_of(job: str, step: str) -> str:
    return f"job {job}/{step}"


# ---------------------------------------------------------------- the copies


@dataclass(frozen=True)
class Redis(Copy):
    table: str
    url: Secret = field(repr=False)

    @property
    def name(self) -> str:
        return f"redis {self.table}"

    def open_store(self) -> Store:
        from millstream.copies.redis_store import RedisStore

        return RedisStore(self.url.reveal(), self.table)

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, table=self.table + suffix)

    def __str__(self) -> str:
        return f"redis({shown_address(self.url.reveal())}, {self.table})"


@dataclass(frozen=True)
class KeyedFiles(Copy):
    path: str

    @property
    def name(self) -> str:
        return f"key_files {Path(self.path).name}"

    def open_store(self) -> Store:
        from millstream.copies.key_files import KeyFiles

        return KeyFiles(Path(self.path))

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, path=self.path + suffix)

    def __str__(self) -> str:
        return f"key_files({self.path})"


@dataclass(frozen=True)
class SearchIndex(Copy):
    path: str
    text: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"search_index {Path(self.path).name}"

    def open_store(self) -> Store:
        from millstream.copies.search_index import SearchIndexStore

        return SearchIndexStore(Path(self.path), self.text)

    def check_written(self, schema: Schema) -> None:
        super().check_written(schema)
        for name in self.text:
            if name not in schema:
                raise InvalidPlan(
                    f"{self} indexes '{name}', but the rows have no such column",
                    where=users_line(),
                    next_step=what_exists(name, schema.names),
                )

    def search(self, words: str, *, limit: int = 10) -> list[dict[str, Any]]:
        """The rows with these words, the best first: `tea`, `green tea`, `"green tea"`, `product:tea AND note:new`."""
        from millstream.copies.search_index import search

        return search(Path(self.path), words, self.text, limit)

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, path=self.path + suffix)

    def __str__(self) -> str:
        return f"search_index({self.path})"


@dataclass(frozen=True)
class HttpRows(Copy):
    url: str
    marks: str
    headers: tuple[tuple[str, Secret], ...] = field(repr=False, default=())

    @property
    def name(self) -> str:
        return f"http_rows {urlsplit(self.url).hostname}"

    def open_store(self) -> Store:
        from millstream.copies.http_store import HttpStore

        return HttpStore(self.url, Path(self.marks), dict(self.headers))

    def __str__(self) -> str:
        return f"http_rows({shown_address(self.url)})"


@dataclass(frozen=True)
class OpenSearchRows(Copy):
    index: str
    url: Secret = field(repr=False)
    properties: str = "{}"

    @property
    def name(self) -> str:
        return f"opensearch {self.index}"

    def open_store(self) -> Store:
        from millstream.copies.opensearch_store import OpenSearchStore

        return OpenSearchStore(self.url.reveal(), self.index, self.properties)

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, index=self.index + suffix)

    def __str__(self) -> str:
        return f"opensearch({shown_address(self.url.reveal())}, {self.index})"


@dataclass(frozen=True)
class RowsOfDatabase(Copy):
    """For `millstream follow`; a flow writes the columns of its rows: `ms.sqlite(…)`, `ms.postgres(…)`."""

    table: str
    address: Secret = field(repr=False)
    """Of a Postgres, or the path of a SQLite file."""

    @property
    def name(self) -> str:
        return f"rows {self.table}"

    def open_store(self) -> Store:
        from millstream.copies.database_rows import PostgresRows, SqliteRows

        address = self.address.reveal()
        if address.startswith(("postgresql:", "postgres:")):
            return PostgresRows(address, self.table)
        return SqliteRows(Path(address), self.table)

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, table=self.table + suffix)

    def __str__(self) -> str:
        return f"rows({self.table})"


def redis(url: str, table: str, *, key: str | Sequence[str] = ()) -> Redis:
    """A copy of a table in Redis: the hash `table` has a field for each key, with the row as JSON.

    `key` has the columns of the key; without it, those of the table that is written.
    """
    example = "redis('redis://localhost:6379/0', 'prices', key='item')"
    address = arguments.text(url, "an address of Redis must be a string", example)
    if urlsplit(address).scheme not in ("redis", "rediss", "unix"):
        raise arguments.refused(f"'{shown_address(address)}' is not an address of Redis", f"for example {example}")
    return Redis(_columns(key, example), arguments.text(table, "the name must be a string", example), Secret(address))


def key_files(path: str | PathLike[str], *, key: str | Sequence[str] = ()) -> KeyedFiles:
    """A copy of a table as files: `path/KEY.json` has the row of a key.

    The path becomes a link to a folder beside it. `key` has the columns of the key; without it, those of the table that
    is written.
    """
    example = "key_files('prices', key='item')"
    return KeyedFiles(_columns(key, example), arguments.path(path, example))


def search_index(path: str | PathLike[str], *, text: str | Sequence[str], key: str | Sequence[str] = ()) -> SearchIndex:
    """A copy of a table as a search index, by Tantivy: `search("green tea")` finds rows by the words of `text` columns.

    The path becomes a link to a folder beside it. `key` has the columns of the key; without it, those of the table that
    is written.
    """
    example = "search_index('products', text=['name'], key='id')"
    names = _columns(text, example)
    if not names:
        raise arguments.refused("text= names no column", f"for example {example}")
    if reserved := [name for name in names if name.startswith("_")]:
        raise arguments.refused(f"the column '{reserved[0]}' begins with '_'", "rename it with select(…)")
    return SearchIndex(_columns(key, example), arguments.path(path, example), names)


def http_rows(
    url: str,
    *,
    key: str | Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    marks: str | PathLike[str] | None = None,
) -> HttpRows:
    """A copy of a table behind HTTP: `PUT url/KEY` with the row of a key as JSON, and `DELETE url/KEY`.

    `marks` is the file that says up to where changes were sent; by default one in the folder `~/.millstream/marks`.
    """
    from millstream.webhooks.sender import Target

    example = "http_rows('https://example.org/prices', key='item')"
    address = arguments.text(url, "an address must be a string", example)
    try:
        Target.of(address)
    except InvalidInput as error:
        raise arguments.refused(error.what, error.next_step) from None
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    chosen = (
        Path.home() / ".millstream" / "marks" / f"{digest}.json" if marks is None else arguments.path(marks, example)
    )
    secrets = tuple(sorted((name, Secret(value)) for name, value in (headers or {}).items()))
    return HttpRows(_columns(key, example), address, str(chosen), secrets)


def opensearch(
    url: str, index: str, *, key: str | Sequence[str] = (), properties: Mapping[str, Any] | None = None
) -> OpenSearchRows:
    """A copy of a table in OpenSearch: `index` becomes an alias of an index with a document for each key.

    `properties` are types of columns in the index, as OpenSearch's mappings have them, such as
    `{"name": {"type": "text", "analyzer": "english"}}`; others follow from the first values. `key` has the columns of
    the key; without it, those of the table that is written.
    """
    example = "opensearch('http://localhost:9200', 'prices', key='item')"
    address = arguments.text(url, "an address of OpenSearch must be a string", example)
    try:
        parts = urlsplit(address)
        is_fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query
    except ValueError:
        is_fine = False
    if not is_fine or any(character <= " " for character in address):
        raise arguments.refused(f"'{shown_address(address)}' is not an address of OpenSearch", f"for example {example}")
    name = arguments.text(index, "the name of the index must be a string", example)
    if not _INDEX.fullmatch(name):
        raise arguments.refused(
            f"{name!r} cannot be the name of an index", "use lower-case letters, digits, '_', '.' and '-'"
        )
    try:
        types = json.dumps(dict(properties or {}), sort_keys=True)
    except (TypeError, ValueError):
        raise arguments.refused(f"properties={properties!r} is not JSON", f"for example {example}") from None
    return OpenSearchRows(_columns(key, example), name, Secret(address), types)


def _columns(given: str | Sequence[str], example: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) and name for name in names):
        raise arguments.refused(f"columns are given by their names, not by {given!r}", f"for example {example}")
    return names
