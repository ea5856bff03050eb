"""Starts a flow as a job in the mode of its settings, and runs it until it ends or is asked to stop."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from millstream.errors import MillstreamError, SparkFailed
from millstream.jobs import micro_batches
from millstream.jobs.job import POLL_S, Job
from millstream.jobs.shown.display import Display
from millstream.jobs.starting_spark import spark_log
from millstream.jobs.stop_request import StopRequest
from millstream.plan.apps import App
from millstream.plan.flow import Flow
from millstream.plan.run_settings import REAL_TIME, Settings


def start_job(flow: Flow, settings: Settings, display: Display, stop: StopRequest | None = None) -> Job:
    """Starts a job, and returns when its query runs."""
    stop = stop or StopRequest(handles_signals=False)
    settings = settings.checked()
    if isinstance(flow, App):
        from millstream.jobs.apps import job as app_job  # most jobs are of one flow

        return app_job.start(flow, settings, display, stop)
    if settings.mode == REAL_TIME:
        from millstream.jobs import real_time

        return real_time.start(flow, settings, display, stop)
    return micro_batches.start(flow, settings, display, stop)


def run_job(flow: Flow, settings: Settings, display: Display) -> Job:
    """Runs a job until it ends, or until the current batch ends after a stop request (Ctrl-C)."""
    with StopRequest() as stop, jvm_alive():
        job = start_job(flow, settings, display, stop)
        stop.job_runs()
        try:
            while job.is_running:
                if stop.is_made:
                    display.phase(f"stopping after the current batch, within {settings.grace_s:g} s")
                    job.stop(settings.grace_s, lambda: stop.is_urgent)
                    job.interrupted, job.terminated = stop.interrupted, stop.terminated
                    return job
                with suppress(MillstreamError):  # failing to show progress is no reason to stop
                    display.update(job)
                time.sleep(POLL_S)
        except BaseException:
            with suppress(Exception):  # the first error is the one to show
                job.stop()
            raise
        job.wait()
    return job


@contextmanager
def jvm_alive() -> Iterator[None]:
    """Replaces the unhelpful error of a call to a JVM that has died."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not isinstance(error, Py4JError) and not _is_of_py4j(error):
            raise
        raise SparkFailed(
            "Spark's JVM has died, most often because it ran out of memory",
            where=spark_log(),
            next_step="run it again, with more memory (spark.driver.memory) or fewer rows in a batch (batch_rows=…)",
        ) from None  # py4j's error adds nothing


def _is_of_py4j(error: BaseException) -> bool:
    return any("py4j" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
