"""Runs the script of an engine as a process of its own, hears its answers, and watches how much memory it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine import Task, arguments

LOOK_S = 0.25
END_S_MAX = 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Answer:
    query: str
    seconds: float | None = None
    events_per_s: float | None = None
    refused: str | None = None
    failed: str | None = None
    peak_bytes: int = 0


@dataclass(frozen=True)
class Engine:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, name: str, python: str | Path = sys.executable, **environment: str) -> Engine:
        script = Path(__file__).parent / f"on_{name}.py"
        return cls(name, (str(python), str(script)), environment)


def asked(engine: Engine, tasks: Sequence[Task], limit_s: float) -> Iterator[tuple[Task, Answer]]:
    """An answer for every query of some tasks, which one process does one after the other.

    It gets `limit_s` for each; who is over it is not waited for.
    """
    scratch = tasks[0].scratch
    scratch.mkdir(parents=True, exist_ok=True)
    complaints = scratch / f"{engine.name}.err"
    with complaints.open("ab") as errors:
        process = subprocess.Popen(
            [*engine.command, *arguments(tasks)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **engine.environment},
            start_new_session=True,
        )
    memory = Memory(process.pid)
    memory.start()
    waiting = [(task, name) for task in tasks for name in task.queries]
    over = threading.Event()

    def end() -> None:
        over.set()
        _kill(process)

    timer = threading.Timer(limit_s * len(waiting), end)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said = _read(line)
            if "begin" in said:
                memory.forget()
            elif "query" in said:
                task, _ = waiting.pop(next(place for place, (_, name) in enumerate(waiting) if name == said["query"]))
                yield task, replace(Answer(**said), peak_bytes=memory.peak_bytes)
            if not waiting:  # a JVM that does not come to its end would keep us here
                break
        else:
            process.wait(END_S_MAX)
    finally:
        timer.cancel()
        memory.stop()
        _kill(process)
    for task, name in waiting:
        why = f"took longer than {limit_s:g} s" if over.is_set() else f"ended with code {process.poll()}"
        yield task, Answer(name, failed=f"{why}: {_last_line(complaints)}", peak_bytes=memory.peak_bytes)


def _read(line: str) -> dict[str, Any]:
    """What an engine says; a library may say other things in between."""
    try:
        said = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends a process and what it started, also what has outlived it: all of it is in a session of its own."""
    for pid in {*tree(process.pid), *in_session(process.pid)} - {process.pid if process.poll() is not None else 0}:
        with suppress(OSError):  # a process that ended meanwhile is no error
            os.kill(pid, signal.SIGKILL)
    process.wait(END_S_MAX)


def _last_line(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


# ---------------------------------------------------------------- memory


class Memory(threading.Thread):
    """The most that a process and all its descendants had in memory at once, since `forget`.

    Pages that processes share count for each of them.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._done = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        while not self._done.wait(LOOK_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(resident_bytes, tree(self._pid))))

    def forget(self) -> None:
        self.peak_bytes = 0

    def stop(self) -> None:
        self._done.set()


def in_session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                    found.append(int(entry.name))
    return found


def tree(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                status = Path(entry.path, "stat").read_text()
                parent = int(status.rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def resident_bytes(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    return 0
