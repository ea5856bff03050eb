"""A market feed over UDP multicast, sent twice: gaps of one line are filled from the other, and trades go out.

A process of its own sends every quote to two multicast groups, and both lines lose some. Each quote is stored once, and
what both lines have lost is counted. A trader reads the topic, and sends an order as a datagram when a price falls far
below its average. Runs without Spark.
"""

from __future__ import annotations

import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.bridges.landing import Landing
from millstream.bridges.sockets.listener import Doors, Numbered, Reader, Traffic, datagram_socket
from millstream.bridges.sockets.running import serve

HOST = "127.0.0.1"
GROUPS = ("239.7.7.1", "239.7.7.2")
QUOTES = 2000
NUMBER_BYTES = 8
LOSS = 0.05
LOST_ON_BOTH = (777, 778)
SYMBOLS = ("TEA", "MILK")
AVERAGED = 20
FALL = 0.99
LAST_SENT_SECONDS = 20.0


def feed(port: int) -> None:
    """In its own process. The last quote is repeated for a while, as feeds do: so a loss at the end is noticed."""
    chance = random.Random(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HOST))
        for number in range(QUOTES):
            symbol = SYMBOLS[number % len(SYMBOLS)]
            quote = {"symbol": symbol, "price": round(chance.gauss(100, 0.6), 2), "at": time.time()}
            datagram = number.to_bytes(NUMBER_BYTES) + json.dumps(quote).encode()
            for group in GROUPS:
                is_first_or_last = number in (0, QUOTES - 1)
                if is_first_or_last or (number not in LOST_ON_BOTH and chance.random() > LOSS):
                    sender.sendto(datagram, (group, port))
            time.sleep(0.0005)
        until = time.monotonic() + LAST_SENT_SECONDS
        while time.monotonic() < until:
            sender.sendto(datagram, (GROUPS[0], port))
            time.sleep(0.1)


class Trader:
    """Buys when a price is far below the average of the quotes before it."""

    def __init__(self, exchange: socket.socket) -> None:
        self._exchange = exchange
        self._to = exchange.getsockname()
        self._prices: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=AVERAGED))
        self.orders = 0
        self.delays_ms: list[float] = []

    def take(self, quote: dict[str, Any]) -> None:
        price, seen = quote["price"], self._prices[quote["symbol"]]
        if len(seen) == AVERAGED and price < FALL * statistics.mean(seen):
            self._exchange.sendto(json.dumps({"buy": quote["symbol"], "at_most": price}).encode(), self._to)
            self.orders += 1
            self.delays_ms.append(1000 * (time.time() - quote["at"]))
        seen.append(price)


def trade(log: ms.Broker, trader: Trader) -> None:
    """Until the last quote has come."""
    with log.consumer("quotes") as consumer:
        while True:
            for record in consumer.poll(1):
                trader.take(json.loads(record.value[NUMBER_BYTES:]))
                if int(dict(record.headers)["sequence"]) == QUOTES - 1:
                    return


def main(broker: str) -> None:
    traffic = Traffic()
    stops: list[Callable[[], None]] = []
    with ExitStack() as opened:
        log = opened.enter_context(ms.connect(broker))
        log.create_topic("quotes")
        port = opened.enter_context(datagram_socket(HOST, 0)).getsockname()[1]
        lines = [opened.enter_context(datagram_socket(HOST, port, group)) for group in GROUPS]
        exchange = opened.enter_context(datagram_socket(HOST, 0))
        landing = opened.enter_context(Landing(log, "market", ["quotes"]))
        doors = Doors(datagrams=lines, numbered=Numbered(0, NUMBER_BYTES))
        ready = threading.Event()

        def on_ready(stop: Callable[[], None]) -> None:
            stops.append(stop)
            ready.set()

        bridge = threading.Thread(
            target=serve, args=(landing, doors, Reader("quotes", "lines"), traffic, on_ready), daemon=True
        )
        bridge.start()
        ready.wait()
        source = subprocess.Popen([sys.executable, __file__, "--feed", str(port)])
        trader = Trader(exchange)
        trade(log, trader)
        source.kill()
        source.wait()
        stops[0]()
        bridge.join()

    table = Table("quotes and orders", "", title="a feed over two lines", title_justify="left")
    table.add_row("quotes sent, on each line", str(QUOTES))
    table.add_row("stored", str(landing.counts.stored))
    table.add_row("came on both lines, stored once", str(traffic.numbers.duplicates))
    table.add_row("lost on both lines", str(traffic.numbers.missing))
    table.add_row("orders sent", str(trader.orders))
    if trader.delays_ms:
        table.add_row("from quote to order, median ms", f"{statistics.median(trader.delays_ms):.1f}")
        table.add_row("from quote to order, longest ms", f"{max(trader.delays_ms):.1f}")
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--feed"]:
        feed(int(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
            main(folder)
