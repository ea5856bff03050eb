"""Flows on a real cluster: its workers need nothing of ours, and may be lost with all that they hold."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobs.support import read
from millstream.errors import SparkFailed
from millstream.log import EmbeddedLog
from millstream.spark.query_failures import new_mark, of_query
from millstream.spark.session import shipping
from millstream.spark.session.user_code import modules
from spark_cluster import SparkCluster

from .on_cluster import SCHEMA, ClusterJob, answer, bare_python, found, rows_of, write_flow
from .test_loopback import RPC_ANSWER, asked, listening, spark_request

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(600)]

Start = Callable[..., ClusterJob]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def cluster(python: Path) -> Iterator[SparkCluster]:
    """Two workers. A test that kills one restarts it."""
    with SparkCluster(2, python=python) as made:
        yield made


@pytest.fixture
def log(log: EmbeddedLog) -> EmbeddedLog:
    for topic in ("paid", "seen"):
        log.create_topic(topic, schema=SCHEMA, partitions=2)
        with log.producer() as producer:
            for partition, rows in rows_of(topic).items():
                for each in rows:
                    producer.send(topic, each, partition=partition)
    return log


@pytest.fixture
def start(cluster: SparkCluster, log: EmbeddedLog, tmp_path: Path, python: Path) -> Iterator[Start]:
    started = []

    def begin(*more: str, python: Path = python) -> ClusterJob:
        flows = tmp_path / "flows"
        flows.mkdir()
        started.append(ClusterJob(cluster, tmp_path, write_flow(flows), str(log.path), *more, python=python))
        return started[-1]

    yield begin
    for job in started:
        job.close()


@pytest.mark.soak
def test_a_lost_worker_changes_no_result(start: Start, cluster: SparkCluster, log: EmbeddedLog) -> None:
    """Windows and a join; in the middle one of two workers dies, and its part of the state with it."""
    job = start()
    job.until_batch(3)
    assert any("millstream-runs" in str(path) for path in cluster.folder_of(1).rglob("*.json"))
    cluster.kill_worker(1)
    assert not cluster.folder_of(1).exists()
    before = job.batches()
    job.ends()
    cluster.restart_worker(1)
    assert job.batches() > before
    assert found(lambda topic: read(log, topic)) == answer()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_workers_come_and_go(start: Start, cluster: SparkCluster, log: EmbeddedLog) -> None:
    """Each in turn, so that after a while nobody holds anything of what was held in the beginning."""
    job = start("--batch-rows", "30")
    for number, batch in [(1, 2), (2, 5), (1, 8), (2, 11)]:
        job.until_batch(batch)
        cluster.kill_worker(number)
        cluster.restart_worker(number)
    job.until_batch(14)
    for number in (1, 2):  # for a moment nobody is left
        cluster.kill_worker(number)
    for number in (1, 2):
        cluster.restart_worker(number)
    job.ends()
    assert found(lambda topic: read(log, topic)) == answer()


@pytest.mark.soak
def test_a_packed_environment_is_all_that_workers_need(
    start: Start, log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python that they would run otherwise is not there at all."""
    archive = tmp_path / "env.tar.gz"
    subprocess.run([sys.executable, "-m", "millstream.cli", "pack", archive], check=True)
    job = start("--archive", str(archive), "--batch-rows", "300", python=Path("/nowhere/python"))
    job.ends()
    assert found(lambda topic: read(log, topic)) == answer()


@pytest.mark.soak
def test_what_workers_lack_is_reported_at_the_start(start: Start, tmp_path: Path) -> None:
    job = start(python=bare_python(tmp_path / "poor", without=("polars", "crc32c")))
    said = job.ends(SparkFailed.exit_code)
    assert "no library polars" in said
    assert "no library crc32c" in said
    assert "no library numpy" not in said
    assert "millstream pack" in said


@pytest.mark.soak
def test_a_python_that_workers_do_not_have_is_named(start: Start) -> None:
    job = start(python=Path("/nowhere/python"))
    said = job.ends(SparkFailed.exit_code)
    assert "'/nowhere/python'" in said


# ---------------------------------------------------------------- who is let in


def secret_of(cluster: SparkCluster) -> str:
    lines = Path(cluster.environ["SPARK_CONF_DIR"], "spark-defaults.conf").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("spark.authenticate.secret"))


def command_lines() -> str:
    """Of all processes: any user can read them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            found.append(entry.read_text(errors="replace"))
    return "\n".join(found)


@pytest.mark.soak
def test_a_cluster_accepts_work_only_with_its_secret(start: Start, cluster: SparkCluster, log: EmbeddedLog) -> None:
    """Its web pages, which cannot be switched off, answer nobody; the secret stands on no command line."""
    pids = [pid for number in (1, 2) for pid in cluster.processes_of(number)]
    ports = {int(cluster.master.rpartition(":")[2]), *(port for pid in pids for _, port in listening(pid))}
    assert len(ports) == 5
    for port in ports:
        assert asked(port, spark_request())[8:9] != bytes([RPC_ANSWER])
        page = asked(port, b"GET / HTTP/1.0\r\n\r\n")
        assert not page or page.split()[1] == b"403" or not page.startswith(b"HTTP")
    job = start()
    job.until_batch(2)
    assert "CoarseGrainedExecutorBackend" in command_lines()
    assert secret_of(cluster) not in command_lines()
    job.ends()
    assert found(lambda topic: read(log, topic)) == answer()


# ---------------------------------------------------------------- what is sent


def test_the_package_loads_from_its_zip(python: Path, tmp_path: Path) -> None:
    """Before one that is installed, with bytecode of its own."""
    (tmp_path / "millstream").mkdir()
    (tmp_path / "millstream" / "__init__.py").write_text("raise RuntimeError('not this one')")
    file = shipping.package()
    assert shipping.package() == file
    script = f"import sys; sys.path[1:1] = [{str(file)!r}, {str(tmp_path)!r}]; "
    script += "import millstream.spark.query.batch_offsets as it; "
    script += "print(it.__file__, it.JobFeed.read.__code__.co_filename)"
    done = subprocess.run([python, "-c", script], cwd=tmp_path.parent, capture_output=True, text=True, timeout=120)
    home = "millstream/spark/query/batch_offsets.py"
    assert done.stdout.split() == [f"{file}/{home}c", f"<millstream>/{home}"]


def test_modules_that_functions_import_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_flow(tmp_path)
    inside = tmp_path / "inside" / "deep"
    inside.mkdir(parents=True)
    for folder in (inside, inside.parent):
        (folder / "__init__.py").touch()
    (inside / "table.csv").write_text("a,b\n")
    (tmp_path / "further.py").write_text("import os, numpy, nowhere, inside.deep\ndef nothing(): return 0\n")
    (tmp_path / "unasked.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    import amounts  # type: ignore[import-not-found]

    monkeypatch.delitem(sys.modules, "amounts")
    sent = modules([(amounts.doubled,)])
    assert set(sent) == {
        "further.py",
        "factors.py",
        "inside/__init__.py",
        "inside/deep/__init__.py",
        "inside/deep/table.csv",
    }
    with zipfile.ZipFile(shipping.zipped("modules", sent, str)) as made:
        assert made.read("factors.py") == b"TWO = 2\n"
        assert "inside/deep/table.csv" in made.namelist()


# ---------------------------------------------------------------- errors and warnings


def complaints(tmp_path: Path, **problems: Any) -> list[str]:
    needs = shipping.Needs({}, written=[tmp_path / "job"], read=[tmp_path / "log"])
    return shipping._problems({"versions": {}, "missing": [], "closed": [], **problems}, needs)


def test_differing_folders_and_versions_are_reported(tmp_path: Path) -> None:
    job, log = str(tmp_path / "job"), str(tmp_path / "log")
    assert complaints(tmp_path) == []
    assert complaints(tmp_path, missing=[log]) == [f"the folder {log} is missing"]
    assert complaints(tmp_path, missing=[job]) == [f"the job's folder {job} is missing"]
    assert complaints(tmp_path, closed=[job]) == [f"the job's folder {job} cannot be written"]
    assert "polars 1.0.0" in complaints(tmp_path, versions={"polars": "1.0.0"})[0]


def test_a_look_finds_folders_that_are_not_the_same(tmp_path: Path) -> None:
    """Another machine may have a folder of the same name, with something else in it."""
    needs = shipping.Needs({"no-such-library": "no_such_library"}, written=[tmp_path])
    with shipping._marker_files(needs.written) as traces:
        assert [path.name for path in map(Path, traces.values())] == [each.name for each in tmp_path.iterdir()]
        (report,) = shipping._probe(needs, traces)(iter([]))
        assert report["missing"] == []
    (report,) = shipping._probe(needs, traces)(iter([]))
    assert report["missing"] == [str(tmp_path)]
    assert report["versions"] == {"no-such-library": None}
    assert list(tmp_path.iterdir()) == []


LOST = """Job aborted due to stage failure: Task 0 in stage 7.0 failed 4 times, most recent failure: \
Lost task 0.3 in stage 7.0 (TID 31) (10.0.0.7 executor 4): ExecutorLostFailure (executor 4 exited caused by one of the \
running tasks) Reason: Command exited with code 137
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2918)
Caused by: java.lang.Exception
"""
THROWN = """Job aborted due to stage failure: Task 1 in stage 2.0 failed 4 times, most recent failure: \
Lost task 1.3 in stage 2.0 (TID 9) (10.0.0.8 executor 1): java.io.FileNotFoundException: file:/a/state does not exist
\tat org.apache.hadoop.fs.RawLocalFileSystem.open(RawLocalFileSystem.java:1)
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (LOST, ["10.0.0.7 (executor 4)", "code 137", "memoryOverhead"]),
        (THROWN, ["10.0.0.8 (executor 1)", "FileNotFoundException: file:/a/state does not exist"]),
    ],
)
def test_failures_of_a_remote_jvm_are_reported_in_one_line(message: str, expected: list[str]) -> None:
    failure = str(of_query(RuntimeError(message), new_mark()))
    assert all(part in failure for part in expected)
    assert "\tat " not in failure
    assert "java.io" not in failure
    assert len(failure.splitlines()) == 2


@pytest.mark.parametrize(
    ("more", "code", "expected"),
    [
        (
            ["--master", "spark://127.0.0.1:9"],
            SparkFailed.exit_code,
            "no Spark master answers at 'spark://127.0.0.1:9'",
        ),
        (["--conf", "nonsense"], 2, "--conf nonsense has no value"),
        (["--conf", "executor.memory=1g"], 2, "spark.executor.memory"),
        (["--master", "spark://127.0.0.1:9", "--archive", "nothing.tar.gz"], 3, "millstream pack"),
    ],
)
def test_impossible_settings_are_reported(
    tmp_path: Path, log: EmbeddedLog, more: list[str], code: int, expected: str
) -> None:
    command = [sys.executable, "-m", "millstream.cli", "run", str(write_flow(tmp_path)), "--log", str(log.path)]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=200)
    assert done.returncode == code
    assert expected in done.stderr
    assert "\tat " not in done.stderr


def test_a_bare_name_is_not_an_archive(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "millstream.cli", "pack", str(tmp_path / "env")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert ".tar.gz" in done.stderr
    assert list(tmp_path.iterdir()) == []
