"""`millstream run`: runs the flow of a file, stops on request, and reports mistakes in plain words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.job_commands.run import chosen_flow
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog

from .conftest import SCHEMA, Done, Run, start

PATIENCE_S = 200
ROWS = 400
FLOW = f"""
import millstream as ms
import helping

flow = ms.Flow("copies")
rows = flow.read("scores", "{SCHEMA}")
rows.map(helping.doubled).write("copies")

if __name__ == "__main__":
    flow.run()
"""
HELPING = """
def doubled(row):
    return {**row, "score": 2 * row["score"]}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own, which is not the working directory."""
    monkeypatch.setenv("MILLSTREAM_MASTER", "local[2]")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # is put back afterwards
    made = tmp_path / "flows"
    made.mkdir()
    (made / "helping.py").write_text(HELPING)
    return made


def written(here: Path, text: str, name: str = "flow.py") -> Path:
    path = here / name
    path.write_text(text)
    return path


# ---------------------------------------------------------------- files that cannot be run


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (None, 3, "there is no file"),
        ("x = = 1\n", 2, "flow.py:1"),
        ("\x00", 2, "flow.py"),
        ("import millstream\n", 2, "builds no flow"),
        ("import nowhere_to_be_found\n", 2, "nowhere_to_be_found"),
        ("x = 1\nx / 0\n", 2, "flow.py:2"),
        ("raise SystemExit(3)\n", 2, "SystemExit"),
        ("import millstream as ms\nms.Flow('a b')\n", 2, "flow.py:2"),
        ("import millstream as ms\na, b = ms.Flow('a'), ms.Flow('b')\n", 2, "--flow a or --flow b"),
        ("import millstream as ms\na = ms.Flow('a')\n", 2, "has no output"),
        ("import millstream as ms\na = ms.Flow('a')\na.read('scroes', 'n int').write('b')\n", 3, "topics that exist"),
        ("import millstream as ms\na = ms.Flow('a')\na.read('scores', 'n int').where('m > 1')\n", 2, "flow.py:3"),
        ("import millstream as ms\na = ms.Flow('a')\na.read('scores', 'n int').write('b')\na.run(til=1)\n", 2, "til"),
    ],
)
def test_a_file_that_cannot_be_run(
    ms: Run, log: EmbeddedLog, here: Path, text: str | None, code: int, said: str
) -> None:
    log.create_topic("scores", schema=SCHEMA)
    file = here / "flow.py" if text is None else written(here, text)
    done = ms("run", file)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_parameter_that_the_file_does_not_read_is_refused(ms: Run, log: EmbeddedLog, here: Path) -> None:
    log.create_topic("scores", schema=SCHEMA)
    text = "import millstream as ms\nms.param('factor_of_scores', 2)\na = ms.Flow('a')\na.read('scores').write('b')\n"
    done = ms("run", written(here, text), "--param", "factor_of_score=3")
    assert (done.code, done.out) == (2, "")
    assert "reads no parameter 'factor_of_score'" in done.err
    assert "did you mean 'factor_of_scores'?" in done.err


APP = """
import millstream as ms

def over(name):
    flow = ms.Flow(name)
    flow.read("scores", "user string, score int").write(f"scores.{name}")
    return flow

one, two = over("one"), over("two")
both = ms.app([one, two], name="both")
"""


def test_the_app_of_a_file_is_run_and_not_its_flows(here: Path) -> None:
    chosen, settings = chosen_flow(written(here, f"{APP}both.run(until='caught up')\n"), None, None)
    assert (chosen.name, settings) == ("both", {"until": "caught up"})
    assert chosen_flow(here / "flow.py", "two", None)[0].name == "two"


def test_flows_of_an_app_with_another_master_are_refused(here: Path) -> None:
    with pytest.raises(InvalidInput, match="'two' is run with the master spark://here:7077, the app with the default"):
        chosen_flow(written(here, f"{APP}two.run(master='spark://here:7077')\nboth.run()\n"), None, None)


def test_a_flow_that_the_file_does_not_have(ms: Run, log: EmbeddedLog, here: Path) -> None:
    log.create_topic("scores", schema=SCHEMA)
    done = ms("run", written(here, FLOW), "--flow", "other")
    assert done.code == 3
    assert "its flows: copies" in done.err


def test_until_has_one_meaning(ms: Run, log: EmbeddedLog, here: Path) -> None:
    log.create_topic("scores", schema=SCHEMA)
    done = ms("run", written(here, FLOW), "--until", "tomorrow")
    assert done.code == 2
    assert "'caught up'" in done.err


def test_a_log_that_is_not_there_is_not_made(ms: Run, folder: Path, here: Path) -> None:
    done = ms("run", written(here, FLOW))
    assert done.code == 3
    assert "there is no log" in done.err
    assert not folder.exists()


# ---------------------------------------------------------------- a job in a process of its own


@pytest.fixture
def scores(log: EmbeddedLog) -> Iterator[EmbeddedLog]:
    log.create_topic("scores", schema=SCHEMA)
    with log.producer() as producer:
        for n in range(ROWS):
            producer.send("scores", {"user": "ann", "team": "red", "score": n})
    yield log
    log.close()


def copies(log: EmbeddedLog) -> list[int]:
    if "copies" not in log.topics():
        return []
    with log.consumer("copies") as consumer:
        return [record.value["score"] for record in consumer.until_caught_up()]


@contextmanager
def started(*arguments: object, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, which ends with the test."""
    with start(*arguments, **settings) as running:
        try:
            yield running
        finally:
            running.kill()


def finished(running: subprocess.Popen[bytes]) -> Done:
    out, err = running.communicate(timeout=PATIENCE_S)
    return Done(running.returncode, out.decode(), err.decode())


def begun(log: EmbeddedLog, running: subprocess.Popen[Any], least: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(copies(log)) < least:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.more
@pytest.mark.timeout(900)
def test_it_stops_on_request_and_resumes(process: Run, scores: EmbeddedLog, here: Path) -> None:
    """Ctrl-C on a terminal is heard by every process of the job, Spark's too; SIGTERM by the first alone.

    Meanwhile a second run of the same job is refused; in the end every row was copied once.
    """
    file = written(here, FLOW)
    arguments = ("run", file, "--batch-rows", 2)
    with started(*arguments, start_new_session=True) as first:
        begun(scores, first, 4)
        second = process("run", file)
        assert second.code == 4
        assert "'copies' is already running" in second.err
        os.killpg(first.pid, signal.SIGINT)
        done = finished(first)
    assert done.code == 130, done.err
    assert "Traceback" not in done.err
    assert "batches" in done.err
    after_ctrl_c = copies(scores)
    checkpoint = scores.path / "jobs" / "copies" / "checkpoint"
    assert_whole(checkpoint)

    with started(*arguments) as again:
        begun(scores, again, len(after_ctrl_c) + 4)
        again.send_signal(signal.SIGTERM)
        done = finished(again)
    assert done.code == 0, done.err
    assert_whole(checkpoint)

    with started("run", file, "--until", "caught up", "--json") as last:
        done = finished(last)
    assert done.code == 0, done.err
    assert {json.loads(line)["job"] for line in done.err.splitlines()} == {"copies"}  # its progress, for programs too
    assert done.json["rows"] > 0
    assert copies(scores) == [2 * n for n in range(ROWS)]


def assert_whole(checkpoint: Path) -> None:
    """Every batch that was begun is complete."""
    begun, complete = (
        {path.name for path in (checkpoint / kind).iterdir() if path.name.isdigit()} for kind in ("offsets", "commits")
    )
    assert begun == complete


@pytest.mark.more
@pytest.mark.timeout(900)
def test_a_record_that_fails_is_named_and_no_stack_is_shown(process: Run, scores: EmbeddedLog, here: Path) -> None:
    file = written(here, FLOW)
    written(here, 'def doubled(row):\n    assert row["score"] != 7, "not seven"\n    return row\n', "helping.py")
    with started("run", file, "--until", "caught up", "--batch-rows", 5) as running:
        done = finished(running)
    assert done.code == 1
    for part in ("error: ", "not seven", "topic scores", "partition 0", "offset 7", "next:"):
        assert part in done.err
    for noise in ("Traceback", "org.apache", "WARN", "MILLSTREAM-FAILURE"):
        assert noise not in done.err
    assert copies(scores) == [0, 1, 2, 3, 4]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("after_s", [0.0, pytest.param(4.0, marks=pytest.mark.more)])
def test_ctrl_c_while_it_starts(scores: EmbeddedLog, here: Path, after_s: float) -> None:
    """Wherever it is by then: nobody is shown the insides of what was starting."""
    lock = scores.path / "jobs" / "copies" / "lock"
    with started("run", written(here, FLOW), "--progress", "none", start_new_session=True) as running:
        deadline = time.monotonic() + PATIENCE_S
        while not lock.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(after_s)
        os.killpg(running.pid, signal.SIGINT)
        done = finished(running)
    assert done.code == 130
    assert [line for line in done.err.splitlines() if not line.startswith("read ")] == []
