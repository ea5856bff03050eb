"""What every bridge into the log promises, whatever happens to it, its server, the network and the clock.

An accepted message is in the topic, once if messages have an id. What cannot be used is rejected or a dead letter, and
the bridge goes on.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar

from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.bridges.landing import Landing, dead_letter_topic
from millstream.log import EmbeddedLog
from millstream.testing.connectors.processes import KILLED, STEPS, Child, Jumps, Ready, Step, killed_around
from millstream.testing.connectors.proxy import FaultProxy
from millstream.testing.connectors.waiting import MOMENT_SECONDS, meanwhile, until

TOPIC = "messages"
SCHEMA = "id string, n int, padding string"
TOGETHER = 5
HOUR_SECONDS = 3600.0
LARGE_BYTES = 3 << 20
NAME = "under-test"
Runner = Callable[[Any, Ready], None]
"""Runs a bridge in its own process, until that is killed, with a `Landing` or a `PositionedLanding`.

It is pickled: a function of a module, or its partial.
"""


@dataclass(frozen=True)
class Message:
    id: str
    """Of the message, if the protocol has such a thing."""
    body: bytes

    @classmethod
    def numbered(cls, number: int, padding: int = 0) -> Message:
        id = f"message-{number}"
        return cls(id, json.dumps({"id": id, "n": number, "padding": "x" * padding}).encode())


class BridgeUnderTest(ABC):
    """A bridge, its server and its senders. `port` is always that of the proxy in front of `server_port`."""

    has_ids: ClassVar[bool] = True
    """Whether a message that is delivered twice is stored once."""
    keeps_positions: ClassVar[bool] = False
    """Whether the bridge stores its position in the server itself, with the messages: it gets a PositionedLanding."""
    server_port: int
    """Where connections end: those of the bridge, or those of senders if the bridge itself listens."""

    @abstractmethod
    def runner(self, port: int) -> Runner:
        """Runs the bridge, which accepts messages of up to 1 MiB."""

    @abstractmethod
    def send(self, messages: Sequence[Message], port: int) -> None:
        """Sends, and repeats what fails, until each message was accepted, or rejected for good."""

    @abstractmethod
    def restart_server(self) -> None:
        """Stops the server and starts it again. A bridge that listens itself has none: nothing happens."""


@dataclass(frozen=True)
class Faults:
    """What happens to a process, in the call that stores messages."""

    killed: Step | None = None
    slow_seconds: float = 0.0
    clock_jumps_seconds: float = 0.0


def _break(landing: Landing | PositionedLanding, faults: Faults) -> None:
    """In the process of the bridge."""
    jump = Jumps(faults.clock_jumps_seconds) if faults.clock_jumps_seconds else None
    land = killed_around(landing.land, faults.killed)

    def faulty(*given: Any) -> Any:
        time.sleep(faults.slow_seconds)
        if jump is not None:
            jump()
        return land(*given)

    landing.land = faulty  # type: ignore[assignment, method-assign]


def _bridge(ready: Ready, folder: Path, runner: Runner, faults: Faults, keeps_positions: bool) -> None:
    with (
        EmbeddedLog(folder) as log,
        PositionedLanding(log, NAME, TOPIC) if keeps_positions else Landing(log, NAME, [TOPIC]) as landing,
    ):
        _break(landing, faults)
        runner(landing, ready)


class Bench:
    """A log, a proxy, and the process of the bridge."""

    def __init__(self, bridge: BridgeUnderTest, folder: Path) -> None:
        self.bridge = bridge
        self._folder = folder / "bridged"
        self.log = EmbeddedLog(self._folder, upkeep=False)
        self.log.create_topic(TOPIC, schema=SCHEMA)
        self.proxy = FaultProxy(bridge.server_port)
        self._numbers = count()
        self._sent: list[Message] = []
        self._child: Child | None = None

    def start(self, faults: Faults | None = None) -> Child:
        """Replaces the process of the bridge, if there is one."""
        if self._child is not None:
            self._child.kill()
        runner = self.bridge.runner(self.proxy.port)
        given = faults or Faults()
        self._child = Child(_bridge, self._folder, runner, given, self.bridge.keeps_positions)
        self._child.wait_until_ready(may_be_killed=given.killed is not None)
        return self._child

    def made(self, messages: int = TOGETHER) -> list[Message]:
        return [Message.numbered(next(self._numbers)) for _ in range(messages)]

    def send(self, messages: Sequence[Message] | None = None) -> list[Message]:
        """New messages, unless some are given. Returns when all were accepted."""
        given = self.made() if messages is None else list(messages)
        self.bridge.send(given, self.proxy.port)
        self._sent += given
        return given

    def sending(self) -> AbstractContextManager[None]:
        """Meanwhile, new messages are sent; at the end all were accepted."""
        return meanwhile(self.send, "all messages are accepted")

    def check(self) -> None:
        """Waits until all accepted messages are in the topic, and nothing else is."""
        sent = Counter(message.id for message in self._sent)
        expected = sent if self.bridge.keeps_positions else Counter(set(sent))
        until(lambda: expected <= Counter(self.ids()), "all accepted messages are in the topic")
        found = Counter(self.ids())
        assert set(found) == set(sent)
        if self.bridge.keeps_positions:
            assert found == sent, "each is stored as often as it was sent"
        if self.bridge.has_ids:
            twice = sorted(id for id, times in found.items() if times > 1)
            assert not twice, f"stored more than once: {twice}"

    def ids(self) -> list[str]:
        return [row["id"] for row in self.rows(TOPIC)]

    def rows(self, topic: str) -> list[dict[str, Any]]:
        if topic not in self.log.topics():
            return []
        with self.log.consumer(topic) as consumer:
            return [record.value for record in consumer.until_caught_up()]

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
        self.proxy.close()
        self.log.close()


@contextmanager
def bench_of(bridge: BridgeUnderTest, folder: Path) -> Iterator[Bench]:
    made = Bench(bridge, folder)
    try:
        yield made
        made.check()
    finally:
        made.close()


class BridgeSuite:
    """Subclass it in a file of tests, and give it a fixture `bridge` with a BridgeUnderTest."""

    kills: ClassVar[int] = 5

    def test_killed_at_every_step(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            for _, step in zip(range(self.kills), cycle(STEPS), strict=False):
                victim = bench.start(Faults(killed=step))
                with bench.sending():
                    assert victim.wait_until_dead() == KILLED
                    bench.start()

    def test_a_message_that_is_delivered_twice(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            sent = bench.send()
            bench.send(sent)
            bench.start()
            bench.send(sent)
            bench.send()

    def test_a_server_that_restarts(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bench.send()
            with bench.sending():
                bridge.restart_server()
            bench.send()

    def test_a_slow_server_and_a_slow_disk(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.proxy.delay_seconds = MOMENT_SECONDS / 10
            bench.start(Faults(slow_seconds=MOMENT_SECONDS))
            bench.send()

    def test_connections_that_are_cut(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start(Faults(slow_seconds=MOMENT_SECONDS))  # so that messages are on the way
            for _ in range(3):
                with bench.sending():
                    time.sleep(MOMENT_SECONDS / 2)
                    bench.proxy.cut()

    def test_one_direction_fails(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            for direction in ("to_server", "to_client"):
                bench.proxy.hold(direction)
                with bench.sending():
                    time.sleep(MOMENT_SECONDS)
                    bench.proxy.cut()
                    bench.proxy.heal()

    def test_a_connection_that_is_half_open(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bench.send()
            bench.proxy.freeze()
            bench.send()
            bench.check()  # the other side notices it without being notified

    def test_a_malformed_message(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bad = Message("bad", b'{"n": "many"}')
            bridge.send([bad], bench.proxy.port)
            bench.send()
            until(lambda: bench.rows(dead_letter_topic(TOPIC)), "it is a dead letter")
            (letter, *_) = bench.rows(dead_letter_topic(TOPIC))
            assert letter["value"] == bad.body
            assert letter["reason"]

    def test_a_message_that_is_too_large(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        """Whether the sender learns it, or it becomes a dead letter, depends on the protocol."""
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bridge.send([Message.numbered(-1, LARGE_BYTES)], bench.proxy.port)
            bench.send()

    def test_a_clock_that_jumps(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start(Faults(clock_jumps_seconds=HOUR_SECONDS))
            sent = [bench.send() for _ in range(3)]
            for messages in sent:
                bench.send(messages)
            bench.start()
            bench.send(sent[0])
