"""The bundle for support: no file in it has a secret, in whatever form a job printed it."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from millstream.supervision.bundle import bundle
from millstream.supervision.failures import Failure
from millstream.supervision.specification import JobSpecification
from millstream.supervision.status import Status
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor

from .test_http import supervisor  # noqa: F401

SECRETS = ("hunter2-in-params", 'quo"ted\\päss', "20261118")


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("is_parameter", [True, False])
def test_no_file_has_a_secret(
    supervisor: Supervisor,  # noqa: F811
    secret: str,
    is_parameter: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the secret in an error, a reason and a log, as it is and in JSON."""
    if not is_parameter:
        monkeypatch.setenv("DATABASE_PASSWORD", secret)
    params = {"db_password": secret} if is_parameter else {}
    forms = [secret, json.dumps(secret), json.dumps(json.dumps(secret)), repr(secret)]
    printed = "cannot log in: " + " ".join(forms)
    job = JobSpecification("a", "/nowhere/flow.py", "a", params=params)
    supervisor.store.add(job, "ann", Observed.FAILED, None)
    supervisor.store.end_run("a", supervisor.store.begin_run("a", "start"), 1, printed)
    supervisor.store.update("a", reason=printed)
    supervisor.store.add_failure("a", 1, Failure("error", printed, printed, printed, printed))
    supervisor.store.note("ann", "submit", "a", details=printed)
    log = supervisor.drivers.folder / "a" / "runs" / "1" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text(printed)
    with zipfile.ZipFile(io.BytesIO(bundle(supervisor, Status(supervisor)))) as made:
        files = {name: made.read(name).decode() for name in made.namelist()}
    told = {each[1:-1] for each in forms[1:]} | {secret, json.dumps(secret, ensure_ascii=False)[1:-1]}
    assert [name for name, text in files.items() if any(each in text for each in told)] == []
    for name in ("audit", "jobs/a/job", "jobs/a/failures"):
        assert "cannot log in" in json.dumps(json.loads(files[f"{name}.json"]))
    assert "cannot log in" in files["jobs/a/runs/1.log"]
