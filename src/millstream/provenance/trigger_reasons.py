"""Why a trigger fires: the parts of it that are ready, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from millstream.plan.time import triggers
from millstream.plan.time.bundles import BEGINNING, END, moment
from millstream.plan.time.windows import microseconds
from millstream.reference import triggers as states


@dataclass(frozen=True)
class Instant:
    """What a trigger is asked with."""

    at_end: bool
    clock: int
    watermark_before: int
    watermark: int
    window_end: int | None


@dataclass(frozen=True)
class Reason:
    trigger: str
    why: str

    def document(self) -> dict[str, str]:
        return {"trigger": self.trigger, "why": self.why}


def reasons(trigger: triggers.Trigger, state: states.TriggerState, now: Instant) -> list[Reason]:
    """The reasons of the parts that are ready; `state` is that of the trigger before it fires."""
    if not state.is_ready(now.at_end, now.clock):
        return []
    if isinstance(trigger, triggers.AfterWatermark):
        assert isinstance(state, states.AfterWatermarkState)
        if state.is_ready_by_end(now.at_end, now.clock):
            return [Reason(str(trigger), _at_end(now))]
        name, phase = ("late", trigger.late) if state.is_late else ("early", trigger.early)
        assert phase is not None
        return [
            Reason(f"{name}={each.trigger}", each.why) for each in reasons(triggers.Repeatedly(phase), state.state, now)
        ]
    if isinstance(trigger, triggers.Repeatedly):
        assert isinstance(state, states.RepeatedlyState)
        return reasons(trigger.trigger, state.state, now)
    if isinstance(trigger, triggers.InOrder):
        assert isinstance(state, states.InOrderState)
        return reasons(trigger.triggers[state.step], state.state, now)
    if isinstance(trigger, triggers.FirstOf | triggers.AllOf | triggers.Until):
        assert isinstance(state, states.CompositeState)
        parts = zip(trigger.parts, state.parts, strict=True)
        return [reason for part, of_part in parts for reason in reasons(part, of_part, now)]
    return [Reason(str(trigger), _leaf(trigger, state, now))]


def expiry_reason(now: Instant, lateness: int) -> Reason:
    if now.window_end is None or now.watermark >= END:
        return Reason("expiry", "the run ended, and rows still waited")
    expires = shown(now.window_end + lateness)
    return Reason("expiry", f"rows still waited when the window expired: the watermark reached {expires}")


def _leaf(trigger: triggers.Trigger, state: Any, now: Instant) -> str:
    if isinstance(trigger, triggers.AfterCount):
        return f"{state.count} rows had arrived since it last fired, and it waits for {trigger.count}"
    if isinstance(trigger, triggers.After):
        arrived = shown(state.due - microseconds(trigger.delay))
        return f"the first waiting row arrived at {arrived}, and the clock was at {shown(now.clock)}"
    if isinstance(trigger, triggers.Every):
        return f"rows waited, and the clock passed {shown(state.due)}"
    assert isinstance(trigger, triggers.Each), trigger
    return "a row arrived"


def _at_end(now: Instant) -> str:
    if now.window_end is None:
        return "the window got its last row, or the run ended"
    end = shown(now.window_end)
    if now.watermark_before >= now.window_end:
        return f"the window's first row arrived after its end, {end}, and the watermark was there already"
    return f"the watermark went from {shown(now.watermark_before)} to {shown(now.watermark)}, over the end {end}"


def shown(micros: int) -> str:
    """A time, or the beginning or the end of time."""
    if micros <= BEGINNING:
        return "the beginning"
    if micros >= END:
        return "the end of time"
    found = moment(micros)
    assert isinstance(found, datetime)
    return found.isoformat()
