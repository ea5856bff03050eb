"""What a job inherits: the lag of the jobs that write the topics it reads, and of those before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.metrics.samples import Metrics


@dataclass(frozen=True)
class Upstream:
    """A job whose lag delays another one."""

    job: str
    topic: str
    """The topic that it writes, and the next job on the way reads."""
    lag_records: int | None
    lag_s: float | None


def upstream_of(job: str, known: Mapping[str, Metrics]) -> list[Upstream]:
    """The jobs before a job, the nearest first; each once, also if topics form a loop."""
    found: dict[str, Upstream] = {}
    reading = [job]
    while reading:
        topics = {topic for name in reading for topic in _topics(known.get(name), "source")}
        reading = []
        for name, metrics in known.items():
            shared = sorted(topics & _topics(metrics, "output"))
            if name == job or name in found or not shared:
                continue
            newest = metrics.newest
            lag = (None, None) if newest is None else (newest.lag_records, newest.lag_s)
            found[name] = Upstream(name, shared[0], *lag)
            reading.append(name)
    return list(found.values())


def _topics(metrics: Metrics | None, kind: str) -> set[str]:
    steps = () if metrics is None else metrics.plan
    return {each.topic for each in steps if each.kind == kind and each.topic is not None}
