"""The plan of a job over HTTP."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from millstream.errors import NotFound
from millstream.jobs.versions.plan_document import read_plan
from millstream.supervision.http import MoreRoute
from millstream.supervision.status import Status


def plan_route(status: Status) -> MoreRoute:
    def plan(request: Request, body: dict[str, Any]) -> Any:
        name = request.path_params["name"]
        found = read_plan(status.folder_of(name))
        if found is None:
            raise NotFound(f"the job '{name}' has no plan yet", next_step="it is there when the job has started")
        return found

    return MoreRoute("/jobs/{name}/plan", {"GET /v1/jobs/NAME/plan": "its steps, and how Spark runs them"}, plan)
