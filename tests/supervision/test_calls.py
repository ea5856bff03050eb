"""Questions to jobs over the supervisor's HTTP interface."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection

import pytest

import millstream as ms
from answering import answering, tenths
from millstream.connectors.catalog import remember
from millstream.errors import AskFailed, AskTimedOut, InvalidInput, NotFound, SourceUnavailable
from millstream.jobs.asked.ask_topics import prepare_topics
from millstream.jobs.measuring.job_progress import Progress, ProgressFile
from millstream.log import EmbeddedLog
from millstream.plan.nodes import Write
from millstream.plan.time.bundles import micros
from millstream.supervision.calls import Calls
from millstream.supervision.client import Jobs
from millstream.supervision.masking import Masking
from millstream.supervision.supervisor import Supervisor
from times import t
from waiting import until

from .test_http import TOKEN, asked, served, supervisor

__all__ = ["supervisor"]
PATIENCE = "5 minutes"
BEARER = f"Bearer {TOKEN}"


@pytest.fixture
def calls(log: EmbeddedLog) -> Iterator[Calls]:
    with closing(
        Calls(str(log.path), lambda name: log.path / "jobs" / name, Masking((), log.path / "jobs", tuple))
    ) as made:
        yield made


@pytest.fixture
def port(supervisor: Supervisor, calls: Calls) -> Iterator[int]:
    with served(supervisor, calls.routes()) as found:
        yield found


@pytest.fixture
def jobs(port: int) -> Jobs:
    return ms.supervisor(url=f"http://127.0.0.1:{port}", token=TOKEN)


def test_a_question_is_answered_over_http(port: int, jobs: Jobs, log: EmbeddedLog) -> None:
    with pytest.raises(NotFound, match="the job 'sums' answers no questions"):
        jobs.call("sums", "tenth", n=1)
    with answering(log):
        assert jobs.call("sums", "tenth", PATIENCE, n=4) == [{"tenth": 2.5}]
        assert asked(port, "POST", "/v1/jobs/sums/ask/tenth?timeout_s=300", '{"n": 5}') == (
            200,
            {"rows": [{"tenth": 2.0}]},
        )
        with ThreadPoolExecutor(64) as callers:
            found = list(callers.map(lambda n: jobs.call("sums", "tenth", PATIENCE, n=n), range(1, 65)))
        assert found == [[{"tenth": 10 / n}] for n in range(1, 65)]
        with pytest.raises(AskFailed, match=r"(?i)division by zero"):
            jobs.call("sums", "tenth", PATIENCE, n=0)
        with pytest.raises(InvalidInput, match="'tenth' takes n, not m"):
            jobs.call("sums", "tenth", m=1)
        status, found = asked(port, "POST", "/v1/jobs/sums/ask/tenth", '{"timeout": 1}')
        assert (status, found["error"]["what"]) == (400, "'tenth' takes n, not timeout")
        with pytest.raises(NotFound, match="no question 'tents'"):
            jobs.call("sums", "tents", n=1)
    for wrong in ("0", "nan", "forever", "601"):
        assert asked(port, "POST", f"/v1/jobs/sums/ask/tenth?timeout_s={wrong}", '{"n": 1}')[0] == 400


@pytest.mark.more
def test_a_thousand_requests_over_http_are_in_flight(port: int, log: EmbeddedLog, calls: Calls) -> None:
    """Method: all are sent before anybody answers."""
    flow, _ = tenths()
    prepare_topics(flow.asks.values(), log)
    with ExitStack() as opened:
        callers = []
        for n in range(1, 1_001):
            caller = opened.enter_context(closing(HTTPConnection("127.0.0.1", port)))
            caller.request("POST", "/v1/jobs/sums/ask/tenth?timeout_s=300", f'{{"n": {n}}}', {"Authorization": BEARER})
            callers.append(caller)
        until(lambda: calls.in_flight == 1_000, "all requests")
        with answering(log):
            found = [json.loads(caller.getresponse().read()) for caller in callers]
    assert found == [{"rows": [{"tenth": 10 / n}]} for n in range(1, 1_001)]


def test_a_caller_over_http_gets_an_error_in_time_and_may_leave(
    port: int, jobs: Jobs, log: EmbeddedLog, calls: Calls
) -> None:
    flow, _ = tenths()
    prepare_topics(flow.asks.values(), log)
    with pytest.raises(AskTimedOut, match=r"not answered within 0\.1 seconds"):
        jobs.call("sums", "tenth", "100 milliseconds", n=1)
    head = "POST /v1/jobs/sums/ask/tenth?timeout_s=300 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 8\r\n"
    with socket.create_connection(("127.0.0.1", port)) as leaving:
        leaving.sendall(f'{head}Authorization: {BEARER}\r\n\r\n{{"n": 1}}'.encode())
        until(lambda: calls.in_flight == 1, "the request")
    until(lambda: calls.in_flight == 0, "the end of the request")


def test_what_a_job_holds_is_asked_of_its_own_process(port: int, jobs: Jobs) -> None:
    for wrong in (
        "",
        "?step=totals&table=totals",
        "?step=totals&key=ann",
        "?table=totals&key=user",
        "?step=a&key=a=b&window=noon",
    ):
        assert asked(port, "GET", f"/v1/jobs/sums/ask{wrong}")[0] == 400
    with pytest.raises(SourceUnavailable, match="the job 'sums' does not answer"):
        jobs.ask("sums", step="totals", key={"user": "ann"})


def test_the_row_of_a_table_says_what_it_holds_for(jobs: Jobs, log: EmbeddedLog) -> None:
    """Method: the folder of a job as it is while the job runs in another process."""
    flow, folder = ms.Flow("sums", log=log.path), log.path / "jobs" / "sums"
    scores = flow.read("scores", "user string, n int, at timestamp", event_time="at")
    scores.group_by("user").agg(total=ms.sum("n")).write("totals")
    folder.mkdir(parents=True)
    remember(folder, [output for output in flow.outputs if isinstance(output, Write)], log.path)
    log.create_topic("totals", schema="user string, total bigint", compaction=True)
    with log.producer() as producer:
        producer.send("totals", {"user": "ann", "total": 3}, key="ann")
    began, reached = t(100), t(60)
    progress = Progress(batch=7, now=micros(began), watermarks={"totals": micros(reached)})
    ProgressFile(folder).write("sums", progress, lag=0)
    answer = jobs.ask("sums", table="totals", key={"user": "ann"})
    assert answer == {
        "rows": [{"user": "ann", "total": 3}],
        "batch": 7,
        "watermark": reached.isoformat(),
        "as_of": began.isoformat(),
    }
    assert jobs.ask("sums", table="totals", key={"user": "eve"})["rows"] == []
    with pytest.raises(InvalidInput, match="keeps no table 'total'"):
        jobs.ask("sums", table="total", key={"user": "ann"})
