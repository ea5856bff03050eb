"""Upgrades of jobs: the old flow stops, a savepoint is taken, and the new flow continues with the state.

Each phase is in the store before it begins, and can be repeated: a supervisor that was killed goes on with it. While it
is watched, an upgrade that fails or falls behind goes back by itself, to the savepoint and to the code of then.
"""

from __future__ import annotations

import filecmp
import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream import terminal
from millstream.errors import InvalidInput, JobChanged, JobRunning, MillstreamError, NotFound
from millstream.jobs.job_folder import JobDescription
from millstream.jobs.measuring.job_progress import progress_written_at, read_progress
from millstream.jobs.versions.restoring import restore
from millstream.jobs.versions.savepoints import CODE
from millstream.jobs.versions.swapping import complete_swap
from millstream.jobs.versions.upgrading import refuse_dropped, upgraded
from millstream.records.durations import duration
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Desired, JobRecord, Observed

if TYPE_CHECKING:
    from millstream.supervision.supervisor import Supervisor

COMPARE_S_MAX = 60.0
REHEARSAL_S_MAX = 3600.0
LAG_RECORDS_MIN = 10_000
"""A job is not behind with fewer records than this."""
LAG_TIMES = 2
logger = terminal.logger("millstream.supervisor")


class Phase(Enum):
    STOPPING = "stopping"
    """The old flow stops; then comes the savepoint."""
    WATCHING = "watching"
    DONE = "done"
    REVERTING = "going back"
    """The new flow stops; then the savepoint is restored."""
    REVERTED = "went back"
    FAILED = "failed"
    """It could not take place; the job continues as before."""


ACTIVE = (Phase.STOPPING, Phase.WATCHING, Phase.REVERTING)


@dataclass(frozen=True)
class Upgrade:
    """As it is stored."""

    phase: Phase
    savepoint: str
    before: dict[str, Any]
    """The specification of the job so far."""
    after: dict[str, Any]
    kept: dict[str, Any]
    """The job's description that the upgrade was computed for."""
    description: dict[str, Any]
    steps: list[dict[str, Any]]
    was_running: bool
    user: str
    started: float
    watch_s: float | None = None
    watched_from: float | None = None
    lag: int | None = None
    """Before the upgrade."""
    reason: str | None = None

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "phase": self.phase.value}

    def shown(self) -> dict[str, Any]:
        """For people and programs."""
        parts = ("phase", "savepoint", "steps", "user", "started", "watch_s", "reason")
        files = {"file": self.after["file"], "file_before": self.before["file"]}
        return {**{part: self.document()[part] for part in parts}, **files}

    @classmethod
    def kept_as(cls, document: Mapping[str, Any]) -> Upgrade:
        return cls(**{**document, "phase": Phase(document["phase"])})


@dataclass(frozen=True)
class UpgradeRequest:
    file: str
    map: dict[str, str]
    """By old name, the new name of a renamed step."""
    allow_dropped: bool = False
    watch: str | None = None
    """How long it is watched, such as "10 minutes"."""
    check: bool = False

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> UpgradeRequest:
        """From a request."""
        unknown = sorted(set(given) - set(cls.__dataclass_fields__))
        mapping = given.get("map") or {}
        is_right = (
            not unknown
            and isinstance(given.get("file"), str)
            and isinstance(mapping, dict)
            and all(isinstance(each, str) for pair in mapping.items() for each in pair)
            and isinstance(given.get("watch"), str | None)
        )
        if not is_right:
            raise InvalidInput(
                "an upgrade has a file, and may have map, allow_dropped, watch and check",
                next_step='such as {"file": "/home/me/flow.py", "map": {"old": "new"}, "watch": "10 minutes"}',
            )
        return cls(
            given["file"], mapping, bool(given.get("allow_dropped")), given.get("watch"), bool(given.get("check"))
        )


class Upgrades:
    def __init__(self, supervisor: Supervisor, lock: AbstractContextManager[object]) -> None:
        """`lock` is that of the supervisor, which it holds while it looks at a job."""
        self._supervisor = supervisor
        self._lock = lock
        self._store = supervisor.store

    # ------------------------------------------------------------ what people ask for

    def compare(self, name: str, file: str, mapping: Mapping[str, str]) -> dict[str, Any]:
        """What an upgrade would do to the steps of a job. Nothing is changed."""
        return self._compared(self._store.job(name), file, mapping)[0]

    def rehearse(self, name: str, user: str, file: str, mapping: Mapping[str, str], last: str) -> dict[str, Any]:
        """Runs the old and the new flow from a savepoint, in a process of its own, and compares their results."""
        duration(last, what="last")
        job = self._store.job(name)
        code = self._supervisor.drivers.code_of(name, job.runs)
        old = code if code.is_file() else Path(job.specification.file)
        after = JobSpecification.checked({**job.specification.document(), "file": file})
        folder = self._supervisor.saved.all.folder
        asked = json.dumps({"savepoints": str(folder), "job": name, "last": last, "map": dict(mapping)})
        self._store.note(user, "rehearse", name, file)
        given = after.document()
        return self._supervisor.drivers.ask("--rehearse", given, str(old), asked, timeout_s=REHEARSAL_S_MAX)

    def upgrade(
        self, name: str, user: str, file: str, mapping: Mapping[str, str], *, allow_dropped: bool, watch: str | None
    ) -> dict[str, Any]:
        """Begins an upgrade, once everything that can be checked is. Returns the steps and what becomes of them."""
        watch_s = None if watch is None else duration(watch, what="watch").total_seconds()
        job = self._store.job(name)
        self.refuse_active(name)
        plan, after = self._compared(job, file, mapping)
        if not allow_dropped:
            refuse_dropped(name, plan["dropped"])
        folder = self._supervisor.saved.existing(name)
        kept = folder.description()
        assert kept is not None
        made = Upgrade(
            phase=Phase.STOPPING,
            savepoint=self._supervisor.saved.all.free_name(f"{name}-before-upgrade"),
            before=job.specification.document(),
            after=after.document(),
            kept=asdict(kept),
            description=plan["description"],
            steps=plan["steps"],
            was_running=job.desired is Desired.RUNNING,
            user=user,
            started=time.time(),
            watch_s=watch_s,
            lag=read_progress(folder.path).get("lag") if job.observed is Observed.RUNNING else None,
        )
        with self._lock, self._store.transaction():
            job = self._store.job(name)
            self.refuse_active(name)
            self._store.add_upgrade(name, made.document())
            self._store.note(user, "upgrade", name, file)
            self._hold(job)
        return {**made.shown(), "dropped": plan["dropped"]}

    def rollback(self, name: str, user: str) -> dict[str, Any]:
        """Goes back to how the job was before its last upgrade."""
        job, upgrade = self._store.job(name), self.newest(name)
        if upgrade is None or upgrade.phase not in (Phase.DONE, Phase.WATCHING):
            state = "was never upgraded" if upgrade is None else f"has an upgrade that is '{upgrade.phase.value}'"
            raise InvalidInput(
                f"there is nothing to go back from: the job '{name}' {state}",
                next_step=f"restore a savepoint instead: millstream jobs savepoints {name}",
            )
        self._supervisor.saved.all.get(upgrade.savepoint)  # it may have been removed
        with self._store.transaction():
            self._store.note(user, "rollback", name, upgrade.savepoint)
            self._revert(job, upgrade, f"{user} asked for it")
        return self._newest(name).shown()

    def newest(self, name: str) -> Upgrade | None:
        found = self._store.upgrades(name, 1)
        return Upgrade.kept_as(found[0]) if found else None

    def listed(self, name: str) -> list[dict[str, Any]]:
        """The upgrades of a job, the newest first."""
        self._store.job(name)
        return [Upgrade.kept_as(each).shown() for each in self._store.upgrades(name)]

    # ------------------------------------------------------------ what is done for it

    def active(self) -> set[str]:
        """The jobs whose upgrade is under way."""
        return self._store.jobs_with_upgrades([phase.value for phase in ACTIVE])

    def watch(self, job: JobRecord) -> None:
        """Looks at a job that may have to go back."""
        upgrade = self._newest(job.name)
        if upgrade.phase is Phase.WATCHING:
            self._watch(job, upgrade)

    def proceed(self, job: JobRecord) -> None:
        """Goes on with the upgrade of a job that has stopped."""
        upgrade = self._newest(job.name)
        acts = {Phase.STOPPING: self._apply, Phase.REVERTING: self._go_back}
        if upgrade.phase not in acts:
            return
        try:
            acts[upgrade.phase](job, upgrade)
        except JobRunning:  # its processes are about to end
            return
        except MillstreamError as error:  # the job continues with what it has
            logger.warning("the upgrade of '%s' failed: %s", job.name, error)
            with self._store.transaction():
                self._store.set_upgrade(job.name, replace(upgrade, phase=Phase.FAILED, reason=str(error)).document())
                self._release(job, upgrade)

    def _apply(self, job: JobRecord, upgrade: Upgrade) -> None:
        saved = self._supervisor.saved
        folder = saved.existing(job.name)
        with folder.held():
            complete_swap(folder)
            if not saved.all.exists(upgrade.savepoint):
                code = self._supervisor.drivers.code_of(job.name, job.runs)
                saved.all.take(folder, upgrade.savepoint, why="before an upgrade", code=code)
                if (found := folder.description()) is None or asdict(found) != upgrade.kept:
                    raise JobChanged(
                        f"the steps of the job '{job.name}' have changed since the upgrade was asked for",
                        next_step="ask for it again",
                    )
            upgraded(folder, JobDescription(**upgrade.description))
        now = time.time()
        watched = upgrade.watch_s is not None and upgrade.was_running
        made = replace(upgrade, phase=Phase.WATCHING if watched else Phase.DONE, watched_from=now)
        with self._store.transaction():
            self._store.set_specification(job.name, JobSpecification.kept(upgrade.after))
            self._store.set_upgrade(job.name, made.document())
            self._release(job, upgrade)

    def _go_back(self, job: JobRecord, upgrade: Upgrade) -> None:
        saved = self._supervisor.saved
        folder = saved.existing(job.name)
        with folder.held():
            restore(saved.all, upgrade.savepoint, folder)
        before = JobSpecification.kept(upgrade.before)
        code = saved.all.path(upgrade.savepoint) / CODE
        if code.is_file() and not _is_same(code, Path(before.file)):
            before = replace(before, file=str(code))  # the file was edited since
        with self._store.transaction():
            self._store.set_specification(job.name, before)
            self._store.set_upgrade(job.name, replace(upgrade, phase=Phase.REVERTED).document())
            self._release(job, upgrade)

    def _watch(self, job: JobRecord, upgrade: Upgrade) -> None:
        assert upgrade.watch_s is not None
        assert upgrade.watched_from is not None
        is_over = time.time() >= upgrade.watched_from + upgrade.watch_s
        if job.failures or job.observed is Observed.FAILED:
            self._revert(job, upgrade, f"it failed: {job.reason}")
        elif is_over and job.observed is Observed.RUNNING and (why := self._behind(job, upgrade)):
            self._revert(job, upgrade, why)
        elif is_over or job.desired is Desired.STOPPED:
            self._store.set_upgrade(job.name, replace(upgrade, phase=Phase.DONE).document())

    def _behind(self, job: JobRecord, upgrade: Upgrade) -> str | None:
        folder = self._supervisor.folder_of(job)
        lag, written_at = read_progress(folder).get("lag"), progress_written_at(folder)
        if lag is None or written_at is None or written_at < (upgrade.watched_from or 0):  # that of the old version
            return "it has not reported any progress"
        most = max(LAG_RECORDS_MIN, LAG_TIMES * (upgrade.lag or 0))
        return f"it falls behind: {lag:,} records, and {upgrade.lag or 0:,} before" if lag > most else None

    def _revert(self, job: JobRecord, upgrade: Upgrade, why: str) -> None:
        logger.warning("the upgrade of '%s' goes back: %s", job.name, why)
        with self._store.transaction():
            made = replace(upgrade, phase=Phase.REVERTING, reason=why, was_running=job.desired is Desired.RUNNING)
            if job.observed is Observed.FAILED:  # it is no longer wanted only because it failed
                made = replace(made, was_running=upgrade.was_running)
            self._store.set_upgrade(job.name, made.document())
            self._hold(job)

    def _hold(self, job: JobRecord) -> None:
        """Stops a job until the upgrade lets it go."""
        self._store.update(job.name, desired=Desired.STOPPED)
        if job.observed is Observed.WAITING:
            self._store.update(job.name, observed=Observed.STOPPED, next_start=None)

    def _release(self, job: JobRecord, upgrade: Upgrade) -> None:
        if upgrade.was_running:
            self._supervisor.wish_to_run(job.name)

    # ------------------------------------------------------------ checks

    def refuse_other_flow(self, savepoint: str, name: str) -> None:
        """Raises an error if the flow of a submitted job cannot continue with all state of a savepoint."""
        try:
            job = self._store.job(name)
        except NotFound:  # a job of `millstream run`, or one that is submitted later
            return
        saved = self._supervisor.saved.all
        other = saved.get(savepoint).job
        try:
            plan = self._supervisor.drivers.compare(
                job.specification, saved.path(savepoint), {}, timeout_s=COMPARE_S_MAX
            )
            why = "; ".join(plan["dropped"])
        except JobChanged as error:
            why = error.what
        if why:
            raise JobChanged(
                f"the flow of the job '{name}' does not fit the savepoint '{savepoint}' of '{other}': {why}",
                where=job.specification.file,
                next_step=f"submit the flow of '{other}' as another job, restore the savepoint into it, and upgrade "
                "that one: millstream jobs upgrade",
            )

    def _compared(
        self, job: JobRecord, file: str, mapping: Mapping[str, str]
    ) -> tuple[dict[str, Any], JobSpecification]:
        after = JobSpecification.checked({**job.specification.document(), "file": file})
        folder = self._supervisor.saved.existing(job.name)
        plan = self._supervisor.drivers.compare(after, folder.path, mapping, timeout_s=COMPARE_S_MAX)
        return plan, after

    def _newest(self, name: str) -> Upgrade:
        found = self.newest(name)
        assert found is not None
        return found

    def refuse_active(self, name: str) -> None:
        """Raises an error while an upgrade of a job is under way."""
        upgrade = self.newest(name)
        if upgrade is not None and upgrade.phase in ACTIVE:
            raise InvalidInput(
                f"an upgrade of the job '{name}' is under way: {upgrade.phase.value}",
                next_step=f"wait until it is done: millstream jobs upgrades {name}; or go back: "
                f"millstream jobs rollback {name}",
            )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
