"""Tables over HTTP, asked over a real socket on this machine."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import millstream as ms
from millstream.errors import InvalidInput, KafkaUnavailable
from millstream.log import EmbeddedLog
from millstream.serving import Tables, http

from .support import Job, put, total, totals_flow

Ask = Callable[[str], tuple[int, Any]]


class Running:
    """A server in a thread; it ends when it is told to."""

    def __init__(self, tables: Tables) -> None:
        self._taken = http.listening("127.0.0.1", 0)
        at = self._taken.__enter__()
        self.port: int = at.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(http.app(tables), log_level="warning", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [at]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._taken.__exit__(None, None, None)


@pytest.fixture
def running(log: EmbeddedLog) -> Iterator[Running]:
    tables = Tables(log)
    made = Running(tables)
    yield made
    made.close()
    tables.close()


@pytest.fixture
def ask(running: Running) -> Ask:
    """GET of a path: the status, and the JSON or text that came."""

    def ask(path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{running.port}{path}", timeout=60) as answer:
                body = answer.read().decode()
                is_json = answer.headers["content-type"] == "application/json"
                return answer.status, json.loads(body) if is_json else body
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["error"]

    return ask


def test_rows_of_every_kind_of_table(log: EmbeddedLog, tmp_path: Path, dsn: str, ask: Ask) -> None:
    places = ["totals", ms.sqlite(tmp_path / "tables.db", "in_sqlite"), ms.postgres(dsn, "in_postgres")]
    job = Job(log, totals_flow(*places))
    names = {"totals": "topic", "in_sqlite": "sqlite", "in_postgres": "postgres"}
    status, listed = ask("/tables")
    assert status == 200
    assert {(each["name"], each["kind"], *each["key"]) for each in listed} == {
        (name, kind, "team") for name, kind in names.items()
    }
    job.write((total("red", 5), 1))
    assert [ask(f"/tables/{name}/red") for name in names] == [(200, total("red", 5))] * 3
    assert [ask(f"/tables/{name}?team=red") for name in names] == [(200, total("red", 5))] * 3
    job.write((total("red", 5), -1), (total("red", 7), 1))
    assert [ask(f"/tables/{name}/red") for name in names] == [(200, total("red", 7))] * 3
    job.write((total("red", 7), -1), (total("blue", 1), 1))
    for name in names:
        status, error = ask(f"/tables/{name}/red")
        assert (status, error["kind"]) == (404, "NotFound")
        assert error["what"] == f"the table '{name}' has no row with team = \"red\""
        assert error["next"] == "keys that exist: blue"


def test_keys_with_any_signs_in_them(log: EmbeddedLog, ask: Ask) -> None:
    keys = ["a/b", "a b", "?x=1", "ünter", "100%", "%2F", ".."]
    Job(log, totals_flow("totals")).write(*[(total(key, 1), 1) for key in keys])
    for key in keys:
        quoted = urllib.parse.quote(key, safe="")
        assert ask(f"/tables/totals?team={quoted}") == (200, total(key, 1))
        if key != "..":  # which a path means otherwise
            assert ask(f"/tables/totals/{quoted}") == (200, total(key, 1))


def test_a_key_of_several_columns(log: EmbeddedLog, ask: Ask) -> None:
    flow = ms.Flow("places")
    rows = flow.read("scores", "region string, rank int, team string")
    rows.to_table(key=["region", "rank"]).write("places")
    row = {"region": "north", "rank": 1, "team": "red"}
    Job(log, flow).write((row, 1))
    assert ask("/tables/places?rank=1&region=north") == (200, row)
    assert ask("/tables/places") == (200, {"name": "places", "kind": "topic", "key": ["region", "rank"]})
    for path, said in (
        ("/tables/places?region=north", "rank is missing"),
        ("/tables/places?region=north&rank=x", "expected int, found 'x'"),
        ("/tables/places/north", "'north' is not a whole key"),
        ("/tables/places?region=north&rank=1&team=red", "'team' is not in the key"),
    ):
        status, error = ask(path)
        assert status == 400
        assert said in error["what"]
        assert "region" in error["next"]


def test_a_table_that_is_not_there(log: EmbeddedLog, ask: Ask) -> None:
    Job(log, totals_flow("totals"))
    for path in ("/tables/total", "/tables/total/red", "/tables/total?team=red"):
        status, error = ask(path)
        assert (status, error["what"]) == (404, "there is no table 'total'")
        assert error["next"] == "did you mean 'totals'? tables that exist: totals"


def test_a_kafka_that_is_away_is_unavailable(running: Running, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise KafkaUnavailable("no broker answers", next_step="see whether it runs")

    monkeypatch.setattr(Tables, "row", away)
    status, error = ask("/tables/totals/red")
    assert (status, error["kind"], error["next"]) == (503, "KafkaUnavailable", "see whether it runs")


def test_tables_that_come_later_are_served(log: EmbeddedLog, ask: Ask) -> None:
    assert ask("/tables") == (200, [])
    log.create_topic("profiles", schema="name string", compaction=True)
    put(log, "profiles", ("7", {"name": "Ann"}))
    assert ask("/tables") == (200, [{"name": "profiles", "kind": "topic", "key": ["key"]}])
    assert ask("/tables/profiles/7") == (200, {"name": "Ann"})


def test_the_front_page_and_paths_that_lead_nowhere(ask: Ask, running: Running) -> None:
    status, page = ask("/")
    assert status == 200
    assert "GET /tables/NAME/KEY" in page
    status, error = ask("/nowhere")
    assert (status, error["next"]) == (404, "GET /")
    asking = HTTPConnection("127.0.0.1", running.port, timeout=60)
    asking.request("DELETE", "/tables")
    assert asking.getresponse().status == 405
    asking.close()


def test_a_database_that_is_away_is_no_empty_answer(log: EmbeddedLog, tmp_path: Path, ask: Ask) -> None:
    Job(log, totals_flow(ms.sqlite(tmp_path / "tables.db", "totals"))).close()
    (tmp_path / "tables.db").unlink()
    status, error = ask("/tables/totals/red")
    assert (status, error["kind"]) == (503, "TableUnavailable")


def test_a_page_of_another_name_that_leads_here_is_refused(running: Running) -> None:
    """Goal: a web page whose name is made to mean this machine cannot read tables."""
    asking = HTTPConnection("127.0.0.1", running.port, timeout=60)
    asking.request("GET", "/tables", headers={"Host": f"example.org:{running.port}"})
    assert asking.getresponse().status == 400
    asking.close()


def test_a_port_that_is_taken_is_refused(running: Running) -> None:
    with (
        pytest.raises(InvalidInput, match=f"127.0.0.1:{running.port}") as refused,
        http.listening("127.0.0.1", running.port),
    ):
        pass
    assert "--port" in (refused.value.next_step or "")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_what_is_not_installed_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidInput, match=f"the package {package} is needed") as refused, http.listening("", 0):
        pass
    assert refused.value.next_step == "pip install 'millstream[serve]'"
