"""What a job shows of itself: its state, its progress and its newest rows, as HTML or for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.errors import MillstreamError
from millstream.jobs.measuring.job_progress import instant
from millstream.plan.shown import html
from millstream.plan.shown.explain import explained
from millstream.terminal import escaped

if TYPE_CHECKING:
    from rich.console import RenderableType

    from millstream.jobs.job import Job


@dataclass(frozen=True)
class Newest:
    """The newest rows of an output."""

    output: str
    columns: Sequence[str]
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class JobView:
    name: str
    state: str
    facts: Sequence[tuple[str, str]]
    newest: Sequence[Newest]

    @property
    def title(self) -> str:
        return f"job {self.name}: {self.state}"


def view_of(job: Job, rows_per_s: float | None = None) -> JobView:
    """The job at this moment. `rows_per_s` is its rate, by default that of the last batch."""
    rate = job.progress.rows_per_s if rows_per_s is None else rows_per_s
    newest = [
        Newest(output.name, output.schema.names, job.recent.of(output))
        for output in job.outputs
        if job.recent is not None and not output.is_discarded
    ]
    return JobView(job.name, job.state, _facts(job, rate), newest)


def _facts(job: Job, rows_per_s: float | None) -> list[tuple[str, str]]:
    progress = job.progress
    if progress.batch < 0:
        return []
    found = [("batch", f"{progress.batch:,}"), ("rows read", f"{progress.rows_read:,}")]
    if rows_per_s is not None:
        found.append(("rows/s", f"{rows_per_s:,.0f}"))
    try:
        found.append(("lag", f"{job.lag():,}"))
    except MillstreamError:  # a broker is unavailable
        found.append(("lag", "unknown"))
    if progress.watermark is not None:
        found.append(("watermark", instant(progress.watermark)))
    found += [(f"written by {output}", f"{count:,}") for output, count in progress.written.items()]
    found += [("late", f"{progress.rows_late:,}")] if progress.rows_late else []
    found += [("dead", f"{progress.rows_dead:,}")] if progress.rows_dead else []
    found += [("waits for", progress.waits)] if progress.waits else []
    found += [("guarantee", job.promise)] if job.promise else []
    return found


def as_html(view: JobView, plan: str | None = None) -> str:
    """For a notebook, with the plan as an SVG drawing if it is given."""
    parts = [html.facts(view.facts)] if view.facts else [html.note("no batch yet")]
    parts += [html.rows_table(each.columns, each.rows, f"newest rows of {each.output}") for each in view.newest]
    if plan is not None:
        parts.append(html.folded("plan", html.drawing(plan)))
    return html.page(view.title, parts)


def whole_page(job: Job) -> str:
    """The job with its plan."""
    return as_html(view_of(job), explained(job.name, job.outputs, "svg"))


def as_text(view: JobView) -> RenderableType:
    """For a terminal."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = " · ".join(f"{name} {value}" for name, value in view.facts) or "no batch yet"
    parts: list[RenderableType] = [Text(escaped(view.title), style="bold"), Text(escaped(facts))]
    for each in view.newest:
        table = Table(title=Text(escaped(f"newest rows of {each.output}")), box=box.SIMPLE_HEAD, title_justify="left")
        for column in each.columns:
            table.add_column(Text(escaped(column)))
        for row in each.rows:
            table.add_row(*(Text(escaped(html.shown(row[column]))) for column in each.columns))
        parts.append(table)
    return Group(*parts)
