"""The time planes that somebody looks at: a process for each, which ends when nobody asks for it any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from starlette.requests import Request

from millstream.errors import InvalidInput
from millstream.plan.parameters import VARIABLE as PARAMETERS
from millstream.supervision.http import MoreRoute, number_of
from millstream.supervision.masking import Masking
from millstream.supervision.specification import JobSpecification
from millstream.supervision.supervisor import Supervisor
from millstream.web_console.plane_labels import labelled

PROCESS = "millstream.cli.plane"
BATCHES_KEPT = 400
BATCHES_SENT_MAX = 100
"""In one answer."""
UNWATCHED_S_MAX = 20.0
GUARD_S = 1.0
ERROR_S = 2.0
PLANES_MAX = 4
"""At the same time; each is a process."""


class Watch:
    """One plane: the process that repeats the batches, and the newest of them."""

    def __init__(self, command: list[str], specification: JobSpecification, masking: Masking) -> None:
        self._masking = masking
        self.asked_at = time.monotonic()
        self.ended_at: float | None = None
        self._lock = threading.Lock()
        self._heading: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._batches: deque[tuple[int, dict[str, Any]]] = deque(maxlen=BATCHES_KEPT)
        self._count = 0
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=specification.folder if Path(specification.folder).is_dir() else None,
            env={**os.environ, PARAMETERS: json.dumps(specification.params)},
        )
        for does in (self._read, self._guard):
            threading.Thread(target=does, name="millstream-plane", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            document = json.loads(line)
            with self._lock:
                if "heading" in document:
                    self._heading = document["heading"]
                elif "error" in document:
                    self._error = document["error"]
                else:
                    self._count += 1
                    self._batches.append((self._count, labelled(document, self._heading or {}, self._masking)))
        self._process.wait()
        self.ended_at = time.monotonic()

    def _guard(self) -> None:
        """Ends the process once no page asks for its batches."""
        while not self.has_ended:
            if time.monotonic() - self.asked_at > UNWATCHED_S_MAX:
                self._process.kill()
            time.sleep(GUARD_S)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def answer(self, after: int) -> dict[str, Any]:
        """The batches after a number of them, which `next` is to be asked with."""
        self.asked_at = time.monotonic()
        with self._lock:
            if self._error is not None:
                error = self._error
                raise InvalidInput(str(error["what"]), where=error["where"], next_step=error["next"])
            if self.has_ended:
                raise InvalidInput("the replay of the job's batches has ended", next_step="open the page again")
            after = after if after <= self._count else 0  # of a process before this one
            found: Iterator[tuple[int, dict[str, Any]]] = (each for each in self._batches if each[0] > after)
            sent = list(islice(found, BATCHES_SENT_MAX))
            after = sent[-1][0] if sent else after
            return {"heading": self._heading, "batches": [batch for _, batch in sent], "next": after}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Planes:
    def __init__(self, supervisor: Supervisor, log_address: str) -> None:
        self._supervisor, self._log_address = supervisor, log_address
        self._lock = threading.Lock()
        self._watched: dict[tuple[str, str], Watch] = {}

    def route(self) -> MoreRoute:
        does = "its windowed step in event time and processing time, batch by batch, after some of them"
        path = "GET /v1/jobs/NAME/plane?step=NAME&offset=N"
        return MoreRoute("/jobs/{name}/plane", {path: does}, self._answer)

    def close(self) -> None:
        with self._lock:
            for watch in self._watched.values():
                watch.close()
            self._watched.clear()

    def _answer(self, request: Request, body: dict[str, Any]) -> Any:
        name, step = request.path_params["name"], request.query_params.get("step", "")
        if "\0" in step:
            raise InvalidInput("there is no such step", next_step="choose one of the plan")
        return self._watch(name, step).answer(number_of(request, "offset") or 0)

    def _watch(self, name: str, step: str) -> Watch:
        job = self._supervisor.store.job(name)
        with self._lock:
            self._forget_ended()
            found = self._watched.get((name, step))
            if found is None:
                if len(self._watched) >= PLANES_MAX:
                    raise InvalidInput(
                        f"{PLANES_MAX} time planes are open already", next_step="close one of them; it ends soon after"
                    )
                specification = job.specification
                arguments = [self._log_address, name, str(self._supervisor.folder_of(job)), specification.file]
                command = [sys.executable, "-m", PROCESS, *arguments, specification.flow or "", step]
                found = self._watched[name, step] = Watch(command, specification, self._supervisor.masking)
            return found

    def _forget_ended(self) -> None:
        """One that has ended reports its error for a moment. Then it is tried again, since a job may have started."""
        for place, watch in list(self._watched.items()):
            if watch.ended_at is not None and time.monotonic() - watch.ended_at > ERROR_S:
                del self._watched[place]
