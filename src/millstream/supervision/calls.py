"""Questions to running jobs over HTTP: what a step holds for a key, or a question that the flow answers."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from millstream.asking import Answer, ask
from millstream.calling import TIMEOUT, Client, Rows, client
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.asked.current_state import Held
from millstream.jobs.asked.questions import asked_of
from millstream.supervision.http import MoreRoute
from millstream.supervision.masking import Masking

TIMEOUT_S_MAX = 600.0
LOOK_S = 1.0
"""How often it is checked whether the caller is still there."""
CLIENT_GONE = 499


class Calls:
    """The routes, and the clients of the jobs that were asked."""

    def __init__(self, log_address: str, folder_of: Callable[[str], Path], masking: Masking) -> None:
        """`folder_of` finds the folder of a job by its name."""
        self._masking = masking
        self._log_address = log_address
        self._folder_of = folder_of
        self._clients: dict[str, Client] = {}
        self._lock = threading.Lock()

    def routes(self) -> list[MoreRoute]:
        call = {"POST /v1/jobs/NAME/ask/QUESTION?timeout_s=SECONDS": "asks it a question, whose arguments are the body"}
        held = {
            "GET /v1/jobs/NAME/ask?step=NAME&key=COLUMN=VALUE&window=TIME": "the rows that a running job holds for a "
            "key, in a step, in a table that it writes, or in a window of one (table=NAME)"
        }
        return [
            MoreRoute("/jobs/{name}/ask/{question}", call, self._answer, ("POST",)),
            MoreRoute("/jobs/{name}/ask", held, self._held),
        ]

    def _held(self, request: Request, body: dict[str, Any]) -> Response:
        name, asked = request.path_params["name"], request.query_params
        step, table, keys, window = asked.get("step"), asked.get("table"), asked.getlist("key"), asked.get("window")
        if (step is None) == (table is None) or not all("=" in key for key in keys):
            raise InvalidInput(
                "step=NAME or table=NAME is missing, or a key is not COLUMN=VALUE", next_step="GET / lists the routes"
            )
        key = dict(each.split("=", 1) for each in keys) or None
        folder, start = self._folder_of(name), _start(window)
        held: Answer | Held
        if table is not None and start is None:
            held = ask(name, table=table, key=key, broker=self._log_address)
        else:
            held = asked_of(folder, name, step=step, table=table, key=key, window=start)
        rows = orjson.loads(orjson.dumps(held.rows, default=str))
        known = {"batch": held.batch, "watermark": held.watermark, "as_of": held.as_of}
        return _as_json({"rows": self._masking.now().row(rows), **known})

    async def _answer(self, request: Request, body: dict[str, Any]) -> Response:
        limit = timedelta(seconds=_timeout_s(request))
        job, question = request.path_params["name"], request.path_params["question"]
        future = await run_in_threadpool(self._sent, job, question, body, limit)
        answer = asyncio.wrap_future(future)
        while not answer.done():
            await asyncio.wait({answer}, timeout=LOOK_S)
            if not answer.done() and await request.is_disconnected():
                future.cancel()
                return Response(status_code=CLIENT_GONE)
        return _as_json({"rows": answer.result()})

    def _sent(self, job: str, question: str, arguments: dict[str, Any], limit: timedelta) -> Future[Rows]:
        with self._lock:
            asked = self._clients.get(job)
            if asked is None:
                asked = client(job, broker=self._log_address)
                if not asked.asks():
                    asked.close()
                    raise NotFound(f"the job '{job}' answers no questions", next_step="flow.ask(…), and start the job")
                self._clients[job] = asked
        return asked.send(question, arguments, limit, at_once=True)

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer."""
        with self._lock:
            return sum(each.in_flight for each in self._clients.values())

    def close(self) -> None:
        with self._lock:
            for each in self._clients.values():
                each.close()
            self._clients.clear()


def _as_json(document: dict[str, Any]) -> Response:
    content = orjson.dumps(document, default=str)
    return Response(content, media_type="application/json", headers={"cache-control": "no-store"})


def _start(window: str | None) -> str | None:
    try:
        if window is None or datetime.fromisoformat(window).tzinfo is not None:
            return window
    except ValueError:
        pass
    raise InvalidInput(
        f"window={str(window)[:50]!r} is not a time with a time zone",
        next_step="for example window=2026-01-31T12:00:00Z",
    )


def _timeout_s(request: Request) -> float:
    text = request.query_params.get("timeout_s")
    try:
        found = TIMEOUT.total_seconds() if text is None else float(text)
    except ValueError:
        found = math.nan
    if not 0 < found <= TIMEOUT_S_MAX:
        raise InvalidInput(
            f"timeout_s={str(text)[:50]!r} is not a time limit", next_step=f"give seconds, up to {TIMEOUT_S_MAX:g}"
        )
    return found
