"""Goal: every topic command does what it says, in text and in JSON. Method: run it, and ask the log."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from millstream.log import EmbeddedLog

from .conftest import SCHEMA, Run, on_terminal


def test_a_topic_is_created_with_all_its_settings(ms: Run, folder: Path) -> None:
    done = ms(
        *("topics", "create", "scores", "--partitions", 3, "--schema", SCHEMA, "--codec", "json"),
        *("--retention", "7 days", "--retention-bytes", "1GB", "--segment-bytes", "64MiB"),
        *("--compaction", "--tombstone-retention", "2 hours"),
    )
    assert (done.code, done.err) == (0, "created topic 'scores' with 3 partitions\n")
    settings = EmbeddedLog(folder).topic("scores").settings
    assert settings.partitions == 3
    assert settings.schema is not None
    assert settings.schema.ddl == SCHEMA
    assert (settings.retention, settings.retention_bytes) == (timedelta(days=7), 10**9)
    assert (settings.segment_bytes, settings.compaction) == (64 << 20, True)
    assert settings.tombstone_retention == timedelta(hours=2)


def test_a_log_is_shared_with_a_group_when_a_topic_is_created(ms: Run, folder: Path) -> None:
    assert ms("topics", "create", "scores", "--shared-group", "nobody-has-it").code == 2
    own = str(os.getgid())
    assert ms("topics", "create", "scores", "--shared-group", own).code == 0
    assert json.loads((folder / "millstream.json").read_text())["shared_group"] == own
    assert ms("produce", "scores", stdin="x").code == 0
    assert {path.stat().st_mode & 0o7777 for path in [folder, *folder.rglob("*")]} == {0o2770, 0o660}


def test_if_not_exists_is_fine_with_what_is_there(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores")
    assert ms("topics", "create", "scores").code == 4
    assert ms("topics", "create", "scores", "--if-not-exists").code == 0
    assert ms("topics", "create", "scores", "--if-not-exists", "--json").json["created"] is False


def test_settings_are_changed_and_taken_away(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", retention="7 days")
    assert "retention:           1 day\n" in ms("topics", "change", "scores", "--retention", "1 day").out
    assert ms("topics", "change", "scores", "--retention", "none", "--partitions", 2).code == 0
    settings = log.topic("scores").settings
    assert (settings.retention, settings.partitions) == (None, 2)


def test_a_change_of_nothing_and_one_that_makes_no_sense_are_refused(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", partitions=2)
    assert ms("topics", "change", "scores").code == 2
    assert ms("topics", "change", "scores", "--partitions", 1).code == 2
    assert ms("topics", "change", "scores", "--segment-bytes", "none").code == 2


def test_topics_are_listed_and_described(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", partitions=2, schema=SCHEMA)
    log.create_topic("raw")
    listed = ms("topics", "list")
    assert listed.lines[0].split() == ["TOPIC", "PARTITIONS", "RECORDS", "SIZE", "SCHEMA"]
    assert [line.split()[0] for line in listed.lines[1:]] == ["raw", "scores"]
    assert [topic["name"] for topic in ms("topics", "list", "--json").json] == ["raw", "scores"]
    assert f"schema:              {SCHEMA}\n" in ms("topics", "describe", "scores").out
    described = ms("--json", "topics", "describe", "scores").json
    assert described["settings"]["partitions"] == len(described["partitions"]) == 2


def test_looking_makes_no_log(ms: Run, folder: Path) -> None:
    """A mistyped --log must not leave a folder behind."""
    assert (ms("topics", "list").code, ms("topics", "list", "--json").json) == (0, [])
    assert ms("topics", "describe", "scores").code == 3
    assert not folder.exists()


def test_the_log_can_be_named_before_and_after_the_command(ms: Run, tmp_path: Path) -> None:
    ms("--log", tmp_path / "a", "topics", "create", "one")
    ms("topics", "create", "two", "--log", tmp_path / "a")
    assert EmbeddedLog(tmp_path / "a").topics() == ["one", "two"]


def test_nothing_is_deleted_or_repaired_without_confirmation(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores")
    for verb in ("delete", "repair"):
        refused = ms("topics", verb, "scores")
        assert refused.code == 2
        assert "--yes" in refused.err
    assert log.topics() == ["scores"]
    assert ms("topics", "delete", "scores", "--yes").code == 0
    assert log.topics() == []


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, ["scores"]), (b"y\n", 0, [])])
def test_a_terminal_is_asked(log: EmbeddedLog, answer: bytes, code: int, left: list[str]) -> None:
    log.create_topic("scores")
    ended, shown = on_terminal("topics", "delete", "scores", answer=answer)
    assert "Delete topic 'scores' and all its records?" in shown
    assert (ended, log.topics()) == (code, left)


def test_cleaning_applies_retention(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", segment_bytes=4096, retention_bytes=4096)
    for _ in range(8):
        with log.producer() as producer:
            producer.send("scores", bytes(3000))
    before, after = (
        ms("topics", "clean", "scores", "--json").json[0][f"size_bytes_{at}"] for at in ("before", "after")
    )
    assert after <= before
    assert log.describe_topic("scores").partitions[0].start_offset > 0


def test_damage_is_reported_and_repaired(ms: Run, log: EmbeddedLog, folder: Path) -> None:
    """Method: a byte in the middle of the first of three frames is turned over."""
    log.create_topic("scores")
    log.create_topic("sound")
    for _ in range(3):
        with log.producer() as producer:
            producer.send("scores", b"x" * 1000)
    [segment] = (folder / "topics/scores/0").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(b"x" * 1000) + 500] ^= 1
    segment.write_bytes(content)

    assert ms("consume", "scores").code == 5
    repaired = ms("topics", "repair", "scores", "--yes", "--json")
    assert repaired.code == 0
    [partition] = repaired.json
    assert (partition["kept_records"], partition["lost"]) == (2, [{"from_offset": 0, "to_offset": 1}])
    assert len(ms("consume", "scores", "--on-lost", "earliest").lines) == 2


@pytest.mark.parametrize(
    "command",
    [
        ("create", "more", "--replication-factor", 3),
        ("create", "more", "--min-insync-replicas", 2),
        ("alter", "scores", "--set", "min.insync.replicas=2"),
        ("move", "scores", "--to", "1,2"),
    ],
)
def test_what_only_kafka_has_is_refused_with_the_reason(ms: Run, log: EmbeddedLog, command: tuple[object, ...]) -> None:
    log.create_topic("scores")
    done = ms("topics", *command)
    assert done.code == 2
    assert "one machine" in done.err
    assert log.topics() == ["scores"]


def test_a_log_in_memory_is_out_of_reach_of_a_command(ms: Run) -> None:
    done = ms("topics", "list", "--log", "memory://")
    assert done.code == 2
    assert "belongs to one process" in done.err
