"""A factory machine that is about to fail: its temperature is off before it stops, and a model rates its wear."""

from __future__ import annotations

import math
import random
import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

import millstream as ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
READINGS = "machine string, temperature double, vibration double, at timestamp"
MACHINES = ("press", "lathe", "drill")
MINUTES, FAILING, FAILS_AT = 240, "lathe", 200


def readings() -> list[dict[str, Any]]:
    """One a minute of each machine. In its last hours the lathe shakes more and more, and now and then it gets hot."""
    draw = random.Random(7)
    made = []
    for minute in range(MINUTES):
        for number, machine in enumerate(MACHINES):
            worn = max(0, minute - FAILS_AT) if machine == FAILING else 0
            jammed = worn > 0 and minute % 10 == 0
            temperature = 60 + 5 * number + 2 * math.sin(minute / 40) + draw.gauss(0, 0.5) + 8 * jammed
            vibration = 1 + draw.gauss(0, 0.1) + 0.05 * worn
            at = NOON + timedelta(minutes=minute)
            made.append({"machine": machine, "temperature": temperature, "vibration": vibration, "at": at})
    return made


def wear(rows: pl.DataFrame) -> pl.Series:
    """A model that somebody has fitted: how likely a machine is to stop soon. It could be scikit-learn's, or ONNX."""
    return 1 / (1 + (-(4 * (rows["vibration"] - 1.8))).exp())


def monitoring() -> ms.Flow:
    flow = ms.Flow("machine_anomalies")
    machines = flow.read("readings", READINGS, event_time="at")
    scored = machines.key_by("machine").learn(ms.ewma("temperature", alpha=0.05, threshold=5, warm_up=30))
    odd = scored.where("anomaly").predict(wear, "vibration", into="risk")
    odd.select("machine", "at", "temperature", "expected", "z", "risk").write("anomalies")
    return flow


def main(broker: str) -> None:
    with ms.connect(broker) as log:
        log.create_topic("readings", schema=READINGS)
        with log.producer() as producer:
            for row in readings():
                producer.send("readings", row, key=row["machine"])
    monitoring().run(broker=broker, batch=True, progress="none")
    table = Table(
        "at (UTC)", "machine", "temperature", "expected", "z", "risk", title="anomalies", title_justify="left"
    )
    with ms.connect(broker) as log, log.consumer("anomalies") as consumer:
        for record in consumer.until_caught_up():
            row = record.value
            numbers = (f"{row[name]:.1f}" for name in ("temperature", "expected", "z"))
            table.add_row(f"{row['at']:%H:%M}", row["machine"], *numbers, f"{row['risk']:.0%}")
    Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
