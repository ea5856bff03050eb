"""Commands as a user runs them: in a process of their own, or, where only the text matters, in this one."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.cli.app import app
from millstream.log import EmbeddedLog

COMMAND = [sys.executable, "-m", "millstream.cli"]
SCHEMA = "user string, team string, score int"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    monkeypatch.setenv("MILLSTREAM_BROKER", str(path))
    monkeypatch.setenv("NO_COLOR", "")
    return path


@pytest.fixture
def log(folder: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(folder) as opened:
        yield opened


Run = Callable[..., Done]


@pytest.fixture
def ms(folder: Path) -> Run:
    """Runs a command in this process."""

    def run(*arguments: object, stdin: str | bytes = b"") -> Done:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    return run


def start(*arguments: object, **settings: Any) -> subprocess.Popen[bytes]:
    """Starts a command in a process of its own, with all three streams as pipes unless said otherwise."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **{**pipes, "preexec_fn": hear_ctrl_c, **settings})


def hear_ctrl_c() -> None:
    """A shell starts what runs in its background deaf to Ctrl-C; the tests may be running there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def process(folder: Path) -> Run:
    """Runs a command in a process of its own, to its end."""

    def run(*arguments: object, stdin: bytes = b"") -> Done:
        with start(*arguments) as running:
            out, err = running.communicate(stdin, timeout=60)
        return Done(running.returncode, out.decode(), err.decode())

    return run


def on_terminal(*arguments: object, answer: bytes = b"") -> tuple[int, str]:
    """Runs a command with a terminal for all its streams; its exit code and what the terminal showed."""
    main, side = pty.openpty()
    with start(*arguments, stdin=side, stdout=side, stderr=side) as running:
        os.close(side)
        if answer:
            os.write(main, answer)
        shown = b""
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:  # on Linux, the end
                break
            if not piece:
                break
            shown += piece
        os.close(main)
    return running.returncode, shown.decode()
