"""Dead letters over HTTP: counted, shown, tried with a flow, and sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request

from millstream.errors import InvalidInput
from millstream.jobs.versions.plan_document import read_plan
from millstream.provenance.dead_letters import overview, resend
from millstream.supervision.http import MoreRoute
from millstream.supervision.supervisor import Supervisor
from millstream.web_console.shown_records import cut, plain
from millstream.web_console.topics import Topics

LETTERS_SHOWN = 100
REHEARSAL_S_MAX = 600.0


class DeadLetters:
    def __init__(self, supervisor: Supervisor, topics: Topics, user: str) -> None:
        self._supervisor, self._topics, self._user = supervisor, topics, user

    def routes(self) -> list[MoreRoute]:
        path = "/dead-letters/{topic}"
        return [
            MoreRoute("/dead-letters", {"GET /v1/dead-letters": "the topics with dead letters of jobs"}, self._names),
            MoreRoute(path, {"GET /v1/dead-letters/TOPIC": "its letters by reason, and the newest"}, self._shown),
            MoreRoute(
                f"{path}/rehearse",
                {"POST /v1/dead-letters/TOPIC/rehearse": "how many a flow would take: job, file"},
                self._rehearse,
                ("POST",),
            ),
            MoreRoute(
                f"{path}/resend",
                {"POST /v1/dead-letters/TOPIC/resend": "sends records again: partition and offset, or all"},
                self._resend,
                ("POST",),
            ),
        ]

    def _names(self, request: Request, body: dict[str, Any]) -> Any:
        existing = set(self._topics.log.topics())
        return [{"topic": topic, "job": job} for topic, job in sorted(self._written().items()) if topic in existing]

    def _written(self) -> dict[str, str]:
        """The topics that jobs write dead letters to, with the job; of several, the one whose name comes last."""
        plans = [(job.name, read_plan(self._supervisor.folder_of(job))) for job in self._supervisor.store.jobs()]
        steps = [(job, step) for job, plan in plans if plan for step in plan["logical"]]
        return {step["dead_to"]: job for job, step in steps if step.get("dead_to")}

    def _shown(self, request: Request, body: dict[str, Any]) -> Any:
        topic = request.path_params["topic"]
        found = plain(overview(self._topics.log, topic, LETTERS_SHOWN))
        mask = self._supervisor.masking.now()
        letters = [mask.letter(letter, letter["origin"]["topic"]) for letter in found["letters"]]
        reasons = [{**each, "reason": mask.reason(each["topic"], each["reason"])} for each in found["reasons"]]
        cut_short = [{**letter, "value": cut(letter["value"])} for letter in letters]
        return {"reasons": reasons, "letters": cut_short, "job": self._written().get(topic)}

    def _rehearse(self, request: Request, body: dict[str, Any]) -> Any:
        """With the file of a job as it is now, or another file."""
        job, file = body.get("job"), body.get("file")
        if not isinstance(job, str) or not isinstance(file, str | None):
            raise InvalidInput(
                "a rehearsal needs a job", next_step='{"job": "pumps"}, and perhaps "file": "/…/fixed.py"'
            )
        specification = self._supervisor.store.job(job).specification
        given = {**specification.document(), **({"file": file} if file else {})}
        if not Path(given["file"]).is_absolute():
            raise InvalidInput(
                f"{given['file']!r} is not an absolute path", next_step="name the file by its whole path"
            )
        topic = request.path_params["topic"]
        found = self._supervisor.drivers.ask("--rehearse-dead-letters", given, topic, timeout_s=REHEARSAL_S_MAX)
        return self._supervisor.masking.now().reasons(found)

    def _resend(self, request: Request, body: dict[str, Any]) -> Any:
        topic, place = request.path_params["topic"], (body.get("partition"), body.get("offset"))
        if [type(each) for each in place] not in ([int, int], [type(None)] * 2):
            raise InvalidInput("a letter has a partition and an offset", next_step="leave out both to send all")
        chosen = None if place[0] is None or place[1] is None else (place[0], place[1])
        sender = request.state.account or self._user
        self._supervisor.store.note(
            sender, "resend", None, topic if chosen is None else f"{topic} {place[0]} {place[1]}"
        )
        return resend(self._topics.log, topic, chosen)
