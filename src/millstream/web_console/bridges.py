"""The bridges of the log over HTTP, as they report themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request

from millstream.bridges.reports import read_reports
from millstream.supervision.http import MoreRoute


def bridge_route(folder: Path) -> MoreRoute:
    def all_of_them(request: Request, body: dict[str, Any]) -> Any:
        return read_reports(folder)

    return MoreRoute("/bridges", {"GET /v1/bridges": "the bridges, with their rates and what waits"}, all_of_them)
