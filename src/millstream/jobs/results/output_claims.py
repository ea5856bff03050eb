"""A job and its outputs each record the run that wrote them; outputs of another run are refused at the start.

    the job's folder     which run writes each output, and the job's progress
    each output          which run wrote it last, and its newest batch

An output that is unavailable when the job starts is checked before its first batch is written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.connectors.claims import Claim, Found, Keeper
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import keeper_of
from millstream.errors import OutputMismatch, SinkUnavailable
from millstream.jobs.job_folder import OUTPUTS, SINKS, JobFolder
from millstream.log import Broker
from millstream.log.storage.disk import read_document, write_document
from millstream.plan.nodes import Write

START_OVER = "millstream run flow.py --start-over (in Python: flow.run(start_over=True))"


@dataclass(frozen=True)
class NewestBatches:
    """The newest batch of a job that has started, and the newest that is complete; -1: none."""

    started: int
    complete: int


class OutputClaims:
    """The claims of a job on its outputs, by output name."""

    def __init__(self, job: str, folder: JobFolder, outputs: Sequence[Write], broker: Broker) -> None:
        self._job = job
        self._folder = folder
        self._broker = broker
        self._newest = NewestBatches(-1, -1)
        self._claims: dict[str, Claim] = {}
        self._keepers: dict[str, Keeper] = {}
        self._pending: set[str] = set()
        self._lock = threading.RLock()
        """Outputs are added and removed while the job runs."""
        self._look_after(outputs)

    def _look_after(self, outputs: Sequence[Write]) -> None:
        for output in outputs:
            ledger = FileLedger(self._folder.path / SINKS / output.name, output.name)
            self._claims[output.name] = Claim.here(self._job, output.name, ledger.run, self._folder.path)
            self._keepers[output.name] = keeper_of(output.sink, self._claims[output.name], ledger, self._broker)

    # ------------------------------------------------------------ a job starts

    def check(self, newest: NewestBatches) -> None:
        """Refuses outputs of other runs, and claims none: before Spark has started, the job may still not run."""
        self._newest = newest
        for name in self._keepers:
            with suppress(SinkUnavailable):
                self._look_up(name)

    def settle(self, newest: NewestBatches) -> None:
        """Refuses outputs of other runs and claims the rest. Nothing is written until all are checked."""
        self._settle(list(self._keepers), newest)

    def _settle(self, names: Sequence[str], newest: NewestBatches) -> None:
        self._newest = newest
        self._pending.update(names)
        outputs = {}
        for name in names:
            with suppress(SinkUnavailable):  # checked before its first batch
                outputs[name] = self._look_up(name)
        for name, found in outputs.items():
            with suppress(SinkUnavailable):
                self._claim(name, found)

    def add(self, outputs: Sequence[Write], newest: NewestBatches) -> None:
        """Claims further outputs while the job runs."""
        with self._lock:
            self._look_after(outputs)
            self._settle([output.name for output in outputs], newest)

    def leave(self, outputs: Sequence[Write]) -> None:
        """The job no longer writes these outputs. Its claims on them stay."""
        with self._lock:
            for output in outputs:
                self._pending.discard(output.name)
                del self._claims[output.name]
                self._keepers.pop(output.name).close()

    def claim_late(self, output: str) -> None:
        """Claims an output that was unavailable at the start, before its first batch."""
        if output in self._pending:
            with self._lock:
                self._claim(output, self._look_up(output))
            self.record()

    def record(self) -> None:
        """Records the claimed outputs in the job's folder, once the sinks are open."""
        with self._lock:
            recorded = _recorded(self._folder.path)
            for name, keeper in self._keepers.items():
                if name not in self._pending and keeper.keeps_claims:
                    with suppress(SinkUnavailable):
                        found = keeper.look()
                        recorded[name] = {"run": self._claims[name].run, "identity": found.identity}
            write_document(self._folder.path / OUTPUTS, {"outputs": recorded})

    def _claim(self, name: str, found: Found) -> None:
        keeper = self._keepers[name]
        if keeper.keeps_claims and found.claim != self._claims[name]:
            keeper.make()
            self._check_run(name, keeper.look())  # another run may have claimed it at the same moment
        self._pending.discard(name)

    # ------------------------------------------------------------ mismatches

    def _look_up(self, name: str) -> Found:
        found = self._keepers[name].look()
        self._check_run(name, found)
        self._check_there(name, found)
        if found.newest is not None and found.newest > self._newest.started:
            started = self._newest.started
            kept = "holds no progress" if started < 0 else f"ends at batch {started}"
            raise self._mismatch(
                name,
                f"holds results up to batch {found.newest} of this job, and the job's checkpoint {kept}: it was "
                "removed or replaced by an older one, and continuing would duplicate or skip results",
                f"restore {self._folder.checkpoint} from a backup; or write all outputs from the start: {START_OVER}",
            )
        return found

    def _check_run(self, name: str, found: Found) -> None:
        own, held = self._claims[name], found.claim
        if held is None or held.run == own.run:
            return
        there = f"continue that run: --folder {held.folder} on {held.host}; or " if held.folder else ""
        raise self._mismatch(
            name,
            f"holds results of another run of the job, {held}, and this is run {own.run}: the same results would be "
            "written twice",
            f"{there}give this flow another name and other outputs; or write all outputs from the start: {START_OVER}",
        )

    def _check_there(self, name: str, found: Found) -> None:
        recorded = _recorded(self._folder.path).get(name)
        if recorded is None or recorded.get("run") != self._claims[name].run or self._newest.complete < 0:
            return  # never written by this run, or no results to lose
        what = None
        if not found.there:
            what = "is gone"
        elif recorded.get("identity", "") != found.identity:
            what = "is not the same as before: it was deleted and recreated"
        elif found.claim is None:
            what = "has no record of this job any more: it was replaced or recreated"
        if what is not None:
            raise self._mismatch(
                name,
                f"{what}, and the job has written {self._newest.complete + 1} batches to it: continuing would leave "
                "it with only part of the results",
                f"restore it from a backup; or rebuild it: millstream run flow.py --rebuild-output {name} "
                f"(in Python: flow.run(rebuild_output='{name}')), which replays the job and rewrites all of "
                f"its outputs; or, if its sources no longer hold all records: {START_OVER}",
            )

    def _mismatch(self, name: str, what: str, next_step: str) -> OutputMismatch:
        return OutputMismatch(
            f"the output '{name}' of the job '{self._job}' {what}", where=self._keepers[name].where, next_step=next_step
        )

    # ------------------------------------------------------------ a job ends or starts over

    def check_clear(self) -> None:
        for keeper in self._keepers.values():
            keeper.check_clear()

    def clear(self) -> None:
        for keeper in self._keepers.values():
            keeper.clear()

    def release(self) -> None:
        """Releases the outputs of a completed run for the next one."""
        for keeper in self._keepers.values():
            with suppress(SinkUnavailable):
                keeper.release()

    def __enter__(self) -> OutputClaims:
        return self

    def __exit__(self, *raised: object) -> None:
        for keeper in self._keepers.values():
            keeper.close()


def _recorded(folder: Path) -> dict[str, Mapping[str, Any]]:
    if not (folder / OUTPUTS).exists():
        return {}
    try:
        found = read_document(folder / OUTPUTS)["outputs"]
        return {str(name): dict(each) for name, each in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # it is rewritten; the claims in the outputs themselves are still checked
