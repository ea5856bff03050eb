"""Prepares a cluster for a flow: workers need neither Millstream nor the user's files.

Spark sends both as zips. Python itself, libraries and shared folders cannot be sent, so every worker is checked before
the job starts, and one error lists what each of them lacks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import SparkFailed, UnfitWorkers
from millstream.spark.query_failures import SHIPPED, reason_of
from millstream.spark.session.cache import cache_folder, ensure_folder, is_trusted
from millstream.terminal import escaped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.spark.query.physical_plan import PhysicalPlan

HERE = Path(__file__).resolve().parents[2]
ENVIRONMENT = "environment"
"""The name under which workers unpack an archive of libraries."""
FORMAT_VERSION = 1  # of the zips
HASHED = 1  # in the header of bytecode: its source is identified by hash, and not checked
WORKERS_S_MAX = 60.0
SETTLED_S = 1.5  # executors of a cluster register one after the other
POLL_S = 0.1
ROUNDS = 5
TASK_S = 0.2  # long enough that no executor runs all tasks
# What workers import, by distribution.
LIBRARIES = {
    "crc32c": "crc32c",
    "duckdb": "duckdb",
    "fastavro": "fastavro",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "orjson": "orjson",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "sqlglot": "sqlglot",
}
SAME_MINOR_VERSION = ("polars",)
"""Workers must have the same minor version, because plans contain objects of these libraries."""


def is_local(master: str | None) -> bool:
    """Whether the driver's machine runs all tasks."""
    return re.match(r"local(\[|$)", master or "") is not None


# ---------------------------------------------------------------- code


def ship_package(spark: SparkSession) -> None:
    """Sends Millstream itself. It takes precedence over one that a worker has installed."""
    if not is_local(spark.sparkContext.master):
        _send(spark, package())


def ship_modules(spark: SparkSession, files: Mapping[str, Path]) -> None:
    """Sends modules of the user, by their path in the zip."""
    if files and not is_local(spark.sparkContext.master):
        _send(spark, zipped("modules", files, str))


def package() -> Path:
    """Millstream as a zip, built once for each version of its content."""
    files = {str(file.relative_to(HERE.parent)): file for file in sorted(HERE.rglob("*")) if _is_content(file)}
    return zipped("millstream", files, lambda file: f"{SHIPPED}/{file.relative_to(HERE.parent)}")


def _is_content(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts


def zipped(name: str, files: Mapping[str, Path], display_name: Callable[[Path], str]) -> Path:
    """A zip of files with their bytecode, named for its content. `display_name` names a file in stack traces."""
    contents = {place: file.read_bytes() for place, file in files.items()}
    digest = hashlib.sha256(f"{FORMAT_VERSION} {sys.version}".encode())
    for place, content in contents.items():
        digest.update(f"{place}\0{display_name(files[place])}\0{len(content)}\0".encode() + content)
    made = cache_folder() / "shipped" / f"{name}-{digest.hexdigest()[:16]}.zip"
    if is_trusted(made):
        return made
    ensure_folder(made.parent)
    descriptor, unfinished = tempfile.mkstemp(dir=made.parent)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted({str(folder) for place in contents for folder in Path(place).parents} - {"."}):
            archive.writestr(f"{folder}/", b"")  # a namespace package is found only by its folder entry
        for place, content in contents.items():
            archive.writestr(place, content)
            if place.endswith(".py"):
                with suppress(SyntaxError, ValueError):  # a file that is never imported may be invalid
                    archive.writestr(f"{place}c", _bytecode(content, display_name(files[place])))
    Path(unfinished).replace(made)
    return made


def _bytecode(content: bytes, name: str) -> bytes:
    """For the Python that runs here; others use the source next to it."""
    head = importlib.util.MAGIC_NUMBER + HASHED.to_bytes(4, "little") + importlib.util.source_hash(content)
    return head + marshal.dumps(compile(content, name, "exec", dont_inherit=True))


def _send(spark: SparkSession, file: Path) -> None:
    context = spark.sparkContext
    if file.name not in (context._python_includes or []):
        path = list(sys.path)
        context.addPyFile(str(file))
        sys.path[:] = path  # this process imports the files themselves


# ---------------------------------------------------------------- an archive of libraries

DRIVER_PYTHON = """\
#!/bin/sh
# Spark starts Python on the driver by the name that workers know it by.
cd {folder} && exec {python} "$@"
"""


def driver_python(folder: Path) -> str:
    """Creates a `python` in `folder` at the path that workers have in an archive, and returns that path."""
    import shlex

    script = folder / ENVIRONMENT / "bin" / "python"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(DRIVER_PYTHON.format(folder=shlex.quote(str(Path.cwd())), python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    return f"./{ENVIRONMENT}/bin/python"


# ---------------------------------------------------------------- checking the workers


@dataclass(frozen=True)
class Needs:
    """What workers must have: libraries by distribution and module, and folders shared with the driver."""

    libraries: Mapping[str, str]
    written: Sequence[Path] = ()
    read: Sequence[Path] = ()


def needs_of(physical_plan: PhysicalPlan, broker: str, folder: Path) -> Needs:
    """What workers need for a job: to read its sources, and to keep its state in the job's folder."""
    libraries, read = dict(LIBRARIES), list[Path]()
    for node in physical_plan.fed_sources:
        needs = node.source.worker_needs(broker)
        libraries |= needs.libraries
        read += needs.folders
    return Needs(libraries, written=[folder.absolute()], read=read)


def wait_for_workers(spark: SparkSession, seconds_max: float = WORKERS_S_MAX) -> int:
    """Waits until no more executors of a cluster register, and returns their number."""
    context: Any = spark.sparkContext
    if is_local(context.master):
        return 1
    deadline, seen, since = time.monotonic() + seconds_max, 0, time.monotonic()
    while True:
        here = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # including the driver
        if here != seen:
            seen, since = here, time.monotonic()
        if seen and time.monotonic() - since >= SETTLED_S:
            return seen
        if time.monotonic() > deadline:
            raise SparkFailed(
                f"the cluster provided no worker within {seconds_max:.0f} seconds",
                where=context.master,
                next_step="check that workers are up and have free cores and memory, or request less: "
                "--conf spark.executor.memory=512m --conf spark.cores.max=2",
            )
        time.sleep(POLL_S)


def check_workers(spark: SparkSession, needs: Needs) -> None:
    """Refuses a cluster that cannot run the job, and lists all that is missing. It also warms the workers up."""
    context: Any = spark.sparkContext
    if is_local(context.master):
        return
    executors = wait_for_workers(spark)
    with _marker_files([*needs.written, *needs.read]) as markers:
        probe = _probe(needs, markers)
        seen: dict[tuple[str, str], dict[str, Any]] = {}
        tasks = max(executors, context.defaultParallelism)
        for _ in range(ROUNDS):
            try:
                found = context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()
            except Exception as error:
                raise _check_failed(error, context) from None
            seen |= {(each["host"], each["folder"]): each for each in found}
            if len(seen) >= executors:
                break
    lacking = {worker: problems for worker, report in seen.items() if (problems := _problems(report, needs))}
    if lacking:
        raise _unfit(lacking)


@contextmanager
def _marker_files(folders: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Creates a file in each folder, by which a worker checks that it has the same folder."""
    made: dict[str, str] = {}
    try:
        for folder in dict.fromkeys(folders):
            descriptor, name = tempfile.mkstemp(prefix=".seen-by-workers-", dir=folder)
            os.close(descriptor)
            Path(name).chmod(0o644)
            made[str(folder)] = name
        yield made
    finally:
        for name in made.values():
            Path(name).unlink(missing_ok=True)


def _probe(needs: Needs, markers: Mapping[str, str]) -> Callable[[Iterator[int]], Iterator[dict[str, Any]]]:
    """A function that is sent by value: a worker that lacks libraries could not import it."""
    libraries, written, task_s = dict(needs.libraries), [str(path) for path in needs.written], TASK_S
    seen = dict(markers)

    def probe(_: Iterator[int]) -> Iterator[dict[str, Any]]:
        import os
        import socket
        import time
        from importlib import import_module, metadata

        started = time.monotonic()
        versions: dict[str, str | None] = {}
        for distribution, module in libraries.items():
            try:
                import_module(module)
                versions[distribution] = metadata.version(distribution)
            except Exception:  # whatever an incompatible library raises
                versions[distribution] = None
        missing = [folder for folder, trace in seen.items() if not os.path.exists(trace)]  # noqa: PTH110 by value
        closed = [folder for folder in written if folder not in missing and not os.access(folder, os.W_OK | os.X_OK)]
        time.sleep(max(0.0, task_s - (time.monotonic() - started)))
        yield {
            "host": socket.gethostname(),
            "folder": os.getcwd(),  # noqa: PTH109
            "versions": versions,
            "missing": missing,
            "closed": closed,
        }

    return probe


def _problems(report: Mapping[str, Any], needs: Needs) -> list[str]:
    found = [f"no library {name}" for name, version in report["versions"].items() if version is None]
    for name in SAME_MINOR_VERSION:
        here, there = metadata.version(name), report["versions"].get(name)
        if there is not None and there.split(".")[:2] != here.split(".")[:2]:
            found.append(f"{name} {there}, and the driver has {here}")
    written = [str(folder) for folder in needs.written]
    for folder in report["missing"]:
        found.append(
            f"the job's folder {folder} is missing" if folder in written else f"the folder {folder} is missing"
        )
    return found + [f"the job's folder {folder} cannot be written" for folder in report["closed"]]


def _unfit(lacking: Mapping[tuple[str, str], list[str]]) -> SparkFailed:
    lines = [
        escaped(f"  {host} ({folder}): {'; '.join(problems)}") for (host, folder), problems in sorted(lacking.items())
    ]
    text = " ".join(part for problems in lacking.values() for part in problems)
    steps = []
    if "no library" in text or "the driver has" in text:
        steps.append(
            "install the libraries on the workers, or send them: millstream pack env.tar.gz, then --archive env.tar.gz"
        )
    if "folder" in text:
        steps.append("put the log and the job's folder (--folder) on storage that all machines mount at the same path")
    return UnfitWorkers(
        "\n".join([f"{len(lacking)} of the workers cannot run this job:", *lines]), next_step="; ".join(steps)
    )


def _check_failed(error: Exception, context: Any) -> SparkFailed:
    text = str(error)
    mismatch = re.search(r"PYTHON_VERSION_MISMATCH\]?[^0-9]*(\d+\.\d+)", text)
    if mismatch:
        here = "{}.{}".format(*sys.version_info[:2])
        return SparkFailed(
            f"workers run Python {mismatch[1]}, and the driver runs {here}",
            where=f"{context.master}, Python '{context.pythonExec}'",
            next_step=f"set a Python {here} that workers have: PYSPARK_PYTHON=/usr/bin/python{here} millstream run …",
        )
    if "Cannot run program" in text:
        return SparkFailed(
            f"workers have no Python at '{context.pythonExec}'",
            where=context.master,
            next_step="set one that they have: PYSPARK_PYTHON=/usr/bin/python3 millstream run …, or send an "
            "environment: millstream pack env.tar.gz, then --archive env.tar.gz",
        )
    return SparkFailed(
        f"the workers could not be checked: {reason_of(text) or type(error).__name__}",
        where=context.master,
        next_step="read the logs of the workers; they must have the same versions of Spark and Python as the driver",
    )
