"""A bundle for support: one zip with plans, settings, metrics and logs, without records and with secrets hidden."""

from __future__ import annotations

import io
import json
import os
import platform
import time
import zipfile
from collections.abc import Iterable
from importlib.metadata import distributions
from typing import Any

from millstream.jobs.plan_document import read_plan
from millstream.secrets import is_likely_secret
from millstream.supervision.alerting import Alerting
from millstream.supervision.specification import HIDDEN
from millstream.supervision.status import Status
from millstream.supervision.store import JobRecord
from millstream.supervision.supervisor import Supervisor

METRICS_S = 3600.0
RUNS_WITH_LOGS = 3
LOG_BYTES_MAX = 1 << 20
SECRET_CHARACTERS_MIN = 4
"""A shorter value would be hidden in every other word."""


def bundle(supervisor: Supervisor, status: Status, alerting: Alerting | None = None) -> bytes:
    """The zip. Logs are what jobs have printed: of each job, the end of those of its newest runs."""
    into, jobs = io.BytesIO(), supervisor.store.jobs()
    secrets, mask = _secrets(jobs), supervisor.masking.now()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as made:

        def write(name: str, document: Any) -> None:
            plain = json.loads(json.dumps(document, default=str))
            made.writestr(name, json.dumps(_secretless(plain, secrets), indent=2, ensure_ascii=False))

        write("machine.json", _machine())
        write("audit.json", supervisor.store.audit())
        if alerting is not None:
            write("alerts.json", alerting.document())
        for job in jobs:
            folder = f"jobs/{job.name}"
            write(f"{folder}/job.json", status.shown(job.name))
            write(f"{folder}/plan.json", read_plan(supervisor.folder_of(job)))
            write(f"{folder}/metrics.json", status.metrics(job.name, time.time() - METRICS_S))
            write(f"{folder}/upgrades.json", mask.document(supervisor.upgrades.listed(job.name), ()))
            write(f"{folder}/failures.json", mask.document(supervisor.failures(job.name), ()))
            for run in supervisor.store.runs(job.name, RUNS_WITH_LOGS):
                log, _, _ = supervisor.read_log(job.name, run.number, -LOG_BYTES_MAX, LOG_BYTES_MAX)
                text = mask.text(_without(log.decode(errors="replace"), secrets))
                made.writestr(f"{folder}/runs/{run.number}.log", text)
    return into.getvalue()


def _machine() -> dict[str, Any]:
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    return {
        "at": time.time(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }


def _secrets(jobs: Iterable[JobRecord]) -> list[str]:
    """Values that jobs may have printed: of their parameters, and of the environment they have from the supervisor."""
    named = [*os.environ.items(), *(each for job in jobs for each in job.specification.params.items())]
    found = {value for name, value in named if is_likely_secret(name) and len(value) >= SECRET_CHARACTERS_MIN}
    return sorted({form for secret in found for form in _forms(secret)}, key=len, reverse=True)


def _forms(secret: str) -> set[str]:
    """A secret as it is, as Python prints it, and in JSON, also in JSON within JSON."""
    made = {secret, repr(secret)[1:-1]}
    for ascii_only in (True, False):
        once = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        made |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    return made


def _secretless(value: Any, secrets: list[str]) -> Any:
    """A document without secrets. Values are replaced one by one, so it stays JSON whatever a secret looks like."""
    if isinstance(value, dict):
        return {_without(name, secrets): _secretless(each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        return [_secretless(each, secrets) for each in value]
    if isinstance(value, str):
        return _without(value, secrets)
    return HIDDEN if value is not None and str(value) in secrets else value


def _without(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
