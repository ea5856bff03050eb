"""What a bridge reports of itself, once a second, in a small file beside the log: the console reads it from there.

It has counts, rates, names and errors, and never an address, a secret or a record.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import quote

from millstream.bridges.arrivals import Counts, Passage
from millstream.connectors.catalog import jobs_folder
from millstream.errors import MillstreamError
from millstream.log import Broker
from millstream.log.storage.disk import read_document
from millstream.private_files import create_alike, make_folders

NAME_VARIABLE = "MILLSTREAM_BRIDGE"
"""The name that a bridge has in its file of bridges."""
FOLDER = "bridges"
INTERVAL_SECONDS = 1.0
RATE_SECONDS = 30.0
SILENT_SECONDS = 15.0
"""A bridge that has not reported for so long was killed, or hangs."""
KEEP_SECONDS = 86_400.0
RUNNING, FAILED, RESTARTING, GIVEN_UP, SILENT = "running", "failed", "restarting", "given up", "silent"


NOTHING: dict[str, Any] = {
    "topics": [],
    "state": RUNNING,
    "reason": None,
    "started_at": None,
    "stored": 0,
    "duplicates": 0,
    "dead": 0,
    "missing": None,
    "sent": 0,
    "waiting": 0,
    "waiting_s": 0.0,
    "behind": None,
}
"""A report of a bridge that has done nothing yet."""


class Behind(NamedTuple):
    """What is at the source and not received yet, as far as the source tells."""

    amount: float
    unit: Literal["messages", "bytes", "seconds", "records"]


class Entrance(Protocol):
    """What is reported of a bridge."""

    @property
    def bridge(self) -> str: ...

    @property
    def topics(self) -> Sequence[str]: ...

    @property
    def counts(self) -> Counts: ...

    @property
    def passage(self) -> Passage: ...


@dataclass(frozen=True)
class Served:
    """The entrance of a bridge whose clients use the log itself."""

    bridge: str
    topics: Sequence[str] = ()
    counts: Counts = field(default_factory=Counts)
    passage: Passage = field(default_factory=Passage)


def unknown() -> Behind | None:
    """Of a protocol that does not tell."""
    return None


def reports_folder(log: Broker | Path | str) -> Path:
    """Beside the folders of jobs. A log is given open, or by its folder, or the address of Kafka."""
    return jobs_folder(log).parent / FOLDER


@contextmanager
def reported(
    log: Broker,
    kind: str,
    entrance: Entrance,
    behind: Callable[[], Behind | None] = unknown,
    missing: Callable[[], int | None] = lambda: None,
) -> Iterator[None]:
    """While the block runs, the bridge is seen in the console. If it fails, that is seen for a day.

    `missing` counts numbers of messages that never came, and datagrams for which there was no space.
    """
    name = os.environ.get(NAME_VARIABLE) or entrance.bridge
    reporter = _Reporter(reports_folder(log), name, kind, entrance, behind, missing)
    reporter.start()
    try:
        yield
    except Exception as error:
        reporter.end(error.what if isinstance(error, MillstreamError) else type(error).__name__)
        raise
    finally:
        reporter.end(None)


class _Reporter:
    def __init__(
        self,
        folder: Path,
        name: str,
        kind: str,
        entrance: Entrance,
        behind: Callable[[], Behind | None],
        missing: Callable[[], int | None],
    ) -> None:
        self._folder, self._name, self._kind = folder, name, kind
        self._entrance, self._behind, self._missing = entrance, behind, missing
        self._started_at = time.time()
        self._totals: deque[tuple[float, int]] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-report", daemon=True)

    def start(self) -> None:
        self._write(self._document())
        self._thread.start()

    def end(self, reason: str | None) -> None:
        """A bridge that was stopped leaves no report, unless another process has taken over its name."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        path = report_path(self._folder, self._name)
        with suppress(OSError, MillstreamError, ValueError, KeyError):
            if read_document(path)["pid"] == os.getpid():
                if reason is None:
                    path.unlink()
                else:
                    self._write(self._document() | {"state": FAILED, "reason": reason})

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_SECONDS):
            self._write(self._document())

    def _document(self) -> dict[str, Any]:
        counts, passage, now = self._entrance.counts, self._entrance.passage, time.monotonic()
        self._totals.append((now, counts.total))
        while now - self._totals[0][0] > RATE_SECONDS:
            self._totals.popleft()
        begun, total = self._totals[0]
        behind = self._behind()
        return {
            "name": self._name,
            "kind": self._kind,
            "topics": sorted(self._entrance.topics),
            "state": RUNNING,
            "reason": None,
            "pid": os.getpid(),
            "started_at": self._started_at,
            "at": time.time(),
            "stored": counts.stored,
            "duplicates": counts.duplicates,
            "dead": counts.dead,
            "missing": self._missing(),
            "sent": counts.sent,
            "per_s": (counts.total - total) / (now - begun) if now > begun else 0.0,
            "waiting": passage.messages,
            "waiting_s": passage.seconds(now),
            "behind": None if behind is None else {"amount": behind.amount, "unit": behind.unit},
        }

    def _write(self, document: dict[str, Any]) -> None:
        write_report(self._folder, document)


def report_path(folder: Path, name: str) -> Path:
    return folder / f"{quote(name, safe='')}.json"


def write_report(folder: Path, document: dict[str, Any]) -> None:
    """Not synced: it is written again in a second. A full disk does not stop the bridge."""
    path = report_path(folder, document["name"])
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError, MillstreamError):
        make_folders(folder)
        with os.fdopen(create_alike(draft), "w") as file:
            json.dump(document, file)
        draft.replace(path)


def mark(folder: Path, name: str, kind: str, state: str, reason: str) -> None:
    """By the process that supervises the bridge, when that has ended."""
    document = NOTHING | {"name": name, "kind": kind}
    with suppress(OSError, MillstreamError, ValueError):
        document |= read_document(report_path(folder, name))
    if document["state"] == FAILED and document["reason"]:  # as the bridge itself put it
        reason = document["reason"]
    write_report(folder, document | {"state": state, "reason": reason, "at": time.time(), "pid": 0, "per_s": 0.0})


def forget(folder: Path, name: str) -> None:
    """One that was waiting to be started again when its supervisor was stopped."""
    report_path(folder, name).unlink(missing_ok=True)


def read_reports(folder: Path, now: float | None = None) -> list[dict[str, Any]]:
    """Of all bridges, by name; of those that do not run any more, for a day."""
    at = time.time() if now is None else now
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        with suppress(OSError, MillstreamError, ValueError, KeyError, TypeError):
            document = read_document(path)
            age = at - document["at"]
            if age > KEEP_SECONDS:
                continue
            if document["state"] == RUNNING and age > SILENT_SECONDS:
                document |= {"state": SILENT, "reason": f"it has not reported for {age:.0f} s", "per_s": 0.0}
            found.append(document)
    return found
