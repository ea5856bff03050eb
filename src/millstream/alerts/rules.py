"""Rules on metrics, such as `lag_seconds > 60 for 5 minutes`, and when they fire: functions of metrics and time."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from millstream.alerts.quiet import QuietHours
from millstream.errors import InvalidInput
from millstream.metrics.samples import JOB_METRICS, METRICS, SLOT_METRICS, Sample, SlotSample
from millstream.records import duration, format_duration
from millstream.user_lines import what_exists

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
STATE, FAILURES = "state", "failures"
STATES = ("running", "stopping", "stopped", "finished", "waiting", "scheduled", "failed")
ENDED = ("stopped", "finished", "scheduled", "failed")
"""States in which a job measures nothing, and will not soon."""
_FORM = re.compile(
    r"\s*(?:(?P<step>\S+)\.)?(?P<metric>[a-z_]+)\s*(?P<operator>>=|<=|==|!=|>|<)\s*(?P<value>[^\s]+)"
    r"(?:\s+for\s+(?P<held>.+?))?(?:\s+to\s+(?P<to>[\w.,\s-]+?))?\s*"
)
EXAMPLE = "for example 'lag_seconds > 60 for 5 minutes', 'agg.state_bytes > 1e9' or 'state == failed'"


@dataclass(frozen=True)
class Rule:
    text: str
    """The condition as its user wrote it: it identifies the rule."""
    metric: str
    operator: str
    threshold: float | str
    step: str | None = None
    held_s: float = 0.0
    """How long the condition has to hold before the rule fires."""
    to: tuple[str, ...] = ()
    """Names of targets; none: all."""
    jobs: tuple[str, ...] = ("*",)
    quiet: QuietHours | None = None
    repeat_s: float | None = None
    """How often to send again while it holds; None: once."""

    @classmethod
    def parse(cls, text: str) -> Rule:
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidInput(f"{text!r} is not a rule for alerts", next_step=EXAMPLE)
        metric, value = _metric(found["metric"]), found["value"]
        held = found["held"]
        return cls(
            " ".join(text.split()),
            metric,
            found["operator"],
            _state(value, found["operator"]) if metric == STATE else _number(value),
            found["step"],
            0.0 if held is None else duration(held, what="time of a rule").total_seconds(),
            tuple(each.strip() for each in (found["to"] or "").split(",") if each.strip()),
        )

    @property
    def condition(self) -> str:
        step = "" if self.step is None else f"{self.step}."
        threshold = self.threshold if isinstance(self.threshold, str) else f"{self.threshold:g}"
        return f"{step}{self.metric} {self.operator} {threshold}"

    @property
    def is_on_slots(self) -> bool:
        """Whether it is about the replication slots of databases rather than about jobs; `step` is a database then."""
        return self.metric in SLOT_METRICS

    def applies_to(self, job: str) -> bool:
        return not self.is_on_slots and any(fnmatchcase(job, each) for each in self.jobs)


@dataclass(frozen=True)
class SlotView:
    """What a rule sees of a replication slot."""

    database: str
    slot: str
    sample: SlotSample | None = None
    """None: it was dropped."""

    @property
    def title(self) -> str:
        return f"{self.database}/{self.slot}"

    @property
    def subject(self) -> str:
        return f"the slot '{self.slot}' of the database '{self.database}'"

    @property
    def next_step(self) -> str:
        return "Start its capture, or drop one that is not needed any more with --remove: millstream capture --help"

    @property
    def gone(self) -> str:
        return f"The slot '{self.slot}' of the database '{self.database}' was dropped."

    @property
    def state(self) -> str:
        return "stopped" if self.sample is None else "running"

    def value(self, rule: Rule) -> float | None:
        return None if self.sample is None else float(getattr(self.sample, rule.metric))


@dataclass(frozen=True)
class JobView:
    """What a rule sees of a job."""

    name: str
    state: str
    failures: int = 0
    sample: Sample | None = None
    """The newest, if the job runs."""

    @property
    def title(self) -> str:
        return self.name

    @property
    def subject(self) -> str:
        return f"the job '{self.name}'"

    @property
    def next_step(self) -> str:
        return f"Look at it: millstream jobs show {self.name}"

    @property
    def gone(self) -> str:
        return f"The job is {self.state}."

    def value(self, rule: Rule) -> float | str | None:
        """None: not known."""
        if rule.metric == STATE:
            return self.state
        if rule.metric == FAILURES:
            return float(self.failures)
        if self.sample is None or self.state != "running":
            return None
        if rule.step is not None:
            values = [getattr(self.sample.steps.get(rule.step), rule.metric, None)]
        elif rule.metric in JOB_METRICS:
            values = [getattr(self.sample, rule.metric)]
        else:
            values = [getattr(step, rule.metric) for step in self.sample.steps.values()]
        known = [float(each) for each in values if each is not None]
        return max(known, default=None)


View = SlotView | JobView


@dataclass(frozen=True)
class Condition:
    """A rule that holds for a job or a slot."""

    since: float
    fired_at: float | None = None
    """When it was last sent."""


def judged(rule: Rule, view: View, before: Condition | None, now: float) -> tuple[Condition | None, str | None]:
    """The condition after a look, and what is to be sent about it: "firing", "resolved" or nothing."""
    value = view.value(rule)
    if value is None:
        if view.state not in ENDED:
            return before, None  # not known at the moment, such as while it starts
        return None, "resolved" if before is not None and before.fired_at is not None else None
    if not OPERATORS[rule.operator](value, rule.threshold):
        return None, "resolved" if before is not None and before.fired_at is not None else None
    since = now if before is None else before.since
    fired_at = None if before is None else before.fired_at
    is_due = now - since >= rule.held_s if fired_at is None else _repeats(rule, fired_at, now)
    return Condition(since, now if is_due else fired_at), "firing" if is_due else None


def described(rule: Rule, view: View, event: str) -> tuple[str, str]:
    """The title and the text of a message."""
    value = view.value(rule)
    shown = "unknown" if value is None else value if isinstance(value, str) else f"{value:,.6g}"
    if event == "resolved":
        now = view.gone if value is None else f"{rule.metric} of {view.subject} is {shown}."
        return f"Resolved: {view.title}: {rule.condition}", now
    held = f" for {format_duration(duration(f'{rule.held_s} seconds'))}" if rule.held_s else ""
    text = f"{rule.metric} of {view.subject} is {shown}. The rule: {rule.condition}{held}."
    return f"{view.title}: {rule.condition}", f"{text}\n{view.next_step}"


def _repeats(rule: Rule, fired_at: float, now: float) -> bool:
    return rule.repeat_s is not None and now - fired_at >= rule.repeat_s


def _metric(name: str) -> str:
    short = re.sub(r"_per_second$", "_per_s", name)
    short = re.sub(r"_seconds$", "_s", short)
    known = [STATE, FAILURES, *dict.fromkeys([*JOB_METRICS, *METRICS, *SLOT_METRICS])]
    if short not in known:
        raise InvalidInput(f"there is no metric '{name}'", next_step=what_exists(name, known, kind="metrics"))
    return short


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise InvalidInput(f"{text!r} is not a number", next_step=EXAMPLE) from None


def _state(text: str, operator: str) -> str:
    if text not in STATES or operator not in ("==", "!="):
        raise InvalidInput(
            f"a state is compared with == or !=, and '{operator} {text}' is not possible",
            next_step=what_exists(text, STATES, kind="states"),
        )
    return text
