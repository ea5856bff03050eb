"""A job and its outputs belong together by the run that both know: whatever does not fit is refused at the start.

    the job's folder     which run writes each output, and how far the job has come
    each output          which run wrote it last, and its newest batch

An output that cannot be reached when the job starts is looked at before its first batch is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.connectors.claims import Claim, Found, Keeper, keeper_of
from millstream.connectors.file_ledger import FileLedger
from millstream.errors import OutputMismatch, SinkUnavailable
from millstream.jobs.folder import OUTPUTS, SINKS, JobFolder
from millstream.log import Broker
from millstream.log.disk import read_document, write_document
from millstream.plan.nodes import Write

START_OVER = "millstream run flow.py --start-over (in Python: flow.run(start_over=True))"


@dataclass(frozen=True)
class Reached:
    """How far a job has come, as its folder says: the newest batch that has begun, and that is complete; -1: none."""

    begun: int
    complete: int


class Claims:
    """Of all outputs of a job, by the names of the outputs."""

    def __init__(self, job: str, folder: JobFolder, outputs: Sequence[Write], broker: Broker) -> None:
        self._job = job
        self._folder = folder
        self._reached = Reached(-1, -1)
        self._claims: dict[str, Claim] = {}
        self._keepers: dict[str, Keeper] = {}
        self._pending: set[str] = set()
        for output in outputs:
            ledger = FileLedger(folder.path / SINKS / output.name, output.name)
            self._claims[output.name] = Claim.here(job, output.name, ledger.run, folder.path)
            self._keepers[output.name] = keeper_of(output.sink, self._claims[output.name], ledger, broker)

    # ------------------------------------------------------------ a job starts

    def settle(self, reached: Reached) -> None:
        """Refuses outputs that do not belong to this run, and makes the others its own. Nothing is written before."""
        self._reached = reached
        self._pending = set(self._keepers)
        looks = {}
        for name in self._keepers:
            with suppress(SinkUnavailable):  # looked at before its first batch
                looks[name] = self._checked(name)
        for name, found in looks.items():
            with suppress(SinkUnavailable):
                self._make(name, found)

    def settle_late(self, output: str) -> None:
        """Before the first batch of an output that could not be reached at the start."""
        if output in self._pending:
            self._make(output, self._checked(output))
            self.note()

    def note(self) -> None:
        """Once the sinks are open: the job remembers what it has made its own."""
        noted = _noted(self._folder.path)
        for name, keeper in self._keepers.items():
            if name not in self._pending and keeper.keeps_claims:
                with suppress(SinkUnavailable):
                    found = keeper.look()
                    noted[name] = {"run": self._claims[name].run, "identity": found.identity}
        write_document(self._folder.path / OUTPUTS, {"outputs": noted})

    def _make(self, name: str, found: Found) -> None:
        keeper = self._keepers[name]
        if keeper.keeps_claims and found.claim != self._claims[name]:
            keeper.make()
            self._check_run(name, keeper.look())  # another run may have come at the same moment
        self._pending.discard(name)

    # ------------------------------------------------------------ what does not fit

    def _checked(self, name: str) -> Found:
        found = self._keepers[name].look()
        self._check_run(name, found)
        self._check_there(name, found)
        if found.newest is not None and found.newest > self._reached.begun:
            begun = self._reached.begun
            kept = "holds no progress" if begun < 0 else f"ends at batch {begun}"
            raise self._mismatch(
                name,
                f"holds results up to batch {found.newest} of this job, and the job's checkpoint {kept}: it was "
                "removed or replaced by an older one, and going on would write results again or leave some out",
                f"restore {self._folder.checkpoint} from a backup; or write all outputs from the start: {START_OVER}",
            )
        return found

    def _check_run(self, name: str, found: Found) -> None:
        own, held = self._claims[name], found.claim
        if held is None or held.run == own.run:
            return
        there = f"go on with that run: --folder {held.folder} on {held.host}; or " if held.folder else ""
        raise self._mismatch(
            name,
            f"holds results of another run of the job, {held}, and this is run {own.run}: the same results would be "
            "written there twice",
            f"{there}give this flow another name and other outputs; or write all outputs from the start: {START_OVER}",
        )

    def _check_there(self, name: str, found: Found) -> None:
        noted = _noted(self._folder.path).get(name)
        if noted is None or noted.get("run") != self._claims[name].run or self._reached.complete < 0:
            return  # never written by this run, or nothing that would be missing
        what = None
        if not found.there:
            what = "is gone"
        elif noted.get("identity", "") != found.identity:
            what = "is another one than before: it was deleted and created again"
        elif found.claim is None:
            what = "has no trace of this job any more: it was replaced, or created again"
        if what is not None:
            raise self._mismatch(
                name,
                f"{what}, and the job has written {self._reached.complete + 1} batches to it: going on would leave it "
                "with a part of the results",
                f"restore it from a backup; or make it again: millstream run flow.py --rebuild-output {name} "
                f"(in Python: flow.run(rebuild_output='{name}')), which replays the job and writes all of its outputs "
                f"again; or, if its sources no longer hold all records: {START_OVER}",
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
        """A run that is complete leaves its outputs to the next one."""
        for keeper in self._keepers.values():
            with suppress(SinkUnavailable):
                keeper.release()

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *raised: object) -> None:
        for keeper in self._keepers.values():
            keeper.close()


def _noted(folder: Path) -> dict[str, Mapping[str, Any]]:
    if not (folder / OUTPUTS).exists():
        return {}
    try:
        found = read_document(folder / OUTPUTS)["outputs"]
        return {str(name): dict(each) for name, each in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # it is written again; the claims of the outputs themselves are still looked at
