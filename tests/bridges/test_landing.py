"""The entrance of all bridges: durable before it is acknowledged, stored once by its id, dead letters."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from millstream.bridges.arrivals import ID_HEADER, Arrival, Outcome
from millstream.bridges.known_ids import KnownIds
from millstream.bridges.landing import Landing
from millstream.errors import ProducerFenced, UnknownTopic
from millstream.log import Broker, EmbeddedLog
from millstream.log.kafka.log import KafkaLog

from .support import records, values

STORED, DUPLICATE, DEAD = Outcome.STORED, Outcome.DUPLICATE, Outcome.DEAD


def check_ids(log: Broker, topic: str) -> None:
    with Landing(log, "test", [topic]) as landing:
        first = [Arrival(topic, b"one", id="a"), Arrival(topic, b"two", id="b"), Arrival(topic, b"one", id="a")]
        assert landing.land(first) == [STORED, STORED, DUPLICATE]
        assert landing.land([Arrival(topic, b"one", id="a"), Arrival(topic, b"none")]) == [DUPLICATE, STORED]
    with Landing(log, "test", [topic]) as restarted:
        again = [Arrival(topic, b"two", id="b"), Arrival(topic, b"three", id="c"), Arrival(topic, b"none")]
        assert restarted.land(again) == [DUPLICATE, STORED, STORED]
    found = records(log, topic)
    assert sorted(record.value for record in found) == [b"none", b"none", b"one", b"three", b"two"]
    assert {dict(record.headers).get(ID_HEADER) for record in found} == {None, b"a", b"b", b"c"}


def test_an_id_is_stored_once_also_after_a_restart(log: EmbeddedLog) -> None:
    log.create_topic("clicks", partitions=3)
    check_ids(log, "clicks")


@pytest.mark.more
def test_an_id_is_stored_once_on_kafka(kafka_log: KafkaLog) -> None:
    kafka_log.create_topic("bridged-clicks", partitions=2)
    check_ids(kafka_log, "bridged-clicks")


def test_what_cannot_be_stored_becomes_a_dead_letter_once(log: EmbeddedLog) -> None:
    log.create_topic("scores", schema="user string, score int")
    bad = Arrival("scores", b'{"user": "ann", "score": "many"}', id="x", origin="here")
    with Landing(log, "test", ["scores"]) as landing:
        good = Arrival("scores", b'{"user": "bob", "score": 1}', id="y")
        unread = Arrival("scores", b"\xff", origin="there", fault="it is cut off")
        assert landing.land([bad, good, unread]) == [DEAD, STORED, DEAD]
        assert landing.counts.summary() == "stored 1, duplicates 0, dead letters 2"
    with Landing(log, "test", ["scores"]) as restarted:
        bad.fault = None
        assert restarted.land([bad]) == [DUPLICATE]
    assert values(log, "scores") == [{"user": "bob", "score": 1}]
    letters = records(log, "scores.dead")
    assert [dict(letter.headers) for letter in letters] == [{"bridge": b"test", ID_HEADER: b"x"}, {"bridge": b"test"}]
    first, second = (letter.value for letter in letters)
    assert (first["value"], first["topic"]) == (bad.value, "here")
    assert "score" in first["reason"]
    assert (second["value"], second["topic"], second["reason"]) == (b"\xff", "there", "it is cut off")


def test_a_second_process_of_a_bridge_takes_over(log: EmbeddedLog) -> None:
    log.create_topic("clicks")
    failures = []
    with Landing(log, "test", ["clicks"]) as old:
        old.on_failure = lambda: failures.append(1)
        old.land([Arrival("clicks", b"1", id="a")])
        with Landing(log, "test", ["clicks"]) as new:
            assert new.land([Arrival("clicks", b"1", id="a")]) == [DUPLICATE]
            (refused,) = old.land([Arrival("clicks", b"2", id="b")])
            assert isinstance(refused, ProducerFenced)
            assert isinstance(old.land([Arrival("clicks", b"3")])[0], ProducerFenced)
    assert values(log, "clicks") == [b"1"]
    assert failures == [1]


def test_an_id_is_known_that_a_killed_process_has_stored(tmp_path: Path) -> None:
    """Method: the mark of what readers see goes back, as if the process had died before it was moved."""
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("clicks")
        with Landing(log, "test", ["clicks"]) as landing:
            landing.land([Arrival("clicks", b"1", id="a")])
            (mark,) = (tmp_path / "log").rglob("clicks/**/mark")
            before = mark.read_bytes()
            landing.land([Arrival("clicks", b"2", id="b")])
    mark.write_bytes(before)
    with EmbeddedLog(tmp_path / "log") as log, Landing(log, "test", ["clicks"]) as restarted:
        assert restarted.land([Arrival("clicks", b"2", id="b")]) == [DUPLICATE]
        assert values(log, "clicks") == [b"1", b"2"]


def test_one_deleted_topic_leaves_the_others(log: EmbeddedLog) -> None:
    log.create_topic("clicks")
    log.create_topic("gone")
    with Landing(log, "test", ["clicks", "gone"]) as landing:
        log.delete_topic("gone")
        lost, kept = landing.land([Arrival("gone", b"1", id="a"), Arrival("clicks", b"2", id="a")])
        assert isinstance(lost, UnknownTopic)
        assert kept is STORED
    with pytest.raises(UnknownTopic):
        Landing(log, "test", ["gone"])


def test_ids_are_forgotten_by_age_and_number() -> None:
    known = KnownIds(timedelta(hours=1), ids_max=2)
    now = time.time()
    known.add("old", now - 7200)
    assert "old" not in known
    for id in "abc":
        known.add(id, now)
    assert [id in known for id in ("old", "a", "b", "c")] == [False, False, True, True]
    assert len(known) == 2
