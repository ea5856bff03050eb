"""A merged view is a batch result and a live topic read as one table: one row per key, the live one if there is one.

Each part has one current row per key. A row of weight +1 replaces the previous one, a pane only if its index is not
lower. A row of weight -1 retracts the current row if it is equal; a live one also retracts an equal batch row. A
tombstone deletes from both parts. The batch part is read once, the live one incrementally.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from millstream.errors import InvalidInput, KafkaUnavailable
from millstream.log import Batch, Broker, Consumer, TopicPartition, connect

Rows: TypeAlias = "str | Path | pl.DataFrame | pl.LazyFrame | pa.Table | pa.RecordBatch"
PANE, WINDOW = "pane", "window"
# Our own columns: the record's key, whether it is a tombstone, and its position in reading order.
RECORD, DEAD, AT = "__record", "__dead", "__at"
OWN = (RECORD, DEAD, AT)
HELD_AT = -1  # held rows come before all new ones
COMBINES = ("sum", "min", "max")
STANDSTILL_SECONDS = 30.0


def merged(
    batch: Rows,
    live: str,
    *,
    key: str | Sequence[str] | None = None,
    combine: Mapping[str, str] | None = None,
    weight: str | None = "weight",
    log: Broker | None = None,
) -> Merged:
    """One table of a batch result and a live topic.

    `batch` is a topic, a frame, or Parquet files: a `Path`, or text with a '/' in it. The key of panes can be left out:
    it is the columns before `window`, and `window`. With `combine`, as in {"total": "sum"}, the parts are disjoint, and
    these columns of both are combined by 'sum', 'min' or 'max'; without it the live row wins. `weight` names the column
    of weights; None if a column of that name is data. Default log: `connect()`.
    """
    own = connect() if log is None else None
    try:
        return Merged(log or own or connect(), batch, live, key, combine or {}, weight, own)
    except BaseException:
        if own is not None:
            own.close()
        raise


class Merged:
    """Made by `merged(…)`. `frame` is the table as read so far; `refresh` reads what is new."""

    def __init__(
        self,
        log: Broker,
        batch: Rows,
        live: str,
        key: str | Sequence[str] | None,
        combine: Mapping[str, str],
        weight: str | None,
        own_log: Broker | None,
    ) -> None:
        self._own_log = own_log
        self.live = log.resolve(live)  # a view stays with the version of its topic that it started with
        kind = _kind(log, self.live)
        rows = _batch_rows(log, batch)
        columns = [name for name in rows.columns if name not in OWN]
        self.key = _checked_key(key, columns, kind.columns, self.live)
        self.combine = _checked_combine(combine, self.key, columns, kind)
        _check_weight(weight, kind)
        self._rule = _Rule(self.key, weight, indexed=WINDOW in self.key and PANE in kind.columns)
        nothing = self._rule.prepared(kind.with_columns(_own_columns()))
        self._batch = self._rule.step(nothing, self._rule.prepared(_aligned(rows, kind, self.live))).current
        self._live = nothing
        self._frame = self._merged(self._batch, nothing)
        self._consumer = log.consumer(self.live, pinned=True)
        self.refresh()

    @property
    def frame(self) -> pl.DataFrame:
        """The current rows, one per key, without their weights."""
        return self._frame

    def _merged(self, batch: pl.DataFrame, live: pl.DataFrame) -> pl.DataFrame:
        batch, live = self._rule.plain(batch), self._rule.plain(live)
        if self.combine:
            return _combined(batch, live, self.key, self.combine)
        only_batch = batch.join(live, on=self.key, how="anti", nulls_equal=True)
        return pl.concat([only_batch, live], how="diagonal_relaxed")

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next offsets of the live topic."""
        return {place: self._consumer.position(*place) for place in self._consumer.assignment}

    def refresh(self) -> pl.DataFrame:
        """Reads what is new in the live topic, up to its current end."""
        news = _new_rows(self._consumer)
        if news is None:
            return self._frame
        step = self._rule.step(self._live, self._rule.prepared(news))
        batch = self._rule.without(self._batch, step, retracted=not self.combine)
        keys = [step.keys]
        if batch.height < self._batch.height:
            keys.append(self._batch.join(batch, on=self.key, how="anti", nulls_equal=True).select(self.key))
        changed = pl.concat(keys).unique()
        self._batch, self._live = batch, step.current
        # Only keys with changes are merged again: the table may be large, and changes are few.
        parts = [part.join(changed, on=self.key, how="semi", nulls_equal=True) for part in (batch, step.current)]
        same = self._frame.join(changed, on=self.key, how="anti", nulls_equal=True)
        self._frame = pl.concat([same, self._merged(*parts)], how="diagonal_relaxed")
        return self._frame

    def close(self) -> None:
        """Closes the topic, and the log if the view opened it; the frame stays as it was."""
        self._consumer.close()
        if self._own_log is not None:
            self._own_log.close()

    def __enter__(self) -> Merged:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


# ---------------------------------------------------------------- the current row of a key


@dataclass(frozen=True)
class _Step:
    """The current rows after some changes, the changed keys, retracted rows, and keys that tombstones deleted."""

    current: pl.DataFrame
    keys: pl.DataFrame
    minus: pl.DataFrame
    dead_records: pl.DataFrame
    dead_keys: pl.DataFrame


@dataclass(frozen=True)
class _Rule:
    key: list[str]
    weight: str | None
    indexed: bool

    def prepared(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows in order, with weights, and with the record's key or its equivalent: the text of a single column."""
        if self.weight is not None and self.weight not in rows.columns:
            rows = rows.with_columns(pl.lit(1, pl.Int64).alias(self.weight))
        only = rows.schema[self.key[0]] if len(self.key) == 1 else pl.Struct
        if not only.is_nested():
            text = pl.col(self.key[0]) if only == pl.Binary else pl.col(self.key[0]).cast(pl.String).cast(pl.Binary)
            rows = rows.with_columns(pl.coalesce(RECORD, text).alias(RECORD))
        return rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(AT))

    def step(self, held: pl.DataFrame, changes: pl.DataFrame) -> _Step:
        tombstones = changes.filter(pl.col(DEAD) & pl.col(RECORD).is_not_null())
        dead = tombstones.group_by(RECORD).agg(pl.col(AT).max().alias("died_at"))
        rows = changes.filter(~pl.col(DEAD))
        minus = rows.filter(self._sign() < 0)
        keys = rows.select(self.key).unique()
        dead_keys = keys.clear()
        if dead.height:
            judged = rows.join(dead, on=RECORD, how="left", maintain_order="left")
            died = pl.col("died_at").is_not_null() & (pl.col(AT) < pl.col("died_at"))
            gone = held.join(dead, on=RECORD, how="semi")
            dead_keys = pl.concat([gone.select(self.key), judged.filter(died).select(self.key)]).unique()
            held = held.join(dead, on=RECORD, how="anti")
            rows = judged.filter(~died).drop("died_at")
            keys = pl.concat([keys, dead_keys])
        # Keys without changes stay as they are.
        touched = held.join(rows, on=self.key, how="semi", nulls_equal=True)
        untouched = held.join(rows, on=self.key, how="anti", nulls_equal=True) if touched.height else held
        events = pl.concat([touched.with_columns(pl.lit(HELD_AT, pl.Int64).alias(AT)), rows], how="diagonal_relaxed")
        current = pl.concat([untouched, *self._fold(events)], how="diagonal_relaxed")
        return _Step(current, keys, minus, dead.select(RECORD), dead_keys)

    def _fold(self, events: pl.DataFrame) -> list[pl.DataFrame]:
        """The highest-ranked row is current once it has arrived; after its retraction the key starts over."""
        found: list[pl.DataFrame] = []
        while events.height:
            plus = events.filter(self._sign() > 0)
            if self.indexed:
                plus = plus.sort(pl.col(PANE).struct.field("index").fill_null(0), maintain_order=True)
            current = plus.unique(subset=self.key, keep="last", maintain_order=False)
            minus = events.filter(self._sign() < 0)
            if not minus.height:
                return [*found, current]
            pairs = minus.join(current, on=self.key, how="inner", nulls_equal=True, suffix="__current")
            hits = pairs.filter(pl.col(AT) > pl.col(f"{AT}__current"), self._equal(minus.columns, "__current"))
            taken = hits.group_by(self.key).agg(pl.col(AT).min().alias("taken_at"))
            found.append(current.join(taken, on=self.key, how="anti", nulls_equal=True))
            events = events.join(taken, on=self.key, how="inner", nulls_equal=True, maintain_order="left")
            events = events.filter(pl.col(AT) > pl.col("taken_at")).drop("taken_at")
        return found

    def without(self, batch: pl.DataFrame, step: _Step, *, retracted: bool) -> pl.DataFrame:
        """The batch rows that are left after the live part's tombstones and retractions."""
        if step.dead_records.height:
            batch = batch.join(step.dead_records, on=RECORD, how="anti")
            batch = batch.join(step.dead_keys, on=self.key, how="anti", nulls_equal=True)
        if retracted and step.minus.height:
            shared = [name for name in step.minus.columns if name in batch.columns]
            pairs = batch.join(step.minus.select(shared), on=self.key, how="inner", nulls_equal=True, suffix="__minus")
            taken = pairs.filter(self._equal(shared, "__minus")).select(self.key)
            batch = batch.join(taken, on=self.key, how="anti", nulls_equal=True)
        return batch

    def plain(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.drop([name for name in (*OWN, self.weight) if name in rows.columns])

    def _sign(self) -> pl.Expr:
        return pl.lit(1) if self.weight is None else pl.col(self.weight).fill_null(1)

    def _equal(self, columns: Sequence[str], suffix: str) -> pl.Expr:
        """Whether the values are equal: a pane says when a row was emitted, not what it contains."""
        values = [name for name in columns if name not in (*self.key, *OWN, PANE, self.weight)]
        same = [pl.col(name).eq_missing(pl.col(f"{name}{suffix}")) for name in values]
        return pl.all_horizontal(pl.lit(True), *same)


def _combined(batch: pl.DataFrame, live: pl.DataFrame, key: list[str], how: Mapping[str, str]) -> pl.DataFrame:
    both = batch.with_columns(pl.lit(True).alias("__in_batch")).join(
        live.with_columns(pl.lit(True).alias("__in_live")),
        on=key,
        how="full",
        coalesce=True,
        nulls_equal=True,
        suffix="__live",
    )
    columns = []
    for name in dict.fromkeys((*batch.columns, *live.columns)):
        if name in key or f"{name}__live" not in both.columns:
            columns.append(pl.col(name))
        else:
            columns.append(_put_together(name, how.get(name), batch.schema[name]).alias(name))
    return both.select(columns)


def _put_together(name: str, how: str | None, kind: pl.DataType) -> pl.Expr:
    old, new = pl.col(name), pl.col(f"{name}__live")
    if how is None:
        return pl.when(pl.col("__in_live")).then(new).otherwise(old)
    if how == "sum":
        if kind.is_integer():  # the sum of two numbers may overflow their type
            old, new = old.cast(pl.Int64), new.cast(pl.Int64)
        return pl.coalesce(old + new, old, new)
    return pl.min_horizontal(old, new) if how == "min" else pl.max_horizontal(old, new)


# ---------------------------------------------------------------- reading


def _own_columns() -> list[pl.Expr]:
    return [pl.lit(None, pl.Binary).alias(RECORD), pl.lit(False).alias(DEAD)]


def _kind(log: Broker, topic: str) -> pl.DataFrame:
    """The columns of a topic, without rows."""
    schema = log.topic(topic).settings.schema
    if schema is None:
        raise InvalidInput(
            f"topic '{topic}' has no schema, so its rows have no columns",
            next_step="use topics with schemas",
        )
    return _polars(schema.arrow.empty_table())


def _polars(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _new_rows(consumer: Consumer) -> pl.DataFrame | None:
    """Unread rows up to the current end of the partitions; what arrives meanwhile is for the next refresh."""
    batches = consumer.poll_batches(0.0)
    left, moved = consumer.lag(), time.monotonic()
    while left > 0:
        more = consumer.poll_batches(0.0)
        batches += more
        if more:
            left, moved = left - sum(map(len, more)), time.monotonic()
            continue
        left = min(left, consumer.lag())  # the broker may have reported records that it has not sent yet
        if left > 0 and time.monotonic() - moved > STANDSTILL_SECONDS:
            raise KafkaUnavailable(
                f"nothing has arrived for {STANDSTILL_SECONDS:.0f} seconds, but there are more records",
                where=", ".join(consumer.topics),
                next_step="check that the brokers are up and reachable",
            )
    if not batches:
        return None
    tables: list[list[pa.RecordBatch]] = []
    for rows in map(_rows, batches):
        if not tables or not tables[-1][0].schema.equals(rows.schema):  # the topic got another column meanwhile
            tables.append([])
        tables[-1].append(rows)
    return pl.concat([_polars(pa.Table.from_batches(run)) for run in tables], how="diagonal_relaxed")


def _rows(batch: Batch) -> pa.RecordBatch:
    values, keys = batch.values(), batch.columns.column("key")
    names = [*values.schema.names, RECORD, DEAD]
    return pa.RecordBatch.from_arrays([*values.columns, keys, batch.columns.column("value").is_null()], names=names)


def _batch_rows(log: Broker, batch: Rows) -> pl.DataFrame:
    if isinstance(batch, str) and "/" not in batch:
        topic = log.resolve(batch)
        kind = _kind(log, topic)
        with log.consumer(topic, pinned=True) as consumer:
            rows = _new_rows(consumer)
        return kind.with_columns(_own_columns()) if rows is None else rows
    if isinstance(batch, str | Path):
        frame = _parquet(Path(batch))
    elif isinstance(batch, pa.RecordBatch):
        frame = _polars(pa.Table.from_batches([batch]))
    elif isinstance(batch, pa.Table):
        frame = _polars(batch)
    elif isinstance(batch, pl.DataFrame | pl.LazyFrame):
        frame = batch.lazy().collect()
    else:
        raise InvalidInput(
            f"a batch result cannot be a {type(batch).__name__}",
            next_step="give a topic, a polars or Arrow frame, or the Path of Parquet files",
        )
    return frame.with_columns(_own_columns())


def _parquet(path: Path) -> pl.DataFrame:
    """All Parquet files below a folder, as Spark writes them: folders such as day=… are columns."""
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    files = [file for file in files if not file.name.startswith(("_", "."))]
    if not files:
        raise InvalidInput(
            "there are no Parquet files", where=str(path), next_step="name their folder; a topic's name has no '/'"
        )
    by_folder = any("=" in part for file in files for part in file.relative_to(path).parts[:-1])
    try:
        return pl.scan_parquet(files, hive_partitioning=by_folder).collect()
    except pl.exceptions.PolarsError as error:
        raise InvalidInput(
            f"the Parquet files cannot be read as one table: {error}",
            where=str(path),
            next_step="check that all files of the folder belong to one result",
        ) from error


def _aligned(rows: pl.DataFrame, kind: pl.DataFrame, live: str) -> pl.DataFrame:
    """Batch rows with the live topic's types, for columns that both have."""
    for name in kind.columns:
        wanted = kind.schema[name]
        if name not in rows.columns or rows.schema[name] == wanted:
            continue
        try:
            rows = rows.with_columns(pl.col(name).cast(wanted))
        except pl.exceptions.PolarsError as error:
            raise InvalidInput(
                f"column '{name}' is {rows.schema[name]} in the batch result, but {wanted} in topic '{live}'",
                next_step="cast it in the batch result",
            ) from error
    return rows


# ---------------------------------------------------------------- validating arguments


def _checked_key(key: str | Sequence[str] | None, batch: Sequence[str], live: Sequence[str], topic: str) -> list[str]:
    if key is None:
        if WINDOW not in live or PANE not in live:
            raise InvalidInput(
                f"the rows of topic '{topic}' are not panes, so they need a key",
                next_step=f"give key=[…]; columns: {', '.join(live)}",
            )
        key = live[: live.index(WINDOW) + 1]
    names = [key] if isinstance(key, str) else list(key)
    if not names or len(set(names)) < len(names):
        raise InvalidInput(f"a key must be one or several different columns, not {names}")
    for columns, where in ((batch, "the batch result"), (live, f"topic '{topic}'")):
        if missing := [name for name in names if name not in columns]:
            raise InvalidInput(
                f"there is no column {', '.join(map(repr, missing))} for the key",
                where=where,
                next_step=f"its columns: {', '.join(columns)}",
            )
    return names


def _check_weight(weight: str | None, live: pl.DataFrame) -> None:
    if weight is not None and weight in live.columns and not live.schema[weight].is_integer():
        raise InvalidInput(
            f"column '{weight}' is {live.schema[weight]} and cannot be the weight of a row",
            next_step="if it is data, use weight=None",
        )


def _checked_combine(
    combine: Mapping[str, str], key: Sequence[str], batch: Sequence[str], live: pl.DataFrame
) -> dict[str, str]:
    for name, how in combine.items():
        if how not in COMBINES:
            raise InvalidInput(f"rows cannot be combined by {how!r}", next_step=f"choose one of {', '.join(COMBINES)}")
        if name in key:
            raise InvalidInput(f"column '{name}' is part of the key", next_step="combine other columns")
        if name not in batch or name not in live.columns:
            raise InvalidInput(
                f"there is no column '{name}' in both parts", next_step=f"columns: {', '.join(live.columns)}"
            )
        if how == "sum" and not live.schema[name].is_numeric():
            raise InvalidInput(f"column '{name}' is {live.schema[name]} and has no sum")
    return dict(combine)
