"""A model for each of a million keys, in a job on Spark: every key has its own, and one that is odd is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.log import EmbeddedLog
from times import t

KEYS_OF_A_SOAK, KEYS_LEAST, ROUNDS, PERIOD, EVERY = 1_000_000, 100_000, 4, 2, 1_000
BATCHES_OF_A_ROUND = 4
SCHEMA = "machine long, x double, at timestamp"
MODELS: dict[str, Any] = {
    "ewma": ms.ewma("x", threshold=20, warm_up=2),
    "zscore": ms.zscore("x", rows=10, threshold=20, warm_up=2),
    "seasonal": ms.seasonal("x", period=PERIOD, threshold=20, warm_up=1),
}
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


def sent(log: EmbeddedLog, number: int, keys: int) -> None:
    """A row of each key: its own level, a little more or less, and far more at last for one of a thousand keys."""
    machines = np.arange(keys)
    is_odd = (machines % EVERY == 0) & (number == ROUNDS - 1)
    values = machines + (machines + number) % 2 * 0.5 + is_odd * 100.0
    rows = pl.DataFrame({"machine": machines, "x": values}).with_columns(pl.lit(t(60 * number)).alias("at"))
    with log.producer() as producer:
        for some in rows.iter_slices(keys // BATCHES_OF_A_ROUND):
            producer.send_batch("readings", some)


@pytest.mark.parametrize("name", MODELS)
def test_a_million_keys_have_models(
    name: str, log: EmbeddedLog, spark: SparkSession, rounds: Callable[[int, int], int]
) -> None:
    """Fewer in a short run."""
    keys = rounds(KEYS_OF_A_SOAK, KEYS_LEAST)
    batch_rows = keys // BATCHES_OF_A_ROUND
    log.create_topic("readings", schema=SCHEMA)
    flow = ms.Flow("many")
    readings = flow.read("readings", SCHEMA, event_time="at", watermark=ms.ascending())
    scored = readings.key_by("machine").learn(MODELS[name])
    scored.where("anomaly").select("machine", "at").write("odd")
    scored.group_by().agg(rows=ms.count(), scored=ms.count_if("z is not null")).write("counts")
    for number in range(ROUNDS):
        sent(log, number, keys)
        flow.run(broker=log.path, until="caught up", progress="none", batch_rows=batch_rows)
    with log.consumer("counts") as consumer:
        *_, last = (record.value for record in consumer.until_caught_up() if record.value.get("weight", 1) > 0)
    assert last["rows"] == keys * ROUNDS
    assert last["scored"] >= keys
    with log.consumer("odd") as consumer:
        found = Counter((record.value["machine"], record.value["at"]) for record in consumer.until_caught_up())
    assert found == Counter((machine, t(60 * (ROUNDS - 1))) for machine in range(0, keys, EVERY))
