"""Two-phase commit: a batch is in all databases or in none, wherever the coordinator was killed."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

import millstream as ms
from connectors.support import table, weights
from millstream.connectors.claims import Claim
from millstream.connectors.databases.two_phase import Participant, TwoPhaseTables
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import keeper_of, open_sink
from millstream.errors import InvalidInput, SinkFailed
from millstream.records import Schema
from postgres_server import Server

SCHEMA = Schema.of("id int, name string")


class Pair:
    """Two databases, and a job that writes to both."""

    def __init__(self, folder, server, key="id"):
        self.folder = Path(folder)
        self.dsns = [server.new_database(), server.new_database()]
        self.endpoint = ms.two_phase(*(ms.postgres(dsn, "items", key=key) for dsn in self.dsns))

    def open(self):
        return open_sink(self.endpoint, SCHEMA, job="job", step="items-out", broker="log", folder=self.folder)

    def keeper(self):
        ledger = FileLedger(self.folder, "items-out")
        return keeper_of(self.endpoint, Claim.here("job", "items-out", ledger.run, self.folder), ledger, None)

    def rows(self):
        found = []
        for dsn in self.dsns:
            with psycopg.connect(dsn) as db:
                found.append(dict(db.execute("SELECT id, name FROM items").fetchall()))
        return found

    def in_doubt(self):
        count = 0
        for dsn in self.dsns:
            with psycopg.connect(dsn) as db:
                asked = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
                count += db.execute(asked).fetchone()[0]
        return count


@pytest.fixture
def pair(tmp_path, server):
    return Pair(tmp_path / "job", server)


def rows(**named):
    return table(SCHEMA, [{"id": int(id[1:]), "name": name} for id, name in named.items()])


def test_a_batch_is_in_all_databases_once(pair) -> None:
    sink = pair.open()
    sink.write(0, rows(_1="tea", _2="milk"), None)
    sink.write(1, rows(_3="jam"), weights(1))
    sink.write(1, rows(_4="no"), None)  # a batch is written once
    sink.write(2, rows(_2="milk"), weights(-1))
    sink.close()
    assert pair.rows() == [{1: "tea", 3: "jam"}] * 2
    assert pair.in_doubt() == 0


def test_a_row_that_one_database_refuses_is_in_none(pair) -> None:
    sink = pair.open()
    with psycopg.connect(pair.dsns[1]) as db:
        db.execute("ALTER TABLE items ADD CHECK (name <> 'bad')")
    refused = []
    sink.write(0, rows(_1="tea", _2="bad", _3="a\0b"), None, refused.extend)
    assert [(each.row, "check" in each.reason or "NUL" in each.reason) for each in refused] == [(1, True), (2, True)]
    assert pair.rows() == [{1: "tea"}] * 2
    with pytest.raises(SinkFailed):
        sink.write(1, rows(_4="bad"), None)
    sink.write(1, rows(_4="good"), None)
    assert pair.rows() == [{1: "tea", 4: "good"}] * 2
    sink.close()


@pytest.mark.more
def test_tables_without_a_key(tmp_path, server) -> None:
    pair = Pair(tmp_path, server, key=None)
    sink = pair.open()
    sink.write(0, rows(_1="tea", _2="milk"), None)
    sink.write(1, rows(_1="tea"), weights(-1))
    sink.close()
    assert pair.rows() == [{2: "milk"}] * 2


@pytest.mark.parametrize("decided", [False, True])
def test_what_is_in_doubt_is_settled_at_the_next_start(pair, decided) -> None:
    """Method: the coordinator goes away after the votes, before or after it has recorded the verdict."""
    sink = pair.open()
    sink.prepare(0, 0, rows(_1="tea"), None)
    assert pair.rows() == [{}, {}]
    assert pair.in_doubt() == 2
    if decided:
        sink.decide(0)
    sink.close()
    again = pair.open()
    assert pair.in_doubt() == 0
    assert pair.rows() == [{1: "tea"} if decided else {}] * 2
    again.write(0, rows(_1="tea"), None)
    again.close()
    assert pair.rows() == [{1: "tea"}] * 2


@pytest.mark.more
def test_a_database_that_votes_no_aborts_all(pair) -> None:
    """Method: a transaction that has notified others cannot be prepared."""
    sink = pair.open()
    with psycopg.connect(pair.dsns[1]) as db:
        db.execute(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('a', 'b'); "
            "RETURN NULL; END $$; "
            "CREATE TRIGGER no AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION no()"
        )
    with pytest.raises(SinkFailed, match="PREPARE"):
        sink.write(0, rows(_1="tea"), None)
    with psycopg.connect(pair.dsns[1]) as db:
        db.execute("DROP TRIGGER no ON items")
    sink.write(0, rows(_2="milk"), None)
    assert pair.rows() == [{2: "milk"}] * 2
    sink.close()


@pytest.mark.more
def test_starting_over_removes_what_is_in_doubt(pair) -> None:
    keeper = pair.keeper()
    keeper.make()
    sink = pair.open()
    sink.write(0, rows(_1="tea"), None)
    found = keeper.look()
    assert (found.there, found.newest, found.claim.job) == (True, 0, "job")
    sink.prepare(1, 0, rows(_2="milk"), None)
    sink.close()
    keeper.check_clear()
    keeper.clear()
    assert (pair.in_doubt(), pair.rows()) == (0, [{}, {}])
    keeper.close()


def test_mistakes_are_refused() -> None:
    one = ms.postgres("postgresql://a/b", "t")
    for given, said in [((one,), "at least two"), ((one, one), "twice"), ((one, ms.console()), "tables of Postgres")]:
        with pytest.raises(InvalidInput, match=said):
            ms.two_phase(*given)
    both = ms.two_phase(one, ms.postgres("postgresql://u:secret@c/b", "t"))
    assert "secret" not in f"{both} {both!r}"


@pytest.mark.more
def test_a_server_without_prepared_transactions_is_refused_before_anything_is_changed(tmp_path, server) -> None:
    without = Server()
    try:
        pair = Pair(tmp_path / "job", server)
        pair.dsns[1] = without.new_database()
        pair.endpoint = ms.two_phase(*(ms.postgres(dsn, "items") for dsn in pair.dsns))
        for attempt in (lambda: pair.keeper().look(), pair.open):
            with pytest.raises(InvalidInput, match="max_prepared_transactions is 0"):
                attempt()
        for dsn in pair.dsns:
            with psycopg.connect(dsn) as db:
                assert not db.execute("SELECT 1 FROM pg_class WHERE relname ~ 'items|_millstream'").fetchall()
    finally:
        without.close()


KILLED = """
import os, random, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[5:]
import millstream as ms
from millstream.connectors.databases import two_phase
from connectors.databases.test_two_phase import SCHEMA, killed_at, table
from millstream.connectors.opening import open_sink

folder, first, second, seed = sys.argv[1:5]
killed_at(random.Random(int(seed)).randrange(1, 60))
endpoint = ms.two_phase(ms.postgres(first, "items", key="id"), ms.postgres(second, "items", key="id"))
sink = open_sink(endpoint, SCHEMA, job="job", step="items-out", broker="log", folder=Path(folder))
for batch in range(100):
    sink.write(batch, table(SCHEMA, [{"id": batch, "name": str(batch)}, {"id": 1000, "name": str(batch)}]), None)
    print(batch, flush=True)
"""


def killed_at(steps):
    """Has this process kill itself before one of its statements or verdicts."""
    left = [steps]

    def counted(function):
        def called(*given, **more):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **more)

        return called

    TwoPhaseTables.decide = counted(TwoPhaseTables.decide)
    for name in ("apply", "vote", "commit"):
        setattr(Participant, name, counted(getattr(Participant, name)))


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.more), pytest.param(20, marks=pytest.mark.soak)])
def test_a_killed_coordinator_leaves_the_databases_equal(pair, kills) -> None:
    chance = random.Random(kills)
    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3] / "tools")]
    for _ in range(kills):
        command = [sys.executable, "-c", KILLED, str(pair.folder), *pair.dsns, str(chance.randrange(1 << 30)), *paths]
        ended = subprocess.run(command, capture_output=True)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        pair.open().close()  # settles what is in doubt
        first, second = pair.rows()
        assert first == second
        assert pair.in_doubt() == 0
        written = max((id for id in first if id < 1000), default=-1)
        if written >= 0:
            assert first == {**{id: str(id) for id in range(written + 1)}, 1000: str(written)}
