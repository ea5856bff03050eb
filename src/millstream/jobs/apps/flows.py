"""The flows of a running app: which run, which have failed and when they start again. Other processes read it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from millstream.log.storage.disk import write_document

FILE = "flows.json"
BACK_OFF_S, BACK_OFF_S_MAX = 1.0, 60.0
RESTARTS_MAX = 5
HEALTHY_S = 600.0
"""A flow that ran this long ends a row of failures."""


class FlowState(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    """It failed, and starts again soon."""
    FAILED = "failed"
    """It failed more often in a row than it is started again."""
    STOPPED = "stopped"
    """The app has ended."""


@dataclass(frozen=True)
class AppFlow:
    """A flow of an app, as far as it runs."""

    name: str
    state: FlowState
    since: float
    """When it got into this state, in seconds since 1970."""
    failures: int = 0
    """In a row."""
    reason: str | None = None
    """The last failure."""
    next_start: float | None = None

    def failed(self, reason: str, now: float) -> AppFlow:
        is_healthy = self.state is FlowState.RUNNING and now - self.since >= HEALTHY_S
        failures = 1 if is_healthy else self.failures + 1
        if failures > RESTARTS_MAX:
            return AppFlow(self.name, FlowState.FAILED, now, failures, reason)
        pause_s = min(BACK_OFF_S * 2 ** (failures - 1), BACK_OFF_S_MAX)
        return AppFlow(self.name, FlowState.WAITING, now, failures, reason, now + pause_s)

    def started(self, now: float) -> AppFlow:
        return replace(self, state=FlowState.RUNNING, since=now, next_start=None)

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value}


class AppFlows:
    """The flows by name, kept in the folder of the app's job."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        now = time.time()
        self._flows = {name: AppFlow(name, FlowState.RUNNING, now) for name in names}
        self._write()

    def __getitem__(self, name: str) -> AppFlow:
        return self._flows[name]

    def all(self) -> list[AppFlow]:
        return list(self._flows.values())

    def of_state(self, state: FlowState) -> list[str]:
        return [name for name, each in self._flows.items() if each.state is state]

    def due(self) -> list[str]:
        """Flows that have failed and may start again."""
        now = time.time()
        return [name for name, each in self._flows.items() if each.next_start is not None and each.next_start <= now]

    def note_failure(self, name: str, reason: str) -> AppFlow:
        self._put({name: self._flows[name].failed(reason, time.time())})
        return self._flows[name]

    def note_started(self, names: Iterable[str]) -> None:
        now = time.time()
        self._put(
            {
                name: self._flows.get(name, AppFlow(name, FlowState.RUNNING, now)).started(now)
                for name in names
                if name not in self._flows or self._flows[name].state is not FlowState.RUNNING
            }
        )

    def note_stopped(self) -> None:
        """The app has ended, and with it the flows that ran."""
        now, running = time.time(), self.of_state(FlowState.RUNNING)
        self._put({name: replace(self._flows[name], state=FlowState.STOPPED, since=now) for name in running})

    def keep(self, names: Iterable[str]) -> None:
        """Forgets the flows that were removed."""
        kept = set(names)
        self._flows = {name: each for name, each in self._flows.items() if name in kept}
        self._write()

    def _put(self, flows: Mapping[str, AppFlow]) -> None:
        self._flows |= flows
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # no flow stops because its state cannot be shown
            write_document(self._folder / FILE, {"flows": [each.document() for each in self._flows.values()]})


def read_flows(folder: Path) -> list[dict[str, Any]]:
    """The flows of an app as it last wrote them; empty if the job is no app."""
    try:
        found = json.loads((folder / FILE).read_text())["flows"]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
