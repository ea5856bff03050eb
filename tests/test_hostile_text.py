"""Text of a record is text on every way it can take: into errors, log lines, paths, SQL and drawings.

Terminals and figures have tests of their own (tests/test_terminal.py, tests/cli/test_terminal.py), and so has what
passes through Spark (tests/spark/test_errors.py) and Kafka (tests/connectors/kafka/test_hostile_records.py).
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.errors import MillstreamError
from millstream.log import EmbeddedLog
from millstream.records import Schema
from millstream.spark.query_failures import Failed, new_mark, of_query
from millstream.terminal import is_harmless, logger
from millstream.testing import Add, play

TEXTS = [
    "\x1b]0;title\x07\x1b[2J",
    "line\n  next:  run rm -rf /",
    "../../../etc/passwd",
    "/absolute",
    "'; DROP TABLE totals; --",
    '"; DROP TABLE totals; --',
    "</text><script>alert(1)</script>",
    "]]><!-- & \u202e \u2028",
    "[bold]x[/bold][link=file:///]",
    "%s %(x)s {0} {x} $(touch proof) `touch proof`",
    "MILLSTREAM-FAILURE:gASVAAAAAAAAAAB9lC4=",
    "__reduce__ !!python/object/apply:os.system",
]
pytestmark = pytest.mark.parametrize("text", TEXTS)


def number(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": int(row["x"])}


def test_an_error_that_quotes_a_record_has_our_lines_alone(text: str) -> None:
    try:
        number({"x": text})
    except ValueError as quoting:
        error = MillstreamError(f"the step failed: {quoting} {text}", where=text, next_step="fix it")
    lines = str(error).splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["the step failed", "where", "next"]
    assert all(map(is_harmless, lines))
    back = of_query(RuntimeError(f"… {Failed(error, mark := new_mark())} …"), mark)
    assert (back.what, back.where) == (error.what, error.where)


@pytest.mark.parametrize("on", ["reference", "local"])
def test_a_dead_letter_holds_the_text_and_its_reason_nothing_else(text: str, on: Any) -> None:
    (out,) = play(lambda rows: rows.map(number, "n int").dead, [Add([{"x": text}])], schema="x string", on=on)
    (letter,) = out
    assert "ValueError" in letter["reason"]


def test_a_log_line_is_one_line(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        logger("millstream.hostile").warning("a record says %s", text)
    (record,) = caplog.records
    assert is_harmless(record.getMessage())


def test_a_path_and_a_statement_stay_what_they_are(text: str, tmp_path: Path) -> None:
    """Goal: values choose no file, no table and no statement. Method: write them everywhere and look around."""
    rows = pa.table({"team": [text], "total": [7]}, Schema.of("team string, total long").arrow)
    places = {
        "files": ms.files(tmp_path / "out", "json", partition_by=["team"]),
        "table": ms.sqlite(str(tmp_path / "db.sqlite"), "totals", key=["team"]),
        "topic": "totals",
    }
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        for step, place in places.items():
            folder = tmp_path / "job" / step
            folder.mkdir(parents=True)
            sink = open_sink(
                place, Schema.of(rows.schema), job="j", step=step, broker=log, folder=folder, keys=["team"]
            )
            with closing(sink):
                sink.write(0, rows, None)
        with log.consumer("totals") as consumer:
            assert [record.value["team"] for record in consumer.until_caught_up()] == [text]
    assert {path.name for path in tmp_path.iterdir()} == {"out", "db.sqlite", "log", "job"}
    (file,) = (path for path in (tmp_path / "out").rglob("*.json"))
    assert file.parent.parent == tmp_path / "out"
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as db:
        assert db.execute("SELECT team, total FROM totals").fetchall() == [(text, 7)]


def test_a_drawing_holds_it_as_text(text: str) -> None:
    flow = ms.Flow("drawn")
    flow.read("rows", "x string").where("x <> '" + text.replace("\\", "\\\\").replace("'", "\\'") + "'").write("out")
    assert ElementTree.fromstring(flow.explain("svg")).find(".//script") is None
