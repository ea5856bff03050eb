"""Other users of the machine reach the loopback interface and the folder for temporary files, and get nowhere."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .test_session import run

RPC_REQUEST, RPC_ANSWER = 3, 4
SERIALIZED_TEXT = bytes.fromhex("aced000574000178")
OPEN_TO_ALL = stat.S_IRWXG | stat.S_IRWXO

# A session with a streaming query whose batches come back to Python and go through a shuffle; then it waits.
SCRIPT = """
import sys
from millstream.spark import session
spark = session(master="local[2]", settings=dict(each.split("=", 1) for each in sys.argv[1:]))
seen = []
def batch(rows, number):
    rows.groupBy("value").count().collect()
    seen.append(number)
def started():
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    return rate.writeStream.foreachBatch(batch).trigger(once=True).start()
started().awaitTermination(120)
print(spark.sparkContext._gateway.proc.pid, flush=True)
sys.stdin.readline()
started().awaitTermination(120)
print(len(seen), spark.sparkContext.getConf().get("spark.local.dir", ""), flush=True)
sys.stdin.readline()  # Spark removes its files when it ends
"""


class Running:
    """The script in a process of its own, and what of it others can see."""

    def __init__(self, folder: Path, *settings: str, **environ: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.temporary.chmod(0o777)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.temporary), **environ},
            umask=0o022,
        )
        self.jvm = int(self.said())

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run_another(self) -> str:
        """Runs another query; how many batches there were, and where Spark keeps its files."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.said()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Any]:
    made: list[Running] = []

    def start(*settings: str, **environ: str) -> Running:
        made.append(Running(tmp_path, *settings, **environ))
        return made[-1]

    yield start
    for each in made:
        each.close()


def listening(pid: int) -> list[tuple[str, int]]:
    """The address and the port of every TCP socket on which a process waits for connections."""
    sockets = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                found.append((address, int(port, 16)))
    return found


def asked(port: int, message: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
        try:
            connection.sendall(message)
            return connection.recv(10_000)
        except OSError:  # no answer, or a closed door
            return b""


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def spark_request() -> bytes:
    """A text for an endpoint that every driver has, serialized by Java, as Spark's messages are."""
    body = b"\0\x01" + text(b"127.0.0.1") + struct.pack(">i", 1) + text(b"endpoint-verifier") + SERIALIZED_TEXT
    return struct.pack(">qbqi", 21 + len(body), RPC_REQUEST, 7, len(body)) + body


def reachable(folder: Path) -> list[str]:
    """What any user can read below a folder."""
    found = []
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        if mode & OPEN_TO_ALL:
            found.append(str(path))
        if stat.S_ISDIR(mode) and mode & stat.S_IXOTH:
            found += reachable(path)
    return found


@pytest.mark.more
@pytest.mark.own_processes
def test_nothing_on_loopback_answers_without_a_secret(running: Any) -> None:
    """Java's serialization, Spark's blocks, the gateway into the JVM and the way back to Python."""
    session = running()
    doors = listening(session.jvm) + listening(session.process.pid)
    assert len(doors) >= 4
    assert all(address[-8:] == "0100007F" for address, _ in doors)  # of this machine alone
    calls = [spark_request(), *(f"c\np{proxy}\ntoString\ne\n".encode() for proxy in range(4))]
    attempts = [(port, call) for _, port in doors for call in calls]
    with ThreadPoolExecutor(len(attempts)) as pool:  # most wait for an answer that never comes
        answers = dict(zip(attempts, pool.map(asked, *zip(*attempts, strict=True)), strict=True))
    for (port, call), answer in answers.items():
        spark_answered = call == calls[0] and answer[8:9] == bytes([RPC_ANSWER])
        python_answered = b"Traceback" in answer or b"ID unknown" in answer
        assert not spark_answered, f"port {port} took {call!r}: {answer!r}"
        assert not python_answered, f"port {port} took {call!r}: {answer!r}"
    assert reachable(session.temporary) == []
    assert session.run_another().split()[0] == "2"  # with the secret, access still works


@pytest.mark.more
@pytest.mark.own_processes
def test_folders_that_the_user_names_are_private_within(running: Any, tmp_path: Path) -> None:
    """Through Spark's own launcher, too: it is asked for by its variable."""
    named, other = tmp_path / "named", tmp_path / "other"
    session = running(f"spark.local.dir={named}", SPARK_LOCAL_DIRS=str(other), PYSPARK_SUBMIT_ARGS="pyspark-shell")
    used = session.run_another().split()[1]
    assert used.startswith(f"{other}/")  # as in Spark, the variable goes before the setting
    assert any(path.name.startswith("shuffle") for path in Path(used).rglob("*"))
    assert reachable(other) + reachable(session.temporary) == []


@pytest.mark.more
@pytest.mark.own_processes
def test_settings_are_on_no_command_line(running: Any, tmp_path: Path) -> None:
    """Spark's launcher has them in a file, on top of the user's own files; all users can read arguments."""
    given, odd = tmp_path / "given.conf", "planted = # ! \\ é"
    given.write_text("spark.driver.cores 3\nspark.own.given theirs\n")
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.own.default theirs\nspark.own.credential overridden\n")
    wanted = {"spark.own.credential": odd}
    for environ, expected in [
        ({"SPARK_CONF_DIR": str(conf)}, {"spark.own.default": "theirs"}),
        ({"PYSPARK_SUBMIT_ARGS": f"--properties-file {given} pyspark-shell"}, {"spark.own.given": "theirs"}),
    ]:
        done = run(
            "import subprocess, sys\n"
            "from pathlib import Path\n"
            "from millstream.spark import session, stop\n"
            f"spark = session(master='local[1]', settings={wanted!r})\n"
            "pid = spark.sparkContext._gateway.proc.pid\n"
            "print(Path(f'/proc/{pid}/cmdline').read_bytes())\n"
            f"system = spark._jvm.System.getProperty\n"
            f"for key in {list({**wanted, **expected})!r}: print(system(key))\n",
            tmp_path / str(len(environ)) / next(iter(environ)),
            **environ,
        )
        assert done.stdout.splitlines()[1:] == [odd, *expected.values()], done.stdout + done.stderr
        assert "SparkSubmit" in done.stdout
        assert "planted" not in done.stdout.splitlines()[0]
