"""Goal: `millstream switch` moves readers at once and says so; listings and readers on the command line follow it."""

from __future__ import annotations

import json
import subprocess

import pytest

from millstream.log import EmbeddedLog

from .conftest import Run, start


@pytest.fixture
def two(ms: Run, log: EmbeddedLog) -> EmbeddedLog:
    """Two versions of a topic, with schemas that differ."""
    ms("topics", "create", "totals", "--schema", "team string, total int")
    ms("topics", "create", "totals.v2", "--schema", "team string, total int, n int", "--partitions", 2)
    ms("produce", "totals", stdin='{"team": "x", "total": 1}\n')
    ms("produce", "totals.v2", stdin='{"team": "x", "total": 2, "n": 3}\n')
    return log


OLD = '{"team":"x","total":1}'
NEW = '{"team":"x","total":2,"n":3}'


def test_readers_are_switched_and_back(ms: Run, two: EmbeddedLog) -> None:
    made = ms("switch", "totals", "totals.v2")
    assert (made.code, made.err) == (0, "readers of 'totals' read topic 'totals.v2'\n")
    assert ms("consume", "totals").lines == [NEW]
    assert ms("tail", "totals", "-n", 5).lines == [NEW]
    for command in ("consume", "tail"):
        assert ms(command, "totals", "--pinned").lines == [OLD]
    assert [line.split() for line in ms("switch", "totals").lines] == [
        ["TOPIC", "READ_NOW"],
        ["totals", "no"],
        ["totals.v2", "yes"],
    ]
    assert ms("switch", "totals", "--json").json == [
        {"topic": "totals", "read": False},
        {"topic": "totals.v2", "read": True},
    ]
    assert ms("switch", "totals", "--back", "--json").json["read"] == "totals"
    assert ms("consume", "totals").lines == [OLD]


def test_a_producer_writes_the_topic_it_names_and_is_warned(ms: Run, two: EmbeddedLog) -> None:
    ms("switch", "totals", "totals.v2")
    sent = ms("produce", "totals", stdin='{"team": "y", "total": 7}\n')
    assert sent.code == 0
    assert "readers of 'totals' were switched to 'totals.v2'" in sent.err
    assert ms("consume", "totals").lines == [NEW]
    assert len(ms("consume", "totals", "--pinned").lines) == 2


def test_listings_show_it_and_only_where_something_is_switched(ms: Run, two: EmbeddedLog) -> None:
    assert "READERS_READ" not in ms("topics", "list").out
    ms("switch", "totals", "totals.v2")
    ms("switch", "newest", "totals.v2")
    rows = [line.split()[:3] for line in ms("topics", "list").lines]
    assert rows == [
        ["TOPIC", "READERS_READ", "PARTITIONS"],
        ["totals", "totals.v2", "1"],
        ["totals.v2", "-", "2"],
        ["newest", "totals.v2", "-"],
    ]
    listed = {entry["name"]: entry for entry in ms("topics", "list", "--json").json}
    assert listed["totals"]["switched_to"] == listed["newest"]["switched_to"] == "totals.v2"
    assert listed["totals.v2"]["serves"] == ["newest", "totals"]
    assert ms("topics", "describe", "totals").lines[1].split() == ["readers", "read:", "totals.v2"]
    assert ms("topics", "describe", "totals.v2").lines[1].split() == ["read", "as:", "newest,", "totals"]
    assert ms("topics", "describe", "totals", "--json").json["switched_to"] == "totals.v2"


def test_where_a_group_starts(ms: Run, two: EmbeddedLog) -> None:
    assert ms("consume", "totals", "--group", "g").lines == [OLD]
    ms("switch", "totals", "totals.v2", "--at", "latest")
    assert ms("consume", "totals", "--group", "g").lines == []
    assert ms("consume", "totals", "--group", "h").lines == [NEW]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["totals", "totals.v2", "--back"], 2, "choose one"),
        (["totals", "nowhere"], 3, "there is no topic 'nowhere'"),
        (["totals", "--back"], 2, "nothing to switch"),
        (["totals", "--off"], 2, "is not switched"),
        (["totals", "totals.v2", "--at", "17"], 2, "earliest, latest, corresponding"),
        (["totals", "totals.v2", "--at", "soon"], 2, "'soon'"),
        (["nowhere"], 3, "there is no topic 'nowhere'"),
    ],
)
def test_mistakes_are_reported(ms: Run, two: EmbeddedLog, arguments: list[str], code: int, says: str) -> None:
    done = ms("switch", *arguments)
    assert done.code == code
    assert says in done.err
    assert ms("consume", "totals").lines == [OLD]


def test_off_removes_a_switch(ms: Run, two: EmbeddedLog) -> None:
    ms("switch", "totals", "totals.v2")
    assert ms("switch", "totals", "--off").code == 0
    assert ms("consume", "totals").lines == [OLD]
    assert ms("topics", "delete", "totals.v2", "--yes").code == 0


@pytest.mark.parametrize("command", ["consume", "tail"])
def test_a_reader_that_follows_comes_over(ms: Run, two: EmbeddedLog, command: str) -> None:
    with start(command, "totals", "--follow", stdin=subprocess.DEVNULL) as reader:
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline().decode().strip() == OLD
            ms("switch", "totals", "totals.v2")
            assert json.loads(reader.stdout.readline()) == json.loads(NEW)
        finally:
            reader.kill()
