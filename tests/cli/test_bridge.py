"""The list of bridges: those that run, with their rates, and those that failed, with the reason."""

from __future__ import annotations

from pathlib import Path

from millstream.bridges.arrivals import Arrival
from millstream.bridges.landing import Landing
from millstream.bridges.reports import GIVEN_UP, Behind, mark, reported, reports_folder
from millstream.log import EmbeddedLog

from .conftest import Run


def test_bridges_are_listed(ms: Run, folder: Path) -> None:
    assert ms("topics", "create", "orders").code == 0
    done = ms("bridge", "list")
    assert (done.code, done.out, done.err) == (0, "", "there are no bridges that run\n")
    with EmbeddedLog(folder) as log, Landing(log, "files", ["orders"]) as landing:
        landing.land([Arrival("orders", b"tea")])
        mark(reports_folder(log), "bad", "tcp", GIVEN_UP, "its settings are wrong")
        with reported(log, "files", landing, lambda: Behind(2048, "bytes")):
            lines = ms("bridge", "list").lines
            document = ms("bridge", "list", "--json").json
    assert [line.split()[0] for line in lines] == ["BRIDGE", "bad", "files"]
    assert lines[1].endswith("its settings are wrong")
    assert "2,048 bytes" in lines[2]
    assert [(each["name"], each["state"], each["stored"]) for each in document] == [
        ("bad", "given up", 0),
        ("files", "running", 1),
    ]
