"""Tables over HTTP, asked over a real socket on this machine."""

from __future__ import annotations

import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import DamagedLog, InvalidInput, KafkaUnavailable, NotFound
from millstream.log import EmbeddedLog
from millstream.serving import Tables, http
from millstream.serving.access import ListenAddress
from millstream.serving.served import Served

from .running import Running
from .support import Job, put, total, totals_flow

Ask = Callable[[str], tuple[int, Any]]
NOT_FOUND = {
    "kind": "NotFound", "what": "there is no such table or row", "next": "GET /tables lists the tables"
}  # fmt: skip


@pytest.fixture
def ask(running: Running) -> Ask:
    """GET of a path: the status, and the JSON that came, of an error what it says."""

    def ask(path: str) -> tuple[int, Any]:
        answer = running.ask(path)
        return answer.status, answer.json if answer.status == 200 else answer.json["error"]

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
    assert [ask(f"/tables/{name}/red") for name in names] == [(404, NOT_FOUND)] * 3


def test_keys_with_any_characters(log: EmbeddedLog, ask: Ask) -> None:
    keys = ["a/b", "a b", "a+b", "?x=1", "ünter", "100%", "%2F", "..", "../..", "a&b=c", "\n"]
    Job(log, totals_flow("totals")).write(*[(total(key, 1), 1) for key in keys])
    for key in keys:
        quoted = urllib.parse.quote(key, safe="")
        assert ask(f"/tables/totals?team={quoted}") == (200, total(key, 1))
        assert ask(f"/tables/totals/{quoted}") == (200, total(key, 1))


def test_a_key_of_several_columns(log: EmbeddedLog, ask: Ask) -> None:
    flow = ms.Flow("places")
    rows = flow.read("scores", "region string, rank int, team string")
    rows.to_table(key=["region", "rank"]).write("places")
    row = {"region": "north", "rank": 1, "team": "red"}
    Job(log, flow).write((row, 1))
    assert ask("/tables/places?rank=1&region=north") == (200, row)
    assert ask("/tables/places") == (200, {"name": "places", "kind": "topic", "key": ["region", "rank"]})
    for path in (
        "/tables/places?region=north",
        "/tables/places?region=north&rank=secret",
        "/tables/places/north",
        "/tables/places?region=north&rank=1&secret=red",
    ):
        status, error = ask(path)
        assert (status, error["what"]) == (400, "that is not a key of the table")
        assert error["next"] == "its key columns: region, rank"
    status, error = ask("/tables/places?region=north&rank=1&rank=2")
    assert (status, error["what"]) == (400, "the query names a column twice")


# ---------------------------------------------------------------- which tables are served


def test_what_is_not_listed_is_not_there(log: EmbeddedLog, running: Running) -> None:
    """Goal: a caller cannot find out which other topics exist. Method: the answers are the same, byte by byte."""
    log.create_topic("salaries")
    log.create_topic("profiles", compaction=True)
    put(log, "salaries", ("ann", "1"))
    put(log, "profiles", ("ann", "1"))
    Job(log, totals_flow("totals")).write((total("red", 5), 1))
    assert [table["name"] for table in running.ask("/tables").json] == ["totals"]
    expected = running.ask("/tables/totals/green")
    assert (expected.status, expected.json["error"]) == (404, NOT_FOUND)
    for name in (
        "salaries",
        "topic:salaries",
        "profiles",
        "scores",
        "nothing",
        "total",
        "..",
        "a%2Fb",
        "%2e%2e%2f",
        "",
    ):
        for rest in ("", "/ann", "/ann/more", "?key=ann", "?team=ann"):
            found = running.ask(f"/tables/{name}{rest}")
            assert (found.status, found.body) == (404, expected.body), (name, rest)
    for path in ("/nowhere", "/tables/totals/", "//tables", "/../tables", "/tables/../tables", "http://a/tables"):
        found = running.ask(path)
        assert (found.status, found.body) == (404, expected.body), path


def test_tables_can_be_named(log: EmbeddedLog, tmp_path: Path) -> None:
    Job(log, totals_flow("totals", ms.sqlite(tmp_path / "tables.db", "best"))).write((total("red", 5), 1))
    log.create_topic("profiles", schema="name string")
    put(log, "profiles", ("7", {"name": "Ann"}))
    served = Served(Tables(log), ["best", "profiles"])
    running = Running(served)
    assert [table["name"] for table in running.ask("/tables").json] == ["best", "profiles"]
    assert running.ask("/tables/best/red").json == total("red", 5)
    assert running.ask("/tables/profiles/7").json == {"name": "Ann"}
    assert running.ask("/tables/totals/red").status == 404
    # Another table of the same name takes nothing over.
    Job(log, totals_flow(ms.sqlite(tmp_path / "other.db", "best"), name="other")).write((total("red", 99), 1))
    assert running.ask("/tables/best/red").json == total("red", 5)
    running.close()
    served.close()
    with pytest.raises(NotFound, match="there is no table 'bets'"):
        Served(Tables(log), ["bets"])


def test_tables_of_jobs_that_start_later_are_served(log: EmbeddedLog, ask: Ask) -> None:
    assert ask("/tables") == (200, [])
    assert ask("/tables/totals/red") == (404, NOT_FOUND)
    Job(log, totals_flow("totals")).write((total("red", 5), 1))
    assert ask("/tables") == (200, [{"name": "totals", "kind": "topic", "key": ["team"]}])
    assert ask("/tables/totals/red") == (200, total("red", 5))


def test_the_front_page(ask: Ask) -> None:
    status, page = ask("/")
    assert status == 200
    assert "GET /tables/NAME/KEY" in page


# ---------------------------------------------------------------- failures


def test_an_unavailable_database_is_not_an_empty_answer(log: EmbeddedLog, tmp_path: Path, ask: Ask) -> None:
    Job(log, totals_flow(ms.sqlite(tmp_path / "tables.db", "totals"))).close()
    (tmp_path / "tables.db").unlink()
    status, error = ask("/tables/totals/red")
    assert (status, error["kind"], error["what"]) == (503, "TableUnavailable", "the table cannot be read now")
    assert str(tmp_path) not in str(error)


def test_where_files_are_is_not_shown(log: EmbeddedLog, running: Running) -> None:
    job = Job(log, totals_flow("totals"))
    (job.folder / "tables.json").write_text("{")
    found = running.ask("/tables")
    assert (found.status, found.json["error"]["what"]) == (500, "the server failed to answer")
    assert str(log.path) not in found.body.decode()


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (KafkaUnavailable("no broker answers at geheim"), 503, "TableUnavailable"),
        (DamagedLog("a checksum", where="geheim"), 500, "InternalError"),
        (RuntimeError("geheim"), 500, "InternalError"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_fault_inside_shows_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, kind: str
) -> None:
    def broken(*_: object) -> None:
        raise fault

    monkeypatch.setattr(Served, "row", broken)
    found = running.ask("/tables/totals/red")
    assert (found.status, found.json["error"]["kind"]) == (status, kind)
    assert b"geheim" not in found.body
    assert b"Traceback" not in found.body


def test_a_port_that_is_taken_is_refused(running: Running) -> None:
    with (
        pytest.raises(InvalidInput, match=f"127.0.0.1:{running.port}") as refused,
        http.listening(ListenAddress.of("127.0.0.1", running.port)),
    ):
        pass
    assert "--port" in (refused.value.next_step or "")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(InvalidInput, match="needs the package uvicorn") as refused:
        http.check_installed()
    assert refused.value.next_step == "pip install 'millstream[serve]'"
