"""A MariaDB server of the tests' own: on a free port of this machine, in a folder of its own, gone when they end.

Its programs come from Debian's `mariadb-server`; tests are skipped where the machine does not have it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pymysql

from debian_servers import MISSING, program

START_SECONDS, LOOK_SECONDS = 120.0, 0.05
USER = "millstream"
BINLOG = {
    "log-bin": "bin",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "server-id": "1",
}
SMALL = {
    "innodb-buffer-pool-size": "16M",
    "innodb-log-file-size": "8M",
    "innodb-flush-log-at-trx-commit": "0",
    "performance-schema": "OFF",
}


class MariadbServer:
    """Started when made; `stop` and `start` it to see what happens when it is away."""

    def __init__(self, **settings: str | None) -> None:
        """`settings` replace those that a capture needs; None leaves one out."""
        installer, server = program("mariadb-server", "mariadb-install-db"), program("mariadb-server")
        if installer is None or server is None:
            raise SkipTest(MISSING.format("mariadb-server"))
        self._scratch = Path(tempfile.mkdtemp(prefix="millstream-mariadb-"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        chosen = {**BINLOG, **SMALL, **given}
        data = self.data = self._scratch / "data"
        as_root = [] if os.geteuid() else ["--user=root"]
        made = ["--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run([installer, *made, *as_root], check=True, capture_output=True)
        self._command = [
            server,
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={self._scratch / 'socket'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            *as_root,
            *(f"--{name}={value}" for name, value in chosen.items() if value is not None),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        with self._as_root() as db, db.cursor() as cursor:
            cursor.execute(f"CREATE USER {USER}@'127.0.0.1'")
            cursor.execute(f"GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION")

    def _as_root(self) -> Any:
        return pymysql.connect(unix_socket=str(self._scratch / "socket"), user="root", autocommit=True)

    def address(self, database: str = "", user: str = USER) -> str:
        return f"mariadb://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        with (self._scratch / "log").open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(self._command, stdout=log, stderr=log)
        self._process = process
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._as_root().close()
                return
            except pymysql.OperationalError as error:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError(f"MariaDB did not start: {(self._scratch / 'log').read_text()}") from error
                time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """At once, as a machine that goes down does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)
            self._process = None

    def new_database(self) -> str:
        """The address of an empty one."""
        name = f"t{uuid.uuid4().hex}"
        with self._as_root() as db, db.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)
