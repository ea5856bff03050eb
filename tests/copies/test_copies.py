"""Copies of a table: whatever is killed or rebuilt, a copy ends as the table that its topic adds up to."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest

import millstream as ms
from connectors.support import table, weights
from millstream.cli.bridge_commands.follow import copy_of
from millstream.connectors.claims import Claim
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import keeper_of, open_sink
from millstream.copies.following import Follower, rebuild
from millstream.errors import AlreadyExists, InvalidInput, InvalidPlan, SinkUnavailable, StartOverRefused
from millstream.records import Schema
from redis_server import RedisServer
from waiting import until

COLUMNS = "id int, name string"
ENVELOPE = (
    "table string, op string, key string, before struct<id int, name string>, after struct<id int, name string>, "
    "unsent array<string>, transaction string, number int, position bigint, at timestamp"
)
SCHEMA = Schema.of(COLUMNS)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


def rows_in_opensearch(server, index):
    """As readers find them by a search."""
    server.ask(f"/{index}/_refresh", {})
    hits = server.ask(f"/{index}/_search?size=1000")["hits"]["hits"]
    return {hit["_id"]: hit["_source"] for hit in hits}


class Receiver:
    """An HTTP server with rows by key, as others write them."""

    def __init__(self):
        rows = self.rows = {}
        self.fails = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.fails:
                    receiver.fails -= 1
                    return self.answer(503)
                rows[unquote(self.path.rpartition("/")[2])] = json.loads(body)
                return self.answer(204)

            def do_DELETE(self):
                known = rows.pop(unquote(self.path.rpartition("/")[2]), None)
                self.answer(404 if known is None else 204)

            def answer(self, status):
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/rows"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


OPENSEARCH = pytest.param("opensearch", marks=[pytest.mark.soak, pytest.mark.xdist_group("opensearch")])


class Place:
    """One kind of copy, and how its readers see it."""

    def __init__(self, kind, request, folder):
        self.kind, self.folder = kind, folder
        if kind == "redis":
            server = request.getfixturevalue("redis_server")
            name = f"rows-{folder.name}-{random.randrange(1 << 40)}"
            self.copy = ms.redis(server.url, name, key="id")
            self.address = f"{server.url}#{name}"
        elif kind == "files":
            self.copy, self.address = ms.key_files(folder / "rows", key="id"), f"files:{folder / 'rows'}"
        elif kind == "index":
            self.copy = ms.search_index(folder / "rows", text="name", key="id")
            self.address = f"index:{folder / 'rows'}"
        elif kind in ("sqlite", "postgres"):
            place = request.getfixturevalue("dsn") if kind == "postgres" else f"sqlite:{folder / 'rows.db'}"
            self.address = f"{place}#rows"
            self.copy = replace(copy_of(self.address, None), key=("id",))
        elif kind == "opensearch":
            self.server = request.getfixturevalue("opensearch_server")
            name = f"rows-{random.randrange(1 << 40)}"
            self.copy = ms.opensearch(self.server.url, name, key="id")
            self.address = f"opensearch:{self.server.url}/{name}"
        else:
            self.receiver = Receiver()
            self.copy = ms.http_rows(self.receiver.url, key="id", marks=folder / "marks.json")

    def rows(self):
        if self.kind == "redis":
            import redis

            with redis.Redis.from_url(self.copy.url.reveal()) as client:
                return {key.decode(): json.loads(row) for key, row in client.hgetall(self.copy.table).items()}
        if self.kind == "files":
            found = [json.loads(path.read_bytes()) for path in Path(self.copy.path).glob("*.json")]
            return {str(row["id"]): row for row in found}
        if self.kind == "index":
            return {str(row["id"]): row for row in self.copy.search("*", limit=1000)}
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.copy.address.reveal())) as db:
                return {key: json.loads(row) for key, row in db.execute(f"SELECT key, row FROM {self.copy.table}")}
        if self.kind == "postgres":
            with psycopg.connect(self.copy.address.reveal()) as db:
                return dict(db.execute(f"SELECT key, row FROM {self.copy.table}").fetchall())
        if self.kind == "opensearch":
            return rows_in_opensearch(self.server, self.copy.index)
        return dict(self.receiver.rows)

    def close(self):
        if self.kind == "http":
            self.receiver.close()


@pytest.fixture(params=["redis", "files", "index", "http", "sqlite", "postgres", OPENSEARCH])
def place(request, tmp_path):
    made = Place(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["redis", "files", "index", "sqlite", "postgres", OPENSEARCH])
def switched(request, tmp_path):
    """Those that can be rebuilt at once."""
    return Place(request.param, request, tmp_path)


def change(op, id, name=None, **more):
    row = None if op in ("delete", "truncate") else {"id": id, "name": name}
    return {"table": "rows", "op": op, "key": str(id), "before": None, "after": row, "unsent": None, **more}


def send(log, *changes):
    with log.producer(acks="all") as producer:
        for each in changes:
            producer.send("rows", each, key=each["key"])


@pytest.fixture
def topic(log):
    log.create_topic("rows", schema=ENVELOPE, partitions=2)
    return log


def followed(log, place):
    store = place.copy.open_store()
    with Follower(log, "rows", store) as follower:
        follower.catch_up()
    store.close()
    return follower.applied


def row(id, name):
    return {str(id): {"id": id, "name": name}}


# ---------------------------------------------------------------- following a topic


def test_a_copy_has_the_newest_row_of_each_key_and_continues(topic, place) -> None:
    send(topic, change("snapshot", 1, "tea"), change("insert", 2, "milk"), change("update", 1, "green tea"))
    assert followed(topic, place) == 3
    assert place.rows() == row(1, "green tea") | row(2, "milk")
    send(topic, change("delete", 2), change("insert", 3, "jam"))
    assert followed(topic, place) == 2
    assert followed(topic, place) == 0
    assert place.rows() == row(1, "green tea") | row(3, "jam")


@pytest.mark.more
def test_rows_of_a_topic_without_a_capture(log, place) -> None:
    log.create_topic("rows", schema=COLUMNS, compaction=True)
    with log.producer(acks="all") as producer:
        producer.send("rows", {"id": 1, "name": "tea"}, key="1")
        producer.send("rows", {"id": 2, "name": None}, key="2")
        producer.send("rows", None, key="1")
    followed(log, place)
    assert place.rows() == row(2, None)


def keys_by_partition(log):
    """One of each of the two partitions."""
    found = {}
    for id in range(10):
        with log.producer(acks="all") as producer:
            sent = producer.send("rows", change("snapshot", id, "x", position=0, number=id), key=str(id))
        found[sent.wait().partition] = id
    return found[0], found[1]


@pytest.mark.more
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_truncation_deletes_what_all_partitions_have_before_it(topic, switched, is_behind) -> None:
    """Method: it is in one partition, and the follower has read the other beyond it before, or reads both at once."""
    one, other = keys_by_partition(topic)
    if not is_behind:
        followed(topic, switched)

    def sent(op, id, number, position=5):
        return change(op, id, None if op == "truncate" else op, position=position, number=number)

    send(topic, sent("update", other, 0), sent("insert", other, 2), sent("update", other, 0, 6))
    if not is_behind:
        followed(topic, switched)
    send(topic, sent("insert", one, 0, 4), sent("truncate", one, 1), sent("insert", one, 3))
    followed(topic, switched)
    assert switched.rows() == row(one, "insert") | row(other, "update")
    assert followed(topic, switched) == 0
    store = switched.copy.open_store()
    rebuild(topic, "rows", store)
    store.close()
    assert switched.rows() == row(one, "insert") | row(other, "update")


@pytest.mark.more
def test_a_truncated_table_in_one_partition_is_empty(log, switched) -> None:
    log.create_topic("rows", schema=ENVELOPE)
    send(log, change("insert", 1, "tea"))
    followed(log, switched)
    send(log, change("truncate", 0), change("insert", 0, "milk"))
    followed(log, switched)
    assert switched.rows() == row(0, "milk")


def test_a_rebuild_is_switched_at_once_under_a_follower(topic, switched) -> None:
    """Goal: neither readers nor a follower that goes on see half of it. Method: the copy is damaged, then rebuilt."""
    send(topic, change("insert", 1, "tea"), change("insert", 2, "milk"))
    store = switched.copy.open_store()
    with Follower(topic, "rows", store) as follower:
        follower.catch_up()
        mark = store.mark("topic rows")
        assert store.apply({"1": None, "9": b'{"id": 9, "name": "wrong"}'}, "topic rows", mark, mark)
        damaged = switched.rows()
        assert damaged == row(2, "milk") | row(9, "wrong")
        store.close()
        seen = []
        other = switched.copy.open_store()
        assert rebuild(topic, "rows", other, lambda _: seen.append(switched.rows())) == 2
        other.close()
        assert seen[0] == damaged
        assert switched.rows() == row(1, "tea") | row(2, "milk")
        send(topic, change("update", 2, "oat milk"))
        follower.catch_up()
    store.close()
    assert switched.rows() == row(1, "tea") | row(2, "oat milk")


@pytest.mark.more
def test_a_follower_that_was_ahead_of_a_rebuild_applies_the_rest_again(topic, switched) -> None:
    send(topic, change("insert", 1, "tea"))
    store = switched.copy.open_store()
    with Follower(topic, "rows", store) as follower:
        follower.catch_up()
        store.close()
        made = switched.copy.open_store().replacement()
        with Follower(topic, "rows", made) as building:
            building.catch_up()
        send(topic, change("insert", 2, "milk"))
        follower.catch_up()  # applied to the copy that is about to go
        store.close()
        made.switch()
        made.close()
        assert switched.rows() == row(1, "tea")
        send(topic, change("insert", 3, "jam"))
        until(lambda: follower.step(0.05) is False and len(switched.rows()) == 3, "all are applied")
    store.close()
    assert switched.rows() == row(1, "tea") | row(2, "milk") | row(3, "jam")


def test_an_answer_of_unavailable_is_retried(topic, tmp_path, request, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.stepping.RETRY_SECONDS", 0.01)
    place = Place("http", request, tmp_path)
    place.receiver.fails = 2
    send(topic, change("insert", 1, "tea"), change("insert", 2, "milk"))
    followed(topic, place)
    assert place.rows() == row(1, "tea") | row(2, "milk")
    place.close()


@pytest.mark.more
def test_mistakes_are_refused(topic, switched, tmp_path, request) -> None:
    send(topic, change("insert", 1, "tea"))
    followed(topic, switched)
    topic.create_topic("others", schema=COLUMNS)
    store = switched.copy.open_store()
    with pytest.raises(AlreadyExists, match="another writer: topic rows"):
        Follower(topic, "others", store)
    with topic.producer() as producer:
        producer.send("others", {"id": 1})
    with pytest.raises(InvalidInput, match="has no key"), Follower(topic, "others", place_of_others(switched)) as wrong:
        wrong.step(5)
    send(topic, change("update", 1, "x", unsent=["name"]))
    with pytest.raises(InvalidInput, match="does not have the values of name"), Follower(topic, "rows", store) as one:
        one.step(5)
    store.close()
    http = Place("http", request, tmp_path)
    with pytest.raises(InvalidInput, match="cannot be replaced at once"):
        rebuild(topic, "rows", http.copy.open_store())
    http.close()
    (tmp_path / "folder").mkdir()
    with pytest.raises(AlreadyExists, match="not a copy"):
        ms.key_files(tmp_path / "folder").open_store()


def place_of_others(place):
    return place.copy.with_suffix("-others").open_store()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_view_of_a_copy_in_a_database_outlives_a_rebuild(topic, request, tmp_path, kind) -> None:
    place = Place(kind, request, tmp_path)
    send(topic, change("insert", 1, "tea"), change("insert", 2, "milk"))
    followed(topic, place)
    address = place.copy.address.reveal()
    with closing(psycopg.connect(address) if kind == "postgres" else sqlite3.connect(address)) as db:
        db.execute("CREATE VIEW names AS SELECT row ->> 'name' AS name FROM rows ORDER BY key")
        db.execute("CREATE TABLE other (n int)")
        db.commit()
        send(topic, change("delete", 1))
        store = place.copy.open_store()
        rebuild(topic, "rows", store)
        store.close()
        assert db.execute("SELECT * FROM names").fetchall() == [("milk",)]
    with pytest.raises(AlreadyExists, match="not a copy of Millstream"):
        replace(place.copy, table="other").open_store()
    with pytest.raises(InvalidInput, match="may have up to 40 characters"):
        replace(place.copy, table="n" * 41).open_store()


KILLED = """
import sys
from millstream.cli.bridge_commands.follow import copy_of
from millstream.copies.following import Follower
from millstream.log import EmbeddedLog
import threading
store = copy_of(sys.argv[2], ["name"]).open_store()
with EmbeddedLog(sys.argv[1]) as log, Follower(log, "rows", store) as follower:
    print("ready", flush=True)
    follower.run(threading.Event())
"""


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.more), pytest.param(20, marks=pytest.mark.soak)])
def test_a_killed_follower_ends_with_the_table(topic, switched, kills) -> None:
    chance, expected = random.Random(kills), {}
    for _ in range(kills):
        command = [sys.executable, "-c", KILLED, str(topic.path), switched.address]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        for _ in range(chance.randrange(1, 30)):
            id, name = chance.randrange(10), chance.choice(["tea", "milk", None])
            if name is None:
                expected.pop(str(id), None)
                send(topic, change("delete", id))
            else:
                expected |= row(id, name)
                send(topic, change("update", id, name))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if chance.randrange(2):
            store = switched.copy.open_store()
            rebuild(topic, "rows", store)
            store.close()
    followed(topic, switched)
    assert switched.rows() == expected


@pytest.mark.more
def test_redis_that_restarts_has_what_it_had(topic, tmp_path, redis_server, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.stepping.RETRY_SECONDS", 0.02)
    copy = ms.redis(redis_server.url, "restarted")
    send(topic, change("insert", 1, "tea"))
    store = copy.open_store()
    with Follower(topic, "rows", store) as follower:
        follower.catch_up()
        redis_server.kill()
        send(topic, change("insert", 2, "milk"))
        with pytest.raises(SinkUnavailable, match="cannot be reached"):
            until(lambda: follower.step(0.05) and False, "it notices")
        redis_server.start()
        follower.seek_to_mark()
        follower.catch_up()
        assert store.holds("1", b'{"id":1,"name":"tea"}')
        assert store.holds("2", b'{"id":2,"name":"milk"}')
    store.close()


# ---------------------------------------------------------------- as the sink of a flow


def opened(place, folder):
    return open_sink(place.copy, SCHEMA, job="job", step="out", broker="log", folder=folder / "job")


def rows(*pairs):
    return table(SCHEMA, [{"id": id, "name": name} for id, name in pairs])


def test_a_flow_writes_each_batch_once(place, tmp_path) -> None:
    sink = opened(place, tmp_path)
    sink.write(0, rows((1, "tea"), (2, "milk")), weights(1, 1))
    sink.write(1, rows((1, "tea"), (1, "green tea"), (2, "milk")), weights(-1, 1, -1))
    sink.write(1, rows((7, "again")), weights(1))
    sink.close()
    again = opened(place, tmp_path)
    again.write(1, rows((7, "again")), None)
    again.write(2, rows((3, "jam"), (3, "plum jam"), (3, "jam"), (4, "egg"), (4, "egg")), weights(1, 1, -1, 1, -1))
    again.close()
    assert place.rows() == row(1, "green tea") | row(3, "plum jam")


@pytest.mark.more
def test_a_retraction_of_another_row_deletes_nothing(switched, tmp_path) -> None:
    sink = opened(switched, tmp_path)
    sink.write(0, rows((1, "new")), weights(1))
    sink.write(1, rows((1, "old")), weights(-1))
    assert switched.rows() == row(1, "new")
    sink.close()


@pytest.mark.more
def test_starting_over_empties_a_copy_of_its_own(topic, switched, tmp_path) -> None:
    sink = opened(switched, tmp_path)
    sink.write(0, rows((1, "tea")), None)
    sink.close()
    ledger = FileLedger(tmp_path / "job", "out")
    keeper = keeper_of(switched.copy, Claim.here("job", "out", ledger.run, tmp_path), ledger, None)
    assert keeper.look().newest == 0
    keeper.check_clear()
    keeper.clear()
    assert switched.rows() == {}
    send(topic, change("insert", 1, "tea"))
    followed(topic, switched)
    with pytest.raises(StartOverRefused, match="topic rows"):
        keeper.check_clear()


def test_a_plan_without_a_key_is_refused(tmp_path) -> None:
    stream = ms.Flow("f").read("t", COLUMNS)
    for wrong, said in [
        (ms.key_files(tmp_path / "rows"), "has a row for each key"),
        (ms.key_files(tmp_path / "rows", key="nr"), "names 'nr'"),
        (ms.search_index(tmp_path / "rows", text="nane", key="id"), "indexes 'nane'"),
    ]:
        with pytest.raises(InvalidPlan, match=said):
            stream.write(wrong)
    for function in (
        lambda: ms.redis("http://a", "b"),
        lambda: ms.search_index("a", text=[]),
        lambda: ms.search_index("a", text="_row"),
        lambda: ms.http_rows("ftp://a"),
        lambda: ms.opensearch("ftp://a", "rows"),
        lambda: ms.opensearch("http://a:port", "rows"),
        lambda: ms.opensearch("http://a", "Rows"),
        lambda: ms.opensearch("http://a", "rows", properties={"a": object()}),
    ):
        with pytest.raises(InvalidInput):
            function()
    hidden = ms.opensearch("https://ann:secret@host", "rows")
    assert "secret" not in f"{hidden!r} {hidden} {hidden.open_store().where}"
    assert "secret" not in f"{ms.redis('redis://:secret@host', 'b')!r} {ms.redis('redis://:secret@host', 'b')}"
