"""`ms.why`: one question about a job, answered as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from os import PathLike
from typing import Any

from millstream.errors import InvalidInput
from millstream.plan.flow import Flow
from millstream.provenance.bounds import why_bound
from millstream.provenance.dead_letter_reasons import why_dead
from millstream.provenance.history import History
from millstream.provenance.late_reasons import why_late
from millstream.provenance.panes import why_pane
from millstream.user_lines import users_line


def why(
    flow: Flow,
    *,
    pane: Mapping[str, Any] | None = None,
    late: tuple[str, int, int] | None = None,
    bound: str | timedelta | None = None,
    dead: tuple[str, int, int] | None = None,
    step: str | None = None,
    broker: str | PathLike[str] | None = None,
    folder: str | PathLike[str] | None = None,
    job: str | None = None,
) -> dict[str, Any]:
    """Explains a result of a job that has run, by repeating its recorded batches in this process.

    One of four questions: `pane={"team": "red", "window": start}` asks for the rows that made a pane, the trigger that
    fired, and the pane it replaced; `index` in it chooses an earlier pane of the window than the newest.
    `late=(topic, partition, offset)` asks why a record was late, and what would have kept it. `bound="30 seconds"` asks
    what another bound of the watermark would have meant, and `dead=(topic, partition, offset)` which step could not
    handle a record. `step` names the step if the flow has several, `job` the job
    if it has another name than its flow, and `folder` its folder.
    """
    if sum(each is not None for each in (pane, late, bound, dead)) != 1:
        raise InvalidInput(
            "ask one question at a time",
            where=users_line(),
            next_step="pane={…}, late=(topic, partition, offset), dead=(…) or bound='30 seconds'",
        )
    history = History(flow, broker=broker, folder=folder, job=job)
    if pane is not None:
        return why_pane(history, pane, step)
    if late is not None:
        return why_late(history, late, step)
    if dead is not None:
        return why_dead(history, dead)
    assert bound is not None
    return why_bound(history, bound, step)
