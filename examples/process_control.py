"""A tank controlled over MQTT: a flow opens and closes its inlet, and the tank protects itself if nobody controls it.

The tank is simulated in a process of its own. It publishes its level ten times a second, and obeys commands. The flow
joins each measurement with the set points, which operators change, and finds by a pattern when the level has passed a
limit: two measurements in a row, so that a splash does not move the valve. Between the limits nothing happens
(hysteresis). When the broker dies, the tank closes its inlet by itself, and control resumes when the broker is back.
"""

from __future__ import annotations

import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.bridges.landing import Landing
from millstream.bridges.mqtt.bridge import MqttBridge, MqttSource
from millstream.bridges.mqtt.client import MqttBroker

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from mosquitto_server import Mosquitto

LEVELS = "tank string, level double, inlet string, at timestamp"
SET_POINTS = "tank string, low double, high double"
TANK = "t1"
PERIOD_SECONDS = 0.1
INFLOW, OUTFLOW = 12.0, 4.0
"""Of the inlet while it is open, and of the consumers all the time: units per second."""
CAPACITY, FIRST_LEVEL = 100.0, 45.0
SAFE_AFTER_SECONDS = 2.0
"""Without a connection for so long, the tank closes its inlet."""
FIRST_POINTS, CHANGED_POINTS = (40.0, 60.0), (20.0, 30.0)
SWITCHES = 2
"""How often the flow must have moved the valve, in each part of the example."""
PATIENCE_SECONDS = 240.0


# ---------------------------------------------------------------- the tank, in its own process


class Tank:
    """Reports what it does as lines of JSON."""

    def __init__(self, port: int) -> None:
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._level, self._inlet = FIRST_LEVEL, "closed"
        self._moved_at = datetime.now(UTC)
        self._heard_at = time.monotonic()
        self._is_safe = False
        self._client = paho.Client(CallbackAPIVersion.VERSION2, f"tank-{TANK}", protocol=paho.MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = lambda client, *_: client.subscribe(f"plant/{TANK}/command", 1)
        self._client.on_message = lambda client, data, message: self._commands.put(json.loads(message.payload))
        self._client.connect_async("127.0.0.1", port)
        self._client.loop_start()

    def run(self) -> None:
        while True:
            time.sleep(PERIOD_SECONDS)
            self._flow()
            self._obey()
            self._protect()
            self._measure()

    def _flow(self) -> None:
        inflow = INFLOW if self._inlet == "open" else 0.0
        self._level = min(max(self._level + (inflow - OUTFLOW) * PERIOD_SECONDS, 0.0), CAPACITY)

    def _obey(self) -> None:
        """A command made of a measurement before the valve last moved was meant for another situation."""
        while not self._commands.empty():
            command = self._commands.get()
            measured = datetime.fromisoformat(command["measured"])
            if measured > self._moved_at and command["inlet"] != self._inlet:
                self._move(command["inlet"])
                self._report("switched", latency_ms=(self._moved_at - measured).total_seconds() * 1000)

    def _move(self, inlet: str) -> None:
        self._inlet, self._moved_at = inlet, datetime.now(UTC)

    def _protect(self) -> None:
        if self._client.is_connected():
            self._heard_at = time.monotonic()
            self._is_safe = False
        elif time.monotonic() - self._heard_at > SAFE_AFTER_SECONDS and not self._is_safe:
            self._is_safe = True
            self._move("closed")
            self._report("safe")

    def _measure(self) -> None:
        row = {"tank": TANK, "level": round(self._level, 2), "inlet": self._inlet, "at": datetime.now(UTC).isoformat()}
        if self._client.is_connected():  # an old measurement is of no use to anyone
            self._client.publish(f"plant/{TANK}/level", json.dumps(row), 1)

    def _report(self, what: str, **more: float) -> None:
        print(json.dumps({"what": what, "inlet": self._inlet, "level": self._level, **more}), flush=True)


class TankProcess:
    """The other end of its reports."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, __file__, "--tank", str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.reports: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.reports.append(json.loads(line))

    def wait_for(self, what: str, count: int) -> list[dict[str, Any]]:
        """The next reports of a kind."""
        before = len(self._of(what))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self._of(what)) < before + count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the tank did not report '{what}' in {PATIENCE_SECONDS:g} s")
            time.sleep(PERIOD_SECONDS)
        return self._of(what)[before:]

    def _of(self, what: str) -> list[dict[str, Any]]:
        return [report for report in list(self.reports) if report["what"] == what]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


# ---------------------------------------------------------------- control


def control(address: str) -> ms.Flow:
    flow = ms.Flow("process_control")
    points = flow.read("set_points", SET_POINTS).to_table(key="tank")
    levels = flow.read("levels", LEVELS, event_time="at", watermark=ms.bounded("0 seconds"))
    # As of now: a set point holds from the moment in which an operator has set it.
    measured = levels.join(points, on="tank", as_of="now")
    low = "level < low and inlet = 'closed'"
    high = "level > high and inlet = 'open'"
    opening = passed_twice(measured, "too_low", low).select("tank", inlet="'open'", measured="second.at")
    closing = passed_twice(measured, "too_high", high).select("tank", inlet="'closed'", measured="second.at")
    opening.union(closing).write(ms.mqtt(address, "plant/{tank}/command"), name="commands")
    return flow


def passed_twice(measured: ms.Stream, name: str, limit: str) -> Any:
    return measured.key_by("tank").match(ms.pattern("first", limit).next("second", limit), name=name)


def set_points(log: ms.Broker, low: float, high: float) -> None:
    with log.producer() as producer:
        producer.send("set_points", {"tank": TANK, "low": low, "high": high}, key=TANK)


def bridge_of(log: ms.Broker, address: str, opened: ExitStack) -> None:
    """Measurements into the topic, until the end."""
    landing = opened.enter_context(Landing(log, "plant", ["levels"]))
    source = MqttSource(MqttBroker(address), ["plant/+/level"], "process-control")
    bridge = MqttBridge(source, landing, "levels")
    thread = threading.Thread(target=bridge.run)
    thread.start()
    opened.callback(thread.join)
    opened.callback(bridge.stop)


def main(folder: str) -> None:
    with ExitStack() as opened:
        (Path(folder) / "mosquitto").mkdir(parents=True)
        broker = Mosquitto(Path(folder) / "mosquitto")
        opened.callback(broker.stop)
        log = opened.enter_context(ms.connect(f"{folder}/log"))
        log.create_topic("levels", schema=LEVELS)
        log.create_topic("set_points", schema=SET_POINTS)
        set_points(log, *FIRST_POINTS)
        bridge_of(log, broker.address, opened)
        tank = TankProcess(broker.port)
        opened.callback(tank.close)
        job = control(broker.address).start(broker=f"{folder}/log", progress="none")
        opened.callback(job.stop)

        first = tank.wait_for("switched", SWITCHES)
        set_points(log, *CHANGED_POINTS)
        changed = tank.wait_for("switched", SWITCHES + 1)[1:]  # one may still be by the set points of before
        broker.stop()
        (safe,) = tank.wait_for("safe", 1)
        broker.start()
        after = tank.wait_for("switched", SWITCHES)
    show([("set points 40 to 60", first), ("changed to 20 to 30", changed), ("after the broker was back", after)], safe)


def show(parts: list[tuple[str, list[dict[str, Any]]]], safe: dict[str, Any]) -> None:
    levels = Table("part", "inlet", "at level", title="the valve", title_justify="left")
    for name, reports in parts:
        for report in reports:
            levels.add_row(name, report["inlet"], f"{report['level']:.1f}")
    levels.add_row("the broker is dead", f"{safe['inlet']} by the tank itself", f"{safe['level']:.1f}")
    delays = [report["latency_ms"] for _, reports in parts for report in reports]
    latency = Table("from measurement to command", "ms", title="latency", title_justify="left")
    for name, value in (("shortest", min(delays)), ("median", statistics.median(delays)), ("longest", max(delays))):
        latency.add_row(name, f"{value:.0f}")
    Console().print(levels)
    Console().print(latency)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--tank"]:
        Tank(int(sys.argv[2])).run()
    else:
        with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
            main(folder)
