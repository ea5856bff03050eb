"""Alerts about devices: too hot for three readings in a row, silent for two minutes, and back again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.plan.steps.process import Key

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "device string, celsius double, at timestamp"
HOT, TIMES, SILENCE = 80.0, 3, timedelta(minutes=2)


def readings() -> Iterator[tuple[datetime, str, float]]:
    """Ten minutes, a reading every 20 seconds: a fan falls silent, a pump runs hot, an oven is hot only once."""
    for number in range(30):
        at = NOON + timedelta(seconds=20 * number)
        if not 6 <= number < 25:
            yield at, "fan", 40.0
        yield at, "pump", 95.0 if 10 <= number < 15 else 60.0
        yield at, "oven", 99.0 if number == 3 else 70.0


def watched(row: dict[str, Any], key: Key) -> Iterator[dict[str, Any]]:
    """Called for each reading. `key.state` is the state of the device; it survives a restart."""
    if key.state.pop("is_silent", False):
        yield {"at": row["at"], "device": row["device"], "alert": "back"}
    hot = key.state["hot"] = key.state.get("hot", 0) + 1 if row["celsius"] > HOT else 0
    if hot == TIMES:  # once, not again with the fourth
        alert = f"{TIMES} times hotter than {HOT:.0f} °C: {row['celsius']:.0f} °C"
        yield {"at": row["at"], "device": row["device"], "alert": alert}
    key.at_event_time(row["at"] + SILENCE, "silence")  # there is one timer of this name: it is moved


def silent(tag: str, time: datetime, key: Key) -> dict[str, Any]:
    """Called when the watermark passes the timer: in event time, so replaying an old day gives that day's alerts."""
    key.state["is_silent"] = True
    return {"at": time, "device": key["device"], "alert": f"silent since {time - SILENCE:%H:%M:%S}"}


def alerts() -> ms.Flow:
    flow = ms.Flow("device-monitoring")
    stream = flow.read("devices", SCHEMA, event_time="at", watermark=ms.bounded("10 seconds"))
    made = stream.key_by("device").process(watched, "at timestamp, device string, alert string", on_timer=silent)
    made.write("alerts")
    return flow


def main(broker: str) -> None:
    with ms.connect(broker) as log:
        log.create_topic("devices", schema=SCHEMA)
        with log.producer() as producer:
            for at, device, celsius in readings():
                producer.send("devices", {"device": device, "celsius": celsius, "at": at}, key=device)
        # All ten minutes at once: readings and timers come in one order of event time, so the alerts are those of a run
        # that saw the readings live.
        alerts().run(until="caught up", broker=broker)

        table = Table("at (UTC)", "device", "alert", title="alerts", title_justify="left")
        rows = [record.value for record in log.consumer("alerts").until_caught_up()]
        for row in sorted(rows, key=lambda row: (row["at"], row["device"])):
            table.add_row(f"{row['at']:%H:%M:%S}", row["device"], row["alert"])
        Console().print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
