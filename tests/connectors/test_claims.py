"""What every output knows of the job that writes it, and how it is emptied of what the job wrote."""

import shutil
import sqlite3

import psycopg
import pytest

import millstream as ms
from millstream.connectors.claims import Claim
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import keeper_of
from millstream.errors import SinkUnavailable, StartOverRefused
from millstream.log import EmbeddedLog

from .support import KINDS, LAKES, SCORES, Target, table

A, B = {"team": "a", "score": 1}, {"team": "b", "score": 2}


@pytest.fixture(params=KINDS)
def target(request, tmp_path):
    dsn = request.getfixturevalue("dsn") if request.param == "postgres" else None
    return Target(request.param, tmp_path, dsn)


@pytest.fixture
def broker(tmp_path):
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        yield log


def keeper(target, broker, job="job", folder="job"):
    ledger = FileLedger(target.folder / folder, "scores-out")
    return keeper_of(target.place(), Claim.here(job, "scores-out", ledger.run, target.folder / folder), ledger, broker)


def write(target, batch, row):
    sink = target.open()
    sink.write(batch, table(SCORES, [row]), None)
    sink.close()


def remove(target, broker):
    if target.kind == "topic":
        broker.delete_topic("scores")
    elif target.kind == "sqlite":
        (target.folder / "scores.db").unlink()
    elif target.kind == "delta":
        shutil.rmtree(target.folder / "lake")
    elif target.kind == "iceberg":
        target.place().store().catalog.drop_table("games.scores")
    elif target.kind == "postgres":
        with psycopg.connect(target.dsn) as db:
            db.execute("DROP TABLE scores, _millstream_batches, _millstream_outputs")
    else:
        shutil.rmtree(target.folder / "out")


def visible_rows(target):
    if target.kind in ("topic", "sqlite", "postgres", *LAKES):
        return target.rows()
    files = sorted((target.folder / "out").glob("[!.]*"))
    return [row for file in files for row in target._of_file(file)]


def test_an_output_knows_its_run_and_its_newest_batch(target, broker):
    first = keeper(target, broker).look()
    assert (first.there, first.claim, first.newest) == (False, None, None)
    keeper(target, broker).make()
    write(target, 0, A)
    write(target, 4, B)
    found = keeper(target, broker).look()
    assert found.there
    assert found.newest == 4
    assert found.claim.run == FileLedger(target.folder / "job", "scores-out").run
    assert found.claim.folder == str(target.folder / "job")
    other = keeper(target, broker, folder="elsewhere").look()
    assert other.claim == found.claim
    assert other.newest is None
    assert keeper(target, broker, job="another job").look().claim is None
    remove(target, broker)
    gone = keeper(target, broker).look()
    assert not gone.there
    assert gone.claim is None or target.kind == "topic"  # whose claim is in the log, and whose topic has an identity


def test_an_output_is_emptied_and_claimed_by_the_next_run(target, broker):
    keeper(target, broker).make()
    write(target, 0, A)
    identity = keeper(target, broker).look().identity
    for _ in range(2):  # again, as if it had been cut short
        clearing = keeper(target, broker)
        clearing.check_clear()
        clearing.clear()
    found = keeper(target, broker).look()
    assert visible_rows(target) == []
    assert found.claim is None
    assert identity == "" or found.identity not in ("", identity)
    shutil.rmtree(target.folder / "job")
    keeper(target, broker).make()
    write(target, 0, B)
    assert visible_rows(target) == [B]
    assert keeper(target, broker).look().newest == 0
    keeper(target, broker).check_clear()


def test_a_run_that_is_complete_leaves_the_output_to_the_next(target, broker):
    keeper(target, broker).make()
    write(target, 0, A)
    keeper(target, broker).release()
    assert keeper(target, broker, folder="elsewhere").look().claim is None
    assert visible_rows(target) == [A]


@pytest.mark.parametrize("kind", ["topic", "sqlite", "postgres"])
def test_what_an_older_version_wrote_is_known_by_its_batches(kind, tmp_path, broker, request):
    target = Target(kind, tmp_path, request.getfixturevalue("dsn") if kind == "postgres" else None)
    write(target, 0, A)
    own = keeper(target, broker).look()
    assert own.claim.run == FileLedger(tmp_path / "job", "scores-out").run
    other = keeper(target, broker, folder="elsewhere").look()
    assert other.claim == own.claim


@pytest.mark.parametrize("kind", ["topic", "sqlite", "postgres"])
def test_what_others_wrote_is_not_deleted(kind, tmp_path, broker, request):
    target = Target(kind, tmp_path, request.getfixturevalue("dsn") if kind == "postgres" else None)
    if kind == "topic":
        broker.create_topic("scores", schema=SCORES)
        with broker.producer() as producer:
            producer.send("scores", A)
    elif kind == "sqlite":
        with sqlite3.connect(tmp_path / "scores.db") as db:
            db.execute("CREATE TABLE scores (team TEXT, score INTEGER)")
            db.execute("INSERT INTO scores VALUES ('a', 1)")
    else:
        with psycopg.connect(target.dsn) as db:
            db.execute("CREATE TABLE scores (team text, score integer)")
            db.execute("INSERT INTO scores VALUES ('a', 1)")
    keeper(target, broker).make()
    write(target, 0, B)
    with pytest.raises(StartOverRefused, match="so it is not emptied"):
        keeper(target, broker).check_clear()


def test_a_table_of_two_jobs_is_not_emptied(tmp_path, broker):
    target = Target("sqlite", tmp_path)
    keeper(target, broker).make()
    write(target, 0, A)
    keeper(target, broker, job="another job", folder="elsewhere").make()
    with pytest.raises(StartOverRefused, match="also written by the job 'another job'"):
        keeper(target, broker).check_clear()
    keeper(target, broker, job="another job", folder="elsewhere").release()
    keeper(target, broker).check_clear()


def test_only_files_of_the_job_are_deleted(tmp_path, broker):
    target = Target("json", tmp_path)
    keeper(target, broker).make()
    write(target, 0, A)
    kept = tmp_path / "out" / "scores-out-20260101T000000-0badcafe-0000000000.json"
    kept.write_text('{"team": "z", "score": 9}\n')
    keeper(target, broker).clear()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [kept.name]


def test_what_a_function_did_is_undone_by_hand(tmp_path, broker):
    ledger = FileLedger(tmp_path / "job", "s")
    own = keeper_of(ms.foreach_batch(print), Claim.here("j", "s", ledger.run, tmp_path), ledger, broker)
    own.check_clear()
    ledger.record(0)
    assert own.look().newest == 0
    with pytest.raises(StartOverRefused, match="millstream jobs forget j"):
        own.check_clear()


def test_a_database_that_is_down_is_not_mistaken_for_one_without_the_job(tmp_path, broker):
    ledger = FileLedger(tmp_path / "job", "s")
    place = ms.postgres("postgresql://ann:Xq7JmzW9Vt@localhost:1/none", "scores")
    with pytest.raises(SinkUnavailable) as raised:
        keeper_of(place, Claim.here("j", "s", ledger.run, tmp_path), ledger, broker).look()
    assert "Xq7JmzW9Vt" not in str(raised.value)
