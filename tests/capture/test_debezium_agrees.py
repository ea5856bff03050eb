"""A capture and Debezium's embedded engine, side by side on the same Postgres, see equal changes in the same order."""

import base64
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from kafka_jars import KafkaUnavailable, assemble
from millstream.capture.capturing import Capture
from millstream.capture.postgres.database import PostgresDatabase
from waiting import until

from .support import records

ENGINE = Path(__file__).parents[2] / "tools" / "debezium"
UNAVAILABLE = "__debezium_unavailable_value"
OPERATIONS = {"c": "insert", "u": "update", "d": "delete", "r": "snapshot", "t": "truncate", "m": "message"}
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, product text, amount numeric(10, 2), tags text[], at timestamptz, data bytea,
    doc jsonb, is_good boolean, ratio double precision, narrow smallint);
ALTER TABLE items REPLICA IDENTITY FULL;
CREATE TABLE people (id bigint, area text, name text, story text, PRIMARY KEY (id, area));
CREATE TABLE scribbles (text text, n int);
ALTER TABLE scribbles REPLICA IDENTITY FULL;
CREATE TABLE ended (id int PRIMARY KEY);
INSERT INTO items SELECT n, 'old', n / 4.0 FROM generate_series(1000, 1300) n;
INSERT INTO people SELECT n, 'a', 'name', NULL FROM generate_series(1000, 1300) n;
"""
NAMES = ("items", "people", "scribbles", "ended")
SCHEMA_CHANGES = [
    ("ALTER TABLE items ADD COLUMN extra int", "UPDATE items SET extra = id WHERE id % 3 = 0"),
    ("ALTER TABLE items ADD COLUMN filled text DEFAULT 'full'", "UPDATE items SET filled = 'other' WHERE id % 3 = 0"),
    ("ALTER TABLE items ALTER COLUMN narrow TYPE bigint", "UPDATE items SET narrow = 1 << 20 WHERE id % 3 = 0"),
    ("ALTER TABLE people ADD COLUMN extra text", "UPDATE people SET extra = area"),
    ("ALTER TABLE items RENAME COLUMN extra TO renamed", "UPDATE items SET renamed = -id WHERE id % 2 = 0"),
    ("ALTER TABLE people RENAME COLUMN name TO full_name", "UPDATE people SET full_name = area"),
    ("ALTER TABLE items DROP COLUMN filled", "UPDATE items SET amount = 0 WHERE id % 5 = 0"),
    ("ALTER TABLE people DROP COLUMN extra", "UPDATE people SET full_name = 'new' WHERE id % 2 = 0"),
]
"""One after the other, each while others write, and what uses the column then."""


# ---------------------------------------------------------------- random work


class Work:
    def __init__(self, dsn, seed):
        self._random = random.Random(seed)
        self._db = psycopg.connect(dsn, autocommit=True, options="-c deadlock_timeout=10ms")

    def run(self, transactions):
        for _ in range(transactions):
            refused = psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected
            with suppress(ZeroDivisionError, *refused), self._db.transaction():
                for _ in range(self._random.choice([1, 1, 2, 5, 40])):
                    with suppress(*refused), self._db.transaction():
                        self._db.execute(*self._statement())
                if self._random.randrange(5) == 0:
                    raise ZeroDivisionError

    def large(self, rows):
        with self._db.transaction():
            start = 10_000_000 + self._random.randrange(1000) * 1_000_000
            self._db.execute("INSERT INTO items (id, product) SELECT n, 'bulk' FROM generate_series(%s, %s) n",
                             (start, start + rows))  # fmt: skip
            self._db.execute("UPDATE items SET is_good = true WHERE id >= %s AND id %% 3 = 0", (start,))
            self._db.execute("DELETE FROM items WHERE id >= %s", (start,))

    def _statement(self):
        pick, n = self._random.choice, self._random.randrange
        item = (
            n(40), pick(["a", "", "ü\n\"'\\", None]), Decimal(n(9000)) / 100, pick([None, [], ["x", None, '"']]),
            datetime.fromisoformat(f"20{n(10, 90)}-0{n(1, 9)}-1{n(9)}T05:06:07.00{n(9)}+00:00"), bytes(range(n(9))),
            json.dumps(pick([None, 1, {"a": [1, "ö"]}])), pick([True, False, None]), pick([0.1, -1e300, None]), n(100),
        )  # fmt: skip
        return pick(
            [
                (f"INSERT INTO items VALUES ({', '.join(['%s'] * len(item))})", item),
                ("UPDATE items SET amount = amount + 1, tags = array_append(tags, 'more') WHERE id %% 7 = %s", (n(7),)),
                ("UPDATE items SET id = %s WHERE id = %s", (n(40), n(40))),
                ("DELETE FROM items WHERE id = %s", (n(40),)),
                ("INSERT INTO people (id, area, story) VALUES (%s, %s, %s)", (n(9), pick("ab"), self._story())),
                ("UPDATE people SET id = %s WHERE id = %s AND area = %s", (n(9), n(9), pick("ab"))),
                ("UPDATE people SET area = %s WHERE id = %s", (pick("ab"), n(9))),
                ("UPDATE people SET area = area WHERE id = %s", (n(9),)),
                ("UPDATE people SET story = %s WHERE id = %s", (self._story(), n(9))),
                ("DELETE FROM people WHERE id = %s", (n(9),)),
                ("INSERT INTO scribbles VALUES (%s, %s)", (pick(["x", None]), n(5))),
                ("UPDATE scribbles SET n = n + 1 WHERE n = %s", (n(5),)),
                ("DELETE FROM scribbles WHERE n > %s", (n(9),)),
                ("TRUNCATE scribbles", ()),
                ("SELECT pg_logical_emit_message(true, 'app', %s)", (pick(["hello", "ü"]),)),
            ]
        )

    def _story(self):
        """Some are too large for their row: an update that does not change them does not send them."""
        return "".join(self._random.choices("abcdefgh", k=self._random.choice([3, 20_000])))


def work(dsn, seed):
    writers = [Work(dsn, seed), Work(dsn, -seed)]
    changing = psycopg.connect(dsn, autocommit=True)
    for number, (change, use) in enumerate(SCHEMA_CHANGES):
        with ThreadPoolExecutor() as threads:
            writing = [threads.submit(each.run, 15) for each in writers]
            changing.execute(change)
            for each in writing:
                each.result()
        changing.execute(use)
        if number % 4 == 1:
            writers[0].large(20_000)
    changing.execute("INSERT INTO ended VALUES (1)")


# ---------------------------------------------------------------- Debezium


@contextmanager
def debezium(dsn, slot, folder, tables=NAMES, **chosen):
    """It writes its changes into a file, one per line. `chosen` are further settings, with _ for a dot."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("there is no JDK: no javac on the PATH")
    try:
        jars = assemble(ENGINE / "pom.xml")
    except KafkaUnavailable as missing:
        pytest.skip(str(missing))
    server = conninfo_to_dict(dsn)
    settings = {
        "database.hostname": server["host"],
        "database.port": server.get("port", "5432"),
        "database.user": server["user"],
        "database.password": server.get("password", "none"),
        "database.dbname": server["dbname"],
        "topic.prefix": "peer",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": slot,
        "publication.autocreate.mode": "filtered",
        "table.include.list": ",".join(f"public.{name}" for name in tables),
        "message.prefix.include.list": "app",
        "skipped.operations": "none",
        "tombstones.on.delete": "false",
        "decimal.handling.mode": "string",
        "poll.interval.ms": "50",
        **{name.replace("_", "."): value for name, value in chosen.items()},
    }
    command = [str(Path(javac).resolve().parent / "java"), "-Xmx600m", "-cp", f"{jars}/*", str(ENGINE / "Engine.java")]
    with (folder / "peer.changes").open("wb") as out, (folder / "peer.log").open("wb") as said:
        process = subprocess.Popen([*command, *(f"{name}={value}" for name, value in settings.items())],
                                   stdout=out, stderr=said)  # fmt: skip
        try:
            yield Peer(process, folder)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Peer:
    def __init__(self, process, folder):
        self._process = process
        self._folder = folder

    def runs(self):
        assert self._process.poll() is None, (self._folder / "peer.log").read_text()[-4000:]
        return True

    def changes(self):
        """What it has captured by now, in its order."""
        assert self.runs()
        lines = (self._folder / "peer.changes").read_bytes().split(b"\n")[:-1]
        return [document for document in map(json.loads, lines) if document and "op" in document]

    def tables(self):
        return [each["source"]["table"] for each in self.changes()]


# ---------------------------------------------------------------- the same words for both


def of_peer(change):
    op, source = OPERATIONS[change["op"]], change["source"]
    table = source["table"] if op != "message" else op
    if op == "message":
        sent = change["message"]
        after = {"prefix": sent["prefix"], "content": base64.b64decode(sent["content"])}
        return table, op, str(source["txId"]), None, after, set()
    after = change.get("after")
    unsent = {name for name, value in (after or {}).items() if value == UNAVAILABLE}
    transaction = None if op == "snapshot" else str(source["txId"])
    return table, op, transaction, _plain(change.get("before")), _plain(after), unsent


def _plain(image):
    if image is None:
        return None
    read = {"data": base64.b64decode, "at": datetime.fromisoformat, "amount": Decimal, "doc": json.loads}
    return {
        name: None if value in (None, UNAVAILABLE) else read[name](value) if name in read else value
        for name, value in image.items()
    }


def of_ours(change):
    table = "message" if change["op"] == "message" else change["table"]
    transaction = None if change["op"] == "snapshot" else change["transaction"]
    images = [change["before"], change["after"]]
    for image in images:
        if image is not None and image.get("doc") is not None:
            image["doc"] = json.loads(image["doc"])
    return table, change["op"], transaction, *images, set(change["unsent"] or ())


def check_same(ours, theirs):
    assert ours[:3] + ours[5:] == theirs[:3] + theirs[5:]
    for mine, other in zip(ours[3:5], theirs[3:5], strict=True):
        assert (mine is None) == (other is None), (ours, theirs)
        if mine is not None:
            assert {name: mine[name] for name in other} == other, (ours, theirs)
            gone = {name: value for name, value in mine.items() if name not in other}
            assert set(gone.values()) <= {None}, "a column that the table does not have any more is null"


# ---------------------------------------------------------------- the comparison


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_debezium_captures_the_same_changes(log, dsn, db, tmp_path, seed, monkeypatch) -> None:
    """Method: both take their snapshots, then two writers work at random while columns change, then all is compared."""
    monkeypatch.setattr("millstream.capture.stream_steps.STEP_CHANGES", 500)
    db.execute(TABLES)
    own = f"app_{dsn.rpartition('/')[2][-12:]}"
    opened = partial(PostgresDatabase, dsn, {name: name for name in NAMES}, messages="messages")
    stop = threading.Event()
    with (
        debezium(dsn, f"peer_{own}", tmp_path) as peer,
        Capture(log, own, lambda name: opened(name)) as running,
        ThreadPoolExecutor() as threads,
        ExitStack() as stopping,
    ):
        stopping.callback(stop.set)
        running.catch_up()
        capturing = threads.submit(running.run, stop)
        active = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
        until(lambda: peer.runs() and db.execute(active, (f"peer_{own}",)).fetchone(), "Debezium streams")
        work(dsn, seed)
        until(lambda: "ended" in peer.tables(), "Debezium has captured everything", 1.0)
        until(lambda: capturing.done() or records(log, "ended"), "the capture has captured everything", 1.0)
        stop.set()
        capturing.result()
        theirs = [of_peer(each) for each in peer.changes()]
    found = [each for name in (*NAMES, "messages") for each in records(log, name)]
    found.sort(key=lambda each: (each["position"], each["number"]))
    ours = [of_ours(each) for each in found]
    check_snapshots(*([each for each in changes if each[1] == "snapshot"] for changes in (ours, theirs)))
    ours, theirs = ([each for each in changes if each[1] != "snapshot"] for changes in (ours, theirs))
    for mine, other in zip(ours, theirs, strict=False):
        check_same(mine, other)
    assert len(ours) == len(theirs)
    seen = {(table, op) for table, op, *_ in ours}
    assert len(seen) == 12, seen  # three operations of each table, TRUNCATE, messages, and the end
    assert any(unsent for *_, unsent in ours), "no large value was left out"
    print(f"seed {seed}: {len(ours):,} equal changes", file=sys.stderr)


def check_snapshots(ours, theirs):
    def by_key(change):
        return change[0], change[4]["id"]

    assert len(ours) == len(theirs) == 602
    for mine, other in zip(sorted(ours, key=by_key), sorted(theirs, key=by_key), strict=True):
        check_same(mine, other)
