"""An aggregate decides by commands and changes by events alone, so that its events rebuild it as of any moment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

import orjson

from millstream.errors import InvalidInput, UnknownEvent
from millstream.events.event import Event, Recorded, checked_text
from millstream.events.plain import as_json
from millstream.events.snapshots import kept_state, restored_state

Handler = TypeVar("Handler", bound=Callable[..., None])
HANDLES = "_millstream_events"
OWN = frozenset(("_stream", "_version", "_pending", "_has_personal_data"))


def event(*types: str) -> Callable[[Handler], Handler]:
    """Marks the method of an aggregate that changes its state when an event of one of these types has happened.

    The method gets the fields of the event's data as arguments by name, or, with a parameter named `event`, the event.
    """
    if not types or not all(isinstance(name, str) for name in types):
        raise InvalidInput("a handler needs the type of its events", next_step='@ms.event("ItemAdded")')

    def mark(handler: Handler) -> Handler:
        setattr(handler, HANDLES, types)
        return handler

    return mark


class Aggregate:
    """The base of your own: methods marked with `@event` change it, its other methods decide and call `record`."""

    snapshot_every: ClassVar[int | None] = None
    """Keep a snapshot each time so many events were saved; None for none."""
    snapshot_format: ClassVar[int] = 1
    """Raise it when the attributes change: snapshots of another format are ignored."""
    _handlers: ClassVar[Mapping[str, Callable[..., None]]] = {}
    _stream: str
    _version: int
    _pending: list[Event]
    _has_personal_data: bool

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        every = cls.snapshot_every
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise InvalidInput(
                f"snapshot_every of {cls.__name__} is {every!r}",
                next_step="give the number of events between snapshots, 1 or more, or None for none",
            )
        handlers = dict(cls._handlers)
        for attribute in vars(cls).values():
            for name in getattr(attribute, HANDLES, ()):
                if handlers.get(name, attribute) is not attribute and name in _own_types(cls):
                    raise InvalidInput(
                        f"two handlers of {cls.__name__} handle '{name}'", next_step="handle each type in one method"
                    )
                handlers[name] = attribute
        cls._handlers = handlers

    @classmethod
    def begun(cls, stream: str, snapshot: tuple[int, bytes] | None = None) -> Self:
        """A new one: without events, or in the state of a snapshot."""
        made = cls.__new__(cls)
        made._stream = checked_text(stream, "name of a stream")
        made._version = 0
        made._pending = []
        made._has_personal_data = False
        made.__init__()  # type: ignore[misc]
        if snapshot is not None:
            made._version = snapshot[0]
            made.restore(restored_state(snapshot[1]))
        return made

    @property
    def stream(self) -> str:
        """The stream of its events."""
        return self._stream

    @property
    def version(self) -> int:
        """How many events it consists of, with those that are not saved yet."""
        return self._version

    @property
    def pending(self) -> list[Event]:
        """The events that were decided and are not saved yet."""
        return self._pending

    @property
    def has_personal_data(self) -> bool:
        """Whether personal data is in its state: no snapshot is kept then, so that it can be forgotten."""
        return self._has_personal_data

    # ------------------------------------------------------------ events

    def record(self, what: str | Event, /, **data: Any) -> None:
        """For commands: an event has happened. It changes the aggregate at once, and is stored by `save`."""
        if isinstance(what, Event) and data:
            raise InvalidInput("an event has its data already", next_step='record("ItemAdded", item="tea")')
        happened = what if isinstance(what, Event) else Event(what, data)
        self._change(_as_recorded(happened))
        self._pending.append(_as_recorded(happened))

    def apply(self, happened: Recorded) -> None:
        """For rebuilding: the next event of the stream."""
        self._version = happened.version - 1  # the stream may keep only its last events
        self._change(happened)

    def saved(self) -> None:
        """Called when the pending events are stored."""
        self._pending = []

    def _change(self, happened: Event | Recorded) -> None:
        handler = self._handlers.get(happened.type)
        if handler is None:
            raise UnknownEvent(
                f"{type(self).__name__} has no handler for '{happened.type}'",
                where=f"stream '{self._stream}', version {self._version + 1}",
                next_step=f'add a method with @ms.event("{happened.type}"); it handles: '
                + (", ".join(sorted(self._handlers)) or "none"),
            )
        signature = _signature(handler)
        if "event" in signature.parameters:
            handler(self, event=happened)
        else:
            try:
                signature.bind(self, **happened.data)
            except TypeError as error:
                raise UnknownEvent(
                    f"the handler of '{happened.type}' in {type(self).__name__} does not take these fields: {error}",
                    where=f"stream '{self._stream}', version {self._version + 1}",
                    next_step="name its parameters like the fields, or bring old events up to date by an upcaster",
                ) from error
            handler(self, **happened.data)
        self._has_personal_data |= happened.subject is not None
        self._version += 1

    # ------------------------------------------------------------ snapshots

    @classmethod
    def snapshot_kind(cls) -> str:
        """Which snapshots it can be restored from."""
        return f"{cls.__module__}.{cls.__qualname__}/{cls.snapshot_format}"

    def snapshot_state(self) -> bytes:
        """Its state as a snapshot keeps it; refused if it must not be kept, or would not be the same when restored."""
        if self._has_personal_data:
            raise InvalidInput(
                "a snapshot would keep personal data that must be forgotten with its key",
                where=f"stream '{self._stream}'",
                next_step="leave this aggregate without snapshots",
            )
        try:
            return kept_state(self.state())
        except TypeError as error:
            raise InvalidInput(
                f"the state of {type(self).__name__} cannot be kept in a snapshot: {error}",
                where=f"stream '{self._stream}', version {self._version}",
                next_step="override state() and restore(), or leave snapshot_every out",
            ) from error

    def state(self) -> Any:
        """What a snapshot keeps; by default all attributes.

        Text, numbers, booleans, None, dates, times, UUIDs, bytes, and lists, tuples, sets and mappings of them.
        """
        return {name: value for name, value in vars(self).items() if name not in OWN}

    def restore(self, state: Any) -> None:
        """The opposite of `state`."""
        vars(self).update(state)


def _as_recorded(event: Event) -> Event:
    """What a handler will get when the aggregate is rebuilt: text for a date, a list for a tuple, all its own."""
    data = orjson.loads(as_json(dict(event.data), event.type))
    metadata = None if event.metadata is None else orjson.loads(as_json(event.metadata, event.type, "metadata"))
    return replace(event, data=data, metadata=metadata)


def _own_types(cls: type) -> set[str]:
    seen: list[str] = [name for attribute in vars(cls).values() for name in getattr(attribute, HANDLES, ())]
    return {name for name in seen if seen.count(name) > 1}


@cache
def _signature(handler: Callable[..., None]) -> inspect.Signature:
    return inspect.signature(handler)
