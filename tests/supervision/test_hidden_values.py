"""Secrets of jobs in their logs and errors: a real process prints them in many forms, and nothing shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.cli.app import app
from millstream.secrets import without_passwords
from millstream.supervision.home import Home
from millstream.supervision.specification import JobSpecification
from millstream.supervision.status import Status
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor

from .test_http import TOKEN, served
from .test_supervisor import FLOW, LOADED, seen, submit, supervisor

__all__ = ["supervisor"]

PARAMETER, VARIABLE, ADDRESS = "hunter2-param", 'quo"ted\\päss', "hunter2-dsn"
PRINTS = """
import json, os, sys
import millstream as ms
token = ms.param("api_token", "")
ms.param("region")
database = ms.postgres("host=db password=hunter2-dsn", "totals", key="team")
def told():
    for each in (token, os.environ["DATABASE_PASSWORD"], database.dsn.reveal()):
        yield from (each, repr(each), json.dumps({"x": each}), f"http://ann:{each}@host/")
if is_job:
    for each in told():
        print("printed", each)
        print("printed", each, file=sys.stderr)
    os.system("echo printed by another process: $DATABASE_PASSWORD")
raise_it = is_job
"""
RAISES = "if raise_it: raise ValueError(' '.join(told()))\n"


def test_no_log_reason_or_error_shows_a_secret(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", VARIABLE)
    file = tmp_path / "a.py"
    file.write_text(LOADED + PRINTS + FLOW.format(name="a") + RAISES)
    submit(supervisor, str(file), params={"api_token": PARAMETER, "region": "north"}, restart="never")
    seen(supervisor, "a", Observed.FAILED)
    text = supervisor.read_log("a", None, 0, 1 << 20)[0].decode()
    assert text.count("printed ") >= 24
    assert "printed by another process: (hidden)" in text
    shown = json.dumps([Status(supervisor).shown("a"), supervisor.failures("a"), supervisor.store.upgrades("a")])
    assert "ValueError" in shown
    stored = (tmp_path / "supervisor" / "jobs" / "a" / "runs" / "1" / "log.txt").read_text()
    for secret in (PARAMETER, VARIABLE, ADDRESS):
        for form in {
            secret,
            repr(secret)[1:-1],
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
        }:
            assert form not in text + shown, form
            if secret != VARIABLE:  # which another process has printed
                assert form not in stored, form
    assert "north" in shown


def test_a_file_that_does_not_load_quotes_no_secret(supervisor: Supervisor, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("import millstream as ms\nraise ValueError(ms.param('api_token'))\n")
    with pytest.raises(Exception, match="ValueError: …"):
        submit(supervisor, str(file), params={"api_token": PARAMETER})


def test_passwords_of_urls() -> None:
    assert without_passwords("at postgresql://ann:x%40y@db:5/games, then") == "at postgresql://ann:…@db:5/games, then"
    for harmless in ("http://host:80/path?mail=a@b", "spark://host:7077", "https://ann@host/", "12:30@noon"):
        assert without_passwords(harmless) == harmless


def test_the_log_of_a_job_as_json(supervisor: Supervisor, tmp_path: Path) -> None:
    """Method: two runs, of which the first was killed in the middle of a line."""
    supervisor.store.add(JobSpecification("a", "/nowhere/flow.py", "a"), "ann", Observed.STOPPED, None)
    for text in ("one\ntwo", 'three "x"\n'):
        number = supervisor.store.begin_run("a", "start")
        supervisor.store.end_run("a", number, 0, "done")
        printed = supervisor.drivers.folder / "a" / "runs" / str(number) / "log.txt"
        printed.parent.mkdir(parents=True)
        printed.write_text(text)
    home = Home.of(str(tmp_path / "log"))
    home.folder.mkdir(parents=True, exist_ok=True)
    (home.folder / "token").write_text(TOKEN)
    (home.folder / "token").chmod(0o600)
    with served(supervisor) as port:
        home.announce(f"http://127.0.0.1:{port}")

        def printed_by(*more: str) -> str:
            done = CliRunner().invoke(app, ["jobs", "logs", "a", "--log", str(tmp_path / "log"), *more])
            assert done.exit_code == 0, done.output
            return done.stdout

        assert printed_by() == 'three "x"\n'
        assert json.loads(printed_by("--json")) == {"run": 2, "line": 'three "x"'}
        first = [json.loads(line) for line in printed_by("--json", "--run", "1").splitlines()]
        assert first == [{"run": 1, "line": "one"}, {"run": 1, "line": "two"}]
        assert json.loads(printed_by("--json", "--follow")) == {"run": 2, "line": 'three "x"'}
