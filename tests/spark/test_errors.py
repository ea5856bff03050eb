"""Failures are reported in the user's terms: which step, which record, and what to do; and nothing is lost."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from jobs.support import CAUGHT_UP, SCHEMA, per_user, put, read, scores
from millstream.errors import (
    InvalidInput,
    InvalidPlan,
    JobRunning,
    NotFound,
    RecordFailed,
    StepFailed,
    UnknownTopic,
)
from millstream.log import EmbeddedLog
from millstream.spark.query_failures import new_mark

from .test_query_failures import Touch

pytestmark = pytest.mark.usefixtures("spark")
ROWS = [("ann", 1, 0.0), ("bob", 5, 1.0), ("ann", 3, 12.0), ("ann", 4, 40.0)]


@pytest.fixture
def log(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("scores", schema=SCHEMA)
    put(log, "scores", ROWS)
    return log


def shown(error: ms.MillstreamError) -> str:
    """What the user reads; never lines of a library's stack."""
    said = str(error)
    assert "Traceback" not in said
    assert "org.apache" not in said
    assert "\tat " not in said
    return said


# ---------------------------------------------------------------- before anything runs


def test_a_flow_that_writes_nothing(log: EmbeddedLog) -> None:
    flow = ms.Flow("idle")
    scores(flow)
    with pytest.raises(InvalidPlan, match="has no output"):
        flow.run(broker=log.path)


def test_a_topic_that_is_not_there(log: EmbeddedLog) -> None:
    flow = ms.Flow("lost")
    scores(flow, "scroes").write("copy")
    with pytest.raises(UnknownTopic, match="scroes") as found:
        flow.run(broker=log.path, until=CAUGHT_UP)
    assert "scores" in shown(found.value)


def test_files_that_are_not_there(log: EmbeddedLog, tmp_path: Path) -> None:
    flow = ms.Flow("lost")
    flow.read(ms.files(tmp_path / "nowhere", "json"), SCHEMA).write("copy")
    with pytest.raises(NotFound, match="no such folder"):
        flow.run(broker=log.path, until=CAUGHT_UP)


@pytest.mark.parametrize("schema", ["user string", "user string, weight string"])
def test_changes_without_a_weight(log: EmbeddedLog, schema: str) -> None:
    flow = ms.Flow("unweighted")
    flow.read("scores", schema, changes=True).group_by("user").agg(n=ms.count()).write("counts")
    with pytest.raises(InvalidInput, match="the schema of 'read_scores' has no integer column weight") as found:
        flow.run(broker=log.path, until=CAUGHT_UP)
    assert "add it to the schema: 'user string, weight int'" in shown(found.value)
    assert "test_errors.py" in shown(found.value)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(InvalidPlan, match="score") as found:
        scores(ms.Flow("wrong")).where("score > 1")
    assert "user" in shown(found.value)
    assert "test_errors.py" in shown(found.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"until": "tomorrow"}, "until='tomorrow'"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"key_groups": 0}, "key_groups"),
        ({"batchrows": 10}, "did you mean 'batch_rows'"),
        ({"into": ""}, "into"),
        ({"since": "soon"}, "since='soon' is not a time"),
        ({"since": "2026-01-01T00:00:00"}, "no time zone"),
        ({"on_batch": 5}, "on_batch"),
    ],
)
def test_settings_that_make_no_sense(log: EmbeddedLog, settings: dict[str, Any], said: str) -> None:
    flow = ms.Flow("odd")
    scores(flow).write("copy")
    with pytest.raises(InvalidInput, match=said) as found:
        flow.run(broker=log.path, **settings)
    assert "test_errors.py" in shown(found.value)
    assert not (log.path / "jobs").exists()


def test_a_replay_needs_a_name(log: EmbeddedLog) -> None:
    flow = ms.Flow("odd")
    scores(flow).write("copy")
    with pytest.raises(InvalidInput, match="no topic was given"):
        flow.replay(broker=log.path)


@pytest.mark.parametrize("into", ["copy", "other"])
def test_a_replay_that_has_no_place(log: EmbeddedLog, into: str, tmp_path: Path) -> None:
    flow = ms.Flow("odd")
    scores(flow).write("copy")
    if into == "other":
        scores(flow).write(ms.files(tmp_path / "out"))
    with pytest.raises(InvalidInput, match=r"into=|already"):
        flow.replay(broker=log.path, into=into)


def test_settings_of_a_dataframe(log: EmbeddedLog) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'broker'"):
        scores(ms.Flow("frame")).to_dataframe(brokr=log.path)


# ---------------------------------------------------------------- records that a step cannot handle


def fail_on(n: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def checked(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == n:
            raise ValueError(f"{n} is not welcome")
        return row

    return checked


def test_a_function_that_fails_stops_the_job_there(log: EmbeddedLog) -> None:
    """Once it is fixed, the job resumes and nothing is lost."""

    def built(function: Callable[[dict[str, Any]], dict[str, Any]]) -> ms.Flow:
        flow = ms.Flow("checked")
        scores(flow).map(function, name="checker").write("fine")
        return flow

    with pytest.raises(RecordFailed) as found:
        built(fail_on(3)).run(broker=log.path, until=CAUGHT_UP, batch_rows=1)
    said = shown(found.value)
    for part in ("'checker'", "3 is not welcome", "topic scores", "partition 0", "offset 2"):
        assert part in said
    assert [row["n"] for row in read(log, "fine")] == [1, 5]
    built(lambda row: row).run(broker=log.path, until=CAUGHT_UP)
    assert [row["n"] for row in read(log, "fine")] == [1, 5, 3, 4]


@pytest.mark.parametrize("as_step", ["map", pytest.param("process", marks=pytest.mark.more)])
def test_a_record_whose_text_imitates_a_failure_runs_nothing(log: EmbeddedLog, tmp_path: Path, as_step: str) -> None:
    """Goal: no text of a record is ever more than text. Method: a user's error that quotes a pickle after a mark."""
    proof = tmp_path / "proof"
    pickled = base64.b64encode(pickle.dumps(Touch(proof))).decode()
    forged = " ".join(f"{mark}{pickled}" for mark in ("MILLSTREAM-FAILURE:", new_mark()))
    log.create_topic("texts", schema="x string")
    with log.producer(acks="all") as producer:
        producer.send("texts", {"x": forged})
    flow = ms.Flow("hostile")
    texts = flow.read("texts", "x string")
    if as_step == "map":
        texts.map(lambda row: {"n": int(row["x"])}, schema="n int").write("numbers")
    else:
        texts.key_by("x").process(lambda row, key: [{"n": int(row["x"])}], schema="n int").write("numbers")
    with pytest.raises(ms.MillstreamError) as found:
        flow.run(broker=log.path, until=CAUGHT_UP)
    assert "invalid literal for int()" in shown(found.value)
    assert not proof.exists()


def test_dead_letters_let_the_job_continue(log: EmbeddedLog) -> None:
    flow = ms.Flow("sorted")
    checked = scores(flow).map(fail_on(3), name="checker")
    checked.write("fine")
    checked.dead.write("dead")
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert [row["n"] for row in read(log, "fine")] == [1, 5, 4]
    (letter,) = read(log, "dead")
    assert letter["offset"] == 2
    assert "3 is not welcome" in letter["reason"]
    assert b"'n': 3" in letter["value"]


@pytest.mark.more
def test_a_record_that_is_not_json(log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with log.producer() as producer:
        for value in (b'{"user":"ann","n":1}', b"poison", b'{"user":"bob","n":2}'):
            producer.send("raw", value)

    def built(*, dead: bool) -> ms.Flow:
        flow = ms.Flow("raw")
        rows = flow.read("raw", "user string, n int")
        rows.write("decoded")
        if dead:
            rows.dead.write("dead")
        return flow

    with pytest.raises(RecordFailed) as found:
        built(dead=False).run(broker=log.path, until=CAUGHT_UP)
    for part in ("topic raw", "partition 0", "offset 1", ".dead"):
        assert part in shown(found.value)
    assert read(log, "decoded") == []
    built(dead=True).run(broker=log.path, until=CAUGHT_UP)
    assert [row["n"] for row in read(log, "decoded")] == [1, 2]
    (letter,) = read(log, "dead")
    assert (letter["topic"], letter["partition"], letter["offset"], letter["value"]) == ("raw", 0, 1, b"poison")


@pytest.mark.parametrize("expression", ["1 / (n - 5)", "cast(user as int)"])
def test_an_expression_that_has_no_answer(log: EmbeddedLog, expression: str) -> None:
    flow = ms.Flow("computed")
    scores(flow).with_column("made", expression).write("made")
    with pytest.raises(ms.MillstreamError) as found:
        flow.run(broker=log.path, until=CAUGHT_UP)
    said = shown(found.value)
    assert "row" in said
    assert "bob" in said or "ann" in said


@pytest.mark.more
def test_an_aggregate_of_the_users_own_that_fails(log: EmbeddedLog) -> None:
    def add(kept: int, n: int) -> int:
        return kept // (n - 5)

    flow = ms.Flow("own")
    own = ms.combine(int, add, int.__add__, int, input="n", result="int")
    scores(flow).key_by("user").window(ms.fixed("10 seconds")).agg(own=own, name="mine").write("own")
    with pytest.raises(StepFailed) as found:
        flow.run(broker=log.path, until=CAUGHT_UP)
    said = shown(found.value)
    assert "'mine'" in said
    assert "ZeroDivisionError" in said
    assert "test_errors.py" in said


@pytest.mark.more
def test_a_watermark_function_that_fails(log: EmbeddedLog) -> None:
    def reached(rows: list[dict[str, Any]]) -> None:
        raise KeyError("clock")

    flow = ms.Flow("timeless")
    per_user(scores(flow, watermark=ms.custom(reached))).write("totals")
    with pytest.raises(StepFailed) as found:
        flow.run(broker=log.path, until=CAUGHT_UP)
    assert "KeyError" in shown(found.value)
    assert "test_errors.py" in shown(found.value)


@pytest.mark.more
def test_a_function_of_a_sink_that_fails(log: EmbeddedLog) -> None:
    seen: list[int] = []

    def take(rows: Any, batch: int) -> None:
        seen.extend(rows["n"].to_pylist())
        if len(seen) < 5:
            raise OSError("not today")

    def built() -> ms.Flow:
        flow = ms.Flow("taken")
        scores(flow).write(ms.foreach_batch(take))
        return flow

    with pytest.raises(ms.MillstreamError, match="not today") as found:
        built().run(broker=log.path, until=CAUGHT_UP)
    assert "test_errors.py" in shown(found.value)
    built().run(broker=log.path, until=CAUGHT_UP)
    assert seen == [1, 5, 3, 4] * 2


# ---------------------------------------------------------------- one job at a time


def test_a_job_runs_once_at_a_time(log: EmbeddedLog) -> None:
    def built() -> ms.Flow:
        flow = ms.Flow("only")
        scores(flow).write("copy")
        return flow

    job = built().start(broker=log.path)
    try:
        with pytest.raises(JobRunning, match="'only' is already running"):
            built().start(broker=log.path)
    finally:
        job.stop()
    built().run(broker=log.path, until=CAUGHT_UP)
    assert len(read(log, "copy")) == len(ROWS)
