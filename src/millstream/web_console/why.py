"""`millstream why` over HTTP: questions about panes, late records, dead letters and bounds of a job.

They are answered in processes of their own, since the flow's file is other people's code and a replay takes a while.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from starlette.requests import Request

from millstream.errors import InvalidInput, MillstreamError
from millstream.jobs.versions.plan_document import read_plan
from millstream.supervision.http import MoreRoute
from millstream.supervision.supervisor import Supervisor

ANSWER_S_MAX = 600.0
AT_ONCE_MAX = 2
QUESTIONS = ("pane", "late", "dead", "bound")
RECORDS = ("key", "pane", "row", "changed")
"""The parts of an answer that are rows."""


class Questions:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._free = threading.Semaphore(AT_ONCE_MAX)

    def route(self) -> MoreRoute:
        does = "explains a pane, a late record, a dead letter or another bound; test=1: as a test"
        path = "GET /v1/jobs/NAME/why?pane={…}&late=[TOPIC,PARTITION,OFFSET]&dead=[…]&bound=TEXT&step=NAME&test=1"
        return MoreRoute("/jobs/{name}/why", {path: does}, self._answer)

    def _answer(self, request: Request, body: dict[str, Any]) -> Any:
        job = self._supervisor.store.job(request.path_params["name"])
        asked = question_of(dict(request.query_params))
        if not self._free.acquire(blocking=False):
            raise InvalidInput(
                f"{AT_ONCE_MAX} questions are being answered already", next_step="ask again when they are done"
            )
        try:
            specification = {**job.specification.document(), "flow": job.specification.flow or ""}
            more = (str(self._supervisor.folder_of(job)), job.name)
            return self._masked(specification, more, asked)
        finally:
            self._free.release()

    def _masked(self, specification: dict[str, Any], more: tuple[str, str], asked: dict[str, Any]) -> Any:
        masking = self._supervisor.masking
        mask = masking.now()
        if asked["test"] and mask:
            columns = {name for step in (read_plan(Path(more[0])) or {}).get("logical", []) for name in step["columns"]}
            if hidden := sorted(filter(mask.hides, columns)):
                raise InvalidInput(
                    f"a test would contain values of masked columns: {', '.join(hidden)}",
                    next_step="write it where you may read the log: millstream why … --as-test FILE",
                )
        signs = {name: each for name, each in asked.get("pane", {}).items() if masking.meant(each) is not each}
        if signs:
            asked["pane"] |= {name: masking.meant(sign) for name, sign in signs.items()}
        try:
            found = self._supervisor.drivers.ask(
                "--why", specification, *more, json.dumps(asked), timeout_s=ANSWER_S_MAX
            )
        except MillstreamError as error:
            for name, sign in signs.items():
                error.what = error.what.replace(repr(asked["pane"][name]), sign).replace(str(asked["pane"][name]), sign)
            raise
        if "dead" in asked and not asked["test"]:
            return mask.letter(found, asked["dead"][0])
        return mask.document(found, RECORDS)


def question_of(given: dict[str, str]) -> dict[str, Any]:
    """A question as `ms.why` takes it, and whether a test is wanted."""
    asked: dict[str, Any] = {"test": bool(given.pop("test", ""))}
    for name, text in given.items():
        if name in ("step", "bound"):
            asked[name] = text
        elif name in QUESTIONS:
            asked[name] = _record(name, text) if name != "pane" else _object(text)
        else:
            raise InvalidInput(f"{name[:50]!r} is no part of a question", next_step="GET / lists the routes")
    if sum(name in asked for name in QUESTIONS) != 1:
        raise InvalidInput("ask one question at a time", next_step=f"one of {', '.join(QUESTIONS)}")
    return asked


def _object(text: str) -> dict[str, Any]:
    found = _json(text)
    if not isinstance(found, dict):
        raise InvalidInput("a pane is a JSON object", next_step='such as {"team": "red", "window": START}')
    return found


def _record(name: str, text: str) -> list[Any]:
    found = _json(text)
    if not isinstance(found, list) or [type(each) for each in found] != [str, int, int]:
        raise InvalidInput(f"{name} is a topic, a partition and an offset", next_step='such as ["scores", 0, 17]')
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
