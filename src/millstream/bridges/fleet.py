"""Many bridges from one file: each is a process of its own, started again when it fails.

So a bridge that hangs, or runs out of memory, holds up no other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.bridges.reports import GIVEN_UP, NAME_VARIABLE, RESTARTING, forget, mark
from millstream.errors import InvalidInput

POSITIONAL = ("topic", "topics", "patterns")
QUEUES = ("mqtt", "amqp", "amqp1", "stomp", "sqs", "kinesis", "nanomsg", "zeromq")
KINDS = ("http", "gateway", "flight", *QUEUES, "files", "tcp", "unix", "pipe", "syslog", "udp")
RETRY_SECONDS, RETRY_SECONDS_MAX = 1.0, 60.0
STEADY_SECONDS = 60.0
END_SECONDS = 20.0
USER_ERRORS = (2, 3)
"""Exit codes of a command that will fail again: a wrong option, a topic that does not exist."""


@dataclass(frozen=True)
class BridgeSettings:
    """One bridge of the file, as the arguments of `millstream listen`."""

    name: str
    arguments: Sequence[str]


def read_fleet(path: Path) -> list[BridgeSettings]:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", next_step="name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}", next_step="see docs/bridges.md for an example") from error
    bridges = document.pop("bridges", None)
    if document or not isinstance(bridges, dict) or not bridges:
        raise InvalidInput(f"{path} must have tables [bridges.NAME], and nothing else", next_step='listen = "http"')
    return [BridgeSettings(name, _arguments(name, settings, path)) for name, settings in bridges.items()]


def _arguments(name: str, settings: Any, path: Path) -> list[str]:
    where = f"{path}, [bridges.{name}]"
    if not isinstance(settings, dict) or settings.get("listen") not in KINDS:
        raise InvalidInput(f"listen must be one of {', '.join(KINDS)}", where=where, next_step='listen = "http"')
    given: Mapping[str, Any] = {key: value for key, value in settings.items() if key != "listen"}
    positional = [text for key in POSITIONAL if key in given for text in _texts(given[key], where)]
    options = []
    for key, value in given.items():
        if key in POSITIONAL or value is False:
            continue
        option = f"--{key.replace('_', '-')}"
        options += [option] if value is True else [part for text in _texts(value, where) for part in (option, text)]
    return [settings["listen"], *options, "--", *positional]


def _texts(value: Any, where: str) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float) for each in values):
        raise InvalidInput(f"{value!r} is not text, a number or a list of them", where=where)
    return [str(each) for each in values]


class Fleet:
    """Runs all bridges until it is stopped."""

    def __init__(
        self,
        bridges: Sequence[BridgeSettings],
        log: str | None,
        report: Callable[[str], None],
        *,
        reports: Path | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._bridges = bridges
        self._log = [] if log is None else ["--log", log]
        self._report = report
        self._reports = reports
        self._retry_seconds = retry_seconds
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.given_up: list[str] = []

    def run(self) -> None:
        """Returns when it was stopped, or when all bridges were given up."""
        keepers = [threading.Thread(target=self._keep, args=(bridge,)) for bridge in self._bridges]
        for keeper in keepers:
            keeper.start()
        for keeper in keepers:
            while keeper.is_alive():
                keeper.join(0.2)  # signals are handled in between

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            for process in self._processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)

    def _keep(self, bridge: BridgeSettings) -> None:
        pause = self._retry_seconds
        while not self._stopped.is_set():
            lasted = threading.Event()
            timer = threading.Timer(STEADY_SECONDS, lasted.set)
            timer.start()
            code = self._run_once(bridge)
            timer.cancel()
            if self._stopped.is_set():
                if self._reports is not None:
                    forget(self._reports, bridge.name)
                return
            if code in USER_ERRORS:
                self._mark(bridge, GIVEN_UP, "its settings are wrong: fix them and start again")
                self._report(f"[{bridge.name}] given up: fix its settings and start again")
                self.given_up.append(bridge.name)
                return
            pause = self._retry_seconds if lasted.is_set() else pause
            self._mark(bridge, RESTARTING, f"it ended with code {code}")
            self._report(f"[{bridge.name}] ended with code {code}; starting again in {pause:g} s")
            if self._stopped.wait(pause) and self._reports is not None:
                forget(self._reports, bridge.name)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    def _mark(self, bridge: BridgeSettings, state: str, reason: str) -> None:
        if self._reports is not None:
            mark(self._reports, bridge.name, bridge.arguments[0], state, reason)

    def _run_once(self, bridge: BridgeSettings) -> int:
        command = [sys.executable, "-m", "millstream.cli", "listen", *self._placed(bridge.arguments)]
        with self._lock:
            if self._stopped.is_set():
                return 0
            process = self._processes[bridge.name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, NAME_VARIABLE: bridge.name},
            )
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._report(f"[{bridge.name}] {line.rstrip()}")
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _placed(self, arguments: Sequence[str]) -> list[str]:
        kind, *rest = arguments
        return [kind, *self._log, *rest]
