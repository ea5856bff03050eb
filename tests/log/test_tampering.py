"""Goal: what somebody has put into the coordinator or a description is refused; it never becomes a path or runs.

Method: change the files as one can who may write them, then use the log in every way.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from contextlib import closing, suppress

import pytest

from millstream.errors import DamagedLog, MillstreamError
from millstream.log import EmbeddedLog
from millstream.log.agreement.liveness import is_alive


@pytest.fixture
def path(tmp_path):
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("t")
        log.create_queue("q", "t")
        with log.producer(name="p") as producer, producer.transaction():
            producer.send("t", b"x")
            producer.send("t", b"y")
        with log.consumer("t", group="g") as consumer, log.queue("q") as queue:
            list(consumer.until_caught_up())
            consumer.commit()
            queue.receive()
    return tmp_path / "log"


def tamper(path, *statements):
    with closing(sqlite3.connect(path / "coordinator.sqlite")) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def use(path):
    """Every way in which the coordinator is read; what each says."""
    said = []
    with EmbeddedLog(path, upkeep=False) as log:

        def transact():
            with log.producer(name="p") as producer, producer.transaction():
                producer.send("t", b"z")

        def consume():
            with log.consumer("t", group="g") as consumer:
                consumer.poll(0.1)
                consumer.commit()

        def receive():
            with log.queue("q") as queue:
                for message in queue.receive_many(5, timeout=0.5):
                    message.acknowledge()

        for step in (
            lambda: log.describe_group("g"), log.groups, log.queues, consume, receive, transact,
            lambda: log.reset_group("g", "t", "earliest"),
            lambda: log.end_abandoned(log.topic("t").partition(0)),
            lambda: log.switch("name", "t", at="corresponding"),
            lambda: log.unswitch("name"),
            lambda: log.delete_queue("q"),
            lambda: log.delete_group("g"),
            lambda: log.delete_topic("t"),
        ):  # fmt: skip
            try:
                step()
            except MillstreamError as error:
                said.append(error)
    return said


# ---------------------------------------------------------------- the coordinator


def test_an_untouched_log_works(path):
    assert use(path) == []


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER evil AFTER INSERT ON offsets BEGIN UPDATE offsets SET next_offset = 0; END",
        "CREATE TRIGGER evil AFTER UPDATE ON producers BEGIN DELETE FROM offsets; END",
        "CREATE VIEW evil AS SELECT load_extension('x')",
        "CREATE UNIQUE INDEX evil ON offsets (group_name)",
        "CREATE INDEX evil ON offsets (abs(next_offset))",
        "DROP INDEX deliveries_due",
        "DROP TABLE offsets",
        "ALTER TABLE offsets ADD COLUMN more TEXT",
        "ALTER TABLE groups RENAME TO others",
    ],
)
def test_what_does_not_belong_into_the_coordinator_is_refused(path, planted):
    tamper(path, planted)
    with pytest.raises(DamagedLog, match=r"coordinator\.sqlite"):
        EmbeddedLog(path)


def test_a_view_in_place_of_a_table_is_refused(path):
    tamper(path, "DROP TABLE groups", "CREATE VIEW groups AS SELECT 'g' AS name, 1 AS generation")
    with pytest.raises(DamagedLog, match="view 'groups'"):
        EmbeddedLog(path)


def test_a_table_that_only_a_newer_version_knows_is_left_alone(path):
    tamper(path, "CREATE TABLE newer (x)")
    assert use(path) == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE offsets SET next_offset = 'many'",
        "UPDATE offsets SET next_offset = x'00ff'",
        "UPDATE offsets SET partition = 1.5",
        "UPDATE offsets SET topic = '../../etc'",
        "UPDATE offsets SET topic = CAST(x'fffe' AS TEXT)",
        "UPDATE queues SET settings = '{'",
        "UPDATE queues SET settings = '[]'",
        "UPDATE queues SET settings = '{\"timeout\": []}'",
        'UPDATE queues SET settings = \'{"dead_letters": "../x"}\'',
        "UPDATE queues SET topic = x'00'",
        "UPDATE queue_cursors SET next_offset = 'a'",
        "UPDATE deliveries SET owner = '../../precious'",
        "UPDATE deliveries SET tries = 'x'",
        "UPDATE deliveries SET due_at = 'soon'",
        "UPDATE producers SET epoch = 'x'",
        "UPDATE producers SET owner = '../../precious'",
        "UPDATE groups SET generation = x'00'",
        "INSERT INTO members VALUES ('g', '../../precious', '[]', 0, 0, 0)",
        "INSERT INTO members VALUES ('g', '1-abc', '{', 0, 9e99, 9e99)",
        "INSERT INTO members VALUES ('g', '1-abc', '" + "[" * 100_000 + "', 0, 9e99, 9e99)",
        "UPDATE queues SET settings = CAST(zeroblob(100000000) AS TEXT)",
    ],
)
def test_values_of_other_kinds_are_refused(path, change):
    precious = path.parent / "precious"
    precious.write_text("mine")
    tamper(path, "PRAGMA ignore_check_constraints = ON", change)
    said = use(path)
    assert precious.read_text() == "mine"
    assert any(isinstance(error, DamagedLog) for error in said), said


def test_a_participant_never_names_a_file_elsewhere(tmp_path):
    (tmp_path / "participants").mkdir()
    (tmp_path / "precious").write_text("mine")
    assert not is_alive(tmp_path / "participants", "../precious")
    assert not is_alive(tmp_path / "participants", str(tmp_path / "precious"))
    assert not is_alive(tmp_path / "participants", "")
    (tmp_path / "participants" / "1-abc").symlink_to(tmp_path / "precious")
    with pytest.raises(DamagedLog):
        is_alive(tmp_path / "participants", "1-abc")
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_in_place_of_the_coordinator_are_refused(path, ending, kind):
    place, precious = path / f"coordinator.sqlite{ending}", path.parent / "precious"
    precious.write_text("mine")
    place.unlink(missing_ok=True)
    if kind == "link":
        place.symlink_to(precious)
    else:
        os.mkfifo(place)
    with pytest.raises(DamagedLog, match=r"coordinator\.sqlite"):
        EmbeddedLog(path)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("seed", range(15))
def test_a_coordinator_with_damaged_pages_is_refused_or_works(path, seed):
    chance = random.Random(seed)
    place = path / "coordinator.sqlite"
    content = bytearray(place.read_bytes())
    for _ in range(20):
        content[chance.randrange(100, len(content))] = chance.randrange(256)
    place.write_bytes(content)
    with suppress(MillstreamError):
        use(path)


# ---------------------------------------------------------------- descriptions


@pytest.mark.parametrize("name", ["millstream.json", "topics/t/topic.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "huge", "deep", "folder"])
def test_other_things_in_place_of_a_description_are_refused(path, name, kind):
    place, precious = path / name, path.parent / "precious"
    precious.write_text(place.read_text())
    before = precious.read_text()
    place.unlink()
    if kind == "link":
        place.symlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "deep":
        place.write_text('{"id":' * 100_000)
    else:
        with place.open("w") as file:
            file.truncate(1 << 40)
    with pytest.raises(MillstreamError), EmbeddedLog(path, upkeep=False) as log:
        log.change_topic("t", partitions=2)
    assert precious.read_text() == before


@pytest.mark.parametrize(
    "change",
    [
        {"id": 7}, {"id": ["x"]}, {"moved_to": {}}, {"partitions": "x"}, {"partitions": 10**9}, {"partitions": 1.5},
        {"schema": "a struct<" * 5000}, {"schema": 5}, {"segment_bytes": []}, {"segment_bytes": 1e400},
        {"retention": {}}, {"retention": "999999999999999999999 days"}, {"codec": ["json"]}, {"codec": "../x"},
        {"compaction": "yes"}, {"tombstone_retention": None}, {"unknown": 1},
    ],
)  # fmt: skip
def test_a_description_of_a_topic_with_nonsense_is_refused(path, change):
    place = path / "topics" / "t" / "topic.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with EmbeddedLog(path, upkeep=False) as log, pytest.raises(DamagedLog, match=r"topic\.json"):
        log.topic("t")


def test_the_name_in_a_description_cannot_point_elsewhere(path):
    place = path / "topics" / "t" / "topic.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "name": "../../../precious"}))
    with EmbeddedLog(path, upkeep=False) as log:
        log.change_topic("t", partitions=2)
        assert log.topic("t").folder == path / "topics" / "t"


@pytest.mark.parametrize("group", [7, ["x"], None, {}])
def test_an_invalid_shared_group_is_refused(path, group):
    place = path / "millstream.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "shared_group": group}))
    with pytest.raises(DamagedLog, match="shared_group"):
        EmbeddedLog(path)


@pytest.mark.parametrize("topic", ["../t", "/etc", 7, None, ["t"]])
def test_a_switch_to_no_topic_is_refused(path, topic):
    with EmbeddedLog(path, upkeep=False) as log:
        log.switch("name", "t")
        document = json.loads((path / "switches.json").read_text())
        document["name"]["topic"] = topic
        (path / "switches.json").write_text(json.dumps(document))
        with pytest.raises(DamagedLog, match=r"switches\.json"):
            log.consumer("name")


@pytest.mark.parametrize("name", ["topics", "participants", "topics/t"])
def test_a_link_in_place_of_a_folder_is_refused(path, name):
    elsewhere = path.parent / "elsewhere"
    (path / name).rename(elsewhere)
    (path / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    with pytest.raises(MillstreamError), EmbeddedLog(path, upkeep=False) as log:
        log.delete_topic("t")
    assert sorted(elsewhere.rglob("*")) == before


def test_folders_that_are_not_topics_are_not_listed(path):
    (path / "topics" / "file").touch()
    (path / "topics" / "a b").mkdir()
    os.mkfifo(path / "topics" / "pipe")
    (path / "topics" / "link").symlink_to(path / "topics" / "t")
    with EmbeddedLog(path, upkeep=False) as log:
        assert log.topics() == ["q.dead", "t"]
        log.clean()
