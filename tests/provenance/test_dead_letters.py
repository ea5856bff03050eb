"""Dead letters: counted, shown, rehearsed with a fixed flow, and sent again once each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.cli.app import app
from millstream.plan.parameters import VARIABLE
from millstream.provenance.dead_letters import counted, resend
from millstream.records import DEAD_LETTER_SCHEMA

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
RECORDS = [b'{"score": 1}', b'{"score": "2 points"}', b'{"score": "three"}', b"{broken"]
FIXED = """
import millstream as ms


def to_number(row):
    return {"score": int(row["score"].split()[0])}


flow = ms.Flow("numbers")
scores = flow.read("scores", "score string", name="scores")
scores.map(to_number, schema="score int", name="numbers").write("numbers")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three of four records are dead letters."""
    folder = tmp_path / "log"
    monkeypatch.setenv("MILLSTREAM_BROKER", str(folder))
    monkeypatch.setenv(VARIABLE, "{}")
    with ms.connect(folder) as log:
        log.create_topic("scores", partitions=1)
        log.create_topic("scores.dead", partitions=1, schema=DEAD_LETTER_SCHEMA)
        with log.producer() as producer:
            for record in RECORDS:
                producer.send("scores", record, "key", headers={"trace": b"1"})
            for offset, reason in ((1, "not a number"), (2, "not a number"), (3, "not JSON")):
                letter = {"value": RECORDS[offset], "topic": "scores", "partition": 0, "offset": offset}
                producer.send("scores.dead", {**letter, "reason": reason, "at": AT})
    return folder


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == code, done.output
    return done.output


def values(folder: Path) -> list[bytes]:
    with ms.connect(folder) as log, log.consumer("scores") as consumer:
        return [record.value for record in consumer.until_caught_up()]


def test_letters_are_counted_and_shown(folder: Path) -> None:
    found = json.loads(run("dead-letters", "list", "scores.dead", "--json"))
    assert [(each["letters"], each["reason"]) for each in found] == [(2, "not a number"), (1, "not JSON")]
    text = run("dead-letters", "show", "scores.dead", 0, 2)
    assert "not JSON" in text
    assert "scores 0 3" in text
    assert "{broken" in text
    run("dead-letters", "show", "scores.dead", 0, 9, code=3)
    run("dead-letters", "list", "nothing", code=3)
    run("dead-letters", "list", "scores", code=2)


def test_a_rehearsal_counts_what_a_fixed_flow_would_take(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FIXED)
    found = json.loads(run("dead-letters", "rehearse", "scores.dead", "--file", tmp_path / "flow.py", "--json"))
    assert (found["letters"], found["taken"], found["expired"]) == (3, 1, 0)
    by_reason = {each["reason"]: each for each in found["reasons"]}
    assert by_reason["not a number"]["taken"] == 1
    assert "ValueError" in next(iter(by_reason["not a number"]["left"]))
    assert by_reason["not JSON"]["taken"] == 0
    assert values(folder) == RECORDS
    (tmp_path / "flow.py").write_text(FIXED.replace('"scores"', '"others"'))
    run("dead-letters", "rehearse", "scores.dead", "--file", tmp_path / "flow.py", code=2)


def test_letters_are_sent_again_once(folder: Path) -> None:
    """Goal: repeated calls send nothing twice, and a record keeps its key and headers."""
    run("dead-letters", "resend", "scores.dead", 0, 1)
    run("dead-letters", "resend", "scores.dead", 0, 1)
    assert values(folder) == [*RECORDS, RECORDS[2]]
    assert "had been sent before" in run("dead-letters", "resend", "scores.dead", "--all", "--yes")
    run("dead-letters", "resend", "scores.dead", "--all", "--yes")
    assert sorted(values(folder)[4:]) == sorted(RECORDS[1:])
    with ms.connect(folder) as log, log.consumer("scores") as consumer:
        last = list(consumer.until_caught_up())[-1]
        assert (last.key, last.headers) == (b"key", (("trace", b"1"),))
        assert sum(each["resent"] for each in counted(log, "scores.dead")) == 3
    run("dead-letters", "resend", "scores.dead", code=2)


def test_a_record_that_has_expired_is_not_sent(folder: Path) -> None:
    with ms.connect(folder) as log:
        log.delete_topic("scores")
        assert resend(log, "scores.dead") == {"sent": 0, "already_sent": 0, "expired": 3}


KILLED = """
import os, signal, sys
import millstream as ms
from millstream.provenance import dead_letters

dead_letters.SENT_AT_ONCE = 1
stop_after = int(sys.argv[1])
with ms.connect() as log:
    def on_sent(count):
        if count == stop_after:
            os.kill(os.getpid(), signal.SIGKILL)
    dead_letters.resend(log, "scores.dead", on_sent=on_sent)
"""


@pytest.mark.more
def test_a_killed_resend_sends_none_twice(folder: Path) -> None:
    """Goal: once each, whatever is killed. Method: kill it after each transaction, then let it finish."""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, "1"], env=dict(os.environ), capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
    run("dead-letters", "resend", "scores.dead", "--all", "--yes")
    assert sorted(values(folder)[4:]) == sorted(RECORDS[1:])
