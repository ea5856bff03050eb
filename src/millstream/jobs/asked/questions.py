"""Questions of other processes to a running job: the driver answers them at a socket in the folder of its state.

The folder is private to the user of the job, so nobody else can ask. A question is a line of JSON; the answer is a line
of JSON, and the rows as an Arrow stream.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from millstream import terminal
from millstream.errors import InvalidInput, MillstreamError, NotFound, SourceUnavailable, StorageError
from millstream.jobs.asked.current_state import CurrentState, Held
from millstream.jobs.job_folder import JobFolder, runs_of

SOCKET = "questions"
TIMES = ("watermark", "as_of")
LINE_BYTES_MAX = 1 << 16
ANSWER_S_MAX = 30.0
KINDS: dict[str, type[MillstreamError]] = {
    each.__name__: each for each in (InvalidInput, NotFound, StorageError, MillstreamError)
}
logger = terminal.logger(__name__)


class Questions:
    """The socket of a job in this process."""

    def __init__(self, state: CurrentState, identity: str) -> None:
        self.state = state
        self._path = runs_of(identity) / SOCKET
        self._socket = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve, name="millstream-questions", daemon=True)

    def start(self) -> None:
        """No job fails because other processes cannot ask it: the path of the socket may be too long."""
        try:
            self._path.unlink(missing_ok=True)
            self._socket.bind(str(self._path))
            self._socket.listen()
        except OSError as error:
            logger.warning("other processes cannot ask this job: %s", error)
            return
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection, suppress(OSError):
                connection.settimeout(ANSWER_S_MAX)
                connection.sendall(self._answered(_line(connection)))

    def _answered(self, line: bytes) -> bytes:
        try:
            asked = json.loads(line)
            start = asked["window"]
            window = None if start is None else datetime.fromisoformat(start)
            held = self.state.held(step=asked["step"], table=asked["table"], key=asked["key"], window=window)
        except MillstreamError as error:
            kind = next(name for name, each in KINDS.items() if isinstance(error, each))
            return orjson.dumps({"error": [kind, error.what, error.where, error.next_step]}) + b"\n"
        except Exception:
            logger.exception("a question to the job failed")
            return orjson.dumps({"error": ["MillstreamError", "the job failed to answer", None, "see its log"]}) + b"\n"
        times = zip(TIMES, (held.watermark, held.as_of), strict=True)
        head = {"batch": held.batch} | {name: each and each.isoformat() for name, each in times}
        return orjson.dumps(head) + b"\n" + to_bytes(held.table)


def asked_of(folder: Path, job: str, **question: Any) -> Held:
    """The answer of a job of another process on this machine. A window is its start as text."""
    kept = JobFolder(folder, job).description()
    path = None if kept is None else runs_of(kept.identity) / SOCKET
    try:
        if path is None:
            raise FileNotFoundError
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S_MAX)
            connection.connect(str(path))
            connection.sendall(orjson.dumps(question, default=str) + b"\n")
            with connection.makefile("rb") as received:
                head, rows = json.loads(received.readline()), received.read()
    except (OSError, ValueError) as error:
        raise SourceUnavailable(
            f"the job '{job}' does not answer: it does not run on this machine",
            where=str(folder),
            next_step="start it, or ask for a table that it has written: ms.ask(job, table=…, key=…)",
        ) from error
    if "error" in head:
        kind, what, where, next_step = head["error"]
        raise KINDS[kind](what, where=where, next_step=next_step)
    watermark, as_of = (each and datetime.fromisoformat(each).astimezone(UTC) for each in map(head.get, TIMES))
    with pa.ipc.open_stream(rows) as stream:
        return Held(stream.read_all(), head["batch"], watermark, as_of)


def to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        part = connection.recv(LINE_BYTES_MAX)
        if not part:
            break
        line += part
    return line
