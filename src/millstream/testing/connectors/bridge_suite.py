"""What every bridge into the log promises, whatever happens to it, its server, the network and the clock.

An accepted message is in the topic, once if messages have an id. What cannot be used is rejected or a dead letter, and
the bridge goes on. A protocol without acknowledgements declares what it may lose, and loses nothing else.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar

from millstream.bridges.growing_files.positioned import PositionedLanding
from millstream.bridges.landing import Landing, dead_letter_topic
from millstream.bridges.reports import read_reports, reports_folder
from millstream.log import EmbeddedLog
from millstream.log.storage.partition import Partition
from millstream.testing.connectors.processes import KILLED, STEPS, Child, Jumps, Ready, Step, killed_around
from millstream.testing.connectors.proxy import FaultProxy
from millstream.testing.connectors.waiting import MOMENT_SECONDS, meanwhile, until

TOPIC = "messages"
SCHEMA = "id string, n int, padding string"
TOGETHER = 5
HOUR_SECONDS = 3600.0
NAME = "under-test"
Runner = Callable[[Any, Ready], None]
"""Runs a bridge in its own process, until that is killed, with a `Landing`, a `PositionedLanding` or the log.

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
    is_exact: ClassVar[bool] = False
    """Whether a message is stored as often as it is sent: never lost, and never doubled."""
    keeps_positions: ClassVar[bool] = False
    """Whether the bridge stores its position itself, with the messages: it gets a PositionedLanding, and is exact."""
    uses_the_log: ClassVar[bool] = False
    """Whether the bridge gets the log itself."""
    listens: ClassVar[bool] = False
    """Whether the bridge itself is the server: then it is the bridge that restarts."""
    rejects_malformed: ClassVar[bool] = False
    """Whether the sender of a malformed message learns it, instead of a dead letter. `send` checks it."""
    may_lose: ClassVar[str] = ""
    """What is lost in a protocol without acknowledgements. What is sent while nothing fails is stored all the same."""
    large_bytes: ClassVar[int] = 3 << 20
    """The size of a message that is too large for the bridge."""
    schema: ClassVar[str | None] = SCHEMA
    """Of the topic."""
    server_port: int = 0
    """Where connections end: those of the bridge, or those of senders if the bridge itself listens."""

    @abstractmethod
    def runner(self, port: int) -> Runner:
        """Runs the bridge, which accepts messages of up to 1 MiB, or of less than `large_bytes`."""

    @abstractmethod
    def send(self, messages: Sequence[Message], port: int) -> None:
        """Sends, and repeats what fails, until each message was accepted, or rejected for good.

        Without acknowledgements, it returns when the messages are on their way.
        """

    def restart_server(self) -> None:
        """Stops the server and starts it again."""
        raise NotImplementedError("a bridge that does not listen has a server")

    def lose(self, messages: int, port: int) -> None:
        """Sends messages that do not arrive, if it can. The bridge reports as many as missing."""
        raise NotImplementedError("a protocol with numbers can lose messages")

    def id_of(self, row: Any) -> str:
        """Of the message that became this row."""
        return str(row["id"])


@dataclass(frozen=True)
class Faults:
    """What happens to a process, in the call that stores messages."""

    killed: Step | None = None
    slow_seconds: float = 0.0
    clock_jumps_seconds: float = 0.0


def _faulty(work: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    """In the process of the bridge."""
    jump = Jumps(faults.clock_jumps_seconds) if faults.clock_jumps_seconds else None
    killed = killed_around(work, faults.killed)

    def faulty(*given: Any, **named: Any) -> Any:
        time.sleep(faults.slow_seconds)
        if jump is not None:
            jump()
        return killed(*given, **named)

    return faulty


def _break_appends(faults: Faults) -> None:
    """Those to the topic, from whichever producer."""
    append = Partition.append
    faulty = _faulty(append, faults)

    def broken(self: Partition, *given: Any, **named: Any) -> Any:
        return (faulty if self.topic == TOPIC else append)(self, *given, **named)

    Partition.append = broken  # type: ignore[method-assign]


def _bridge(ready: Ready, folder: Path, runner: Runner, faults: Faults, kind: type[BridgeUnderTest]) -> None:
    with EmbeddedLog(folder) as log:
        if kind.uses_the_log:
            _break_appends(faults)
            runner(log, ready)
            return
        landings = partial(PositionedLanding, topic=TOPIC) if kind.keeps_positions else partial(Landing, topics=[TOPIC])
        with landings(log, NAME) as landing:
            landing.land = _faulty(landing.land, faults)  # type: ignore[method-assign]
            runner(landing, ready)


class Bench:
    """A log, a proxy, and the process of the bridge."""

    def __init__(self, bridge: BridgeUnderTest, folder: Path) -> None:
        self.bridge = bridge
        self._folder = folder / "bridged"
        self.log = EmbeddedLog(self._folder, upkeep=False)
        self.log.create_topic(TOPIC, schema=bridge.schema)
        self.proxy = FaultProxy(bridge.server_port)
        self._numbers = count()
        self._sent: list[Message] = []
        self._at_risk: list[Message] = []
        self._child: Child | None = None

    def start(self, faults: Faults | None = None) -> Child:
        """Replaces the process of the bridge, if there is one."""
        if self._child is not None:
            if self.bridge.may_lose and self._child.is_alive:
                self._wait()  # that what was sent before is lost is not the point of the test
            self._child.kill()
        runner = self.bridge.runner(self.proxy.port)
        given = faults or Faults()
        self._child = Child(_bridge, self._folder, runner, given, type(self.bridge))
        self._child.wait_until_ready(may_be_killed=given.killed is not None)
        return self._child

    def made(self, messages: int = TOGETHER) -> list[Message]:
        return [Message.numbered(next(self._numbers)) for _ in range(messages)]

    def send(self, messages: Sequence[Message] | None = None, *, is_at_risk: bool = False) -> list[Message]:
        """New messages, unless some are given. Returns when all were accepted."""
        given = self.made() if messages is None else list(messages)
        (self._at_risk if is_at_risk else self._sent).extend(given)
        self.bridge.send(given, self.proxy.port)
        return given

    def sending(self) -> AbstractContextManager[None]:
        """Meanwhile, new messages are sent; at the end all were accepted, as far as senders of the protocol know."""
        return meanwhile(partial(self.send, is_at_risk=bool(self.bridge.may_lose)), "all messages are accepted")

    def passes(self, messages: Sequence[Message]) -> bool:
        """Sends them, and returns whether they have arrived a moment later."""
        self.send(messages, is_at_risk=True)
        time.sleep(MOMENT_SECONDS)
        return {message.id for message in messages} <= set(self.ids())

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()

    def missing(self) -> int | None:
        """As the bridge reports it."""
        return next((each["missing"] for each in read_reports(reports_folder(self.log))), None)

    def _wait(self) -> None:
        sent = Counter(message.id for message in self._sent)
        expected = sent if self._is_exact else Counter(set(sent))
        until(lambda: expected <= Counter(self.ids()), "all accepted messages are in the topic")

    @property
    def _is_exact(self) -> bool:
        return self.bridge.keeps_positions or self.bridge.is_exact

    def check(self) -> None:
        """Waits until all accepted messages are in the topic, and nothing else is."""
        self._wait()
        sent = Counter(message.id for message in self._sent)
        at_risk = Counter(message.id for message in self._at_risk)
        found = Counter(self.ids())
        assert set(sent) <= set(found) <= set(sent | at_risk)
        if self._is_exact:
            assert found == sent, "each is stored as often as it was sent"
        if self.bridge.may_lose:
            assert found <= sent + at_risk, "none is stored more often than it was sent"
        if self.bridge.has_ids:
            twice = sorted(id for id, times in found.items() if times > 1)
            assert not twice, f"stored more than once: {twice}"

    def ids(self) -> list[str]:
        return [self.bridge.id_of(row) for row in self.rows(TOPIC)]

    def rows(self, topic: str) -> list[Any]:
        if topic not in self.log.topics():
            return []
        with self.log.consumer(topic) as consumer:
            return [record.value for record in consumer.until_caught_up()]

    def close(self) -> None:
        self.stop()
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


class DoorSuite:
    """For bridges without connections that a proxy could break. Give it a fixture `bridge` with a BridgeUnderTest."""

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

    def test_a_bridge_that_was_away(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bench.send()
            bench.check()
            bench.stop()
            with bench.sending():
                time.sleep(MOMENT_SECONDS)
                bench.start()
            bench.send()

    def test_a_slow_server_and_a_slow_disk(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.proxy.delay_seconds = MOMENT_SECONDS / 10
            bench.start(Faults(slow_seconds=MOMENT_SECONDS))
            bench.send()

    def test_a_malformed_message(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bad = Message("bad", b'{"n": "many"}')
            bridge.send([bad], bench.proxy.port)
            bench.send()
            if not bridge.rejects_malformed:
                until(lambda: bench.rows(dead_letter_topic(TOPIC)), "it is a dead letter")
                (letter, *_) = bench.rows(dead_letter_topic(TOPIC))
                assert bad.body in letter["value"]
                assert letter["reason"]
                assert letter["topic"], "where it came from"

    def test_a_message_that_is_too_large(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        """Whether the sender learns it, or it becomes a dead letter, depends on the protocol."""
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bridge.send([Message.numbered(-1, bridge.large_bytes)], bench.proxy.port)
            bench.send()

    def test_a_clock_that_jumps(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start(Faults(clock_jumps_seconds=HOUR_SECONDS))
            sent = [bench.send() for _ in range(3)]
            for messages in sent:
                bench.send(messages)
            bench.start()
            bench.send(sent[0])


class BridgeSuite(DoorSuite):
    """Subclass it in a file of tests, and give it a fixture `bridge` with a BridgeUnderTest."""

    def test_a_server_that_restarts(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bench.send()
            with bench.sending():
                if bridge.listens:
                    bench.start()
                else:
                    bridge.restart_server()
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
            if bridge.may_lose:
                until(lambda: bench.passes(bench.made(1)), "messages pass again")
            bench.send()
            bench.check()  # the other side notices it without being notified


class NumberedSuite:
    """For bridges of protocols that may lose messages, and number them: subclass it together with one of the others."""

    def test_what_is_lost_is_counted(self, bridge: BridgeUnderTest, tmp_path: Path) -> None:
        with bench_of(bridge, tmp_path) as bench:
            bench.start()
            bench.send()
            bench.check()
            bridge.lose(TOGETHER, bench.proxy.port)
            bench.send()
            bench.check()
            until(lambda: bench.missing() == TOGETHER, "what is missing is counted")
