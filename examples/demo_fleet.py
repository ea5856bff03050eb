"""The pumps of the demo, in their own process: they send readings to a topic, as unreliably as real ones.

A pump sends JSON with the time of the reading. Delivery takes up to two seconds, so readings arrive out of order. From
time to time a pump loses its connection, stores its readings, and sends them late when it is back. Every fifth such gap
is so long that some of them are too late. A few readings are malformed.

Several times a second a line on standard output reports what was sent. The fleet ends when its standard input is
closed, and so with the demo, however that ends.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import signal
import sys
import threading
import time
from datetime import UTC, datetime

import millstream as ms

TOPIC = "readings"
PUMPS = [f"pump-{number}" for number in range(1, 9)]
READINGS_PER_SECOND = 20
TICK_S = 0.05
TELL_S = 0.25
BROKEN_SHARE = 0.001
GAP_EVERY_S = 7.0
GAP_S = (8.0, 13.0)
LONG_GAP_S = (32.0, 36.0)
LONG_GAP_EACH = 5


class Fleet:
    """The readings in flight and those that were sent. Time is passed in."""

    def __init__(self, chance: random.Random, began_at: float) -> None:
        self._chance = chance
        self._on_the_way: list[tuple[float, int, str, float, int]] = []  # by the time at which it arrives
        self._numbers = 0
        self._gaps = 0
        self._next_gap_at = began_at + 4.0
        self._back_at: dict[str, float] = {}
        self._flow = {pump: chance.uniform(4, 12) for pump in PUMPS}
        self.sent = self.litres = self.broken = 0

    def silent(self, now: float) -> list[str]:
        return sorted(pump for pump, back_at in self._back_at.items() if back_at > now)

    def measure(self, now: float, seconds: float) -> None:
        """Takes new readings. One that is stored during a gap arrives when the pump is back."""
        chance = self._chance
        if now >= self._next_gap_at:
            self._next_gap_at = now + GAP_EVERY_S
            self._gaps += 1
            away = LONG_GAP_S if self._gaps % LONG_GAP_EACH == 2 else GAP_S
            connected = sorted(set(PUMPS) - set(self.silent(now)))
            self._back_at[chance.choice(connected)] = now + chance.uniform(*away)
        for pump in PUMPS:
            self._flow[pump] = min(14.0, max(3.0, self._flow[pump] + chance.uniform(-0.3, 0.3)))
            while chance.random() < READINGS_PER_SECOND * seconds / (1 + READINGS_PER_SECOND * seconds):
                arrives_at = max(now, self._back_at.get(pump, 0.0)) + chance.uniform(0.0, 1.0) ** 3 * 2.0
                self._numbers += 1
                reading = (arrives_at, self._numbers, pump, now, round(self._flow[pump]))
                heapq.heappush(self._on_the_way, reading)

    def send(self, producer: ms.log.Producer, now: float) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= now:
            _, _, pump, measured_at, litres = heapq.heappop(self._on_the_way)
            reading = {"device": pump, "litres": litres, "at": datetime.fromtimestamp(measured_at, UTC).isoformat()}
            value = json.dumps(reading).encode()
            if self._chance.random() < BROKEN_SHARE:
                value = self._chance.choice([value[:-9], json.dumps(reading | {"litres": "??"}).encode()])
                self.broken += 1
            else:
                self.litres += litres
            producer.send(TOPIC, value, key=pump)
            self.sent += 1

    def report(self, now: float) -> str:
        return json.dumps({"sent": self.sent, "broken": self.broken, "litres": self.litres, "silent": self.silent(now)})


def main(folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # these are for the demo, which then lets go of the leash
        signal.signal(number, signal.SIG_IGN)
    ended = threading.Event()
    threading.Thread(target=_held, args=(ended,), daemon=True).start()
    fleet = Fleet(random.Random(), time.time())
    before, reported_at = time.time(), 0.0
    with ms.connect(folder) as log, log.producer(linger="20 milliseconds") as producer:
        while not ended.wait(TICK_S):
            now = time.time()
            fleet.measure(now, now - before)
            fleet.send(producer, now)
            before = now
            if now - reported_at >= TELL_S:
                reported_at = now
                print(fleet.report(now), flush=True)
    # Said again when all of it is in the log: this is what the results are compared with.
    print(fleet.report(time.time()), flush=True)


def _held(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BrokenPipeError:  # the demo is gone
        os._exit(1)
