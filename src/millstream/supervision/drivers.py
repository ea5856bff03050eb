"""The processes of jobs: one driver each, which outlives the supervisor.

A driver holds the lock of its job from the moment it exists: the supervisor takes the lock and hands it over to the new
process. So whether a job runs is whether its lock is held, and no job runs twice, however often a supervisor dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from millstream.errors import InvalidInput, JobChanged, MillstreamError, NotFound
from millstream.log.storage.disk import read_document, storage_errors, write_document
from millstream.plan.parameters import VARIABLE as PARAMETERS
from millstream.private_files import make_folders, open_alike
from millstream.supervision.log_lines import read_lines
from millstream.supervision.specification import JobSpecification, option_of

DRIVER = "millstream.cli.driver"
LOCK = "lock"
RUN = "run.json"
ENDED = "ended.json"
LOG = "log.txt"
CODE = "flow.py"
"""The file of the flow as it was when a run started."""
RELOAD, RELOADED = "reload.json", "reloaded.json"
"""A request for the flows that the file of an app has now, and the answer."""
CHECK_S_MAX, RELOAD_S_MAX, RELOAD_POLL_S = 60.0, 120.0, 0.1
TAIL_BYTES = 16384
ERROR = "error: "


@dataclass(frozen=True)
class Driver:
    """A process, identified by its number and its start time, since numbers are reused."""

    pid: int
    created: float

    def process(self) -> psutil.Process | None:
        try:
            found = psutil.Process(self.pid)
            return found if abs(found.create_time() - self.created) < 0.05 else None
        except psutil.NoSuchProcess:
            return None


class Drivers:
    def __init__(self, folder: Path, log_address: str) -> None:
        self.folder = folder
        self._log_address = log_address
        self._children: list[subprocess.Popen[bytes]] = []

    def check(self, specification: dict[str, Any], *, is_new: bool = False) -> str:
        """Loads a flow file in a process of its own; returns the name of the flow. Its Spark master has to answer."""
        master = option_of(specification.get("options", ()), "--master")
        return str(self.ask("--check", specification, master or "", "new" if is_new else "")["flow"])

    def ask(
        self, what: str, specification: Mapping[str, Any], *more: str, timeout_s: float = CHECK_S_MAX
    ) -> dict[str, Any]:
        """Asks something about a flow file, in a process of its own, since the file is the user's code."""
        command = [sys.executable, "-m", DRIVER, what, self._log_address, str(specification["file"])]
        command += [str(specification.get("flow") or ""), *more]
        environment = {**os.environ, PARAMETERS: json.dumps(specification.get("params", {}))}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=timeout_s,
                cwd=specification.get("folder"),
                env=environment,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InvalidInput(
                f"'{specification['file']}' is not loaded after {timeout_s:.0f} seconds",
                next_step="the file only has to build its flow: move long work into its steps",
            ) from None
        except OSError as error:
            raise InvalidInput(
                f"'{specification['file']}' cannot be loaded in '{specification.get('folder')}': {error.strerror}",
                next_step="submit it from a folder that exists",
            ) from error
        try:
            document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            if "error" in document:
                raise _error(document["error"])
            return document
        except (ValueError, IndexError, KeyError) as error:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise InvalidInput(
                f"'{specification['file']}' cannot be loaded: {lines[-1] if lines else 'its process ended'}",
                next_step="run it by itself: python FILE",
            ) from error

    def compare(
        self, specification: JobSpecification, folder: Path, mapping: Mapping[str, str], *, timeout_s: float
    ) -> dict[str, Any]:
        """What becomes of the state of a job under another flow: see jobs/versions/upgrading.py."""
        given = specification.document()
        return self.ask("--compare", given, str(folder), json.dumps(dict(mapping)), timeout_s=timeout_s)

    def start(self, specification: JobSpecification, number: int) -> bool:
        """Starts a run. False if the job is already running."""
        job = self._job(specification.name)
        run = job / "runs" / str(number)
        with storage_errors(run):
            make_folders(run)
            lock = open_alike(job / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._start(specification, run, lock)
        finally:
            os.close(lock)  # the driver has it now
        return True

    def _start(self, specification: JobSpecification, run: Path, lock: int) -> None:
        command = [sys.executable, "-m", DRIVER, str(run), str(lock)]
        command += ["--log", self._log_address, "run", specification.file, "--progress", "lines"]
        command += ["--flow", specification.flow] if specification.flow else []
        command += specification.options
        with storage_errors(run):
            log = open_alike(run / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with suppress(FileNotFoundError):  # the run itself reports it
                shutil.copyfile(specification.file, run / CODE)
        try:
            with storage_errors(Path(specification.folder)):
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=specification.folder,
                    env={**os.environ, PARAMETERS: json.dumps(specification.params)},
                    pass_fds=(lock,),
                    start_new_session=True,  # what ends the supervisor does not end its jobs
                )
        finally:
            os.close(log)
        self._children.append(child)
        with suppress(psutil.NoSuchProcess):
            note_process(run, child.pid)

    def code_of(self, name: str, number: int) -> Path:
        """The file of the flow as a run found it."""
        return self._run(name, number) / CODE

    def note_code(self, name: str, number: int, file: Path) -> None:
        """The run goes on with the file as it is now."""
        code = self.code_of(name, number)
        with storage_errors(code):
            draft = code.with_suffix(".new")
            shutil.copyfile(file, draft)
            draft.replace(code)

    def reload(self, name: str, number: int) -> dict[str, Any]:
        """Lets a running app take the flows that its file has now. Returns when it runs with them."""
        run, asked = self._run(name, number), uuid.uuid4().hex
        write_document(run / RELOAD, {"id": asked})
        deadline = time.monotonic() + RELOAD_S_MAX
        while time.monotonic() < deadline and self.is_running(name):
            answer = _document(run / RELOADED)
            if answer.get("id") == asked:
                if "error" in answer:
                    raise _error(answer["error"])
                return {part: answer[part] for part in ("added", "removed", "changed")}
            time.sleep(RELOAD_POLL_S)
        state = "does not answer yet" if self.is_running(name) else "has ended"
        raise InvalidInput(
            f"the job '{name}' {state}, so its flows are as they were",
            next_step=f"see millstream jobs show {name}; a restart also takes the flows of its file",
        )

    def is_running(self, name: str) -> bool:
        self._children = [child for child in self._children if child.poll() is None]
        try:
            lock = os.open(self._job(name) / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(lock)

    def driver(self, name: str, number: int) -> Driver | None:
        try:
            noted = read_document(self._run(name, number) / RUN)
            return Driver(int(noted["pid"]), float(noted["created"]))
        except (MillstreamError, OSError, ValueError, KeyError, TypeError):
            return None

    def stop(self, name: str, number: int, *, kill: bool) -> None:
        """Asks the driver to stop after its batch, or kills it with all its processes."""
        driver = self.driver(name, number)
        process = None if driver is None else driver.process()
        if process is None:
            return
        with suppress(psutil.NoSuchProcess):
            if not kill:
                process.send_signal(signal.SIGTERM)
                return
            below = process.children(recursive=True)
            process.kill()
            for each in below:
                with suppress(psutil.NoSuchProcess):
                    each.kill()

    def code(self, name: str, number: int) -> int | None:
        """The exit code of a run that has ended; None if it was killed."""
        try:
            return int(read_document(self._run(name, number) / ENDED)["code"])
        except (MillstreamError, OSError, ValueError, KeyError, TypeError):
            return None

    def error(self, name: str, number: int) -> str | None:
        """The last error that a run reported."""
        with suppress(OSError), (self._run(name, number) / LOG).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES))
            lines = log.read(TAIL_BYTES).decode(errors="replace").splitlines()
            found = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
            return found[-1] if found else None
        return None

    def processes(self, name: str, number: int) -> list[dict[str, Any]]:
        """The processes of a job: what each is, since when, and what it uses."""
        driver = self.driver(name, number)
        process = None if driver is None else driver.process()
        if process is None:
            return []
        made = []
        with suppress(psutil.NoSuchProcess):
            for each in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess), each.oneshot():
                    times, memory = each.cpu_times(), each.memory_info()
                    made.append(
                        {
                            "pid": each.pid,
                            "kind": _kind(each, process),
                            "host": platform.node(),
                            "since": each.create_time(),
                            "cpu_s": round(times.user + times.system, 2),
                            "memory_bytes": memory.rss,
                        }
                    )
        return made

    def read_log(self, name: str, number: int, offset: int, at_most: int) -> tuple[bytes, int]:
        """Part of a run's log, and where to read on. A negative offset counts from the end."""
        try:
            with (self._run(name, number) / LOG).open("rb") as log:
                size = os.fstat(log.fileno()).st_size
                start = max(0, size + offset) if offset < 0 else min(offset, size)
                log.seek(start)
                found = log.read(at_most)
                return found, start + len(found)
        except FileNotFoundError:
            return b"", 0

    def read_log_lines(
        self, name: str, number: int, offset: int, at_most: int, *, is_complete: bool
    ) -> tuple[bytes, int]:
        """Whole lines of a run's log, and where the next one starts. A negative offset counts from the end."""
        try:
            with (self._run(name, number) / LOG).open("rb") as log:
                return read_lines(log, offset, at_most, is_complete=is_complete)
        except FileNotFoundError:
            return b"", 0

    def forget_runs(self, name: str, up_to: int) -> None:
        """Removes the logs of old runs."""
        runs = self._job(name) / "runs"
        for entry in list(runs.iterdir()) if runs.is_dir() else []:
            if entry.name.isdigit() and int(entry.name) <= up_to:
                shutil.rmtree(entry, ignore_errors=True)

    def forget(self, name: str) -> None:
        shutil.rmtree(self._job(name), ignore_errors=True)

    def _job(self, name: str) -> Path:
        return self.folder / name

    def _run(self, name: str, number: int) -> Path:
        return self._job(name) / "runs" / str(number)


def note_process(run: Path, pid: int) -> None:
    """Records the process of a run. The supervisor and the process both do, since either may be killed."""
    write_document(run / RUN, {"pid": pid, "created": psutil.Process(pid).create_time(), "at": time.time()})


def note_end(run: Path, code: int) -> None:
    write_document(run / ENDED, {"code": code, "at": time.time()})


def _document(path: Path) -> dict[str, Any]:
    """The content of a file; empty if there is none."""
    try:
        found = read_document(path)
    except (MillstreamError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _kind(process: psutil.Process, driver: psutil.Process) -> str:
    if process.pid == driver.pid:
        return "driver"
    return "jvm" if process.name() == "java" else "worker"


def _error(document: dict[str, Any]) -> MillstreamError:
    kind = {each.__name__: each for each in (NotFound, JobChanged, InvalidInput)}.get(document["kind"], InvalidInput)
    return kind(str(document["what"]), where=document.get("where"), next_step=document.get("next"))
