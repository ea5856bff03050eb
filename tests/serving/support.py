"""What a job does for its tables, without Spark: it notes them when it starts, and writes their changes in batches."""

from __future__ import annotations

from typing import Any

import millstream as ms
from connectors.support import table, weights
from millstream.connectors.catalog import jobs_folder, remember
from millstream.connectors.opening import open_sink
from millstream.connectors.sink import Sink
from millstream.log import Broker, EmbeddedLog
from millstream.log.kafka.log import KafkaLog
from millstream.plan.nodes import Write

SCORES = "team string, score int"


class Job:
    """A flow that was started; `write` gives all its outputs one batch of (row, weight)."""

    def __init__(self, log: EmbeddedLog | KafkaLog, flow: ms.Flow) -> None:
        self.log, self.name = log, flow.name
        self.outputs = flow.check()
        self.folder = jobs_folder(log) / flow.name
        self._batch = -1
        self._sinks: dict[Write, Sink] = {}
        for output in self.outputs:
            own = self.folder / "sinks" / output.name
            own.mkdir(parents=True, exist_ok=True)
            named: dict[str, Any] = {"job": flow.name, "step": output.name, "broker": log, "folder": own}
            self._sinks[output] = open_sink(output.sink, output.schema, **named, keys=output.keys, table=output.net)
        remember(self.folder, self.outputs, log.path if isinstance(log, EmbeddedLog) else log.address)

    def write(self, *changes: tuple[dict[str, Any], int]) -> None:
        self._batch += 1
        for output, sink in self._sinks.items():
            rows = table(output.schema, [row for row, _ in changes])
            sink.write(self._batch, rows, weights(*[weight for _, weight in changes]))

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()


def totals_flow(*sinks: Any, name: str = "team-scores") -> ms.Flow:
    """The sum of the scores of each team, kept up to date in each of these places."""
    flow = ms.Flow(name)
    totals = flow.read("scores", SCORES).group_by("team").agg(total=ms.sum("score"))
    for sink in sinks:
        totals.write(sink)
    return flow


def total(team: str | None, points: int) -> dict[str, Any]:
    return {"team": team, "total": points}


def put(log: Broker, topic: str, *records: tuple[str, Any], **more: Any) -> None:
    """Sends (key, value), a value of None as a tombstone."""
    with log.producer() as producer:
        for key, value in records:
            producer.send(topic, value, key, **more)
