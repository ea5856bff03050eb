"""A request to stop, as signals make it: recorded at any moment, and acted on where the job can end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from millstream.jobs.stop_request import TERMINATED, StopRequest


@pytest.fixture
def request_() -> Iterator[StopRequest]:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopRequest() as made:
        yield made
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_signals_are_recorded_while_the_job_runs(request_: StopRequest) -> None:
    request_.job_runs()
    request_.check()
    signal.raise_signal(signal.SIGTERM)
    assert (request_.is_made, request_.terminated, request_.interrupted, request_.is_urgent) == (
        True,
        True,
        False,
        False,
    )
    signal.raise_signal(signal.SIGINT)
    assert (request_.interrupted, request_.is_urgent) == (True, True)


def test_work_is_left_at_once_by_ctrl_c(request_: StopRequest) -> None:
    """Goal: a session that does not start, as with a JVM that hangs, does not keep anybody waiting."""
    released = threading.Event()

    def work() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        released.wait()

    with pytest.raises(KeyboardInterrupt):
        request_.interruptible(work)
    released.set()


def test_work_gives_its_result_and_its_error(request_: StopRequest) -> None:
    assert request_.interruptible(threading.current_thread) is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        request_.interruptible(lambda: 1 // 0)


def test_elsewhere_than_in_the_main_thread_no_signal_is_handled() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def work() -> None:
        with StopRequest() as made:
            found.extend([signal.getsignal(signal.SIGINT), made.interruptible(threading.current_thread)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before, thread]


STORM = """
import os, signal, sys, threading, time
from millstream.jobs.stop_request import StopRequest

main = threading.main_thread().ident

def storm():
    for _ in range(20_000):
        signal.pthread_kill(main, signal.SIGINT)
    signal.pthread_kill(main, signal.SIGTERM)
    signal.pthread_kill(main, signal.SIGTERM)

with StopRequest() as stop:
    if sys.argv[1] == "running":
        stop.job_runs()
    threading.Thread(target=storm).start()
    while not stop.terminated:
        time.sleep(0.00001)
"""


@pytest.mark.parametrize(("state", "code"), [("starting", TERMINATED), ("running", 0)])
def test_a_signal_at_any_moment_is_handled(state: str, code: int) -> None:
    """Goal: a handler never waits for a lock that the main thread holds. Method: signals without a pause."""
    done = subprocess.run([sys.executable, "-c", STORM, state], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (code, "")
