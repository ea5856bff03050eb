"""Kafka's jars, and those of Spark's connector to it: brought by Maven once, and kept in `.kafka/`."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from millstream.errors import JavaMissing, MillstreamError
from millstream.spark.session import java

HERE = Path(__file__).resolve().parent / "kafka"
KEPT = HERE.parent.parent / ".kafka"
BROKER, CONNECTOR = HERE / "pom.xml", HERE / "connector-pom.xml"
ASSEMBLE_S_MAX = 600
LOG_LINES = 30


class KafkaUnavailable(MillstreamError):
    """Java or Maven is missing, so that there can be no Kafka here."""


class KafkaFailed(MillstreamError):
    """Kafka did not start, or does not do what it was asked for."""


def assemble(pom: Path = BROKER) -> Path:
    """The folder with the jars of a pom, brought by Maven if they are not there yet."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    return _kept(f"{pom.stem}-{digest}", ["--file", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"])


def assemble_archive(artifact: str) -> Path:
    """The folder with one archive (group:name:version:type:classifier), without what it depends on."""
    return _kept(artifact.replace(":", "-"), ["dependency:copy", f"-Dartifact={artifact}"])


def assemble_unpacked(artifact: str) -> Path:
    """The folder with what is in a `tar.gz`; it is unpacked next to it once."""
    brought = assemble_archive(artifact)
    folder = brought / "unpacked"
    if not folder.is_dir():
        [archive] = brought.glob("*.tar.gz")
        with tempfile.TemporaryDirectory(dir=brought) as scratch:
            with tarfile.open(archive) as content:
                content.extractall(scratch, filter="data")
            try:
                Path(scratch).rename(folder)
            except OSError as error:
                if not folder.is_dir():  # another process was faster
                    raise KafkaFailed(f"{archive} cannot be unpacked: {error}") from error
            else:
                Path(scratch).mkdir()  # for its owner to remove
    return folder


def _kept(name: str, goal: list[str]) -> Path:
    brought = KEPT / name
    if brought.is_dir():
        return brought
    maven = shutil.which("mvn")
    if not maven:
        raise KafkaUnavailable(
            "Maven is needed to bring Kafka's jars",
            where="no mvn on the PATH",
            next_step="install Maven, then try again",
        )
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "assembling").open("w") as file, _locked(file):
        if not brought.is_dir():  # another process may have brought them while this one waited
            _bring(maven, goal, brought)
    return brought


def _bring(maven: str, goal: list[str], brought: Path) -> None:
    with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
        done = subprocess.run(
            [maven, "--quiet", "--batch-mode", *goal, f"-DoutputDirectory={scratch}/jars"],
            capture_output=True,
            text=True,
            timeout=ASSEMBLE_S_MAX,
            check=False,
            env={**os.environ, "JAVA_HOME": str(find_java().home)},
            cwd=scratch,  # not a folder with a pom of its own
        )
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-LOG_LINES:])
            raise KafkaFailed(f"Maven could not bring {brought.name}:\n{said}")
        Path(scratch, "jars").rename(brought)  # all of them are there, or the folder is not


def find_java() -> java.Java:
    try:
        return java.find()
    except JavaMissing as missing:
        raise KafkaUnavailable("Kafka needs Java", where=missing.where, next_step=missing.next_step) from missing


@contextlib.contextmanager
def _locked(file: IO[str]) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
