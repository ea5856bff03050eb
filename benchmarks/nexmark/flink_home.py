"""Flink in an environment of its own, `.flink/` of the project: made on first use from PyPI and Maven."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from children import Engine
from rich.console import Console

from millstream.errors import MillstreamError
from millstream.spark import java

HOME = Path(__file__).resolve().parents[2] / ".flink"
VERSION = "2.3.0"
PARQUET = f"flink-sql-parquet-{VERSION}.jar"
# What reads Parquet wants Hadoop's classes, which PySpark has.
HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar")
INSTALL_S_MAX = 1800
LINES = 15


class FlinkUnavailable(MillstreamError):
    """There is no Flink here, and none could be made."""


def engine(home: Path = HOME) -> Engine:
    """Flink as an engine, installed if it is not yet."""
    python, jar = home / "venv" / "bin" / "python", home / "jars" / PARQUET
    if not python.exists() or not jar.exists():
        install(home, jar)
    jars = [jar, *(_hadoop(pattern) for pattern in HADOOP)]
    java_home = str(java.launcher_home(java.find()))
    return Engine.of("flink", python, FLINK_JARS=os.pathsep.join(map(str, jars)), JAVA_HOME=java_home)


def install(home: Path, jar: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise FlinkUnavailable(
            "Maven is needed to bring Flink's reader of Parquet files",
            where="no mvn on the PATH",
            next_step="install Maven, or leave Flink out: --peer spark",
        )
    Console(stderr=True).print(f"Installing Flink {VERSION} into {home} (once, some minutes)")
    venv, jars = home / "venv", jar.parent
    jars.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(venv)])
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, f"apache-flink=={VERSION}"])
    artifact = f"-Dartifact=org.apache.flink:flink-sql-parquet:{VERSION}"
    _run([maven, "--quiet", "--batch-mode", "dependency:copy", artifact, f"-DoutputDirectory={jars}"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LINES:])
        raise FlinkUnavailable(
            f"Flink could not be installed: {said}",
            where=" ".join(command),
            next_step="see whether PyPI and Maven Central can be reached, or leave Flink out: --peer spark",
        )


def _hadoop(pattern: str) -> Path:
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob(pattern))
    if not found:
        raise FlinkUnavailable(f"PySpark has no {pattern}", next_step="leave Flink out: --peer spark")
    return found[-1]
