"""A bundle for support: one zip with plans, settings, metrics and logs, without records and with secrets hidden."""

from __future__ import annotations

import io
import json
import os
import platform
import time
import zipfile
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
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as made:
        _write(made, "machine.json", _machine())
        _write(made, "audit.json", supervisor.store.audit())
        if alerting is not None:
            _write(made, "alerts.json", alerting.document())
        for job in supervisor.store.jobs():
            folder = f"jobs/{job.name}"
            _write(made, f"{folder}/job.json", status.shown(job.name))
            _write(made, f"{folder}/plan.json", read_plan(supervisor.folder_of(job)))
            _write(made, f"{folder}/metrics.json", status.metrics(job.name, time.time() - METRICS_S))
            _write(made, f"{folder}/upgrades.json", supervisor.upgrades.listed(job.name))
            secrets = _secrets(job)
            for run in supervisor.store.runs(job.name, RUNS_WITH_LOGS):
                log, _ = supervisor.drivers.read_log(job.name, run.number, -LOG_BYTES_MAX, LOG_BYTES_MAX)
                made.writestr(f"{folder}/runs/{run.number}.log", _without(log.decode(errors="replace"), secrets))
    return into.getvalue()


def _write(made: zipfile.ZipFile, name: str, document: Any) -> None:
    made.writestr(name, json.dumps(document, indent=2, default=str, ensure_ascii=False))


def _machine() -> dict[str, Any]:
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    return {
        "at": time.time(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }


def _secrets(job: JobRecord) -> list[str]:
    """Values that a job may have printed: of its parameters, and of the environment that it has from the supervisor."""
    named = {**os.environ, **job.specification.params}
    found = {value for name, value in named.items() if is_likely_secret(name) and len(value) >= SECRET_CHARACTERS_MIN}
    return sorted(found, key=len, reverse=True)


def _without(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
