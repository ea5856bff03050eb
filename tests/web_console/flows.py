"""Jobs as their folders show them while they run, without the processes."""

from __future__ import annotations

from pathlib import Path

import millstream as ms
from millstream.jobs.versions.plan_document import write_plan
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Observed

from .conftest import Console

HTML = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"
"""What would change the title of a page that takes text for HTML."""


def pumps_flow() -> ms.Flow:
    flow = ms.Flow("pumps")
    readings = flow.read(
        "readings",
        schema="pump string, litres double, at timestamp",
        event_time="at",
        watermark=ms.bounded("10 seconds"),
    )
    panes = readings.where("litres > 0").key_by("pump").window(ms.fixed("1 minute")).agg(litres=ms.sum("litres"))
    panes.write("litres_per_minute")
    panes.late.write("late_readings")
    return flow


def planned(console: Console, flow: ms.Flow) -> None:
    """A job with the plan of a flow."""
    console.supervisor.store.add(
        JobSpecification(flow.name, "/nowhere/flow.py", flow.name), "ann", Observed.STOPPED, None
    )
    planned_in(console, flow)


def planned_in(console: Console, flow: ms.Flow) -> None:
    """Writes the plan as a job does that starts."""
    folder = console.supervisor.jobs / flow.name
    folder.mkdir(parents=True, exist_ok=True)
    write_plan_of(folder, flow)


def write_plan_of(folder: Path, flow: ms.Flow) -> None:
    write_plan(folder, flow.name, PhysicalPlan(tuple(flow.check()), 4))
