"""Starts Spark's JVM for a local master without its shell scripts, and says in plain words why one did not start."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millstream.errors import SparkFailed
from millstream.spark.session.java import Java

START_SECONDS_MAX = 120
# Spark reaches into these packages of the JDK; its own launcher opens them in the same words.
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

# What Java says around the reason, never the reason itself.
EMPTY_WORDS = ("Error occurred during initialization", "Error: Could not create", "Error: A fatal exception")


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def start(java: Java, options: Sequence[str], log: Path) -> Any:
    """A JVM with Spark's gateway for Python in it, and the connection to it. Its complaints go to `log`."""
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        answer = Path(folder, "gateway")
        command = [
            str(java.command),
            "-XX:+DisplayVMOutputToStderr",  # a Java that cannot start says so on its output otherwise
            "-cp",
            class_path(),
            *MODULE_OPTIONS,
            *options,
            "org.apache.spark.api.python.PythonGatewayServer",
        ]
        environ = dict(os.environ, _PYSPARK_DRIVER_CONN_INFO_PATH=str(answer), SPARK_CONNECT_MODE="0")
        # Told its home, Spark has workers load pyspark from a zip without bytecode: 2 s of CPU to a first output.
        environ.pop("SPARK_HOME", None)
        environ.pop("SPARK_LOCAL_DIRS", None)  # they are in the settings, as private folders
        environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # else it looks for a network to be reached by
        with log.open("ab") as complaints:
            # The JVM ends when its standard input does: with this process, however that ends. Ctrl-C is not for it: in
            # a session of its own it does not hear it.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=complaints, env=environ, start_new_session=True
            )
        try:
            port, secret = _answered(process, answer, log)
        except BaseException:  # an interrupt, too: nobody else knows of it
            process.kill()
            raise
    return _connected(process, port, secret)


def class_path() -> str:
    return os.pathsep.join(sorted(str(jar) for jar in (spark_home() / "jars").glob("*.jar")))


def _answered(process: subprocess.Popen[bytes], answer: Path, log: Path) -> tuple[int, str]:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not answer.exists():
        if process.poll() is not None:
            raise failed_to_start(log, f"it ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            process.kill()
            raise failed_to_start(log, f"no answer within {START_SECONDS_MAX} seconds")
        time.sleep(0.01)
    content = answer.read_bytes()  # moved into place when complete
    port, length = struct.unpack_from(">ii", content)
    return port, content[8 : 8 + length].decode()


def _connected(process: subprocess.Popen[bytes], port: int, secret: str) -> Any:
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
    said = [line.strip() for line in lines if line.strip() and not line.startswith(EMPTY_WORDS)]
    complaint = next((line for line in said if "rror" in line or "xception" in line), said[-1] if said else "nothing")
    memory = "heap" in complaint or "reserve" in complaint or "memory" in complaint
    return SparkFailed(
        f"Java did not start: {reason}; it said: {complaint}",
        where=str(log),
        next_step="ask for memory that is there: spark.driver.memory, as in 1g" if memory else f"read {log}",
    )
