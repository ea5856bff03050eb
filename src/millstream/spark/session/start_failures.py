"""Why a session did not start, in the user's terms."""

from __future__ import annotations

import re
from pathlib import Path

from millstream.errors import InvalidSetting, MillstreamError, SparkFailed

# Spark's message, what it means, and what to do.
REASONS = (
    (
        r"Could not parse Master URL",
        "the master is not valid",
        "use one such as local[*], local[2], spark://host:7077, yarn",
    ),
    (
        r"BindException|Address already in use|failed after \d+ retries",
        "a configured port is in use",
        "let Spark choose ports, or set a free one",
    ),
    (
        r"memory \d+ must be at least|increase heap size",
        "it has too little memory",
        "give it more: spark.driver.memory, as in 1g",
    ),
    (
        r"masters are unresponsive|Failed to connect to|UnknownHost|UnresolvedAddress",
        "nothing answers there",
        "check that the cluster is up and its address is right",
    ),
    (
        r"InvalidClassException|local class incompatible",
        "the cluster runs another version of Spark",
        "install the cluster's version of PySpark, or upgrade the cluster to this one",
    ),
)


def translated(error: Exception, master: str, log_file: Path | None) -> MillstreamError:
    message = str(getattr(error, "java_exception", None) or error)
    log = str(log_file) if log_file else None
    kind: type[MillstreamError]
    for pattern, meaning, next_step in REASONS:
        if re.search(pattern, message):
            kind = InvalidSetting if "Master URL" in pattern else SparkFailed
            return kind(f"Spark did not start with the master '{master}': {meaning}", where=log, next_step=next_step)
    lines = message.strip().splitlines() or [type(error).__name__]
    return SparkFailed(
        f"Spark did not start with the master '{master}': {lines[0]}", where=log, next_step=f"read {log}"
    )
