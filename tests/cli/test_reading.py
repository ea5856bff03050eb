"""Goal: consume, tail and groups print what is in the log, where they are asked to begin and end."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from millstream.log import EmbeddedLog

from .conftest import SCHEMA, Run

NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def raw(log: EmbeddedLog) -> EmbeddedLog:
    """Ten records a second apart, in turn in two partitions."""
    log.create_topic("raw", partitions=2)
    with log.producer() as producer:
        for n in range(10):
            at = NOON + timedelta(seconds=n)
            producer.send("raw", b"v%d" % n, b"k%d" % n, partition=n % 2, timestamp=at, headers={"n": str(n)})
    return log


def test_values_are_printed_as_they_are(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with log.producer() as producer:
        for value in (b"one", b"", "zwei ü".encode(), None):
            producer.send("raw", value)
    assert ms("consume", "raw").out == "one\n\nzwei ü\nnull\n"
    assert ms("consume", "raw", "--null-value", "").lines[-1] == ""


def test_bytes_that_are_not_text(process: Run, ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with log.producer() as producer:
        producer.send("raw", b"\xff\x00", b"\xfe")
    record = json.loads(ms("consume", "raw", "--json").out)
    assert (record["key"], record["value"]) == ({"base64": "/g=="}, {"base64": "/wA="})


def test_typed_values_are_json_and_round_trip(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema=SCHEMA)
    log.create_topic("copy", schema=SCHEMA)
    line = '{"user":"ü","team":null,"score":-5}\n'
    ms("produce", "scores", stdin=line)
    printed = ms("consume", "scores").out
    assert printed == line
    ms("produce", "copy", stdin=printed)
    assert ms("consume", "copy").out == line


def test_a_typed_tombstone(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("scores", schema="n int not null")
    with log.producer() as producer:
        producer.send("scores", {"n": 1}, "a")
        producer.send("scores", None, "a")
        producer.send("scores", {"n": 2}, "b")
    assert ms("consume", "scores", "--with-key").out == 'a\t{"n":1}\na\tnull\nb\t{"n":2}\n'
    assert [json.loads(line)["value"] for line in ms("consume", "scores", "--json").lines] == [{"n": 1}, None, {"n": 2}]


def test_json_has_all_of_a_record(ms: Run, raw: EmbeddedLog) -> None:
    first = json.loads(ms("consume", "raw", "--json", "--partition", 0).lines[0])
    assert first == {
        "topic": "raw",
        "partition": 0,
        "offset": 0,
        "timestamp": "2025-06-01T12:00:00Z",
        "key": "k0",
        "value": "v0",
        "headers": [["n", "0"]],
    }
    assert ms("consume", "raw", "--format", "json").out == ms("--json", "consume", "raw").out


def test_the_full_format_has_it_between_tabs(ms: Run, raw: EmbeddedLog) -> None:
    full = ms("consume", "raw", "--format", "full", "--partition", 1, "--max", 1).out
    assert full == "raw/1\t0\t2025-06-01T12:00:01Z\tk1\tv1\tn=1\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--from", "earliest"], "0123456789"),
        (["--from", "latest"], ""),
        (["--from", "3"], "6789"),
        (["--from", "2025-06-01T12:00:07Z"], "789"),
        (["--from", "2025-06-01T14:00:08+02:00"], "89"),
        (["--partition", "1"], "13579"),
        (["--partition", "0", "--partition", "1", "--from", "4"], "89"),
        (["--partition", "1", "--from", "100"], ""),
    ],
)
def test_where_reading_starts(ms: Run, raw: EmbeddedLog, arguments: list[str], expected: str) -> None:
    assert sorted(ms("consume", "raw", *arguments).lines) == [f"v{n}" for n in expected]


@pytest.mark.parametrize("start", ["yesterday", "2025-06-01T12:00:00", "-1"])
def test_a_start_that_cannot_be_parsed(ms: Run, raw: EmbeddedLog, start: str) -> None:
    done = ms("consume", "raw", f"--from={start}")
    assert (done.code, done.out) == (2, "")


def test_a_partition_that_is_not_there(ms: Run, raw: EmbeddedLog) -> None:
    assert ms("consume", "raw", "--partition", 7).code == 3


def test_max_is_the_exact_number_of_records(ms: Run, raw: EmbeddedLog) -> None:
    assert len(ms("consume", "raw", "--max", 7).lines) == 7
    assert ms("consume", "raw", "--max", 0).out == ""
    taken = [*ms("consume", "raw", "--group", "g", "--max", 3).lines, *ms("consume", "raw", "--group", "g").lines]
    assert sorted(taken) == [f"v{n}" for n in range(10)]
    assert ms("consume", "raw", "--group", "g").out == ""


def test_uncommitted_records_are_seen_only_if_asked_for(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with log.producer(name="writer") as producer, producer.transaction():
        producer.send("raw", b"open").wait()
        assert ms("consume", "raw").out == ""
        assert ms("consume", "raw", "--isolation", "read_uncommitted").out == "open\n"
    assert ms("consume", "raw").out == "open\n"


def test_records_that_are_gone(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw", segment_bytes=4096, retention_bytes=4096)
    ms("consume", "raw", "--group", "g")
    ms("groups", "reset", "g", "--topic", "raw", "--to", "earliest")
    for _ in range(8):
        with log.producer() as producer:
            producer.send("raw", b"x" * 3000)
    log.clean("raw")
    assert ms("consume", "raw", "--group", "g").code == 1
    assert ms("consume", "raw", "--group", "g", "--on-lost", "earliest").code == 0


# ---------------------------------------------------------------- tail


def test_tail_is_in_order_of_time_over_all_partitions(ms: Run, raw: EmbeddedLog) -> None:
    assert ms("tail", "raw", "-n", 4).lines == ["v6", "v7", "v8", "v9"]
    assert len(ms("tail", "raw").lines) == 10
    assert ms("tail", "raw", "-n", 0).out == ""
    assert json.loads(ms("tail", "raw", "-n", 1, "--json").out)["offset"] == 4


def test_tail_looks_behind_the_gaps_of_compaction(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("compacted", compaction=True, segment_bytes=4096)
    for n in range(60):
        with log.producer() as producer:
            key = "early" if n == 0 else "same"
            producer.send("compacted", b"%d" % n + b" " * 500, key, timestamp=NOON + timedelta(seconds=n))
    log.clean("compacted")
    [info] = log.describe_topic("compacted").partitions
    left = ms("consume", "compacted").lines
    assert len(left) < info.records_max
    assert ms("tail", "compacted", "-n", len(left)).lines == left


# ---------------------------------------------------------------- groups


def test_groups_are_described_reset_and_deleted(ms: Run, raw: EmbeddedLog) -> None:
    ms("consume", "raw", "--group", "mails", "--max", 3)
    [group] = ms("groups", "list", "--json").json
    assert group == {"name": "mails", "members": 0, "topics": ["raw"], "lag": 7}
    described = ms("groups", "describe", "mails", "--json").json
    assert sum(part["lag"] for part in described["partitions"]) == 7
    titles = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "OWNER"]
    assert titles in [line.split() for line in ms("groups", "describe", "mails").lines]

    reset = ms("groups", "reset", "mails", "--topic", "raw", "--to", "2025-06-01T12:00:08Z", "--json").json
    assert [part["committed"] for part in reset["partitions"]] == [4, 4]
    assert sorted(ms("consume", "raw", "--group", "mails").lines) == ["v8", "v9"]
    assert ms("groups", "delete", "mails").code == 0
    assert ms("groups", "list").out == ""


def test_a_group_at_work_is_left_alone(ms: Run, raw: EmbeddedLog) -> None:
    with raw.consumer("raw", group="mails"):
        assert ms("groups", "reset", "mails", "--topic", "raw", "--to", "latest").code == 2
        assert ms("groups", "delete", "mails").code == 2
        owners = {part["owner"] for part in ms("groups", "describe", "mails", "--json").json["partitions"]}
    assert len(owners) == 1
    assert None not in owners


def test_a_group_that_is_not_there(ms: Run, raw: EmbeddedLog) -> None:
    assert ms("groups", "describe", "nobody").code == 3
    assert ms("groups", "delete", "nobody").code == 3


def test_reading_many_records_takes_no_time(ms: Run, log: EmbeddedLog) -> None:
    log.create_topic("raw")
    ms("produce", "raw", stdin=b"x\n" * 200_000)
    began = time.monotonic()
    assert len(ms("consume", "raw").lines) == 200_000
    assert time.monotonic() - began < 5
