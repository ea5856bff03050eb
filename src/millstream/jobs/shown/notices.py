"""Warnings of a running job to its owner: rows that are dropped, and a watermark that does not advance.

Each notice is logged once, as a warning of the logger `millstream.job`; by default Python prints it to stderr.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from millstream import terminal
from millstream.plan.nodes import Read
from millstream.plan.time.bundles import BEGINNING, END
from millstream.plan.time.timing import Timed
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.task_messages import Report, SourceReport, StepReport

STUCK_S = 60.0
logger = terminal.logger("millstream.job")


class Notices:
    def __init__(self, job: str, physical_plan: PhysicalPlan, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._steady_s = steady_s
        self._drops_late = {step.name for step in physical_plan.chain if not physical_plan.takes_late(step)}
        timing = physical_plan.timing
        self._sources = {node.name: timing[node] for node in physical_plan.fed_sources if node in timing}
        self._watermarks: dict[str, dict[str, int | None]] = {name: {} for name in self._sources}
        """By source and partition, the watermark of its rows in this run."""
        self._moved_at = steady_s()
        self._watermark = BEGINNING
        self._warned_about: set[str] = set()

    def observe(self, reports: Iterable[Report], watermarks: Mapping[str, int]) -> None:
        """Evaluates the reports of a batch, and the watermark of each step after it."""
        has_rows = False
        for report in reports:
            if isinstance(report, StepReport | SourceReport):
                for note in report.notes:
                    self._warn(note, about=note)
            if isinstance(report, StepReport) and report.late and report.step in self._drops_late:
                self._warn_of_late(report.step)
            elif isinstance(report, SourceReport):
                has_rows = has_rows or report.rows > 0
                self._observe_partitions(report)
        self._watch(min(watermarks.values(), default=END), has_rows)

    def end(self, watermarks: Mapping[str, int], rows_read: int) -> None:
        """At the end of a bounded run, warns if a partition held back results."""
        if rows_read and min(watermarks.values(), default=END) == BEGINNING:
            self._warn_of_silence("The run has ended, and the watermark closed no window")

    def _observe_partitions(self, report: SourceReport) -> None:
        known = self._watermarks.get(report.source)
        if known is None:
            return
        for partition, watermark in report.partitions.items():
            before = known.get(partition)
            known[partition] = (
                watermark if before is None else max(before, BEGINNING if watermark is None else watermark)
            )

    def _watch(self, watermark: int, has_rows: bool) -> None:
        """Warns if the watermark does not advance while rows arrive."""
        now = self._steady_s()
        if watermark > self._watermark or watermark >= END:
            self._watermark, self._moved_at = watermark, now
        elif has_rows and now - self._moved_at >= STUCK_S:
            self._warn_of_silence(f"The watermark has not advanced for {now - self._moved_at:.0f} s while rows arrived")
            self._moved_at = now

    def _warn_of_silence(self, what: str) -> None:
        for name, known in self._watermarks.items():
            silent = sorted(partition for partition, watermark in known.items() if watermark is None)
            if not silent or self._sources[name].watermark is None:
                continue
            self._warn(
                f"{what}: in '{name}', {_partitions(silent)} sent no row with an event time, and the watermark waits "
                f"for {'it' if len(silent) == 1 else 'them'}. {_next_step(self._sources[name])}",
                about=f"silence of {name}",
            )

    def _warn_of_late(self, step: str) -> None:
        self._warn(
            f"rows arrived too late for the step '{step}'; they are counted and dropped. Keep them with .late.write(…) "
            "after the step, or wait longer: a larger allowed_lateness, or a larger watermark delay",
            about=f"late rows of {step}",
        )

    def _warn(self, notice: str, *, about: str) -> None:
        """Warns once for each subject."""
        if about not in self._warned_about:
            self._warned_about.add(about)
            logger.warning("%s: %s", self._job, notice)


def warn_of_bad_records(job: str, source: Read) -> None:
    """Warns, when a job starts, that its first malformed record would stop it, perhaps much later."""
    logger.warning(
        "%s: the job stops at the first record of '%s' (%s) that cannot be decoded, because its dead letters are not "
        'written anywhere. To set such records aside and continue: stream.dead.write("%s.dead")',
        job,
        source.name,
        source.user_line,
        _topic_name(source),
    )


def _topic_name(source: Read) -> str:
    return source.source.topic_name or source.name


def _partitions(names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"partition{'s' if len(names) > 1 else ''} {shown}"


def _next_step(node: Timed) -> str:
    assert node.watermark is not None
    if node.watermark.idle is None:
        return "Set a time after which a silent partition is ignored: watermark=ms.bounded(…, idle='30 seconds')"
    return "It holds the watermark back until it has been silent for the idle time"
