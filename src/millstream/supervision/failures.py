"""The errors of a job: of every run that failed, and what the current run has reported so far.

They are found in what the run has printed: errors of Millstream with their parts, and tracebacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

TAIL_BYTES = 65_536
DETAILS_CHARACTERS_MAX = 8_000
REPORTED = re.compile(r"^(?P<kind>error|warning): (?P<what>.*)(?P<rest>(?:\n[ \t]+.*)*)", re.MULTILINE)
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+(?P<what>\S.*)", re.MULTILINE)
PART = re.compile(r"^\s+(?P<name>where|next):\s+(?P<text>.*)", re.MULTILINE)
ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class Failure:
    """One error or warning of a run."""

    kind: str
    what: str
    where: str | None = None
    next: str | None = None
    details: str | None = None
    """The traceback, if there was one."""


@dataclass(frozen=True)
class FailedRun:
    """A failure with the run it ended, and when."""

    run: int
    at: float
    failure: Failure

    def document(self) -> dict[str, Any]:
        return {"run": self.run, "at": self.at, **asdict(self.failure)}


def failures_in(text: str) -> list[Failure]:
    """In the order they were printed."""
    found: list[tuple[int, Failure]] = []
    for each in REPORTED.finditer(text):
        parts = {part["name"]: part["text"].strip() for part in PART.finditer(each["rest"])}
        found.append((each.start(), Failure(each["kind"], each["what"], parts.get("where"), parts.get("next"))))
    for each in TRACEBACK.finditer(text):
        found.append((each.start(), Failure(ERROR, each["what"], details=_last_lines(each[0]))))
    return [failure for _, failure in sorted(found, key=lambda pair: pair[0])]


def _last_lines(text: str) -> str:
    """Whole lines only: a masked value is recognized by the name in front of it."""
    if len(text) <= DETAILS_CHARACTERS_MAX:
        return text
    return text[-DETAILS_CHARACTERS_MAX - 1 :].partition("\n")[2]


def ending(text: str, result: str) -> Failure:
    """What ended a run: the last error that it printed, with the last traceback; otherwise its result."""
    errors = [each for each in failures_in(text) if each.kind == ERROR]
    if not errors:
        return Failure(ERROR, result)
    last, details = errors[-1], next((each.details for each in reversed(errors) if each.details), None)
    return Failure(ERROR, last.what, last.where, last.next, details)


def grouped(failures: Iterable[FailedRun]) -> list[dict[str, Any]]:
    """Equal errors together: how often, when first and last, and in which run last. The newest first."""
    groups: dict[tuple[str, str | None], dict[str, Any]] = {}
    for each in sorted(failures, key=lambda failed: failed.at):
        failure = each.failure
        group = groups.setdefault(
            (failure.what, failure.where),
            {"what": failure.what, "where": failure.where, "next": failure.next, "times": 0, "first": each.at},
        )
        group |= {"times": group["times"] + 1, "last": each.at, "last_run": each.run}
    return sorted(groups.values(), key=lambda group: -group["last"])
