"""Claims: each output records which run of a job owns it.

A job's folder and its outputs can be deleted, restored or copied independently. So each output stores a claim: the
job, step and run that write it, and that run's folder. Before a job writes anything, it compares the claims of its
outputs with its own folder.
"""

from __future__ import annotations

import hashlib
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from millstream.errors import StartOverRefused


@dataclass(frozen=True)
class Claim:
    """The claim of one run of a job to one output."""

    job: str
    step: str
    run: str
    folder: str = ""
    """The job's folder; empty if written by an older version of Millstream."""
    host: str = ""

    @classmethod
    def here(cls, job: str, step: str, run: str, folder: Path) -> Claim:
        return cls(job, step, run, str(folder.absolute()), socket.gethostname())

    @classmethod
    def read(cls, document: Any) -> Claim | None:
        """None for an invalid or released claim."""
        names = [each.name for each in fields(cls)]
        if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in names):
            return None
        return cls(**{name: document[name] for name in names}) if document["run"] else None

    def document(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        """The run, for display."""
        return f"run {self.run}" + (f", whose folder is {self.folder} on {self.host}" if self.folder else "")


@dataclass(frozen=True)
class Found:
    """The state of an output."""

    there: bool
    """Whether the topic, table or folder exists."""
    claim: Claim | None = None
    """The claim of the last run that wrote it, if known."""
    newest: int | None = None
    """The newest batch of the current run."""
    identity: str = ""
    """Topics only: a topic that was recreated under the same name has another."""


class Keeper(Protocol):
    """Manages the claim of one output. Raises SinkUnavailable if the output cannot be reached."""

    where: str
    """The output, for display."""
    keeps_claims: bool
    """Whether the output can store a claim."""

    def look(self) -> Found: ...

    def make(self) -> None:
        """Writes the claim of the current run, replacing any other."""

    def check_clear(self) -> None:
        """Raises StartOverRefused if the job's output cannot be distinguished from that of others."""

    def clear(self) -> None:
        """Removes the job's output and its claim. Can be called again after an interruption."""

    def release(self) -> None:
        """Removes the claim and keeps the output."""

    def close(self) -> None: ...


def shared(what: str, where: str, next_step: str) -> StartOverRefused:
    return StartOverRefused(what, where=where, next_step=next_step)


def digest(job: str, step: str) -> str:
    """A file name for a job and a step."""
    return hashlib.sha256(f"{job}\0{step}".encode()).hexdigest()[:16]
