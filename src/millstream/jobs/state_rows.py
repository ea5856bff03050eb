"""The rows of a step's state, read from the checkpoint of a job without disturbing it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from millstream.errors import InvalidInput, NotFound
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.kept_steps import SLOT, STAGE
from millstream.jobs.savepoints import Savepoints
from millstream.spark.query.state_runner import LAST, Head
from millstream.spark.session.start import session
from millstream.state.deltas import tables_in
from millstream.state.run import Rows, merged
from millstream.user_lines import what_exists

KEY = "key."
ROWS_MAX = 10_000


def state_of(job: JobFolder, step: str, key: Mapping[str, str]) -> dict[str, Any]:
    """The rows of a step after the newest completed batch, by table; with `key`, those of one key."""
    with tempfile.TemporaryDirectory(prefix="millstream-state-", dir=job.path.parent) as folder:
        savepoints = Savepoints(Path(folder))  # the files of one batch stay as long as they are read
        taken = savepoints.take(job, "now")
        kept = savepoints.description("now")
        if step not in kept.steps:
            raise NotFound(
                f"the job '{job.job}' has no step '{step}' with state", next_step=what_exists(step, list(kept.steps))
            )
        stage, slot = int(kept.steps[step][STAGE]), int(kept.steps[step][SLOT])
        tables = _tables(savepoints.path("now") / "checkpoint", stage - 1, slot)
    return {
        "job": job.job,
        "step": step,
        "batch": taken.batch,
        "tables": {name: _shown(frame, key, step) for name, frame in tables.items()},
    }


def _tables(checkpoint: Path, operator: int, slot: int) -> dict[str, pl.DataFrame]:
    spark = session()

    def stored(variable: str) -> Any:
        reader = spark.read.format("statestore").option("path", f"file://{checkpoint.absolute()}")
        return reader.option("operatorId", operator).option("stateVarName", variable).load()

    heads = {row.key.label: Head.from_bytes(bytes(row.value.head)) for row in stored(f"head{slot}").collect()}
    pieces: dict[int, dict[int, bytes]] = {label: {} for label in heads}
    for row in stored(f"deltas{slot}").collect():
        pieces.setdefault(row.key.label, {})[row.user_map_key.number] = bytes(row.user_map_value.delta)
    found: dict[str, list[pl.DataFrame]] = {}
    for of_group in pieces.values():
        runs: dict[str, list[Rows]] = {}
        whole = b""
        for _, piece in sorted(of_group.items()):
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
    shown: list[dict[str, Any]] = json.loads(json.dumps(rows, default=str))
    return shown
