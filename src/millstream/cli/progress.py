"""Progress of a long import, on stderr if it is a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal

from millstream.terminal import escaped

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_SECONDS = 1.0


class ImportProgress:
    """The total may be an estimate."""

    def __init__(self, topic: str, total: int | None, *, unit: Literal["bytes", "rows"] = "bytes") -> None:
        self._topic = escaped(topic)
        self._total = total
        self._unit = unit
        self._begun_at = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def show(self, done: int, records: int) -> None:
        elapsed = time.monotonic() - self._begun_at
        if self._progress is None:
            if elapsed < PATIENCE_SECONDS or not sys.stderr.isatty():
                return
            self._start()
        assert self._progress is not None
        assert self._task is not None
        self._progress.update(
            self._task,
            completed=done,
            total=None if self._total is None else max(self._total, done),
            records=f"{records:,} {'rows' if self._unit == 'rows' else 'records'}",
            rate=f"{records / elapsed:,.0f}/s",
        )

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        counts = [TextColumn("{task.fields[records]}"), TextColumn("{task.fields[rate]}")]
        share = DownloadColumn() if self._unit == "bytes" else TaskProgressColumn()
        columns = counts if self._total is None else [BarColumn(), share, *counts, TimeRemainingColumn()]
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), *columns, console=Console(stderr=True), transient=True
        )
        self._task = self._progress.add_task(self._topic, total=self._total, records="", rate="")
        self._progress.start()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
