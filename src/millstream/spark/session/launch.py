"""Starts Spark's JVM, for a local master without its shell scripts, and explains why one did not start.

PySpark's own way runs Python code in a forked copy of this process. A native library with threads may crash there.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.errors import SparkFailed
from millstream.spark.session.java import Java

START_SECONDS_MAX = 120
Process = subprocess.Popen[bytes]
# Spark accesses these packages of the JDK; its own launcher opens them with the same options.
OPENED = [
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
]
MODULE_OPTIONS = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
]

# Lines of Java around the reason, never the reason itself.
PREAMBLES = ("Error occurred during initialization", "Error: Could not create", "Error: A fatal exception")


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def start(java: Java, options: Sequence[str], log: Path, jars: Sequence[Path] = ()) -> Any:
    """Starts a JVM with Spark's gateway for Python, and returns the connection to it. Its stderr goes to `log`.

    `jars` are the user's. They come last, because an archive of classes fits only if its own jars come first.
    """
    command = [
        str(java.command),
        "-XX:+DisplayVMOutputToStderr",  # otherwise a Java that cannot start reports it on stdout
        "-cp",
        os.pathsep.join([class_path(), *map(str, jars)]),
        *MODULE_OPTIONS,
        *options,
        "org.apache.spark.api.python.PythonGatewayServer",
    ]
    environ = dict(os.environ)
    # With it, Spark has workers load pyspark from a zip without bytecode: 2 s of CPU to a first output.
    environ.pop("SPARK_HOME", None)
    environ.pop("SPARK_LOCAL_DIRS", None)  # set in the settings, as private folders
    environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # otherwise it looks for a network address
    return connected(command, environ, log, seconds_max=START_SECONDS_MAX)


def connected(
    command: Sequence[str],
    environ: Mapping[str, str],
    log: Path,
    *,
    cwd: Path | None = None,
    seconds_max: float = math.inf,
) -> Any:
    """Runs a command that becomes a JVM with Spark's gateway, and returns the connection to it."""
    folder = tempfile.mkdtemp(prefix="millstream-")
    answer = Path(folder, "gateway")
    environ = {**environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer), "SPARK_CONNECT_MODE": "0"}
    try:
        process = _STARTING.start(command, environ, folder, log, cwd)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        port, secret = _gateway_of(process, answer, log, seconds_max)
    except BaseException:  # an interrupt, too: nothing else would end it
        process.kill()
        raise
    finally:
        _STARTING.discard(process)
    return _connected(process, port, secret)


class StartingJvms:
    """JVMs that are not serving yet. They are killed when this process exits, even while another thread starts one.

    A serving JVM exits when its stdin closes, and so with this process. One that is still starting would first write
    its answer, and would never exit if the folder for the answer is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: dict[Process, str] = {}
        self._is_over = False
        atexit.register(self._kill)

    def start(
        self, command: Sequence[str], environ: Mapping[str, str], folder: str, log: Path, cwd: Path | None
    ) -> Process:
        with self._lock, log.open("ab") as stderr:
            if self._is_over:
                raise failed_to_start(log, "this process is exiting")
            # In its own session it does not get Ctrl-C, which is for this process.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=stderr, env=environ, cwd=cwd, start_new_session=True
            )
            self._folders[process] = folder
            return process

    def discard(self, process: Process) -> None:
        """Called when a JVM serves or has ended."""
        with self._lock:
            shutil.rmtree(self._folders.pop(process), ignore_errors=True)

    def _kill(self) -> None:
        with self._lock:
            self._is_over = True
            for process, folder in self._folders.items():
                process.kill()
                shutil.rmtree(folder, ignore_errors=True)


_STARTING = StartingJvms()


def class_path() -> str:
    return os.pathsep.join(sorted(str(jar) for jar in (spark_home() / "jars").glob("*.jar")))


def _gateway_of(process: Process, answer: Path, log: Path, seconds_max: float) -> tuple[int, str]:
    deadline = time.monotonic() + seconds_max
    while not answer.exists():
        if process.poll() is not None:
            raise failed_to_start(log, f"it ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            process.kill()
            raise failed_to_start(log, f"no answer within {seconds_max:.0f} seconds")
        time.sleep(0.01)
    content = answer.read_bytes()  # moved into place when complete
    port, length = struct.unpack_from(">ii", content)
    return port, content[8 : 8 + length].decode()


def _connected(process: Process, port: int, secret: str) -> Any:
    from pyspark.java_gateway import launch_gateway

    given = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(given)
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in given:
            os.environ.pop(name)
    gateway.proc = process
    return gateway


def failed_to_start(log: Path, reason: str) -> SparkFailed:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    messages = [line.strip() for line in lines if line.strip() and not line.startswith(PREAMBLES)]
    reported = next(
        (line for line in messages if "rror" in line or "xception" in line), messages[-1] if messages else "nothing"
    )
    memory = "heap" in reported or "reserve" in reported or "memory" in reported
    return SparkFailed(
        f"Java did not start: {reason}; its output: {reported}",
        where=str(log),
        next_step="use no more memory than there is: spark.driver.memory, as in 1g" if memory else f"read {log}",
    )
