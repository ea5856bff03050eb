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

from millstream.jobs.versions.plan_document import read_plan
from millstream.supervision.alerting import Alerting
from millstream.supervision.hidden_values import HiddenValues
from millstream.supervision.status import Status
from millstream.supervision.supervisor import Supervisor

METRICS_S = 3600.0
RUNS_WITH_LOGS = 3
LOG_BYTES_MAX = 1 << 20


def bundle(supervisor: Supervisor, status: Status, alerting: Alerting | None = None) -> bytes:
    """The zip. Logs are what jobs have printed: of each job, the end of those of its newest runs."""
    into, jobs = io.BytesIO(), supervisor.store.jobs()
    hidden, mask = HiddenValues(job.specification for job in jobs), supervisor.masking.now()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as made:

        def write(name: str, document: Any) -> None:
            plain = json.loads(json.dumps(document, default=str))
            made.writestr(name, json.dumps(hidden.document(plain), indent=2, ensure_ascii=False))

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
                text = mask.text(hidden.text(log.decode(errors="replace")))
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
