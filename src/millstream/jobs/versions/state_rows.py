"""The rows of a step's state, read from the checkpoint of a job without disturbing it.

Spark keeps the state after each of its newest batches, so what a batch changed is the difference between two of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import polars as pl

from millstream.errors import InvalidInput, NotFound
from millstream.jobs.checkpoint_reader import Checkpoint
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.repairing import checkpoint_of
from millstream.jobs.versions.differences import Difference, Row, difference
from millstream.jobs.versions.kept_steps import SLOT, STAGE
from millstream.jobs.versions.savepoints import Savepoints, link
from millstream.spark.query.slot_states import DELTAS, HEADS
from millstream.spark.query.state_runner import LAST, Head
from millstream.spark.session.start import session
from millstream.state.deltas import tables_in
from millstream.state.sorted_run import Rows, merged
from millstream.user_lines import what_exists

KEY = "key."
ROWS_MAX = 10_000
BATCHES_MAX = 20
IDENTITY = (KEY, "start", "end", "order", "position")
"""What the columns begin with by which rows of state before and after a batch are paired."""
Tables = dict[str, pl.DataFrame]
Pieces = dict[int, dict[int, bytes]]
"""By key group and number, the pieces of deltas."""


def state_of(job: JobFolder, step: str, key: Mapping[str, str], batches: int = 0) -> dict[str, Any]:
    """The rows of a step after the newest completed batch, by table; with `key`, those of one key.

    With `batches` also what each of that many batches changed, the newest first; fewer if Spark no longer has them.
    """
    if not 0 <= batches <= BATCHES_MAX:
        raise InvalidInput(f"batches={batches} is not a count up to {BATCHES_MAX}", next_step="batches=5")
    with tempfile.TemporaryDirectory(prefix="millstream-state-", dir=job.path.parent) as folder:
        savepoints = Savepoints(Path(folder))  # the files of one batch stay as long as they are read
        taken = savepoints.take(job, "now")
        kept = savepoints.description("now")
        if step not in kept.steps:
            raise NotFound(
                f"the job '{job.job}' has no step '{step}' with state", next_step=what_exists(step, list(kept.steps))
            )
        place = savepoints.path("now") / "checkpoint"
        stage, slot = (int(kept.steps[step][at]) for at in (STAGE, SLOT))
        earlier = _linked_before(checkpoint_of(job), taken.batch, batches, place)
        states = StoredState(place, stage - 1, slot, kept.shares_states).after([*earlier, taken.batch])
    return {
        "job": job.job,
        "step": step,
        "batch": taken.batch,
        "tables": {name: _shown(frame, key, step) for name, frame in states[taken.batch].items()},
        **({"batches": _changes(job, states, key, step)} if batches else {}),
    }


def _linked_before(checkpoint: Checkpoint, newest: int, count: int, into: Path) -> list[int]:
    """Links the files of batches before the newest one, so that they stay; the batches, the oldest first."""
    found: list[int] = []
    for batch in range(newest - 1, newest - 1 - count, -1):
        if batch < 0:
            break
        try:
            for path in checkpoint.files_after(batch):
                if not (place := into / path.relative_to(checkpoint.path)).exists():
                    link(path, place)
        except FileNotFoundError:
            break
        found.insert(0, batch)
    return found


def _changes(job: JobFolder, states: Mapping[int, Tables], key: Mapping[str, str], step: str) -> list[dict[str, Any]]:
    """Of each batch with a state before it, the rows that it changed and how many it left."""
    made, checkpoint = [], checkpoint_of(job)
    for batch in sorted(states, reverse=True):
        if batch and batch - 1 not in states:
            continue
        before, after = states.get(batch - 1, {}), states[batch]
        end = checkpoint.offsets_of(batch)
        clock = None if end is None else datetime.fromtimestamp(end["clock"] / 1e6, UTC).isoformat()
        tables = {
            name: _difference(*(_shown(each[name], key, step) if name in each else [] for each in (before, after)))
            for name in dict.fromkeys([*before, *after])
        }
        made.append({"batch": batch, "clock": clock, "tables": tables})
    return made


def _difference(before: list[Row], after: list[Row]) -> dict[str, Any]:
    columns = dict.fromkeys(name for row in (*before, *after) for name in row)
    found: Difference = difference("", before, after, [name for name in columns if name.startswith(IDENTITY)])
    kept = asdict(found)
    return {"counts": kept["counts"], "rows": kept["rows"]}


@dataclass(frozen=True)
class StoredState:
    """The state of one step as Spark has stored it: a head and numbered pieces of deltas for each key group."""

    checkpoint: Path
    operator: int
    slot: int
    is_shared: bool
    """Whether its states of Spark are those of all slots."""

    def after(self, batches: Sequence[int]) -> dict[int, Tables]:
        """The rows after each of some batches, the newest last.

        Deltas are only added, until they are replaced by a snapshot, so those of the newest batch contain the others.
        """
        newest, heads = batches[-1], self._heads(batches)
        pieces = {newest: self._pieces(newest)}
        made = {}
        for batch in batches:
            source = newest if _continues(heads[batch], heads[newest]) else batch
            if source not in pieces:
                pieces[source] = self._pieces(source)
            made[batch] = _tables(heads[batch], pieces[source])
        return made

    def _heads(self, batches: Sequence[int]) -> dict[int, dict[int, Head]]:
        """By batch and key group; read in one go, since Spark takes a while for each."""
        value = "user_map_value" if self.is_shared else "value"
        frames = [
            self._stored("head", batch).selectExpr(f"{batch} as batch", "key", f"{value} as value") for batch in batches
        ]
        found: dict[int, dict[int, Head]] = {batch: {} for batch in batches}
        for row in reduce(lambda one, other: one.unionAll(other), frames).collect():
            found[row.batch][row.key.label] = Head.from_bytes(bytes(row.value.head))
        return found

    def _pieces(self, batch: int) -> Pieces:
        found: Pieces = {}
        for row in self._stored("deltas", batch).collect():
            found.setdefault(row.key.label, {})[row.user_map_key.number] = bytes(row.user_map_value.delta)
        return found

    def _stored(self, variable: str, batch: int) -> Any:
        reader = session().read.format("statestore").option("path", f"file://{self.checkpoint.absolute()}")
        reader = reader.option("operatorId", self.operator).option("batchId", batch)
        if not self.is_shared:
            return reader.option("stateVarName", f"{variable}{self.slot}").load()
        stored = reader.option("stateVarName", HEADS if variable == "head" else DELTAS).load()
        return stored.where(f"user_map_key.slot = {self.slot}")


def _continues(earlier: Mapping[int, Head], later: Mapping[int, Head]) -> bool:
    """Whether the deltas of an earlier batch are the first ones of a later batch, in every key group."""
    return all(label in later and later[label].first_delta == head.first_delta for label, head in earlier.items())


def _tables(heads: Mapping[int, Head], pieces: Pieces) -> Tables:
    found: dict[str, list[pl.DataFrame]] = {}
    for label, head in heads.items():
        runs: dict[str, list[Rows]] = {}
        whole = b""
        for number, piece in sorted(pieces.get(label, {}).items()):
            if number >= head.deltas:
                break
            whole += piece[1:]
            if piece[:1] == LAST:
                for name, rows in tables_in(whole).items():
                    runs.setdefault(name, []).insert(0, rows)
                whole = b""
        for name, newest_first in runs.items():
            found.setdefault(name, []).append(merged(newest_first, oldest=True).content)
    return {name: pl.concat(frames, how="diagonal_relaxed") for name, frames in found.items()}


def _shown(frame: pl.DataFrame, key: Mapping[str, str], step: str) -> list[dict[str, Any]]:
    for name, value in key.items():
        column = next((each for each in (f"{KEY}{name}", name) if each in frame.columns), None)
        if column is None:
            known = [each.removeprefix(KEY) for each in frame.columns]
            raise InvalidInput(
                f"the state of '{step}' has no key '{name}'", next_step=what_exists(name, known, kind="columns")
            )
        frame = frame.filter(pl.col(column).cast(pl.String) == value)
    rows = frame.head(ROWS_MAX).to_dicts()
    shown: list[dict[str, Any]] = json.loads(json.dumps(rows, default=_text))
    return shown


def _text(value: object) -> str:
    """What JSON does not have. Bytes that are no text are those of a function's own state."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"({len(value):,} bytes)"
