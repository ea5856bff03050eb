"""The Spark session of a job, with all of its workers."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from millstream.jobs.shown.display import Display
from millstream.jobs.stop_request import StopRequest
from millstream.spark.session.shipping import is_local, wait_for_workers
from millstream.spark.session.start import activate, kept_log, session

if TYPE_CHECKING:
    from millstream.plan.run_settings import Settings


def session_of(settings: Settings, name: str, display: Display, stop: StopRequest) -> SparkSession:
    """The session of a job. The cores of a cluster are known once its workers have registered."""
    display.phase("starting Spark")
    _share_path()
    start = partial(session, master=settings.master, name=name, settings=settings.conf, environment=settings.archive)
    spark = stop.interruptible(start)
    activate(spark)
    if not is_local(spark.sparkContext.master):
        display.phase("waiting for the workers")
        wait_for_workers(spark)
    return spark


def _share_path() -> None:
    """Lets workers started later on this machine import what this process can import."""
    own = sysconfig.get_paths()
    skipped = ("site-packages", "dist-packages", own["stdlib"], own["platstdlib"])
    found = [entry for entry in sys.path if Path(entry).is_dir() and not any(part in entry for part in skipped)]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*known, *found])))


def spark_log() -> str | None:
    """Spark's log, for an error that points to it."""
    found = kept_log()
    return None if found is None else str(found)
