"""The dashboards of all jobs over HTTP, as their folders have them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from millstream.errors import NotFound
from millstream.jobs.versions.plan_document import read_plan
from millstream.supervision.http import MoreRoute
from millstream.supervision.supervisor import Supervisor
from millstream.user_lines import what_exists


def dashboard_routes(supervisor: Supervisor) -> list[MoreRoute]:
    def known() -> dict[str, Any]:
        """By name; of two with the same name, that of the job whose name comes last."""
        plans = ((job.name, read_plan(supervisor.folder_of(job))) for job in supervisor.store.jobs())
        return {
            each["name"]: {**each, "job": job} for job, plan in plans if plan for each in plan.get("dashboards", [])
        }

    def names(request: Request, body: dict[str, Any]) -> Any:
        return sorted(known())

    def one(request: Request, body: dict[str, Any]) -> Any:
        name, found = request.path_params["dashboard"], known()
        if name not in found:
            raise NotFound(
                f"there is no dashboard '{name}'", next_step=what_exists(name, list(found), kind="dashboards")
            )
        return found[name]

    return [
        MoreRoute("/dashboards", {"GET /v1/dashboards": "the names of the dashboards of all jobs"}, names),
        MoreRoute("/dashboards/{dashboard}", {"GET /v1/dashboards/NAME": "one: its panels"}, one),
    ]
