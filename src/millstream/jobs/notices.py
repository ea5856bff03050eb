"""What a running job tells its owner without being asked: rows that are dropped, and time that stands still.

Each notice is logged once, as a warning of the logger `millstream.job`; without any set-up Python prints it to stderr.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millstream import terminal
from millstream.plan.bundles import BEGINNING, END
from millstream.plan.endpoints import Kafka
from millstream.plan.nodes import Read
from millstream.spark.query.physical_plan import Layout

STUCK_S = 60.0
logger = terminal.logger("millstream.job")


class Notices:
    def __init__(self, job: str, layout: Layout, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._steady_s = steady_s
        self._drops_late = {step.name for step in layout.chain if not layout.takes_late(step)}
        self._sources = {node.name: node for node in layout.fed_sources if node.watermark is not None}
        self._told: dict[str, dict[str, int | None]] = {name: {} for name in self._sources}
        """By source and partition, the watermark that its rows gave in this run."""
        self._moved_at = steady_s()
        self._watermark = BEGINNING
        self._given: set[str] = set()

    def hear(self, reports: Iterable[Mapping[str, Any]], watermarks: Mapping[str, int]) -> None:
        """Takes in what a batch reported, and the watermark of each step after it."""
        has_rows = False
        for report in reports:
            for note in report.get("notes", ()):
                self._give(note, about=note)
            if report.get("late") and report["step"] in self._drops_late:
                self._warn_of_late(report["step"])
            if "source" in report:
                has_rows = has_rows or report["rows"] > 0
                self._hear_partitions(report)
        self._watch(min(watermarks.values(), default=END), has_rows)

    def end(self, watermarks: Mapping[str, int], rows_read: int) -> None:
        """A bounded run is over: whether a partition has kept results back."""
        if rows_read and min(watermarks.values(), default=END) == BEGINNING:
            self._warn_of_silence("The run is over, and no window was closed by the watermark")

    def _hear_partitions(self, report: Mapping[str, Any]) -> None:
        told = self._told.get(report["source"])
        if told is None:
            return
        for partition, watermark in report.get("partitions", {}).items():
            before = told.get(partition)
            told[partition] = (
                watermark if before is None else max(before, BEGINNING if watermark is None else watermark)
            )

    def _watch(self, watermark: int, has_rows: bool) -> None:
        """Notices a watermark that stands still while rows come."""
        now = self._steady_s()
        if watermark > self._watermark or watermark >= END:
            self._watermark, self._moved_at = watermark, now
        elif has_rows and now - self._moved_at >= STUCK_S:
            self._warn_of_silence(f"The watermark has not moved for {now - self._moved_at:.0f} s while rows came")
            self._moved_at = now

    def _warn_of_silence(self, what: str) -> None:
        for name, told in self._told.items():
            silent = sorted(partition for partition, watermark in told.items() if watermark is None)
            if not silent or self._sources[name].watermark is None:
                continue
            self._give(
                f"{what}: of '{name}', {_partitions(silent)} sent no row with an event time, and the watermark waits "
                f"for {'it' if len(silent) == 1 else 'them'}. {_next_step(self._sources[name])}",
                about=f"silence of {name}",
            )

    def _warn_of_late(self, step: str) -> None:
        self._give(
            f"rows came too late for the step '{step}' and are dropped, only counted. Keep them with .late.write(…) "
            "behind the step, or wait for them: a larger allowed_lateness, or a larger delay of the watermark",
            about=f"late rows of {step}",
        )

    def _give(self, notice: str, *, about: str) -> None:
        """Once for each subject."""
        if about not in self._given:
            self._given.add(about)
            logger.warning("%s: %s", self._job, notice)


def warn_of_bad_records(job: str, source: Read) -> None:
    """When a job starts: its first malformed record would stop it, perhaps much later."""
    logger.warning(
        "%s: the job stops at the first record of '%s' (%s) that cannot be decoded, as its dead letters are not "
        'written anywhere. To keep such records apart and continue: stream.dead.write("%s.dead")',
        job,
        source.name,
        source.place,
        _topic_name(source),
    )


def _topic_name(source: Read) -> str:
    place = source.source
    return place if isinstance(place, str) else place.topic if isinstance(place, Kafka) else source.name


def _partitions(names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"partition{'s' if len(names) > 1 else ''} {shown}"


def _next_step(node: Read) -> str:
    assert node.watermark is not None
    if node.watermark.idle is None:
        return "Name a time after which a silent partition no longer counts: watermark=ms.bounded(…, idle='30 seconds')"
    return "It counts again until it has been silent for the watermark's idle time"
