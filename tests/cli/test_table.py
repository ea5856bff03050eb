"""`millstream table`: rows by key on the command line, and the server that ends with Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.log import EmbeddedLog
from serving.support import Job, put, total, totals_flow

from .conftest import Run, start


@pytest.fixture
def job(log: EmbeddedLog, tmp_path: Path) -> Job:
    made = Job(log, totals_flow("totals", ms.sqlite(tmp_path / "tables.db", "by_team")))
    made.write((total("red", 5), 1), (total("blue", 2), 1))
    return made


@pytest.fixture
def places(log: EmbeddedLog) -> list[dict[str, Any]]:
    flow = ms.Flow("places")
    flow.read("scores", "region string, rank int, team string").to_table(key=["region", "rank"]).write("places")
    rows = [{"region": "north", "rank": rank, "team": team} for rank, team in ((1, "red"), (2, "a=b"))]
    Job(log, flow).write(*[(row, 1) for row in rows])
    return rows


def test_tables_are_listed(ms: Run, job: Job, tmp_path: Path, log: EmbeddedLog) -> None:
    log.create_topic("profiles", compaction=True)
    done = ms("table", "list")
    assert (done.code, done.err) == (0, "")
    database = str(tmp_path / "tables.db")
    assert [line.split() for line in done.lines] == [
        ["TABLE", "KIND", "KEY", "JOB", "WHERE"],
        ["by_team", "sqlite", "team", "team-scores", database],
        ["profiles", "topic", "key", "-", str(log.path)],
        ["totals", "topic", "team", "team-scores", str(log.path)],
    ]
    assert ms("table", "list", "--json").json[0] == {
        "name": "by_team", "kind": "sqlite", "key": ["team"], "job": "team-scores", "where": database
    }  # fmt: skip


def test_no_tables(ms: Run, folder: Path) -> None:
    assert "there is no log in" in ms("table", "list").err
    assert ms("table", "get", "totals", "red").code == 3
    EmbeddedLog(folder).close()
    assert ms("table", "list").err == "there are no tables\n"


def test_a_row_is_one_line_of_json(ms: Run, job: Job) -> None:
    for name in ("totals", "by_team"):
        for key in ("red", "team=red", '{"team": "red"}'):
            done = ms("table", "get", name, key)
            assert (done.code, done.out, done.err) == (0, '{"team":"red","total":5}\n', "")
    job.write((total("red", 5), -1), (total("red", 6), 1))
    assert ms("table", "get", "totals", "red").json == total("red", 6)


def test_a_key_may_look_like_something_else(ms: Run, log: EmbeddedLog) -> None:
    job = Job(log, totals_flow("totals"))
    keys = ["a=b", '{"a": 1}', "[1]", "5", "null", "x y", "--help"]
    job.write(*[(total(key, 1), 1) for key in keys])
    for key in keys:
        assert ms("table", "get", "totals", "--", key).json == total(key, 1)


def test_a_key_of_several_columns(ms: Run, places: list[dict[str, Any]]) -> None:
    for key in (
        ["region=north", "rank=1"],
        ["rank=1", "region=north"],
        ['{"rank": 1, "region": "north"}'],
        ["north", "1"],
    ):
        assert ms("table", "get", "places", *key).json == places[0]
    done = ms("table", "get", "places", "north")
    assert done.code == 2
    assert "'north' is not a complete key" in done.err
    assert "its key is region string, rank int" in done.err
    done = ms("table", "get", "places", "region=north", "rank=first")
    assert (done.code, "expected int, found 'first'" in done.err) == (2, True)


def test_what_is_not_there_names_what_is(ms: Run, job: Job) -> None:
    done = ms("table", "get", "totals", "green")
    assert (done.code, done.out) == (3, "")
    assert "the table 'totals' has no row with team = \"green\"" in done.err
    assert "keys that exist: red, blue" in done.err
    done = ms("table", "get", "total", "red")
    assert (done.code, done.out) == (3, "")
    assert "did you mean 'totals'? tables that exist: by_team, totals" in done.err
    error = json.loads(ms("table", "get", "total", "red", "--json").err)["error"]
    assert (error["kind"], error["exit_code"]) == ("NotFound", 3)


def test_any_topic_is_asked_for_the_text_of_a_key(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema="user string, score int", partitions=3)
    put(log, "scores", *[(f"u{number % 7}", {"user": f"u{number % 7}", "score": number}) for number in range(70)])
    assert ms("table", "get", "scores", "u3").json == {"user": "u3", "score": 66}
    put(log, "scores", ("u3", None))
    assert ms("table", "get", "scores", "u3").code == 3


def test_rows_are_served_until_ctrl_c(job: Job, process: Run) -> None:
    with start("table", "serve", "--port", "0") as server:
        assert server.stderr is not None
        said = server.stderr.readline().decode()
        found = re.search(r"http://127\.0\.0\.1:\d+/tables", said)
        assert found is not None, said
        with urllib.request.urlopen(f"{found[0]}/totals/red", timeout=60) as answer:
            assert json.loads(answer.read()) == total("red", 5)
        job.write((total("red", 5), -1), (total("red", 8), 1))
        with urllib.request.urlopen(f"{found[0]}/totals/red", timeout=60) as answer:
            assert json.loads(answer.read()) == total("red", 8)
        port = found[0].split(":")[2].split("/")[0]
        taken = process("table", "serve", "--port", port)
        assert (taken.code, f"127.0.0.1:{port}" in taken.err) == (2, True)
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert (server.returncode, out, err) == (130, b"", b"")


FLOW = """
import millstream as ms

flow = ms.Flow("team-scores")
totals = flow.read("scores", "team string, score int").group_by("team").agg(total=ms.sum("score"))
totals.write("totals")
totals.write(ms.sqlite("tables.db", "by_team"))
"""


@pytest.mark.more
def test_from_a_flow_to_its_rows(
    log: EmbeddedLog, tmp_path: Path, process: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what a job writes is found without its location. Method: run a flow on Spark, then ask elsewhere."""
    monkeypatch.setenv("MILLSTREAM_MASTER", "local[2]")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    Path("flow.py").write_text(FLOW)
    log.create_topic("scores", schema="team string, score int")
    with log.producer() as producer:
        for team, score in (("red", 3), ("blue", 1), ("red", 4)):
            producer.send("scores", {"team": team, "score": score})
    with start("run", "flow.py", "--until", "caught up") as running:
        _, err = running.communicate(timeout=200)
    assert running.returncode == 0, err.decode()
    monkeypatch.chdir(tmp_path)
    listed = {table["name"]: (table["kind"], table["job"]) for table in process("table", "list", "--json").json}
    assert listed == {"totals": ("topic", "team-scores"), "by_team": ("sqlite", "team-scores")}
    assert [process("table", "get", name, "red").json for name in listed] == [total("red", 7)] * 2


def test_serving_without_its_packages_says_what_to_install(ms: Run, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = ms("table", "serve", "--port", "0")
    assert done.code == 2
    assert "pip install 'millstream[serve]'" in done.err


TOKEN = "a-token-of-enough-characters"


@contextmanager
def serving(*arguments: object, **settings: Any) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The server in a process of its own, and its address; ended with Ctrl-C."""
    with start("table", "serve", "--port", "0", *arguments, **settings) as server:
        assert server.stderr is not None
        said = server.stderr.readline().decode()
        found = re.search(r"http://[^/]+", said)
        assert found is not None, said
        try:
            yield found[0], server
        finally:
            server.send_signal(signal.SIGINT)


def fetched(url: str, token: str | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_named_tables_are_served_with_the_token(job: Job, log: EmbeddedLog, tmp_path: Path) -> None:
    """Goal: all options reach the server, and why a request failed is reported on its stderr alone."""
    log.create_topic("salaries")
    put(log, "salaries", ("ann", "1"))
    Job(log, totals_flow("other", name="other")).write((total("red", 5), 1))
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"{TOKEN}\n")
    with serving("totals", "by_team", "--token-file", file) as (address, server):
        for token in (None, TOKEN[:-1]):
            assert fetched(f"{address}/tables/totals/red", token)[0] == 401
        assert [table["name"] for table in fetched(f"{address}/tables", TOKEN)[1]] == ["totals", "by_team"]
        for name in ("totals", "by_team"):
            assert fetched(f"{address}/tables/{name}/red", TOKEN) == (200, total("red", 5))
        missing = fetched(f"{address}/tables/totals/green", TOKEN)
        assert missing[0] == 404
        for name in ("salaries/ann", "other/red"):
            assert fetched(f"{address}/tables/{name}", TOKEN) == missing
        (tmp_path / "tables.db").unlink()
        status, document = fetched(f"{address}/tables/by_team/red", TOKEN)
        assert (status, str(tmp_path) in str(document)) == (503, False)
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=60)
    assert f"table 'by_team' of {tmp_path / 'tables.db'}" in err.decode()
    assert TOKEN not in err.decode()


def test_a_token_file_that_others_can_read_is_refused(ms: Run, job: Job, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o640)
    done = ms("table", "serve", "--port", "0", "--token-file", file)
    assert (done.code, "open to other users (mode 640)" in done.err) == (2, True)
    assert TOKEN not in done.err


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "", "::", "192.0.2.7", "2001:db8::1"])
def test_serving_to_other_machines_without_a_token_is_refused(
    ms: Run, job: Job, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Nothing listens: the refusal comes before the socket."""
    monkeypatch.delenv("MILLSTREAM_TOKEN", raising=False)
    monkeypatch.setattr("millstream.serving.http.listening", None)
    done = ms("table", "serve", "--host", host, "--port", "0")
    assert done.code == 2
    assert "can be reached from other machines, but no token is set" in done.err
    assert "--token-file" in done.err


def test_all_addresses_need_the_names_they_are_reached_by(ms: Run, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_TOKEN", TOKEN)
    monkeypatch.setattr("millstream.serving.http.listening", None)
    for host in ("0.0.0.0", "::"):
        done = ms("table", "serve", "--host", host, "--port", "0")
        assert (done.code, "--allowed-host" in done.err) == (2, True)
