"""Tables are found by name and looked up by key, the same in a topic, in SQLite and in Postgres."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

import millstream as ms
from millstream.connectors.catalog import NOTE, remembered
from millstream.errors import DamagedLog, InvalidInput, MillstreamError, NotFound
from millstream.log import EmbeddedLog
from millstream.serving import Tables, TableUnavailable, open_table
from postgres_server import Server

from .support import Job, put, total, totals_flow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["topic", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Somewhere a table is kept, under the name "totals"."""
    if request.param == "topic":
        return "totals"
    if request.param == "sqlite":
        return ms.sqlite(tmp_path / "tables.db", "totals")
    return ms.postgres(request.getfixturevalue("dsn"), "totals")


@contextmanager
def opened(log: EmbeddedLog, name: str = "totals", **more: Any) -> Iterator[Any]:
    with open_table(name, log.path, **more) as table:
        yield table


def scanned(log: EmbeddedLog, name: str, key: Any) -> dict[str, Any] | None:
    """As the command looks it up: without an index."""
    tables = Tables(log, follows=False)
    try:
        row = tables.open(name).row(key)
        return None if row is None else row.values()
    finally:
        tables.close()


# ---------------------------------------------------------------- the row of a key


def test_a_lookup_sees_every_batch(log: EmbeddedLog, place: Any) -> None:
    job = Job(log, totals_flow(place))
    with opened(log) as table:
        assert table.key == ("team",)
        assert table.get("red") is None
        job.write((total("red", 5), 1), (total("blue", 2), 1))
        assert (table.get("red"), scanned(log, "totals", "red")) == (total("red", 5), total("red", 5))
        job.write((total("red", 5), -1), (total("red", 9), 1))
        assert (table.get("red"), scanned(log, "totals", "red")) == (total("red", 9), total("red", 9))
        job.write((total("red", 9), -1))
        assert (table.get("red"), scanned(log, "totals", "red")) == (None, None)
        assert table.get("blue") == total("blue", 2)
        job.write((total("red", 1), 1))
        assert (table.get("red"), scanned(log, "totals", "red")) == (total("red", 1), total("red", 1))


TYPES: dict[str, tuple[str, Any, str]] = {
    "boolean": ("flag boolean", True, "true"),
    "int": ("n int", 5, "5"),
    "negative": ("n bigint", -(2**63), str(-(2**63))),
    "float": ("x float", 0.5, "0.5"),
    "double": ("x double", 0.1, "0.1"),
    "decimal": ("price decimal(20, 2)", Decimal("12345678901234567.80"), "12345678901234567.8"),
    "string": ("s string", "50% 'of' \"é\" \\ /", "50% 'of' \"é\" \\ /"),
    "binary": ("b binary", b"\x00\xff", "AP8="),
    "date": ("day date", date(2026, 2, 3), "2026-02-03"),
    "timestamp": ("at timestamp", NOON, "2026-01-01T13:00:00+01:00"),
    "timestamp_ntz": ("at timestamp_ntz", NOON.replace(tzinfo=None), "2026-01-01 12:00:00"),
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_key_of_any_type_is_found_by_its_value_and_by_its_text(log: EmbeddedLog, place: Any, kind: str) -> None:
    column, value, text = TYPES[kind]
    name = column.split()[0]
    flow = ms.Flow("keys")
    flow.read("scores", f"{column}, v int").to_table(key=name).write(place)
    Job(log, flow).write(({name: value, "v": 1}, 1), ({name: None, "v": 2}, 1))
    with opened(log) as table:
        for key in (value, text, {name: value}, {name: text}):
            assert table.get(key) == {name: value, "v": 1}
        assert table.get({name: None}) == {name: None, "v": 2}
    assert scanned(log, "totals", text) == {name: value, "v": 1}
    assert scanned(log, "totals", {name: None}) == {name: None, "v": 2}


def test_values_of_every_type_come_back_as_they_were(log: EmbeddedLog, place: Any) -> None:
    schema = (
        "k string, flag boolean, tiny tinyint, n int, big bigint, f float, d double, price decimal(10, 3), b binary, "
        "day date, at timestamp, wall timestamp_ntz, gap interval day to second, tags array<string>, "
        "counts map<string, int>, many array<struct<a: int, b: timestamp>>"
    )
    row = {
        "k": "x", "flag": False, "tiny": -1, "n": 7, "big": 2**60, "f": 0.25, "d": 1e-9, "price": Decimal("1.200"),
        "b": b"\x00z", "day": date(1999, 12, 31), "at": NOON + timedelta(microseconds=1),
        "wall": datetime(2026, 3, 29, 2, 30), "gap": timedelta(days=-1, microseconds=3), "tags": ["a", None, '"'],
        "counts": {"x": 1}, "many": [{"a": 1, "b": NOON}],
    }  # fmt: skip
    nothing = {**dict.fromkeys(row), "k": "y"}
    flow = ms.Flow("values")
    flow.read("scores", schema).to_table(key="k").write(place)
    Job(log, flow).write((row, 1), (nothing, 1))
    with opened(log) as table:
        assert table.get("x") == row
        assert table.get("y") == nothing
    found = json.loads(Tables(log).row("totals", "x").json())
    assert found["at"] == "2026-01-01T12:00:00.000001Z"
    assert (found["price"], found["b"], found["counts"]) == (1.2, "AHo=", {"x": 1})


def test_a_key_of_several_columns(log: EmbeddedLog, place: Any) -> None:
    flow = ms.Flow("places")
    rows = flow.read("scores", "region string, rank int, team string")
    rows.to_table(key=["region", "rank"]).write(place)
    first, second = ({"region": "north", "rank": rank, "team": team} for rank, team in ((1, "a"), (2, "b")))
    Job(log, flow).write((first, 1), (second, 1))
    with opened(log) as table:
        assert table.key == ("region", "rank")
        assert table.get({"rank": 2, "region": "north"}) == second
        assert table.get(("north", 1)) == first
        assert table.get(["north", "2"]) == second
        assert table.get(("south", 1)) is None
        for wrong, said in (
            ("north", "'north' is not a complete key"),
            ({"region": "north"}, "rank is missing"),
            ({"region": "north", "rank": "first"}, "column 'rank': expected int, found 'first'"),
            ({"region": "north", "rank": 1.5}, "expected int, found 1.5"),
        ):
            with pytest.raises(InvalidInput) as refused:
                table.get(wrong)
            assert said in refused.value.what
            assert refused.value.next_step == "its key is region string, rank int"
        with pytest.raises(InvalidInput, match="'regio' is not in the key") as refused:
            table.get({"regio": "north", "rank": 1})
        assert refused.value.next_step is not None
        assert "did you mean 'region'?" in refused.value.next_step


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_panes_are_found_by_the_parts_of_their_window(
    log: EmbeddedLog, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    key = ["team", "window"]
    if kind == "sqlite":
        sink: Any = ms.sqlite(tmp_path / "tables.db", "100% totals", key=key)
    else:
        sink = ms.postgres(request.getfixturevalue("dsn"), "public.100% totals", key=key)
    flow = ms.Flow("panes")
    scores = flow.read("scores", "team string, score int, at timestamp", event_time="at")
    scores.key_by("team").window(ms.fixed("1 hour")).retracting().agg(total=ms.sum("score")).write(sink)
    pane = {"timing": "on_time", "index": 0, "on_time_index": 0, "first": True, "last": True}
    window = {"start": NOON, "end": NOON + timedelta(hours=1)}
    end = window["end"] - timedelta(microseconds=1)
    row = {"team": "red", "window": window, "pane": pane, "weight": 1, "total": 5, "event_time": end}
    Job(log, flow).write((row, 1))
    with opened(log, sink.table) as table:
        assert table.key == ("team", "window_start", "window_end")
        found = table.get({"team": "red", "window_start": "2026-01-01T12:00:00Z", "window_end": window["end"]})
    assert found is not None
    assert (found["total"], found["window_start"], found["pane_timing"]) == (5, NOON, "on_time")


# ---------------------------------------------------------------- finding tables


def test_what_a_job_notes(log: EmbeddedLog, tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    secret = dsn.replace("millstream@", "millstream:geheim@")
    flow = totals_flow("totals", ms.sqlite("tables.db", "by_team"), ms.postgres(secret, "by_team_too"), ms.console())
    rows = flow.read("more", "team string, score int")
    rows.write("rows")  # a stream: every row, none of them the current one
    rows.write(ms.sqlite("tables.db", "rows"))
    rows.write(ms.sqlite("tables.db", "newest", key="team"))
    Job(log, flow)
    found = {table.name: (table.kind, table.where, table.key, table.schema) for table in remembered(log.path)}
    schema = "team string, total bigint"
    database = str(tmp_path / "tables.db")
    assert found == {
        "totals": ("topic", str(log.path), ("team",), schema),
        "by_team": ("sqlite", database, ("team",), schema),
        "by_team_too": ("postgres", dsn, ("team",), schema),
        "newest": ("sqlite", database, ("team",), "team string, score int"),
    }
    assert "geheim" not in (log.path / "jobs" / "team-scores" / NOTE).read_text()


def test_a_job_that_starts_again_notes_what_it_writes_now(log: EmbeddedLog, tmp_path: Path) -> None:
    Job(log, totals_flow("totals", ms.sqlite(tmp_path / "tables.db", "old"))).close()
    Job(log, totals_flow("totals")).close()
    assert [table.name for table in remembered(log.path)] == ["totals"]


def test_a_table_that_is_not_there_names_those_that_are(log: EmbeddedLog, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no table 'totals'") as missing:
        open_table("totals", log.path)
    assert "there are no tables yet" in (missing.value.next_step or "")
    Job(log, totals_flow("totals", ms.sqlite(tmp_path / "tables.db", "by_team")))
    log.create_topic("plain")
    log.create_topic("profiles", compaction=True)
    with pytest.raises(NotFound, match="there is no table 'total'") as missing:
        open_table("total", log.path)
    assert missing.value.next_step == "did you mean 'totals'? tables that exist: by_team, profiles, totals"
    with pytest.raises(NotFound):
        open_table("../totals", log.path)


def test_a_key_that_is_not_there_names_some_that_are(log: EmbeddedLog, place: Any) -> None:
    job = Job(log, totals_flow(place))
    tables = Tables(log)
    with pytest.raises(NotFound, match=r"the table 'totals' has no row with team = \"red\"") as missing:
        tables.row("totals", "red")
    assert missing.value.next_step == "the table has no rows"
    job.write((total("blue", 1), 1), (total(None, 2), 1))
    with pytest.raises(NotFound) as missing:
        tables.row("totals", "red")
    assert missing.value.next_step in ("keys that exist: blue, null", "keys that exist: null, blue")
    tables.close()


def test_tables_of_the_same_name_are_distinguished(log: EmbeddedLog, tmp_path: Path) -> None:
    sinks = [ms.sqlite(tmp_path / f"{name}.db", "totals") for name in ("a", "b")]
    job = Job(log, totals_flow("totals", *sinks))
    job.write((total("red", 1), 1))
    names = ["sqlite:a.db:totals", "sqlite:b.db:totals", "topic:totals"]
    tables = Tables(log)
    assert list(tables.known()) == names
    assert [tables.row(name, "red").values() for name in names] == [total("red", 1)] * 3
    with pytest.raises(InvalidInput, match="several tables are named 'totals'") as several:
        tables.find("totals")
    assert several.value.next_step == f"use one of {', '.join(names)}"
    with pytest.raises(InvalidInput):
        tables.find("sqlite:totals")


def test_a_table_that_two_jobs_write_is_one(log: EmbeddedLog) -> None:
    Job(log, totals_flow("totals", name="first"))
    Job(log, totals_flow("totals", name="second"))
    known = Tables(log).known()
    assert [(name, table.job) for name, table in known.items()] == [("totals", "second")]


def test_a_log_that_was_moved_has_its_topics_still(log: EmbeddedLog, tmp_path: Path) -> None:
    job = Job(log, totals_flow("totals", name="first"))
    job.write((total("red", 1), 1))
    job.close()
    log.close()
    log.path.rename(tmp_path / "moved")
    with EmbeddedLog(tmp_path / "moved", upkeep=False) as moved:
        Job(moved, totals_flow("totals", name="second")).close()
        assert list(Tables(moved).known()) == ["totals"]
        assert Tables(moved).row("totals", "red").values() == total("red", 1)


def test_a_note_that_cannot_be_read_is_named(log: EmbeddedLog) -> None:
    job = Job(log, totals_flow("totals"))
    for text in ("{", "[]", '{"tables": [{"name": "x"}]}'):
        (job.folder / NOTE).write_text(text)
        with pytest.raises(DamagedLog, match="the catalog of the job 'team-scores'") as damaged:
            Tables(log).known()
        assert damaged.value.where == str(job.folder / NOTE)


def test_a_job_that_was_forgotten_is_none(log: EmbeddedLog) -> None:
    job = Job(log, totals_flow("totals"))
    job.folder.rename(job.folder.with_name(".team-scores-0"))
    assert Tables(log).known()["totals"].key == ("key",)  # a compacted topic, as any other


def test_readers_that_are_switched_are_switched_here_too(log: EmbeddedLog) -> None:
    Job(log, totals_flow("totals")).write((total("red", 1), 1))
    Job(log, totals_flow("totals.v2", name="again")).write((total("red", 2), 1))
    with opened(log) as table:
        assert table.get("red") == total("red", 1)
        log.switch("totals", "totals.v2")
        assert table.get("red") == total("red", 2)
        log.switch_back("totals")
        assert table.get("red") == total("red", 1)


def test_any_topic_is_looked_up_by_the_text_of_its_keys(log: EmbeddedLog) -> None:
    log.create_topic("raw")
    put(log, "raw", ("a", b'{"n": 1}'), ("b", b"plain"), ("c", b"\xff"), ("a", b'{"n": 2, "at": "x"}'))
    with opened(log, "raw") as table:
        assert table.key == ("key",)
        assert table.get("a") == {"n": 2, "at": "x"}
        assert table.get({"key": "a"}) == table.get(b"a") == {"n": 2, "at": "x"}
        assert (table.get("b"), table.get("c")) == ({"value": "plain"}, {"value": {"base64": "/w=="}})
        assert table.get("d") is None
    assert "raw" not in Tables(log).known()


# ---------------------------------------------------------------- databases that are away


def test_a_file_that_is_gone_is_named(log: EmbeddedLog, tmp_path: Path) -> None:
    path = tmp_path / "tables.db"
    job = Job(log, totals_flow(ms.sqlite(path, "totals")))
    job.write((total("red", 1), 1))
    job.close()
    with opened(log) as table:
        path.rename(tmp_path / "moved.db")
        with pytest.raises(TableUnavailable, match="SQLite cannot be read") as away:
            table.get("red")
        assert str(path) in (away.value.where or "")
        assert not path.exists()
        (tmp_path / "moved.db").rename(path)
        assert table.get("red") == total("red", 1)
        with sqlite3.connect(path) as db:
            db.execute("UPDATE totals SET total = 'many'")
        with pytest.raises(TableUnavailable, match="a row cannot be read"):
            table.get("red")


def test_a_server_that_was_away_is_asked_again(log: EmbeddedLog, server: Server, dsn: str) -> None:
    job = Job(log, totals_flow(ms.postgres(dsn, "totals")))
    job.write((total("red", 1), 1))
    with opened(log) as table:
        assert table.get("red") == total("red", 1)
        server.stop()
        try:
            with pytest.raises(TableUnavailable, match="Postgres cannot be read"):
                table.get("red")
        finally:
            server.start()
        assert table.get("red") == total("red", 1)
    job.close()


def test_a_table_that_was_dropped_is_named(log: EmbeddedLog, dsn: str) -> None:
    Job(log, totals_flow(ms.postgres(dsn, "totals"))).close()
    with psycopg.connect(dsn) as db:
        db.execute("DROP TABLE totals")
    with opened(log) as table, pytest.raises(TableUnavailable, match='relation "totals" does not exist'):
        table.get("red")


@pytest.fixture
def locked(server: Server, dsn: str) -> str:
    """The address of the same database for somebody who needs a password."""
    with psycopg.connect(dsn, autocommit=True) as db:
        if db.execute("SELECT FROM pg_roles WHERE rolname = 'somebody'").rowcount == 0:
            db.execute("CREATE ROLE somebody LOGIN SUPERUSER PASSWORD 'geheim'")
        found = db.execute("SHOW hba_file").fetchone()
        assert found is not None
        rules = Path(found[0])
        rules.write_text("host all somebody 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        db.execute("SELECT pg_reload_conf()")
    address = dsn.replace("millstream@", "somebody@")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            return address
        time.sleep(0.02)
    raise AssertionError("the server does not ask for a password")


@pytest.mark.parametrize("form", ["url", "words"])
def test_a_password_is_not_kept_and_the_refusal_says_how_to_give_it(
    log: EmbeddedLog, locked: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = locked.replace("somebody@", "somebody:geheim@")
    if form == "words":
        whole = psycopg.conninfo.make_conninfo("", **psycopg.conninfo.conninfo_to_dict(whole))
        assert "password=geheim" in whole
    Job(log, totals_flow(ms.postgres(whole, "totals"))).write((total("red", 1), 1))
    with opened(log) as table:
        with pytest.raises(TableUnavailable, match="no password supplied") as refused:
            table.get("red")
        said = str(refused.value)
        assert "give the whole address with --at-env or --at-file" in said
        assert "PGPASSWORD" in said
        assert "geheim" not in said
        monkeypatch.setenv("PGPASSWORD", "geheim")
        assert table.get("red") == total("red", 1)
        monkeypatch.delenv("PGPASSWORD")
    with opened(log, at=whole) as table:
        assert table.get("red") == total("red", 1)
    with opened(log, at=whole.replace("geheim", "falsch")) as table:
        with pytest.raises(TableUnavailable, match="password authentication failed") as refused:
            table.get("red")
        assert "falsch" not in str(refused.value)
    with opened(log, at="postgresql://a:geheim@b:c/d") as table:
        with pytest.raises(MillstreamError) as refused:
            table.get("red")
        assert "geheim" not in str(refused.value)
