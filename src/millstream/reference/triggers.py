"""The state of a trigger in one window, when it is ready, and the effect of a pane: rule 8 of the rules of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millstream.plan.time import triggers, windows


class TriggerState:
    """The state of a trigger in one window. `at_end` is whether the watermark has reached the window's end."""

    def add(self, rows: int, clock: int) -> None:
        """So many rows arrived now."""

    def is_ready(self, at_end: bool, clock: int) -> bool:
        return False

    def is_ready_by_end(self, at_end: bool, clock: int) -> bool:
        """Whether it is ready because of the window's end."""
        return False

    def fire(self, at_end: bool, clock: int) -> bool:
        """A pane fires; returns whether the trigger has finished."""
        return False

    def merge(self, others: Sequence[Any], at_end: bool) -> None:
        """The window merged with others, or moved its end; this is the state of one of them."""


def begin(trigger: triggers.Trigger) -> TriggerState:
    """The state of a trigger before any row."""
    return STATES[type(trigger)](trigger)


class CountState(TriggerState):
    def __init__(self, trigger: triggers.AfterCount) -> None:
        self.wanted = trigger.count
        self.count = 0

    def add(self, rows: int, clock: int) -> None:
        self.count += rows

    def is_ready(self, at_end: bool, clock: int) -> bool:
        return self.count >= self.wanted

    def fire(self, at_end: bool, clock: int) -> bool:
        return True

    def merge(self, others: Sequence[CountState], at_end: bool) -> None:
        self.count += sum(other.count for other in others)


class DueState(TriggerState):
    """`after`: so long after its first row. `every`: at the next multiple of the interval after its first row."""

    def __init__(self, trigger: triggers.After | triggers.Every) -> None:
        self.trigger = trigger
        self.due: int | None = None

    def add(self, rows: int, clock: int) -> None:
        if self.due is None:
            if isinstance(self.trigger, triggers.After):
                self.due = clock + windows.microseconds(self.trigger.delay)
            else:
                interval = windows.microseconds(self.trigger.interval)
                self.due = (clock // interval + 1) * interval

    def is_ready(self, at_end: bool, clock: int) -> bool:
        return self.due is not None and clock >= self.due

    def fire(self, at_end: bool, clock: int) -> bool:
        self.due = None
        return isinstance(self.trigger, triggers.After)

    def merge(self, others: Sequence[DueState], at_end: bool) -> None:
        self.due = min((state.due for state in (self, *others) if state.due is not None), default=None)


class EachState(TriggerState):
    def __init__(self, trigger: triggers.Each) -> None:
        pass

    def is_ready(self, at_end: bool, clock: int) -> bool:
        return True


class AtExpiryState(TriggerState):
    def __init__(self, trigger: triggers.AtExpiry) -> None:
        pass


class RepeatedlyState(TriggerState):
    def __init__(self, trigger: triggers.Repeatedly) -> None:
        self.trigger = trigger.trigger
        self.state = begin(self.trigger)

    def add(self, rows: int, clock: int) -> None:
        self.state.add(rows, clock)

    def is_ready(self, at_end: bool, clock: int) -> bool:
        return self.state.is_ready(at_end, clock)

    def is_ready_by_end(self, at_end: bool, clock: int) -> bool:
        return self.state.is_ready_by_end(at_end, clock)

    def fire(self, at_end: bool, clock: int) -> bool:
        if self.state.fire(at_end, clock):
            self.state = begin(self.trigger)
        return False

    def merge(self, others: Sequence[RepeatedlyState], at_end: bool) -> None:
        self.state.merge([other.state for other in others], at_end)


class AfterWatermarkState(TriggerState):
    """Early until its pane at the end of the window, then late; `early` and `late` repeat by themselves."""

    def __init__(self, trigger: triggers.AfterWatermark) -> None:
        self.early = trigger.early and triggers.Repeatedly(trigger.early)
        self.late = trigger.late and triggers.Repeatedly(trigger.late)
        self.is_late = False
        self.state = self._phase()

    def _phase(self) -> TriggerState:
        phase = self.late if self.is_late else self.early
        return begin(phase or triggers.AtExpiry())

    def add(self, rows: int, clock: int) -> None:
        self.state.add(rows, clock)

    def is_ready(self, at_end: bool, clock: int) -> bool:
        return self.is_ready_by_end(at_end, clock) or self.state.is_ready(at_end, clock)

    def is_ready_by_end(self, at_end: bool, clock: int) -> bool:
        return at_end and not self.is_late

    def fire(self, at_end: bool, clock: int) -> bool:
        if self.is_ready_by_end(at_end, clock):
            self.is_late = True
            self.state = self._phase()
            return self.late is None
        self.state.fire(at_end, clock)
        return False

    def merge(self, others: Sequence[AfterWatermarkState], at_end: bool) -> None:
        """Ahead of the watermark the window is before its end again; behind it, late if a part had fired at its end."""
        late = at_end and any(part.is_late for part in (self, *others))
        alike = [part.state for part in (self, *others) if part.is_late == late]
        self.is_late = late
        self.state = alike[0] if alike else self._phase()
        self.state.merge(alike[1:], at_end)


class CompositeState(TriggerState):
    def __init__(self, trigger: triggers.FirstOf | triggers.AllOf | triggers.Until) -> None:
        self.decide = all if isinstance(trigger, triggers.AllOf) else any
        self.parts = [begin(part) for part in trigger.parts]

    def add(self, rows: int, clock: int) -> None:
        for part in self.parts:
            part.add(rows, clock)

    def is_ready(self, at_end: bool, clock: int) -> bool:
        return self.decide(part.is_ready(at_end, clock) for part in self.parts)

    def is_ready_by_end(self, at_end: bool, clock: int) -> bool:
        by_end = any(part.is_ready_by_end(at_end, clock) for part in self.parts)
        return by_end and self.is_ready(at_end, clock)

    def fire(self, at_end: bool, clock: int) -> bool:
        ready = [part for part in self.parts if part.is_ready(at_end, clock)]
        finished = [part.fire(at_end, clock) for part in ready]
        return self.decide(finished) if len(ready) == len(self.parts) else any(finished) and self.decide is any

    def merge(self, others: Sequence[CompositeState], at_end: bool) -> None:
        for place, part in enumerate(self.parts):
            part.merge([other.parts[place] for other in others], at_end)


class InOrderState(TriggerState):
    def __init__(self, trigger: triggers.InOrder) -> None:
        self.order = trigger.triggers
        self.step = 0
        self.state = begin(self.order[0])

    def add(self, rows: int, clock: int) -> None:
        self.state.add(rows, clock)

    def is_ready(self, at_end: bool, clock: int) -> bool:
        return self.state.is_ready(at_end, clock)

    def is_ready_by_end(self, at_end: bool, clock: int) -> bool:
        return self.state.is_ready_by_end(at_end, clock)

    def fire(self, at_end: bool, clock: int) -> bool:
        if not self.state.fire(at_end, clock):
            return False
        if self.step == len(self.order) - 1:  # an enclosing trigger may continue, and then the last one does, too
            return True
        self.step += 1
        self.state = begin(self.order[self.step])
        return False

    def merge(self, others: Sequence[InOrderState], at_end: bool) -> None:
        """The furthest step wins."""
        parts = (self, *others)
        step = max(part.step for part in parts)
        furthest = [part.state for part in parts if part.step == step]
        self.step, self.state = step, furthest[0]
        self.state.merge(furthest[1:], at_end)


STATES: dict[type[triggers.Trigger], Callable[[Any], TriggerState]] = {
    triggers.AfterCount: CountState,
    triggers.After: DueState,
    triggers.Every: DueState,
    triggers.Each: EachState,
    triggers.AtExpiry: AtExpiryState,
    triggers.Repeatedly: RepeatedlyState,
    triggers.AfterWatermark: AfterWatermarkState,
    triggers.FirstOf: CompositeState,
    triggers.AllOf: CompositeState,
    triggers.Until: CompositeState,
    triggers.InOrder: InOrderState,
}
