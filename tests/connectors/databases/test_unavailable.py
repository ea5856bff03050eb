"""A database that is away: the batch is refused whole, and written once when it is back."""

import sqlite3
import sys

import psycopg
import pytest

import millstream as ms
from connectors.support import SCORES, Target, table
from millstream.connectors.opening import open_sink
from millstream.errors import DiskFull, InvalidInput, InvalidSchema, SinkFailed, SinkUnavailable
from millstream.log import EmbeddedLog
from millstream.records import Schema

A, B = {"team": "a", "score": 1}, {"team": "b", "score": 2}


def test_postgres_may_go_and_come_back(server, tmp_path, dsn):
    target = Target("postgres", tmp_path, dsn, key="team")
    sink = target.open()
    sink.write(0, table(SCORES, [A]), None)
    server.stop()
    try:
        for _ in range(2):
            with pytest.raises(SinkUnavailable, match="Postgres cannot be written"):
                sink.write(1, table(SCORES, [B]), None)
        other = target.open()  # a sink that is down can be opened
        with pytest.raises(SinkUnavailable):
            other.write(1, table(SCORES, [B]), None)
    finally:
        server.start()
    other.write(1, table(SCORES, [B]), None)
    sink.write(1, table(SCORES, [B]), None)
    other.close()
    sink.close()
    assert target.rows() == [A, B]


def test_a_connection_cut_in_the_middle_of_a_batch_leaves_nothing_of_it(tmp_path, dsn, monkeypatch):
    """Goal: no half batch. Method: the server ends the connection after the rows were copied, before the commit."""
    target = Target("postgres", tmp_path, dsn)
    sink = target.open()
    whole = type(sink)._apply

    def cut(self, db, changes):
        whole(self, db, changes)
        with psycopg.connect(dsn, autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))

    with monkeypatch.context() as patched:
        patched.setattr(type(sink), "_apply", cut)
        with pytest.raises(SinkUnavailable):
            sink.write(0, table(SCORES, [A]), None)
    assert target.rows() == []
    sink.write(0, table(SCORES, [A]), None)
    sink.close()
    assert target.rows() == [A]


def test_a_wrong_address_is_not_taken_for_a_server_that_is_down(server, tmp_path):
    for dsn, said in (
        (server.dsn("nowhere"), 'database "nowhere" does not exist'),
        (server.dsn().replace("millstream@", "mallory@"), 'role "mallory" does not exist'),
    ):
        with pytest.raises(SinkFailed) as refused:
            open_sink(ms.postgres(dsn, "t"), SCORES, job="j", step="s", broker=tmp_path / "log", folder=tmp_path)
        assert said in refused.value.what


def test_an_address_that_cannot_be_read_is_refused_without_showing_it(tmp_path):
    for dsn in ("postgresql://ann@s3cret:x/y", "host=db passwort=s3cret", "postgresql://ann:%zz3cret@host/db"):
        place = ms.postgres(dsn, "t")
        with pytest.raises(InvalidInput) as refused:
            open_sink(place, SCORES, job="j", step="s", broker=tmp_path / "log", folder=tmp_path)
        assert "cret" not in str(refused.value)
        assert refused.value.__cause__ is None


def test_names_that_postgres_would_cut_are_refused(tmp_path, dsn):
    schema = Schema.of(f"{'x' * 64} int")
    with pytest.raises(InvalidSchema, match="63 bytes"):
        open_sink(ms.postgres(dsn, "t"), schema, job="j", step="s", broker=tmp_path / "log", folder=tmp_path)


def test_a_topic_whose_disk_is_full_is_opened_all_the_same(tmp_path, monkeypatch):
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        with monkeypatch.context() as full:
            full.setattr(log, "topics", _raise_disk_full)
            sink = open_sink("scores", SCORES, job="j", step="s", broker=log, folder=tmp_path)
            with pytest.raises(SinkUnavailable):
                sink.write(0, table(SCORES, [A]), None)
        sink.write(0, table(SCORES, [A]), None)
        with log.consumer("scores") as consumer:
            assert [record.value for record in consumer.until_caught_up()] == [A]


def _raise_disk_full():
    raise DiskFull("there is no room")


def test_without_psycopg_the_next_step_is_shown(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    place = ms.postgres("postgresql://localhost/x", "t")
    with pytest.raises(InvalidInput) as refused:
        open_sink(place, SCORES, job="j", step="s", broker=tmp_path / "log", folder=tmp_path)
    assert "millstream[postgres]" in refused.value.next_step


def test_a_locked_sqlite_file_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.connectors.databases.sqlite.BUSY_SECONDS", 0.01)
    target = Target("sqlite", tmp_path)
    sink = target.open()
    holder = sqlite3.connect(tmp_path / "scores.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkUnavailable, match="locked"):
        sink.write(0, table(SCORES, [A]), None)
    other = target.open()
    with pytest.raises(SinkUnavailable, match="locked"):
        other.write(0, table(SCORES, [A]), None)
    holder.execute("ROLLBACK")
    holder.close()
    sink.write(0, table(SCORES, [A]), None)
    other.write(0, table(SCORES, [A]), None)
    assert target.rows() == [A]


def test_a_sqlite_file_that_was_moved_away_is_recreated(tmp_path):
    target = Target("sqlite", tmp_path)
    sink = target.open()
    sink.write(0, table(SCORES, [A]), None)
    (tmp_path / "scores.db").unlink()
    with pytest.raises(SinkUnavailable):
        sink.write(1, table(SCORES, [B]), None)
    sink.write(1, table(SCORES, [B]), None)
    sink.close()
    assert target.rows() == [B]


def test_a_file_that_is_not_a_database_is_not_retried(tmp_path):
    (tmp_path / "scores.db").write_text("no database, but long enough to be read as one" * 20)
    with pytest.raises(SinkFailed, match="not a database"):
        Target("sqlite", tmp_path).open()


def test_a_folder_in_place_of_the_file_is_unavailable_with_its_path(tmp_path):
    (tmp_path / "scores.db").mkdir()
    with pytest.raises(SinkUnavailable) as away:
        Target("sqlite", tmp_path).open().write(0, table(SCORES, [A]), None)
    assert "scores.db" in away.value.where
