"""What a bridge reports of itself while it runs, when it fails, and when it is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from millstream.bridges import reports
from millstream.bridges.arrivals import Arrival
from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.bridges.landing import Landing
from millstream.bridges.reports import Behind, read_reports, reported, reports_folder
from millstream.errors import StorageError
from millstream.log import EmbeddedLog
from waiting import until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "INTERVAL_SECONDS", 0.01)


@pytest.fixture
def clicks(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("clicks", schema="n int")
    return log


def only(log: EmbeddedLog) -> dict[str, Any]:
    (found,) = read_reports(reports_folder(log))
    return found


def test_a_running_bridge_reports_what_it_does(clicks: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reports.NAME_VARIABLE, "web/1")
    with (
        Landing(clicks, "http", ["clicks"]) as landing,
        reported(clicks, "http", landing, lambda: Behind(7, "messages"), lambda: 3),
    ):
        first = only(clicks)
        assert (first["name"], first["kind"], first["topics"], first["state"]) == (
            "web/1",
            "http",
            ["clicks"],
            "running",
        )
        assert first["pid"] == os.getpid()
        landing.land([Arrival("clicks", b'{"n": 1}', id="a"), Arrival("clicks", b'{"n": 1}', id="a")])
        landing.land([Arrival("clicks", b"no")])
        until(lambda: only(clicks)["dead"], "it is reported")
        found = only(clicks)
        assert [found[name] for name in ("stored", "duplicates", "dead", "missing", "waiting")] == [1, 1, 1, 3, 0]
        assert found["behind"] == {"amount": 7, "unit": "messages"}
        assert found["per_s"] > 0
    assert read_reports(reports_folder(clicks)) == [], "it was stopped"


@pytest.mark.parametrize("is_positioned", [False, True])
def test_what_waits_for_the_disk_is_counted(
    clicks: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, is_positioned: bool
) -> None:
    """Method: while a record is being sent, the counter of what waits is read."""
    seen: list[tuple[int, bool]] = []
    with (
        PositionedLanding(clicks, "files", "clicks") if is_positioned else Landing(clicks, "http", ["clicks"])
    ) as landing:
        name = "_send" if is_positioned else "_send_record"
        send = getattr(landing, name)

        def sending(arrival: Arrival) -> Any:
            seen.append((landing.passage.messages, landing.passage.seconds(time.monotonic() + 5) > 1))
            return send(arrival)

        monkeypatch.setattr(landing, name, sending)
        arrivals = [Arrival("clicks", b'{"n": 1}'), Arrival("clicks", b'{"n": 2}')]
        landing.land(arrivals, {}) if isinstance(landing, PositionedLanding) else landing.land(arrivals)
        assert seen == [(2, True), (2, True)]
        assert (landing.passage.messages, landing.passage.seconds(time.monotonic() + 5)) == (0, 0.0)


def test_a_failure_is_seen_until_it_runs_again(clicks: EmbeddedLog) -> None:
    with Landing(clicks, "tcp", ["clicks"]) as landing:
        with pytest.raises(StorageError), reported(clicks, "tcp", landing):
            raise StorageError("the disk is gone")
        assert (only(clicks)["state"], only(clicks)["reason"]) == ("failed", "the disk is gone")
        with reported(clicks, "tcp", landing):
            assert (only(clicks)["state"], only(clicks)["reason"]) == ("running", None)


def test_one_that_took_over_keeps_its_report(clicks: EmbeddedLog) -> None:
    with Landing(clicks, "tcp", ["clicks"]) as landing, reported(clicks, "tcp", landing):
        pass
    folder = reports_folder(clicks)
    with Landing(clicks, "tcp", ["clicks"]) as landing:
        reporter = reports._Reporter(folder, "tcp", "tcp", landing, reports.unknown, lambda: None)
        reporter.start()
        reporter._stopped.set()
        reporter._thread.join()
        reports.write_report(folder, only(clicks) | {"pid": 1})
        reporter._stopped.clear()
        reporter.end(None)
    assert only(clicks)["pid"] == 1


def test_a_killed_bridge_is_silent_and_forgotten_after_a_day(tmp_path: Path) -> None:
    program = """if True:
        import sys, time
        from millstream.log import EmbeddedLog
        from millstream.bridges.reports import Served, reported
        with EmbeddedLog(sys.argv[1]) as log, reported(log, "flight", Served("flight")):
            print("runs", flush=True)
            time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.kill()
        process.wait()
    folder = reports_folder((tmp_path / "log").absolute())
    later = time.time() + reports.SILENT_SECONDS + 1
    assert [each["state"] for each in read_reports(folder, later)] == ["silent"]
    assert read_reports(folder, later + reports.KEEP_SECONDS) == []


def test_a_damaged_report_hides_no_other(clicks: EmbeddedLog) -> None:
    with Landing(clicks, "tcp", ["clicks"]) as landing, reported(clicks, "tcp", landing):
        folder = reports_folder(clicks)
        for number, text in enumerate(["", "[]", "{}", json.dumps({"at": "now", "state": "running"})]):
            (folder / f"bad{number}.json").write_text(text)
        assert only(clicks)["name"] == "tcp"
