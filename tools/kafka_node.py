"""One node of Kafka: its process, its settings, and the key it shows to clients."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kafka_jars import HERE, LOG_LINES, KafkaFailed
from millstream.spark.session import java

# Below the ports that outgoing connections get: a client that tries the port of a killed broker again must not take it.
PORTS = range(20_000, 32_000)
HOST = "127.0.0.1"
STORE_PASSWORD = "millstream"  # of a key that is generated for every folder and opens nothing else
KEYTOOL_S_MAX = 120
LOOK_S = 0.05
KEYS, CERTIFICATE = "keys.p12", "certificate.pem"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass
class Node:
    """One broker and controller. Its process leads a group of its own, so that a Ctrl-C reaches the starter alone."""

    number: int
    folder: Path
    port: int
    controller_port: int
    secure_port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def data(self) -> Path:
        return self.folder / f"node-{self.number}"

    @property
    def settings(self) -> Path:
        return self.folder / f"node-{self.number}.properties"

    @property
    def log(self) -> Path:
        return self.folder / f"node-{self.number}.log"

    @property
    def runs(self) -> bool:
        """Asked without Popen's lock, which a Ctrl-C at the wrong moment leaves locked for ever."""
        if self.process is None or self.process.returncode is not None:
            return False
        try:
            ended, status = os.waitpid(self.process.pid, os.WNOHANG)
        except ChildProcessError:  # seen by someone who was interrupted before it could be noted
            ended, status = self.process.pid, 0
        if ended:
            self.process.returncode = os.waitstatus_to_exitcode(status)
        return not ended

    def start(self, command: list[str]) -> None:
        watched = [sys.executable, "-I", "-S", str(HERE / "watch.py"), str(os.getpid()), *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                watched, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def wait(self, timeout_s: float) -> None:
        """Until it has ended: by itself, or, when the time is over, by force."""
        deadline = time.monotonic() + timeout_s
        while self.runs:
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
            time.sleep(LOOK_S)
        self.process = None

    def failed(self, what: str) -> KafkaFailed:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return KafkaFailed("\n".join([f"{what}; the last lines of its log:", *lines[-LOG_LINES:]]), where=str(self.log))


def is_free(port: int) -> bool:
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just closed is free
        try:
            asked.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise KafkaFailed(f"fewer than {count} of the ports {PORTS.start} to {PORTS.stop - 1} are free")


# ---------------------------------------------------------------- settings


def settings_of(node: Node, nodes: Sequence[Node], users: Mapping[str, str]) -> dict[str, object]:
    """What one of `nodes` is started with."""
    count = len(nodes)
    acknowledging = min(count, 2)
    listeners = [f"PLAINTEXT://{HOST}:{node.port}"]
    if users:
        listeners.append(f"SASL_SSL://{HOST}:{node.secure_port}")
    said: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.number,
        "controller.quorum.voters": ",".join(f"{n.number}@{HOST}:{n.controller_port}" for n in nodes),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "listeners": ",".join([*listeners, f"CONTROLLER://{HOST}:{node.controller_port}"]),
        "advertised.listeners": ",".join(listeners),
        "log.dirs": node.data,
        "auto.create.topics.enable": "false",
        "default.replication.factor": count,
        "min.insync.replicas": acknowledging,
        # Few partitions for what Kafka notes itself: each is a folder, made when it is first needed.
        "offsets.topic.replication.factor": count,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": count,
        "transaction.state.log.min.isr": acknowledging,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": count,
        "share.coordinator.state.topic.min.isr": acknowledging,
        "share.coordinator.state.topic.num.partitions": 4,
        # Short times: a killed broker is missed within seconds, and a group is not kept waiting for more members.
        "broker.session.timeout.ms": 5000,
        "broker.heartbeat.interval.ms": 1000,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "group.share.min.record.lock.duration.ms": 1000,
    }
    if users:
        said |= _secured(users, node.folder / KEYS)
    return said


# ---------------------------------------------------------------- SASL_SSL


def _secured(users: Mapping[str, str], keys: Path) -> dict[str, object]:
    for text in (*users, *users.values()):
        if not text or not text.isprintable() or not text.isascii() or set(text) & set('"\\;'):
            raise KafkaFailed("a user's name or password is empty, or has other signs than ASCII's, or one of \" \\ ;")
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    security = "org.apache.kafka.common.security"
    scram = {  # for users that are made with Kafka's own admin client
        f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;"
        for mechanism in SCRAM
    }
    return {
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{security}.plain.PlainLoginModule required {known};",
        **scram,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": keys,
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": STORE_PASSWORD,
    }


def make_certificate(runtime: java.Java, folder: Path) -> None:
    """One key, signed by itself, for all nodes; made once per folder."""
    certificate = folder / CERTIFICATE
    if certificate.exists():
        return
    keytool = runtime.home / "bin" / "keytool"
    (folder / KEYS).unlink(missing_ok=True)
    store = f"-keystore {KEYS} -storetype PKCS12 -storepass {STORE_PASSWORD} -alias broker".split()
    names = f"-dname CN=localhost -ext SAN=IP:{HOST},DNS:localhost -validity 3650".split()
    unfinished = f"{CERTIFICATE}.new"
    for step in (
        ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", *names, *store],
        ["-exportcert", "-rfc", "-file", unfinished, *store],
    ):
        done = subprocess.run(
            [keytool, *step], capture_output=True, text=True, timeout=KEYTOOL_S_MAX, check=False, cwd=folder
        )
        if done.returncode:
            raise KafkaFailed(f"keytool could not make a certificate: {done.stdout}{done.stderr}", where=str(keytool))
    (folder / unfinished).rename(certificate)
