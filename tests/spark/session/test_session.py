"""The session has its settings, leaves nothing behind, adopts one that runs, and says plainly why it cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream import spark as package
from millstream.errors import InvalidSetting
from millstream.spark import session, warm
from millstream.spark.session.start import SETTINGS, _java_options, log_file

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def run(script: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, with an empty folder to work and one to keep temporary files in."""
    work, temporary = folder / "work", folder / "tmp"
    work.mkdir(parents=True)
    temporary.mkdir()
    known = {**os.environ, "TMPDIR": str(temporary), **environ}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=work, env=known, capture_output=True, text=True, timeout=240
    )


def test_every_setting_of_the_table_is_set(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    wrong = {each.key: conf.get(each.key) for each in SETTINGS if conf.get(each.key) != each.value}
    assert not wrong
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_no_setting_is_in_the_table_twice_and_each_has_a_reason() -> None:
    assert len({each.key for each in SETTINGS}) == len(SETTINGS)
    assert all(each.why for each in SETTINGS)


def test_workers_run_the_same_python_and_one_thread_of_polars(spark: SparkSession) -> None:
    def versions(batches):  # type: ignore[no-untyped-def]
        import polars
        import pyarrow

        for _ in batches:
            yield pyarrow.record_batch({"python": [sys.executable], "threads": [polars.thread_pool_size()]})

    rows = spark.range(1, numPartitions=1).mapInArrow(versions, "python string, threads long").collect()
    assert [tuple(row) for row in rows] == [(sys.executable, 1)]


def test_the_running_session_is_returned(spark: SparkSession) -> None:
    assert session() is spark
    found: list[SparkSession] = []
    thread = threading.Thread(target=lambda: found.append(session()))
    thread.start()
    thread.join()
    assert found[0].sparkContext is spark.sparkContext


def test_what_flows_need_is_set_on_a_session_that_runs(spark: SparkSession) -> None:
    spark.conf.set(STATE_STORE, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session()
    assert spark.conf.get(STATE_STORE) == ROCKSDB
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_what_cannot_change_any_more_is_refused_with_the_line_to_add(spark: SparkSession) -> None:
    with pytest.raises(InvalidSetting, match=r'(?s)cannot be changed.*\.config\("spark\.ui\.enabled", "true"\)'):
        session(settings={"spark.ui.enabled": "true"})


def test_another_master_than_the_one_that_runs_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidSetting, match=r"(?s)has the master.*'local\[77\]'.*stop"):
        session(master="local[77]")


def test_a_shuffle_without_partitions_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="0 partitions"):
        session(partitions=0)


def test_warming_up_ends_and_harms_nothing(spark: SparkSession) -> None:
    warm(spark).join(120)
    assert spark.range(3).count() == 3


def test_sparks_output_goes_to_a_file(spark: SparkSession) -> None:
    spark._jvm.org.apache.log4j.LogManager.getLogger("mill").error("grinding halt")  # type: ignore[union-attr]
    log = log_file()
    assert log is not None
    assert "ERROR mill: grinding halt" in log.read_text()


def test_options_of_java_come_from_the_environment(spark: SparkSession) -> None:
    """Method: conftest.py sets one for all tests."""
    runtime = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()  # type: ignore[union-attr]
    given = os.environ["MILLSTREAM_JAVA_OPTIONS"]
    assert given in list(runtime.getInputArguments())


def test_options_of_java_that_cannot_be_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_JAVA_OPTIONS", "-Dname='a b")
    with pytest.raises(InvalidSetting, match="MILLSTREAM_JAVA_OPTIONS cannot be read: No closing quotation"):
        _java_options()


def test_the_names_of_the_package_are_functions() -> None:
    assert all(callable(getattr(package, name)) for name in package.__all__)


@pytest.mark.more
@pytest.mark.own_processes
def test_nothing_is_printed_and_nothing_left_behind(tmp_path: Path) -> None:
    """Goal: a terminal and a folder as they were. Method: a process that makes a table, stops, and starts again."""
    done = run(
        "from millstream.spark import session, stop\n"
        "for name in 'ab':\n"
        "    spark = session(name=name)\n"
        "    spark.range(3).write.saveAsTable('t')\n"
        "    print(name, spark.table('t').count(), spark.sparkContext.master)\n"
        "    stop()\n",
        tmp_path,
        MILLSTREAM_MASTER="local[1]",
    )
    assert (done.stdout, done.stderr) == ("a 3 local[1]\nb 3 local[1]\n", "")
    assert list((tmp_path / "work").iterdir()) == []
    assert [path.name for path in (tmp_path / "tmp").iterdir() if "hsperf" not in path.name] == []


@pytest.mark.more
@pytest.mark.own_processes
def test_a_spark_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Goal: no stack trace of Java. Method: three mistakes in one process, then a start that works."""
    done = run(
        "import socket\n"
        "from millstream.errors import MillstreamError\n"
        "from millstream.spark import session\n"
        "taken = socket.create_server(('127.0.0.1', 0))\n"
        "port = str(taken.getsockname()[1])\n"
        "for master, settings in [\n"
        "    ('local[1]', {'spark.driver.memory': '1k'}),\n"
        "    ('locale', {}),\n"
        "    ('local[1]', {'spark.driver.port': port, 'spark.port.maxRetries': '0'}),\n"
        "]:\n"
        "    try:\n"
        "        session(master=master, settings=settings)\n"
        "    except MillstreamError as error:\n"
        "        print(type(error).__name__, '|', error.what, '|', error.next_step)\n"
        "print(session(master='local[1]').range(3).count())\n",
        tmp_path,
    )
    said = done.stdout.splitlines()
    assert len(said) == 4, done.stdout + done.stderr
    assert said[0].startswith("SparkFailed | Java did not start")
    assert "heap" in said[0]
    assert "spark.driver.memory" in said[0]
    assert said[1].startswith("InvalidSetting | Spark did not start with the master 'locale': the master is not")
    assert said[2].startswith("SparkFailed | Spark did not start with the master 'local[1]': a configured port")
    assert said[3] == "3"
    assert "\tat " not in done.stdout + done.stderr


@pytest.mark.more
@pytest.mark.own_processes
def test_a_damaged_archive_is_thrown_away(tmp_path: Path) -> None:
    """Goal: a start never depends on the archive. Method: put noise in its place; Java 17 crashes on it."""
    done = run(
        "from millstream.spark import session\n"
        "from millstream.spark.session import archive, java\n"
        "file = archive.path(java.find())\n"
        "file.parent.mkdir(parents=True)\n"
        "file.write_bytes(bytes.fromhex('f00baba8') + bytes(range(256)) * 8192)\n"
        "print(session(master='local[1]').range(3).count())\n",
        tmp_path,
        MILLSTREAM_CACHE=str(tmp_path / "cache"),
    )
    assert (done.stdout, done.stderr) == ("3\n", "")
    assert list((tmp_path / "work").iterdir()) == []


def test_a_wrong_setting_leaves_the_archive(tmp_path: Path) -> None:
    """Goal: it is kept if Java does not start without it either, or all later starts would take twice as long."""
    done = run(
        "from millstream.errors import SparkFailed\n"
        "from millstream.spark import session\n"
        "from millstream.spark.session import archive, java\n"
        "file = archive.path(java.find())\n"
        "file.parent.mkdir(parents=True)\n"
        "file.write_bytes(b'an archive')\n"
        "try:\n"
        "    session(master='local[1]', settings={'spark.driver.memory': '1k'})\n"
        "except SparkFailed as error:\n"
        "    print('heap' in error.what, file.exists())\n",
        tmp_path,
        MILLSTREAM_CACHE=str(tmp_path / "cache"),
    )
    assert done.stdout == "True True\n", done.stdout + done.stderr


WITH_JARS = """
from millstream.spark import session

spark = session(settings={"spark.jars": JARS})
loader = spark._jvm.Thread.currentThread().getContextClassLoader()
print(*(loader.getResource(f"of_{name}.txt") is not None for name in ("path", "url")), spark.conf.get("spark.jars"))


def where(batches):
    import pyarrow
    import pyspark

    for _ in batches:
        yield pyarrow.record_batch({"place": [pyspark.__file__]})


print(spark.range(1, numPartitions=1).mapInArrow(where, "place string").collect()[0].place)
"""


@pytest.mark.more
@pytest.mark.own_processes
def test_workers_load_pyspark_with_its_bytecode_also_if_there_are_jars(tmp_path: Path) -> None:
    """Spark's launcher would have them load it from a zip, which takes half a second of every query's start."""
    for name in ("path", "url"):
        with zipfile.ZipFile(tmp_path / f"{name}.jar", "w") as made:
            made.writestr(f"of_{name}.txt", "")
    jars = f"{tmp_path / 'path.jar'},file://{tmp_path / 'url.jar'}"
    done = run(WITH_JARS.replace("JARS", repr(jars), 1), tmp_path / "run")
    assert done.returncode == 0, done.stderr
    found, place = done.stdout.splitlines()
    assert found == f"True True {jars}"
    assert place.endswith("pyspark/__init__.py")
    assert ".zip" not in place
