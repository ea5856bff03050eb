"""Many bridges from one file, as processes: started again when they fail, given up when they cannot work."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from millstream.bridges.fleet import Fleet, read_fleet
from millstream.bridges.reports import read_reports, reports_folder
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog
from waiting import until

from .support import request, values


def written(folder: Path, text: str) -> Path:
    path = folder / "bridges.toml"
    path.write_text(text)
    return path


def test_a_file_of_bridges(tmp_path: Path) -> None:
    text = """
        [bridges.web]
        listen = "http"
        topics = ["clicks", "orders"]
        port = 0
        keep_header = ["X-Event", "X-Id"]

        [bridges.logs]
        listen = "files"
        topic = "logs"
        patterns = "/var/log/app.log*"
        once = true
    """
    web, logs = read_fleet(written(tmp_path, text))
    headers = ["--keep-header", "X-Event", "--keep-header", "X-Id"]
    assert (web.name, web.arguments) == ("web", ["http", "--port", "0", *headers, "--", "clicks", "orders"])
    assert logs.arguments == ["files", "--once", "--", "logs", "/var/log/app.log*"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = ",
        "[other]\na = 1",
        "[bridges]",
        '[bridges.a]\nlisten = "fax"',
        "[bridges]\na = 1",
        '[bridges.a]\nlisten = "tcp"\nport = {a = 1}',
    ],
)
def test_what_is_not_a_file_of_bridges(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput):
        read_fleet(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_fleet(tmp_path / "none.toml")


@pytest.mark.more
def test_bridges_are_started_again_or_given_up(log: EmbeddedLog, tmp_path: Path) -> None:
    """Method: one bridge is killed, and comes back; another names a topic that does not exist."""
    log.create_topic("clicks")
    text = '[bridges.web]\nlisten = "http"\ntopic = "clicks"\nport = 0\n[bridges.bad]\nlisten = "tcp"\ntopic = "none"\n'
    said: list[str] = []
    reports = reports_folder(log)
    fleet = Fleet(
        read_fleet(written(tmp_path, text)), str(tmp_path / "log"), said.append, reports=reports, retry_seconds=0.01
    )
    thread = threading.Thread(target=fleet.run)
    thread.start()

    def ports() -> list[int]:
        return [int(found[1]) for line in list(said) if (found := re.search(r"\[web\] listening .*:(\d+)/", line))]

    try:
        until(lambda: ports() and fleet.given_up, "one listens, one is given up")
        assert fleet.given_up == ["bad"]
        states = {each["name"]: each["state"] for each in read_reports(reports)}
        assert states == {"web": "running", "bad": "given up"}
        assert request(ports()[0], "POST", "/clicks", "1").status == 200
        os.kill(fleet._processes["web"].pid, 9)
        until(lambda: len(ports()) == 2, "it came back")
        assert request(ports()[1], "POST", "/clicks", "2").status == 200
    finally:
        fleet.stop()
        thread.join()
    assert [each["name"] for each in read_reports(reports)] == ["bad"]
    assert values(log, "clicks") == [b"1", b"2"]
