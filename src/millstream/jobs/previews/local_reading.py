"""What runs that read sources in this process share: a preview, and a replay of recorded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from millstream.local import Flowing, Local
from millstream.operators.clock import Clock
from millstream.operators.elementwise import frame_of
from millstream.operators.source_watermarks import SourceWatermark
from millstream.plan.nodes import Dead, Node, Read
from millstream.plan.time.bundles import BEGINNING, END
from millstream.plan.time.timing import Timed
from millstream.plan.walking import in_order


class LocalReader(Protocol):
    """A source, and how far its watermark has advanced."""

    node: Read
    watermark: SourceWatermark | None
    reached: int


AnyReader = TypeVar("AnyReader", bound=LocalReader)


def up_to_event_time(node: Read, timed: Timed | None, observed: Sequence[Node]) -> Local | None:
    """Runs the steps up to the one that sets the event time of a source's rows; None if it is the source itself.

    Dead letters of these steps do not stop it if they are observed.
    """
    if timed is None or timed is node:
        return None
    order = in_order([timed])
    return Local([timed, *(each for each in observed if isinstance(each, Dead) and each.inputs[0] in order)])


def nothing_read(readers: Sequence[LocalReader], now: int) -> dict[Node, Flowing]:
    clock = Clock(BEGINNING, BEGINNING, now, now)
    return {each.node: Flowing(frame_of([], each.node), clock) for each in readers}


def watermarks_of(readers: Sequence[AnyReader], now: int, *, is_last: bool) -> Mapping[AnyReader, int]:
    """The watermark of each source; one that is idle, or has no event time, follows the slowest of the others."""
    if is_last:
        return dict.fromkeys(readers, END)
    reached = {each: each.watermark.now(now) for each in readers if each.watermark is not None}
    active = [reached[each] for each in reached if each.watermark and not each.watermark.is_idle(now)]
    slowest = min(active or reached.values(), default=BEGINNING)
    follow = {each: max(each.reached, slowest) for each in readers if each not in reached or not active}
    return {each: max(each.reached, reached.get(each, BEGINNING), follow.get(each, BEGINNING)) for each in readers}
