"""The session that a job runs in, once its workers are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from millstream.jobs.display import Display
from millstream.jobs.stop_request import StopRequest
from millstream.spark.session.shipping import is_local, until_workers
from millstream.spark.session.start import session

if TYPE_CHECKING:
    from millstream.plan.run_settings import Settings


def session_of(settings: Settings, name: str, display: Display, stop: StopRequest) -> SparkSession:
    """How many cores a cluster has is known when its workers have come."""
    with stop.signals_deferred():
        spark = session(master=settings.master, name=name, settings=settings.conf, environment=settings.archive)
    if not is_local(spark.sparkContext.master):
        display.phase("waiting for the workers")
        until_workers(spark)
    return spark
