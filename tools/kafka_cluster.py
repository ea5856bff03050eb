"""A real Apache Kafka on this machine, of one or three brokers, gone when its starter is. `make kafka` runs this.

usage: kafka_cluster.py [--nodes 1|3] [--folder FOLDER] [--port PORT]

Kafka's jars are brought by Maven once and kept in `.kafka/`. Every node is broker and controller in one (KRaft).
"""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata

from foreground import run
from kafka_jars import BROKER, CONNECTOR, HERE, KafkaFailed, KafkaUnavailable, assemble, find_java
from kafka_node import CERTIFICATE, HOST, Node, free_ports, is_free, make_certificate, settings_of

__all__ = ["BROKER", "CONNECTOR", "KafkaCluster", "KafkaFailed", "KafkaUnavailable", "assemble"]

START_S_MAX = 600  # on a busy machine; a node that dies meanwhile is noticed at once
QUICK_START = ["-XX:TieredStopAtLevel=1"]
STOP_S_MAX = 20
ASK_S = 10
USUAL_PORT = 9092
ANSWER_S_MAX = 300
SPREAD_S_MAX = 3  # not every broker has heard of a topic that was just made


class KafkaCluster:
    """One or three brokers on free ports of the loopback interface; what they store stays in `folder`.

    `first_port` is that of the first broker if it is free, and the others' follow it.
    With three, a topic has three replicas unless it says otherwise, and a record is acknowledged when two have it.
    With `users` (names and passwords) there is a listener with SASL_SSL beside the plain one.
    `settings` are those of a broker and go before the ones made here.
    Brokers that are `short_lived` compile no hot code: they start with two thirds of the CPU time, and run slower.
    """

    def __init__(
        self,
        nodes: int = 1,
        folder: str | Path | None = None,
        *,
        users: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        first_port: int | None = None,
        short_lived: bool = False,
    ) -> None:
        if nodes not in (1, 3):
            raise KafkaFailed(f"a cluster has one broker or three, not {nodes}", next_step="say nodes=1 or nodes=3")
        self.folder = Path(folder or f"{tempfile.gettempdir()}/millstream-kafka-{uuid.uuid4().hex}").resolve()
        self._temporary = folder is None
        self._users = dict(users or {})
        self._settings = dict(settings or {})
        self._first_port = first_port
        self._short_lived = short_lived
        self._numbers = range(1, nodes + 1)
        self._nodes: dict[int, Node] = {}
        self._command: list[str] = []
        self._lock: IO[str] | None = None
        self._admin: AdminClient | None = None

    # ------------------------------------------------------------ where it is

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for `bootstrap.servers`."""
        return ",".join(f"{HOST}:{node.port}" for node in self._nodes.values())

    @property
    def secure_bootstrap(self) -> str:
        """The same for SASL_SSL (mechanisms PLAIN and SCRAM); `certificate` is the one to trust."""
        return ",".join(f"{HOST}:{node.secure_port}" for node in self._nodes.values())

    @property
    def certificate(self) -> Path:
        """What the brokers show to clients with SASL_SSL, as PEM: for `ssl.ca.location`."""
        return self.folder / CERTIFICATE

    def pid(self, number: int) -> int:
        """The process group of a node: `os.killpg` with SIGSTOP and SIGCONT makes it hang and go on."""
        process = self._node(number).process
        if process is None:
            raise KafkaFailed(f"node {number} does not run", next_step="restart it")
        return process.pid

    # ------------------------------------------------------------ starting and stopping

    def start(self) -> Self:
        """Returns when every broker is known to the others and answers; if that fails, none is left running."""
        if self._nodes:
            return self
        jars, runtime = assemble(), find_java()
        self._take_folder()
        atexit.register(self._kill_at_exit, os.getpid())
        try:
            ports = free_ports(3 * len(self._numbers))
            self._nodes = {
                n: Node(n, self.folder, self._port(n) or ports.pop(), ports.pop(), ports.pop()) for n in self._numbers
            }
            program = [str(runtime.command), "-cp", f"{jars}/*"]
            if self._users:
                make_certificate(runtime, self.folder)
            self._write_settings()
            self._format(program)
            memory = ["-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={HERE / 'log4j2.yaml'}"]
            compiler = QUICK_START if self._short_lived else []
            self._command = [program[0], *memory, *compiler, *program[1:], "kafka.Kafka"]
            for node in self._nodes.values():
                node.start([*self._command, str(node.settings)])
            self._admin = _client(self.bootstrap)
            self._until_ready(*self._numbers)
        except BaseException:
            for node in self._nodes.values():
                node.send(signal.SIGKILL)
            self._temporary = False  # the logs say why
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """All at once: cleanly, and what they stored stays; or, in a temporary folder, by force, and nothing does.

        A clean stop has a time limit: the last of three brokers may wait forever for the others to take over.
        """
        self._admin = None
        for node in self._nodes.values():
            node.send(signal.SIGKILL if self._temporary else signal.SIGTERM)
        deadline = time.monotonic() + STOP_S_MAX
        for node in self._nodes.values():
            node.wait(max(0.0, deadline - time.monotonic()))
        self._nodes = {}
        atexit.unregister(self._kill_at_exit)
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, number: int) -> None:
        """As `kill -9` does: no goodbye to the others, nothing flushed."""
        node = self._node(number)
        node.send(signal.SIGKILL)
        node.wait(STOP_S_MAX)

    def restart(self, number: int) -> None:
        """Starts a node that was killed, at the same address; stops it cleanly before if it runs."""
        node = self._node(number)
        node.send(signal.SIGTERM)
        node.wait(STOP_S_MAX)
        node.start([*self._command, str(node.settings)])
        self._until_ready(number)

    def ended(self) -> KafkaFailed | None:
        """What to say about a node that ended without being asked to, if there is one."""
        for node in self._nodes.values():
            if node.process is not None and not node.runs:
                return node.failed(f"node {node.number} ended")
        return None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------ what it says of itself

    def leader_of(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition; None while there is none."""
        deadline = time.monotonic() + SPREAD_S_MAX
        while partition not in (said := self._metadata(topic).topics[topic]).partitions:
            if time.monotonic() > deadline:
                raise KafkaFailed(f"no partition {partition} of topic {topic!r}: {said.error or 'it has fewer'}")
            time.sleep(0.1)
        leader = said.partitions[partition].leader
        return leader if leader in self._nodes else None

    def controller(self) -> int | None:
        """The node that leads the controllers; None while there is none.

        Clients are given any broker, since all forward requests. The controllers themselves keep it in a small file.
        """
        latest: tuple[int, int | None] = (-1, None)
        for node in self._nodes.values():
            if node.runs:
                with contextlib.suppress(OSError, ValueError):  # not written yet, or being replaced
                    said = json.loads((node.data / "__cluster_metadata-0" / "quorum-state").read_text())
                    latest = max(latest, (said["leaderEpoch"], said["leaderId"]), key=lambda known: known[0])
        leader = latest[1]
        return leader if leader in self._nodes and self._nodes[leader].runs else None

    def wait_in_sync(self, timeout_s: float = START_S_MAX) -> None:
        """Until every replica of every partition has all records of its leader."""

        def in_sync() -> bool:
            topics = self._ask().topics.values()
            return all(set(p.isrs) == set(p.replicas) for topic in topics for p in topic.partitions.values())

        if not _until(in_sync, timeout_s):
            raise KafkaFailed(f"some replicas are still behind after {timeout_s} s", where=str(self.folder))

    # ------------------------------------------------------------ within

    def _node(self, number: int) -> Node:
        if number not in self._nodes:
            raise KafkaFailed(f"no node {number}: there are {list(self._nodes) or 'none, the cluster is not started'}")
        return self._nodes[number]

    def _ask(self, topic: str | None = None) -> ClusterMetadata:
        if self._admin is None:
            raise KafkaFailed("the cluster is not started", next_step="start() it")
        return self._admin.list_topics(topic, timeout=ASK_S) if topic else self._admin.list_topics(timeout=ASK_S)

    def _metadata(self, topic: str) -> ClusterMetadata:
        """Asks again if the broker that was asked is the one that has just been killed."""
        deadline = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                return self._ask(topic)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise KafkaFailed(f"no broker answered within {ANSWER_S_MAX} s", where=self.bootstrap) from error
                time.sleep(0.1)

    def _until_ready(self, *numbers: int) -> None:
        """Until each of the nodes, asked itself, says that it and the other ones are there."""
        for node in (self._nodes[number] for number in numbers):
            client = _client(f"{HOST}:{node.port}")

            def ready(node: Node = node, client: AdminClient = client) -> bool:
                if not node.runs:
                    raise node.failed(f"node {node.number} of Kafka did not start")
                return set(numbers) <= set(client.list_topics(timeout=ASK_S).brokers)

            if not _until(ready, START_S_MAX):
                raise node.failed(f"node {node.number} of Kafka was not ready within {START_S_MAX} s")

    def _port(self, number: int) -> int | None:
        """The port that a broker is asked to have, unless another program has it."""
        wanted = None if self._first_port is None else self._first_port + number - 1
        return wanted if wanted is not None and is_free(wanted) else None

    def _take_folder(self) -> None:
        """Two clusters in one folder would write over each other's settings."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            self._lock = None
            raise KafkaFailed(
                "another Kafka runs in this folder", where=str(self.folder), next_step="stop it, or name another folder"
            ) from None

    def _write_settings(self) -> None:
        for node in self._nodes.values():
            said = settings_of(node, list(self._nodes.values()), self._users) | self._settings
            node.settings.touch(mode=0o600)  # it has passwords in it
            node.settings.write_text("".join(f"{name}={value}\n" for name, value in said.items()))

    def _format(self, program: list[str]) -> None:
        """Gives the nodes that have stored nothing yet the name of the cluster."""
        name = self.folder / "cluster.id"
        if not name.exists():
            name.write_text(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        tool = [
            program[0],
            *QUICK_START,
            *program[1:],
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={name.read_text()}",
        ]
        running = []
        for node in self._nodes.values():
            if not (node.data / "meta.properties").exists():
                with node.log.open("ab") as log:
                    process = subprocess.Popen([*tool, f"--config={node.settings}"], stdout=log, stderr=log)
                running.append((node, process))
        for node, process in running:
            try:
                if process.wait(START_S_MAX):
                    raise node.failed(f"Kafka could not use the folder of node {node.number}")
            finally:
                process.kill()

    def _kill_at_exit(self, starter: int) -> None:
        if os.getpid() == starter:  # a fork of the starter that ends leaves them alone
            for node in self._nodes.values():
                node.send(signal.SIGKILL)
            self.stop()


def _client(bootstrap: str) -> AdminClient:
    """Broken connections are expected here: they are tried again soon (default: within 10 s), and not logged."""
    return AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500, "log_level": 0})


def _until(holds: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            if holds():
                return True
        time.sleep(0.1)
    return False


# ---------------------------------------------------------------- make kafka


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs Apache Kafka on this machine until Ctrl-C.")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="how many brokers")
    parser.add_argument("--folder", type=Path, help="keep their data here; without it they are gone at the end")
    parser.add_argument(
        "--port", type=int, default=USUAL_PORT, help=f"of the first broker ({USUAL_PORT}), if it is free"
    )
    said = parser.parse_args()
    return run(
        lambda: KafkaCluster(said.nodes, said.folder, first_port=said.port),
        "Starting Kafka (the first time its jars are brought, which takes a minute)",
        lambda cluster: _started(cluster, said.port, kept=said.folder is not None),
        "Kafka has stopped",
    )


def _started(cluster: KafkaCluster, port: int, *, kept: bool) -> list[str]:
    lines = [f"MILLSTREAM_BROKER=kafka://{cluster.bootstrap}"]
    if not cluster.bootstrap.startswith(f"{HOST}:{port}"):
        lines.append(f"Port {port} is taken by another program: use the address above where the docs say {port}.")
    stay = "the data stay" if kept else "then the data are removed (keep them with FOLDER=…)"
    return [*lines, f"Data and logs: {cluster.folder}. Ctrl-C stops it; {stay}."]


if __name__ == "__main__":
    sys.exit(main())
