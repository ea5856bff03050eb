"""A job on a screen: its newest rows, and `show`, which returns when the job ends or is interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import InvalidInput, MillstreamError
from millstream.jobs.shown.job_view import JobView, Newest, as_html, as_text
from millstream.jobs.shown.recent_rows import ROWS_KEPT, SEARCHED_ROWS_MAX, RecentRows
from millstream.log import EmbeddedLog
from millstream.plan.nodes import Write

from .support import CAUGHT_UP, per_user, put, scores


def written(stream: Any, sink: str = "out") -> Write:
    stream.write(sink)
    output: Write = stream.flow.outputs[-1]
    return output


def noted(output: Write, keys: tuple[str, ...], *batches: tuple[list[dict[str, Any]], list[int]]) -> list[Any]:
    recent = RecentRows({output: keys})
    for rows, weights in batches:
        table = pa.Table.from_pylist(rows)
        recent.note(output, table, pa.array(weights) if weights else None)
    return recent.of(output)


def test_a_pane_replaces_the_one_before_it() -> None:
    output = written(per_user(scores(ms.Flow("f"))))
    first = {"user": "ann", "window": 1, "total": 1}
    other, second = {**first, "window": 2}, {**first, "total": 5}
    assert noted(output, ("user",), ([first, other], []), ([second], [])) == [other, second]


def test_a_retraction_removes_a_row() -> None:
    output = written(scores(ms.Flow("f")).group_by("user").agg(n=ms.count()))
    ann, bob = {"user": "ann", "n": 1}, {"user": "bob", "n": 1}
    assert noted(output, ("user",), ([ann, bob], [1, 1]), ([ann], [-1])) == [bob]


def test_the_newest_rows_are_kept_of_batches_of_any_size() -> None:
    output = written(scores(ms.Flow("f")))
    small = [{"n": number} for number in range(25)]
    assert noted(output, (), (small, [])) == small[-ROWS_KEPT:]
    large = [{"n": number} for number in range(SEARCHED_ROWS_MAX * 3)]
    assert noted(output, (), (small, []), (large, [])) == large[-ROWS_KEPT:]


def test_what_is_shown_is_escaped() -> None:
    view = JobView("j", "running", [("waits for", "<b>\x1b[2J")], [Newest("out", ["a"], [{"a": "<i>\x1b[2J"}])])
    page = as_html(view)
    assert "<b>\\" not in page
    assert "&lt;i&gt;" in page
    assert "\x1b" not in page
    from rich.console import Console

    console = Console(record=True, file=Path(os.devnull).open("w"))  # noqa: SIM115
    console.print(as_text(view))
    assert "\x1b" not in console.export_text()


@pytest.mark.usefixtures("spark")
class TestShow:
    @pytest.mark.more
    def test_it_returns_when_the_job_has_ended(self, log: EmbeddedLog, capsys: pytest.CaptureFixture[str]) -> None:
        put(log, "scores", [("ann", 1, 0.0), ("ann", 2, 30.0), ("ann", 3, 60.0)])
        flow = ms.Flow("shown", log=log.path)
        per_user(scores(flow)).write("totals")
        job = flow.start(until=CAUGHT_UP)
        job.show(refresh_s=0.1)
        assert job.state == "ended"
        shown = capsys.readouterr().out
        assert "job shown: ended" in shown
        assert "rows read 3" in shown
        assert "newest rows of write_totals" in shown
        page = job._repr_html_()
        assert "newest rows of write_totals" in page
        assert "data:image/svg+xml;base64," in page
        assert [row["total"] for row in job.recent.of(job.outputs[0])] == [1, 2]

    @pytest.mark.more
    def test_an_interrupt_ends_it_and_not_the_job(self, log: EmbeddedLog) -> None:
        put(log, "scores", [("ann", 1, 0.0)])
        flow = ms.Flow("interrupted", log=log.path)
        scores(flow).write("copies")
        job = flow.start()
        before = signal.getsignal(signal.SIGINT)
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        job.show(refresh_s=0.1)
        timer.join()
        try:
            assert signal.getsignal(signal.SIGINT) is before
            assert job.is_running
            put(log, "scores", [("ann", 2, 1.0)])
            deadline = time.monotonic() + 60
            while job.progress.rows_read < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert job.progress.rows_read == 2
        finally:
            job.stop()

    @pytest.mark.more
    def test_it_raises_the_error_that_the_job_failed_with(self, log: EmbeddedLog) -> None:
        put(log, "scores", [("ann", 1, 0.0)])
        flow = ms.Flow("failing", log=log.path)
        scores(flow).map(lambda row: 1 / 0).write("copies")
        job = flow.start()
        with pytest.raises(MillstreamError, match="division by zero"):
            job.show(refresh_s=0.1)
        assert job.state == "failed"

    @pytest.mark.more
    def test_a_wrong_interval_is_refused(self, log: EmbeddedLog) -> None:
        flow = ms.Flow("wrong", log=log.path)
        scores(flow).write("copies")
        job = flow.start(until=CAUGHT_UP)
        for wrong in (0, -1, "1", float("nan")):
            with pytest.raises(InvalidInput, match="refresh_s"):
                job.show(refresh_s=wrong)
        job.wait()
