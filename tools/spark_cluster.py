"""A Spark standalone cluster on this machine, from the pip package alone, gone when its starter is. `make cluster`.

usage: spark_cluster.py [--workers N] [--cores N] [--memory 1g] [--folder FOLDER]

A master and its workers are processes of their own. Every worker has folders of its own for what it is sent and for
temporary files, so that nothing but what is meant to be shared is. They take work only from drivers that know their
secret, which is in the folder that SPARK_CONF_DIR names: other users of the machine reach the loopback interface, too.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from foreground import run
from millstream.errors import MillstreamError
from millstream.private_files import open_private, private_folder
from millstream.spark.session import java, launch

HOST = "127.0.0.1"
WATCH = Path(__file__).resolve().parent / "kafka" / "watch.py"
# Below the ports that outgoing connections get: a client that retries the port of a killed worker must not take it.
PORTS = range(20_000, 32_000)
MARK = "MILLSTREAM_CLUSTER_NODE"
"""Stands in the environment of a worker and of all that it starts: executors, and their Python processes."""
START_S_MAX = 600  # on a busy machine; what dies meanwhile is noticed at once
STOP_S_MAX = 60
LOOK_S = 0.05
LOG_LINES = 30
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
# A dead worker is noticed by its broken connection; these are for one that hangs.
DAEMON_OPTIONS = ("-Dspark.worker.timeout=60", "-Dspark.worker.cleanup.enabled=false", "-Dspark.ui.enabled=false")
DEFAULTS = """\
spark.authenticate true
spark.authenticate.secret {secret}
spark.network.crypto.enabled true
spark.network.crypto.saslFallback false
"""
# The web pages of the master and of workers cannot be switched off: nobody has this key to them.
PAGES = """\
spark.ui.filters org.apache.spark.ui.JWSFilter
spark.org.apache.spark.ui.JWSFilter.param.secretKey {key}
"""


class ClusterFailed(MillstreamError):
    """Spark's master or a worker did not start, or does not do what it was asked for."""


@dataclass
class Node:
    """The master or a worker, and the log it writes."""

    name: str
    folder: Path
    """Its own: gone with a worker that is killed."""
    log: Path
    environ: Mapping[str, str] = field(repr=False)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, command: list[str]) -> None:
        for name in ("work", "tmp", "local"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        own = {
            MARK: str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }
        watched = [sys.executable, "-I", "-S", str(WATCH), str(os.getpid()), *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                watched,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**self.environ, **own},
                start_new_session=True,
            )

    def kill(self) -> None:
        """As `kill -9` of it and of all that it has started, however often that starts something meanwhile."""
        if self.runs:
            assert self.process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        deadline = time.monotonic() + STOP_S_MAX
        while left := list(marked(str(self.folder))):
            if time.monotonic() > deadline:
                raise ClusterFailed(f"processes of {self.name} cannot be ended: {left}", where=str(self.log))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(LOOK_S)
        self.process = None

    def stop(self) -> None:
        if self.runs:
            assert self.process is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S_MAX)
        self.kill()

    def failed(self, what: str) -> ClusterFailed:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return ClusterFailed(
            "\n".join([f"{what}; the last lines of its log:", *lines[-LOG_LINES:]]), where=str(self.log)
        )


class SparkCluster:
    """A master and workers on free ports of the loopback interface, each worker with `cores` and `memory` to give.

    `python` is what workers run Python with: default: this one. `environ` goes on top of the environment of all.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        folder: str | Path | None = None,
        *,
        python: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        if workers < 1 or cores < 1:
            raise ClusterFailed(f"a cluster of {workers} workers with {cores} cores each has nothing to work with")
        self.folder = Path(folder or f"{tempfile.gettempdir()}/millstream-cluster-{uuid.uuid4().hex}").resolve()
        self._temporary = folder is None
        self._cores, self._memory, self._count = cores, memory, workers
        self._python = str(python or sys.executable)
        self._environ = dict(environ or {})
        self._command: list[str] = []
        self._master: Node | None = None
        self._workers: dict[int, Node] = {}
        self._port = 0

    # ------------------------------------------------------------ where it is

    @property
    def master(self) -> str:
        """The address for `--master`."""
        return f"spark://{HOST}:{self._port}"

    @property
    def environ(self) -> dict[str, str]:
        """What a driver must have in its environment, so that the cluster takes work from it."""
        return {"SPARK_CONF_DIR": str(self.folder / "conf")}

    def folder_of(self, number: int) -> Path:
        """What a worker has for itself: `tmp` for temporary files, `work` for what it is sent, `local` for shuffles."""
        return self._worker(number).folder

    def processes_of(self, number: int) -> list[int]:
        """The worker, its executors and their Python processes."""
        return list(marked(str(self._worker(number).folder)))

    # ------------------------------------------------------------ starting and stopping

    def start(self) -> Self:
        """Returns when the master knows every worker; if that fails, nothing is left running."""
        if self._master is not None:
            return self
        runtime = java.find()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write_settings()
        atexit.register(self._kill_at_exit, os.getpid())
        environ = self._environment(runtime)
        opened = launch.MODULE_OPTIONS
        self._command = [str(runtime.command), *JVM, *DAEMON_OPTIONS, *opened, "-cp", launch.class_path()]
        self._port = free_port()
        try:
            self._master = Node("the master", self.folder / "master", self.folder / "master.log", environ)
            at = ["--host", HOST, "--port", str(self._port), "--webui-port", "0", *self._settings_option]
            self._master.start([*self._command, MASTER, *at])
            self._until(self._answers, self._master, "the master of Spark did not start")
            for number in range(1, self._count + 1):
                name = f"worker-{number}"
                self._workers[number] = Node(name, self.folder / name, self.folder / f"{name}.log", environ)
                self._begin(number)
            for number in self._workers:
                self._until_registered(number)
        except BaseException:
            self._temporary = False  # the logs say why
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Workers first; in a temporary folder nothing stays."""
        nodes = [*self._workers.values(), *([self._master] if self._master else [])]
        for node in nodes:
            node.kill() if self._temporary else node.stop()
        self._master, self._workers = None, {}
        atexit.unregister(self._kill_at_exit)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill_worker(self, number: int) -> None:
        """As if its machine were lost: the worker, its executors, their Python processes, and its own files."""
        node = self._worker(number)
        node.kill()
        shutil.rmtree(node.folder)

    def restart_worker(self, number: int) -> None:
        """Starts a worker that was killed, with nothing but what a new machine has."""
        node = self._worker(number)
        node.stop()
        self._begin(number)
        self._until_registered(number)

    def ended(self) -> ClusterFailed | None:
        """What to say about a process that ended without being asked to, if there is one."""
        for node in [*([self._master] if self._master else []), *self._workers.values()]:
            if node.process is not None and not node.runs:
                return node.failed(f"{node.name} ended")
        return None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------ within

    def _environment(self, runtime: java.Java) -> dict[str, str]:
        """Nothing of what this process says about Spark or Python, as on another machine."""
        dropped = ("SPARK_", "PYSPARK_", "MILLSTREAM_", "VIRTUAL_ENV", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {
            **kept,
            "SPARK_HOME": str(launch.spark_home()),
            "JAVA_HOME": str(java.launcher_home(runtime)),
            "PYSPARK_PYTHON": self._python,
            "SPARK_SCALA_VERSION": _scala_version(),  # which Spark's shell scripts would find out
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_HOSTNAME": HOST,
            **self._environ,
        }

    def _write_settings(self) -> None:
        """In files that only this user can read: arguments are for everybody."""
        defaults = DEFAULTS.format(secret=secrets.token_hex(32))
        pages = PAGES.format(key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())
        conf = private_folder(self.folder / "conf")
        for name, content in (("spark-defaults.conf", defaults), ("daemons.conf", defaults + pages)):
            with os.fdopen(open_private(conf / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                file.write(content)

    @property
    def _settings_option(self) -> list[str]:
        return ["--properties-file", str(self.folder / "conf" / "daemons.conf")]

    def _begin(self, number: int) -> None:
        node = self._worker(number)
        node.log.unlink(missing_ok=True)  # what it says there tells whether it has started
        has = ["--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(node.folder / "work")]
        at = ["--host", HOST, "--port", str(free_port()), "--webui-port", "0", *self._settings_option]
        node.start([*self._command, f"-Djava.io.tmpdir={node.folder / 'tmp'}", WORKER, *has, *at, self.master])

    def _worker(self, number: int) -> Node:
        if number not in self._workers:
            known = list(self._workers) or "none, the cluster is not started"
            raise ClusterFailed(f"no worker {number}: there are {known}")
        return self._workers[number]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), timeout=1):
            return True
        return False

    def _until_registered(self, number: int) -> None:
        node = self._worker(number)
        said = "Successfully registered with master"
        self._until(lambda: said in node.log.read_text(errors="replace"), node, f"{node.name} did not start")

    def _until(self, holds: Callable[[], bool], node: Node, complaint: str) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not holds():
            if not node.runs:
                raise node.failed(complaint)
            if time.monotonic() > deadline:
                raise node.failed(f"{complaint} within {START_S_MAX} s")
            time.sleep(LOOK_S)

    def _kill_at_exit(self, starter: int) -> None:
        if os.getpid() == starter:  # a fork of the starter that ends leaves them alone
            self.stop()


def _scala_version() -> str:
    (core,) = (launch.spark_home() / "jars").glob("spark-core_*.jar")
    return core.name.removeprefix("spark-core_").partition("-")[0]


def free_port() -> int:
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as asked, contextlib.suppress(OSError):
            asked.bind((HOST, port))
            return port
    raise ClusterFailed(f"none of the ports {PORTS.start} to {PORTS.stop - 1} is free")


def marked(folder: str) -> Iterator[int]:
    """The processes that were started, by whomever, for the node with this folder."""
    wanted = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile, or is someone else's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


# ---------------------------------------------------------------- make cluster


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a Spark standalone cluster on this machine until Ctrl-C.")
    parser.add_argument("--workers", type=int, default=2, help="how many workers (2)")
    parser.add_argument("--cores", type=int, default=1, help="how many cores each has to give (1)")
    parser.add_argument("--memory", default="1g", help="how much memory each has to give (1g)")
    parser.add_argument("--folder", type=Path, help="where they keep what they write (a temporary one)")
    said = parser.parse_args()
    return run(
        lambda: SparkCluster(said.workers, said.cores, said.memory, said.folder),
        "Starting a master and its workers",
        lambda cluster: (
            f"MILLSTREAM_MASTER={cluster.master} SPARK_CONF_DIR={cluster.environ['SPARK_CONF_DIR']}",
            f"Logs: {cluster.folder}. Ctrl-C stops it.",
        ),
        "The cluster has stopped",
    )


if __name__ == "__main__":
    sys.exit(main())
