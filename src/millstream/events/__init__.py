"""Event sourcing: the events of an application as its source of truth, in a topic of the log."""

from millstream.events.event import Appended, Recorded
from millstream.events.store import EventStore
from millstream.events.subscription import Subscription

__all__ = ["Appended", "EventStore", "Recorded", "Subscription"]
