"""What a job reports when it starts, before Spark does."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.jobs.running import start_job
from millstream.jobs.shown.display import Display
from millstream.log import EmbeddedLog
from millstream.plan.run_settings import Settings

SCHEMA = "user string, n int"


class Ready(Exception):
    """Everything was checked that can be checked without Spark."""


class UpToSpark(Display):
    def phase(self, text: str) -> None:
        if text == "starting Spark":
            raise Ready


@pytest.fixture
def log(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("typed", schema=SCHEMA)
    log.create_topic("bytes")
    return log


def reported(flow: ms.Flow, log: EmbeddedLog, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.WARNING, "millstream.job")
    with pytest.raises(Ready):
        start_job(flow, Settings(broker=str(log.path)), UpToSpark())
    return [message for message in caplog.messages if "cannot be decoded" in message]


def files(folder: Path, format: str) -> Any:
    folder.mkdir()
    (folder / "one").write_text(json.dumps({"user": "ann", "n": 1}))
    return ms.files(folder, format)


def test_a_source_whose_bad_records_would_stop_the_job_is_named_with_what_to_do(
    log: EmbeddedLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = ms.Flow("totals")
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    rows = flow.read("bytes", SCHEMA)
    rows.write("first")
    rows.where("n > 0").write("second")
    lines = flow.read(files(tmp_path / "in", "json"), SCHEMA)
    lines.write("third")
    of_topic, of_files = reported(flow, log, caplog)
    assert of_topic.startswith("totals: the job stops at the first record of 'read_bytes'")
    assert f"{__file__}:{line}" in of_topic
    assert 'stream.dead.write("bytes.dead")' in of_topic
    assert "'read_files_in'" in of_files


def test_sources_with_dead_letters_or_without_bad_records_give_no_notice(
    log: EmbeddedLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = ms.Flow("totals")
    rows = flow.read("bytes", SCHEMA)
    rows.write("first")
    rows.dead.write("bytes.dead")
    flow.read("typed", SCHEMA).write("second")
    flow.read(ms.rate(1), "value long").write("third")
    flow.read(files(tmp_path / "in", "parquet"), SCHEMA).write("fourth")
    assert reported(flow, log, caplog) == []
