"""Rows as alerts: each batch once, grouped, without repetition, and never in the way of the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from alerts.receivers import http_server, mail_server
from millstream.alerts.outbox import read_health
from millstream.connectors.alerts import Alert
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog
from millstream.records import Schema

from .support import table, weights

SCHEMA = "machine string, heat int"
HOT = {"machine": "press", "heat": 95}


def opened(place: Any, folder: Path) -> Any:
    return open_sink(place, Schema.of(SCHEMA), job="j", step="hot", broker=folder / "log", folder=folder / "job")


def to_file(folder: Path) -> Any:
    return ms.command("sh", "-c", f"cat >> {folder}/got")


def got(folder: Path) -> list[Any]:
    """What the command received."""
    path = folder / "got"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rows_of(folder: Path) -> list[Any]:
    return [row["machine"] for sent in got(folder) for alert in sent["alerts"] for row in alert["rows"]]


def test_a_batch_is_sent_once(tmp_path: Path) -> None:
    for _ in range(2):
        sink = opened(Alert((to_file(tmp_path),), "Too hot"), tmp_path)
        sink.write(0, table(SCHEMA, [HOT, {"machine": "saw", "heat": 99}]), None)
        sink.write(1, table(SCHEMA, []), None)
        sink.write(2, table(SCHEMA, [HOT, HOT]), weights(-1, 1))
        sink.close()
    assert sorted(rows_of(tmp_path)) == ["press", "press", "saw"]
    assert {alert["title"] for sent in got(tmp_path) for alert in sent["alerts"]} == {"Too hot"}


def test_equal_rows_are_sent_once_in_a_while(tmp_path: Path) -> None:
    sink = opened(Alert((to_file(tmp_path),), by=("machine",), quiet_s=3600.0), tmp_path)
    sink.write(0, table(SCHEMA, [HOT, {**HOT, "heat": 96}, {"machine": "saw", "heat": 99}]), None)
    sink.write(1, table(SCHEMA, [{**HOT, "heat": 97}]), None)
    sink.close()
    assert sorted(rows_of(tmp_path)) == ["press", "saw"]


def test_a_target_that_is_down_does_not_stop_the_job(tmp_path: Path) -> None:
    place = Alert((ms.command("sh", "-c", "exit 1"), to_file(tmp_path)))
    sink = opened(place, tmp_path)
    sink.write(0, table(SCHEMA, [HOT]), None)
    sink.close()
    assert rows_of(tmp_path) == ["press"]
    failing = [each for each in read_health(tmp_path / "job").values() if each.failures]
    assert len(failing) == 1
    again = opened(Alert((to_file(tmp_path), to_file(tmp_path))), tmp_path)
    again.close()
    assert "press" in rows_of(tmp_path)


def test_alerts_that_are_refused() -> None:
    stream = ms.Flow("f").read("in", SCHEMA)
    with pytest.raises(InvalidInput, match="not where alerts can be sent"):
        ms.alert(stream, to="ops@example.org")  # type: ignore[arg-type]
    target = ms.command("logger")
    with pytest.raises(InvalidInput, match="no column 'colour'"):
        ms.alert(stream, to=target, by="colour", quiet="1 hour")
    with pytest.raises(InvalidInput, match="needs quiet="):
        ms.alert(stream, to=target, by="machine")
    with pytest.raises(InvalidInput, match="quiet 'often'"):
        ms.alert(stream, to=target, quiet="often")


@pytest.mark.more
def test_alerts_of_a_flow_arrive(tmp_path: Path, spark: SparkSession) -> None:
    with EmbeddedLog(tmp_path / "log") as log, mail_server() as (mails, port), http_server() as (requests, url):
        log.create_topic("machines", schema=SCHEMA)
        with log.producer() as producer:
            for heat in (20, 95, 30):
                producer.send("machines", {"machine": "press", "heat": heat})
        flow = ms.Flow("factory")
        hot = flow.read("machines", SCHEMA).where("heat > 90")
        targets = [
            ms.email("ops@example.org", host="127.0.0.1", port=port, security="none"),
            ms.webhook(url, secret="x"),
        ]
        ms.alert(hot, to=targets, title="A machine is too hot")
        flow.run(broker=log.path, until="caught up", progress="none")
        assert [mail["Subject"] for mail in mails.mails] == ["A machine is too hot"]
        assert [each["alerts"][0]["rows"] for each in requests.documents] == [[HOT]]
