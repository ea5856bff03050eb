"""When in processing time: a trigger decides when a window emits a pane.

`each`, `every` and `repeatedly` never finish; a trigger that finishes closes its window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, TypeVar

from millstream.errors import InvalidDuration, InvalidTrigger
from millstream.records import duration, format_duration
from millstream.user_lines import AtUsersLine, users_line

CHOICES = (
    "triggers: after_watermark, after, every, after_count, each, repeatedly, first_of, all_of, in_order, "
    "t.until(u), at_expiry"
)
Composite = TypeVar("Composite", bound="Trigger")


@dataclass(frozen=True)
class Trigger:
    def until(self, end: Trigger) -> Until:
        """Ready with either, finished with either; a pane of the first does not reset the second."""
        return _that_fires(Until(self, _trigger(end, "until")))

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return ()

    @property
    def can_fire(self) -> bool:
        """Whether it can ever be ready."""
        return True

    @property
    def can_finish(self) -> bool:
        """Whether it can ever finish, and so close its window or start the next trigger of `in_order`."""
        return True

    def walk(self) -> Iterator[Trigger]:
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass(frozen=True)
class AfterWatermark(Trigger):
    early: Trigger | None = None
    late: Trigger | None = None

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return tuple(part for part in (self.early, self.late) if part is not None)

    @property
    def can_finish(self) -> bool:
        return self.late is None

    def __str__(self) -> str:
        parts = [f"{name}={part}" for name, part in (("early", self.early), ("late", self.late)) if part is not None]
        return f"after_watermark({', '.join(parts)})"


@dataclass(frozen=True)
class After(Trigger):
    delay: timedelta

    def __str__(self) -> str:
        return f"after({format_duration(self.delay)})"


@dataclass(frozen=True)
class Every(Trigger):
    interval: timedelta

    @property
    def can_finish(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"every({format_duration(self.interval)})"


@dataclass(frozen=True)
class AfterCount(Trigger):
    count: int

    def __str__(self) -> str:
        return f"after_count({self.count})"


@dataclass(frozen=True)
class Each(Trigger):
    @property
    def can_finish(self) -> bool:
        return False

    def __str__(self) -> str:
        return "each()"


@dataclass(frozen=True)
class AtExpiry(Trigger):
    @property
    def can_fire(self) -> bool:
        return False

    @property
    def can_finish(self) -> bool:
        return False

    def __str__(self) -> str:
        return "at_expiry()"


@dataclass(frozen=True)
class Repeatedly(Trigger):
    trigger: Trigger

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return (self.trigger,)

    @property
    def can_fire(self) -> bool:
        return self.trigger.can_fire

    @property
    def can_finish(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"repeatedly({self.trigger})"


@dataclass(frozen=True)
class _Composite(Trigger):
    triggers: tuple[Trigger, ...]

    called: ClassVar[str]

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return self.triggers

    @property
    def can_fire(self) -> bool:
        return all(part.can_fire for part in self.triggers)

    @property
    def can_finish(self) -> bool:
        return all(part.can_finish for part in self.triggers)

    def __str__(self) -> str:
        return f"{self.called}({', '.join(map(str, self.triggers))})"


@dataclass(frozen=True)
class FirstOf(_Composite):
    called: ClassVar[str] = "first_of"

    @property
    def can_fire(self) -> bool:
        return any(part.can_fire for part in self.triggers)

    @property
    def can_finish(self) -> bool:
        return any(part.can_finish for part in self.triggers)


@dataclass(frozen=True)
class AllOf(_Composite):
    called: ClassVar[str] = "all_of"


@dataclass(frozen=True)
class InOrder(_Composite):
    called: ClassVar[str] = "in_order"

    @property
    def can_fire(self) -> bool:
        return self.triggers[0].can_fire


@dataclass(frozen=True)
class Until(Trigger):
    trigger: Trigger
    end: Trigger

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return (self.trigger, self.end)

    @property
    def can_fire(self) -> bool:
        return any(part.can_fire for part in self.parts)

    @property
    def can_finish(self) -> bool:
        return any(part.can_finish for part in self.parts)

    def __str__(self) -> str:
        return f"{self.trigger}.until({self.end})"


# ---------------------------------------------------------------- public functions


def after_watermark(early: Trigger | None = None, late: Trigger | None = None) -> AfterWatermark:
    """Fires when the watermark reaches the window's end; before that with `early`, after it with `late`, repeatedly."""
    for name, part in (("early", early), ("late", late)):
        if part is not None:
            _trigger(part, name)
    return AfterWatermark(early, late)


def after(delay: str | timedelta) -> After:
    """Fires a given time after the first row of the pane, by the clock; after "0 seconds", with every bundle."""
    with AtUsersLine():
        return After(duration(delay, what="delay"))


def every(interval: str | timedelta) -> Every:
    """Fires at multiples of the interval since 1970, if there are new rows.

    The aggregate of that name in SQL is `all`, also called `bool_and`.
    """
    try:
        return Every(_positive(interval, "interval"))
    except InvalidDuration as error:
        next_step = f"{error.next_step}; the aggregate every(…) of SQL is all(…) or bool_and(…)"
        raise InvalidDuration(error.what, where=error.where, next_step=next_step) from None


def after_count(count: int) -> AfterCount:
    """Fires when that many rows have arrived."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise _refuse(f"a count must be a positive integer, not {count!r}", "for example after_count(100)")
    return AfterCount(count)


def each() -> Each:
    """Fires with every row."""
    return Each()


def at_expiry() -> AtExpiry:
    """Fires only when the window expires: it is emitted once, complete."""
    return AtExpiry()


def repeatedly(trigger: Trigger) -> Repeatedly:
    """Repeats a trigger: when it finishes, it starts over."""
    if not _trigger(trigger, "repeatedly").can_fire:
        raise _refuse(f"{trigger} can never fire, so it cannot repeat", "use at_expiry() by itself")
    return Repeatedly(trigger)


def first_of(*triggers: Trigger) -> FirstOf:
    """Fires, and finishes, with the first of the triggers."""
    return _that_fires(FirstOf(_several(triggers, "first_of")))


def all_of(*triggers: Trigger) -> AllOf:
    """Fires, and finishes, when all of the triggers do."""
    return _that_fires(AllOf(_several(triggers, "all_of")))


def in_order(*triggers: Trigger) -> InOrder:
    """Uses the triggers one after another: the next starts when the previous one has finished."""
    ordered = _several(triggers, "in_order")
    for trigger in ordered[:-1]:
        if not trigger.can_finish:
            raise _refuse(
                f"{trigger} never finishes, so the next trigger of in_order would never start",
                "put it last, or end it with .until(…)",
            )
    return _that_fires(InOrder(ordered))


def _several(triggers: tuple[Trigger, ...], what: str) -> tuple[Trigger, ...]:
    if not triggers:
        raise _refuse(f"{what} needs at least one trigger", CHOICES)
    return tuple(_trigger(trigger, what) for trigger in triggers)


def _trigger(value: object, what: str) -> Trigger:
    if isinstance(value, Trigger):
        return value
    name = getattr(value, "__name__", "")
    hint = f"call it: {name}(…)" if callable(value) and name in CHOICES else CHOICES
    raise _refuse(f"{what} takes a trigger, not {value!r}", hint)


def _that_fires(trigger: Composite) -> Composite:
    if not trigger.can_fire:
        raise _refuse(f"{trigger} can never fire", "use at_expiry() by itself, or leave it out")
    return trigger


def _positive(span: str | timedelta, what: str) -> timedelta:
    with AtUsersLine():
        long = duration(span, what=what)
    if long <= timedelta(0):
        raise _refuse(f"{what} must be longer than 0", "for example '1 minute', or each() for every row")
    return long


def _refuse(what: str, next_step: str) -> InvalidTrigger:
    return InvalidTrigger(what, where=users_line(), next_step=next_step)
