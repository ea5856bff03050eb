"""Where the replicas of a topic are on Kafka, and moving them to other brokers.

librdkafka has no call to move replicas, so Kafka's own tool does it: it is asked for exactly the plan made here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from millstream.errors import InvalidInput, KafkaUnavailable, NotFound
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.clients import ANSWER_SECONDS, Clients
from millstream.log.kafka.failures import client_module
from millstream.secrets import concealed, revealed

TOOL = "kafka-reassign-partitions"
TOOL_SECONDS = 120.0
HOME_VARIABLE = "KAFKA_HOME"
LOOK_SECONDS = 0.5
Replicas = Mapping[int, Sequence[int]]
"""The brokers that have each partition, the preferred leader first."""


def replicas_of(clients: Clients, topic: str, seconds: float = ANSWER_SECONDS) -> tuple[Replicas, Replicas]:
    """The brokers of each partition, and those of them that are in sync."""
    collection = client_module().TopicCollection([topic])
    [found] = clients.answered(lambda: clients.admin.describe_topics(collection), f"topic '{topic}'", seconds).values()
    placed = {each.id: [node.id for node in each.replicas] for each in found.partitions}
    return placed, {each.id: [node.id for node in each.isr] for each in found.partitions}


def planned(current: Replicas, brokers: Sequence[int], factor: int) -> dict[int, list[int]]:
    """Round robin: every broker leads, and has, about as many partitions as the others."""
    return {
        number: [brokers[(place + step) % len(brokers)] for step in range(factor)]
        for place, number in enumerate(sorted(current))
    }


def move(
    clients: Clients, address: KafkaAddress, topic: str, brokers: Sequence[int], factor: int | None, wait_seconds: float
) -> Replicas:
    """Moves the replicas of a topic to some brokers; returns when they have all records and are in sync."""
    current, _ = replicas_of(clients, topic)
    known = sorted(clients.retrying(lambda: clients.admin.list_topics(timeout=ANSWER_SECONDS).brokers, "brokers"))
    kept = factor if factor is not None else max(map(len, current.values()))
    _check(brokers, known, kept)
    wanted = planned(current, brokers, kept)
    if wanted != current:
        _ask_tool(_tool(topic, wanted), address, topic, wanted)
    _wait(lambda: replicas_of(clients, topic), wanted, topic, wait_seconds)
    return wanted


def _check(brokers: Sequence[int], known: Sequence[int], factor: int) -> None:
    if len(set(brokers)) != len(brokers):
        raise InvalidInput("a broker is named twice", where=", ".join(map(str, brokers)))
    if missing := [broker for broker in brokers if broker not in known]:
        raise NotFound(f"there is no broker {missing[0]}", next_step=f"brokers: {', '.join(map(str, known))}")
    if factor < 1 or factor > len(brokers):
        raise InvalidInput(
            f"{factor} replicas of a partition cannot be on {len(brokers)} brokers",
            next_step=f"name {factor} brokers or more, or give another --replication-factor",
        )


def _tool(topic: str, wanted: Replicas) -> str:
    home = os.environ.get(HOME_VARIABLE)
    places = [str(Path(home) / "bin")] if home else []
    for name in (f"{TOOL}.sh", TOOL):
        for path in [*places, None]:
            if found := shutil.which(name, path=path):
                return found
    raise NotFound(
        f"moving partitions needs Kafka's own tool {TOOL}, because librdkafka cannot do it",
        where=f"neither in ${HOME_VARIABLE}/bin nor on the PATH",
        next_step=f"set {HOME_VARIABLE} to an unpacked Kafka, or give that tool this plan on another machine: "
        f"{_document(topic, wanted)}",
    )


def _document(topic: str, wanted: Replicas) -> str:
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(brokers)} for number, brokers in wanted.items()
    ]
    return json.dumps({"version": 1, "partitions": partitions})


def _ask_tool(tool: str, address: KafkaAddress, topic: str, wanted: Replicas) -> None:
    with tempfile.TemporaryDirectory(prefix="millstream-move-") as folder:
        plan, settings = Path(folder) / "plan.json", Path(folder) / "client.properties"
        plan.write_text(_document(topic, wanted))
        settings.write_text("".join(f"{name}={value}\n" for name, value in java_settings(address).items()))
        settings.chmod(0o600)
        command = [tool, "--bootstrap-server", address.servers, "--command-config", str(settings)]
        try:
            done = subprocess.run(
                [*command, "--reassignment-json-file", str(plan), "--execute"],
                capture_output=True,
                text=True,
                timeout=TOOL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _failed(topic, f"it did not answer within {TOOL_SECONDS:.0f} seconds") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["it printed no reason"]
        raise _failed(topic, concealed(next((line for line in lines if "rror" in line), lines[-1])))


def _failed(topic: str, reason: str) -> KafkaUnavailable:
    return KafkaUnavailable(
        f"Kafka's tool could not move the partitions: {reason}",
        where=f"topic '{topic}'",
        next_step="check the brokers, then try again",
    )


def java_settings(address: KafkaAddress) -> dict[str, str]:
    """The settings that Java's clients need to log in, from librdkafka's."""
    own = revealed(address.settings)
    made: dict[str, str] = {name: own[name] for name in ("security.protocol", "sasl.mechanism") if name in own}
    made |= {"sasl.mechanism": own["sasl.mechanisms"]} if "sasl.mechanisms" in own else {}
    if "sasl.username" in own:
        kind = "scram.Scram" if made.get("sasl.mechanism", "").startswith("SCRAM") else "plain.Plain"
        user, password = (_quoted(own.get(f"sasl.{each}", "")) for each in ("username", "password"))
        login = f"org.apache.kafka.common.security.{kind}LoginModule"
        made["sasl.jaas.config"] = f"{login} required username={user} password={password};"
    if "ssl.ca.location" in own:
        made |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": own["ssl.ca.location"]}
    if own.get("ssl.endpoint.identification.algorithm") == "none":
        made["ssl.endpoint.identification.algorithm"] = ""
    return made


def _quoted(text: str) -> str:
    # Once for the login module, and again for the properties file.
    return '"' + text.replace("\\", "\\\\\\\\").replace('"', '\\\\"') + '"'


def _wait(look: Callable[[], tuple[Replicas, Replicas]], wanted: Replicas, topic: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        placed, in_sync = look()
        late = [
            n
            for n, brokers in wanted.items()
            if sorted(placed[n]) != sorted(brokers) or set(in_sync[n]) != set(brokers)
        ]
        if not late:
            return
        if time.monotonic() > deadline:
            raise KafkaUnavailable(
                f"{len(late)} of {len(wanted)} partitions are still being moved after {seconds:.0f} seconds",
                where=f"topic '{topic}'",
                next_step="the brokers continue; the same command waits again",
            )
        time.sleep(LOOK_SECONDS)
