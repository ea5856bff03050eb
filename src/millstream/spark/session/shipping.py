"""What a cluster is given before a flow runs on it: workers need neither Millstream nor the user's files.

Both go as zips through Spark. What cannot be sent so, Python itself, libraries and shared folders, is looked for on
every worker before the job begins, and told in one error that names who lacks what.
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
from millstream.plan.endpoints import Kafka
from millstream.spark.failures import SHIPPED, reason_of
from millstream.spark.session.cache import cache_folder, is_trusted, made_folder
from millstream.terminal import escaped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.spark.query.physical_plan import Layout

HERE = Path(__file__).resolve().parents[2]
ENVIRONMENT = "environment"
"""The name under which workers unpack an archive of libraries."""
FORM = 1  # of the zips
HASHED = 1  # in the head of bytecode: it belongs to a source of this hash, and nobody need compare them
WORKERS_S_MAX = 60.0
SETTLED_S = 1.5  # executors of a cluster come one after the other
LOOK_S = 0.1
ROUNDS = 5
TASK_S = 0.2  # long enough that no executor takes the tasks of all
# What workers import, by the name of its distribution.
LIBRARIES = {
    "crc32c": "crc32c",
    "duckdb": "duckdb",
    "fastavro": "fastavro",
    "numpy": "numpy",
    "orjson": "orjson",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "sqlglot": "sqlglot",
}
WITH_KAFKA = {"confluent-kafka": "confluent_kafka"}
LIKE_HERE = ("polars",)
"""Of these, workers must have the same minor version: parts of a plan are made of them."""


def is_local(master: str | None) -> bool:
    """Whether workers are threads of the driver."""
    return re.match(r"local(\[|$)", master or "") is not None


# ---------------------------------------------------------------- code


def ship_package(spark: SparkSession) -> None:
    """Sends Millstream itself. It stands before one that a worker may have installed."""
    if not is_local(spark.sparkContext.master):
        _send(spark, package())


def ship_modules(spark: SparkSession, files: Mapping[str, Path]) -> None:
    """Sends modules of the user, by their place among all modules."""
    if files and not is_local(spark.sparkContext.master):
        _send(spark, zipped("modules", files, str))


def package() -> Path:
    """Millstream as a zip, made once for each content of it."""
    files = {str(file.relative_to(HERE.parent)): file for file in sorted(HERE.rglob("*")) if _is_content(file)}
    return zipped("millstream", files, lambda file: f"{SHIPPED}/{file.relative_to(HERE.parent)}")


def _is_content(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts


def zipped(name: str, files: Mapping[str, Path], called: Callable[[Path], str]) -> Path:
    """A zip of files with their bytecode, named for its content. `called` says what stack traces call a file."""
    contents = {place: file.read_bytes() for place, file in files.items()}
    digest = hashlib.sha256(f"{FORM} {sys.version}".encode())
    for place, content in contents.items():
        digest.update(f"{place}\0{called(files[place])}\0{len(content)}\0".encode() + content)
    made = cache_folder() / "shipped" / f"{name}-{digest.hexdigest()[:16]}.zip"
    if is_trusted(made):
        return made
    made_folder(made.parent)
    descriptor, unfinished = tempfile.mkstemp(dir=made.parent)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted({str(folder) for place in contents for folder in Path(place).parents} - {"."}):
            archive.writestr(f"{folder}/", b"")  # a package without a file of its own is only found by its folder
        for place, content in contents.items():
            archive.writestr(place, content)
            if place.endswith(".py"):
                with suppress(SyntaxError, ValueError):  # a file that is never imported may be anything
                    archive.writestr(f"{place}c", _bytecode(content, called(files[place])))
    Path(unfinished).replace(made)
    return made


def _bytecode(content: bytes, name: str) -> bytes:
    """For the Python that runs here; another one takes the source beside it."""
    head = importlib.util.MAGIC_NUMBER + HASHED.to_bytes(4, "little") + importlib.util.source_hash(content)
    return head + marshal.dumps(compile(content, name, "exec", dont_inherit=True))


def _send(spark: SparkSession, file: Path) -> None:
    context = spark.sparkContext
    if file.name not in (context._python_includes or []):
        path = list(sys.path)
        context.addPyFile(str(file))
        sys.path[:] = path  # this process has the files themselves


# ---------------------------------------------------------------- an archive of libraries

DRIVER_PYTHON = """\
#!/bin/sh
# Spark starts Python on the driver by the name that workers know it by.
cd {folder} && exec {python} "$@"
"""


def driver_python(folder: Path) -> str:
    """Has a `python` in `folder` where workers have that of an archive: what it is called in both places."""
    import shlex

    script = folder / ENVIRONMENT / "bin" / "python"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(DRIVER_PYTHON.format(folder=shlex.quote(str(Path.cwd())), python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    return f"./{ENVIRONMENT}/bin/python"


# ---------------------------------------------------------------- a look at the workers


@dataclass(frozen=True)
class Needs:
    """What workers must have: libraries by distribution and module, and folders that the driver has, too."""

    libraries: Mapping[str, str]
    written: Sequence[Path] = ()
    read: Sequence[Path] = ()


def needs_of(layout: Layout, broker: str, folder: Path) -> Needs:
    """What workers need for a job: to read its sources, and to keep its state in the job's folder."""
    on_kafka = broker.startswith("kafka://")
    libraries, read = dict(LIBRARIES), []
    for node in layout.fed_sources:
        if isinstance(node.source, Kafka) or (isinstance(node.source, str) and on_kafka):
            libraries |= WITH_KAFKA
        elif isinstance(node.source, str):
            read.append(Path(broker))
    return Needs(libraries, written=[folder.absolute()], read=read)


def until_workers(spark: SparkSession, seconds_max: float = WORKERS_S_MAX) -> int:
    """Waits for the executors of a cluster, until no more of them come; how many there are."""
    context: Any = spark.sparkContext
    if is_local(context.master):
        return 1
    deadline, seen, since = time.monotonic() + seconds_max, 0, time.monotonic()
    while True:
        here = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is among them
        if here != seen:
            seen, since = here, time.monotonic()
        if seen and time.monotonic() - since >= SETTLED_S:
            return seen
        if time.monotonic() > deadline:
            raise SparkFailed(
                f"the cluster has given no worker within {seconds_max:.0f} seconds",
                where=context.master,
                next_step="see whether workers are up and have free cores and memory; ask for less: "
                "--conf spark.executor.memory=512m --conf spark.cores.max=2",
            )
        time.sleep(LOOK_S)


def check_workers(spark: SparkSession, needs: Needs) -> None:
    """Refuses a cluster on which the job could not run, with all that is missing. Warms the workers up besides."""
    context: Any = spark.sparkContext
    if is_local(context.master):
        return
    executors = until_workers(spark)
    with _traces([*needs.written, *needs.read]) as traces:
        look = _looking(needs, traces)
        seen: dict[tuple[str, str], dict[str, Any]] = {}
        tasks = max(executors, context.defaultParallelism)
        for _ in range(ROUNDS):
            try:
                found = context.parallelize(range(tasks), tasks).mapPartitions(look).collect()
            except Exception as error:
                raise _cannot_look(error, context) from None
            seen |= {(each["host"], each["folder"]): each for each in found}
            if len(seen) >= executors:
                break
    lacking = {worker: complaints for worker, told in seen.items() if (complaints := _complaints(told, needs))}
    if lacking:
        raise _unfit(lacking)


@contextmanager
def _traces(folders: Sequence[Path]) -> Iterator[dict[str, str]]:
    """A file in each folder, by which a worker knows that its folder of this name is the same one."""
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


def _looking(needs: Needs, traces: Mapping[str, str]) -> Callable[[Iterator[int]], Iterator[dict[str, Any]]]:
    """A function that travels whole: a worker that lacks something could not load it by its name."""
    libraries, written, task_s = dict(needs.libraries), [str(path) for path in needs.written], TASK_S
    seen = dict(traces)

    def look(_: Iterator[int]) -> Iterator[dict[str, Any]]:
        import os
        import socket
        import time
        from importlib import import_module, metadata

        begun = time.monotonic()
        versions: dict[str, str | None] = {}
        for distribution, module in libraries.items():
            try:
                import_module(module)
                versions[distribution] = metadata.version(distribution)
            except Exception:  # whatever a library that does not fit raises
                versions[distribution] = None
        missing = [folder for folder, trace in seen.items() if not os.path.exists(trace)]  # noqa: PTH110 by value
        closed = [folder for folder in written if folder not in missing and not os.access(folder, os.W_OK | os.X_OK)]
        time.sleep(max(0.0, task_s - (time.monotonic() - begun)))
        yield {
            "host": socket.gethostname(),
            "folder": os.getcwd(),  # noqa: PTH109
            "versions": versions,
            "missing": missing,
            "closed": closed,
        }

    return look


def _complaints(told: Mapping[str, Any], needs: Needs) -> list[str]:
    found = [f"no library {name}" for name, version in told["versions"].items() if version is None]
    for name in LIKE_HERE:
        here, there = metadata.version(name), told["versions"].get(name)
        if there is not None and there.split(".")[:2] != here.split(".")[:2]:
            found.append(f"{name} {there}, and {here} is here")
    written = [str(folder) for folder in needs.written]
    for folder in told["missing"]:
        found.append(
            f"the job's folder {folder} is not there" if folder in written else f"the folder {folder} is not there"
        )
    return found + [f"the job's folder {folder} cannot be written" for folder in told["closed"]]


def _unfit(lacking: Mapping[tuple[str, str], list[str]]) -> SparkFailed:
    lines = [
        escaped(f"  {host} ({folder}): {'; '.join(complaints)}")
        for (host, folder), complaints in sorted(lacking.items())
    ]
    said = " ".join(part for complaints in lacking.values() for part in complaints)
    steps = []
    if "no library" in said or "is here" in said:
        steps.append("install the libraries there, or send them: millstream pack env.tar.gz, then --archive env.tar.gz")
    if "folder" in said:
        steps.append("put the log and the job's folder (--folder) where all machines have them under the same name")
    return UnfitWorkers(
        "\n".join([f"{len(lacking)} of the workers cannot run this job:", *lines]), next_step="; ".join(steps)
    )


def _cannot_look(error: Exception, context: Any) -> SparkFailed:
    said = str(error)
    mismatch = re.search(r"PYTHON_VERSION_MISMATCH\]?[^0-9]*(\d+\.\d+)", said)
    if mismatch:
        here = "{}.{}".format(*sys.version_info[:2])
        return SparkFailed(
            f"workers run Python {mismatch[1]}, and {here} is here",
            where=f"{context.master}, Python '{context.pythonExec}'",
            next_step=f"name a Python {here} that workers have: PYSPARK_PYTHON=/usr/bin/python{here} millstream run …",
        )
    if "Cannot run program" in said:
        return SparkFailed(
            f"workers have no Python at '{context.pythonExec}'",
            where=context.master,
            next_step="name one that they have: PYSPARK_PYTHON=/usr/bin/python3 millstream run …, or send an "
            "environment: millstream pack env.tar.gz, then --archive env.tar.gz",
        )
    return SparkFailed(
        f"the workers could not be looked at: {reason_of(said) or type(error).__name__}",
        where=context.master,
        next_step="read the logs of the workers; Spark and Python there must be those of here",
    )
