"""Which step gives the rows of a source their event time and watermark: the source itself, or a step after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from millstream.expressions.column_texts import as_text
from millstream.expressions.expression import Expression, expression
from millstream.expressions.lowered import type_name
from millstream.plan.checks import column_of, refusal
from millstream.plan.nodes import INSTANT, Node, Read, WithEventTime
from millstream.plan.time.watermarks import Bounded, Punctuated, Watermark
from millstream.plan.walking import in_order
from millstream.records import Schema
from millstream.user_lines import users_line

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

Timed = Read | WithEventTime
"""A node that gives rows their event time, with a watermark strategy."""


def timing(order: Iterable[Node]) -> dict[Read, Timed]:
    """By source, the node that gives its rows their event time. Sources without event time are left out."""
    found: dict[Read, Timed] = {}
    for node in order:
        if isinstance(node, Read) and node.event_time is not None:
            found[node] = node
        elif isinstance(node, WithEventTime):
            found |= dict.fromkeys(_sources(node), node)
    return found


def _sources(node: Node) -> list[Read]:
    return [given for given in in_order([node]) if isinstance(given, Read)]


def event_time_of(given: Any, schema: Schema) -> Expression:
    """An event time as a column or an expression."""
    text = as_text(given)
    if isinstance(text, str) and text.isidentifier():
        column_of(schema, text)
    made = expression(f"`{text}`" if isinstance(text, str) and text in schema.names else text, schema)
    if made.type != INSTANT:
        moments = [field.name for field in schema.arrow if field.type == INSTANT]
        raise refusal(
            f"event_time '{text}' is {type_name(made.type)}, not a timestamp",
            f"timestamp columns: {', '.join(moments) or 'none'}; or convert it, for example with timestamp_millis(…)",
        )
    if made.uses_clock:
        raise refusal(f"event_time '{text}' uses the clock, but event time comes from the rows", "use a column")
    if not made.columns:
        raise refusal(f"event_time '{text}' is the same for all rows", f"columns: {', '.join(schema.names)}")
    return made


def checked_watermark(watermark: object, schema: Schema) -> Watermark:
    """The strategy of a watermark; the default is `ascending()`."""
    if watermark is None:
        return Bounded(None, timedelta(0))
    if not isinstance(watermark, Watermark):
        raise refusal(
            f"{watermark!r} is not a watermark strategy", "watermarks: bounded, ascending, punctuated, custom"
        )
    if isinstance(watermark, Punctuated):
        marks = expression(watermark.expression, schema)
        if marks.needs_spark:
            raise refusal(
                f"the watermark '{marks}' is computed where rows are read, and only Spark's own engine can evaluate it",
                f"make it a column first: with_column('mark', \"{marks}\")"
                ".with_event_time('at', watermark=ms.punctuated('mark'))",
            )
        if marks.uses_clock:
            raise refusal(f"'{marks}' uses the clock, but a watermark comes from the rows", "use a column")
        if marks.type != INSTANT:
            raise refusal(f"'{marks}' is {type_name(marks.type)}, but a watermark must be a timestamp", None)
    return watermark


def with_event_time(stream: Stream, given: Any, watermark: Watermark | None, name: str | None) -> WithEventTime:
    """The step that sets the event time of a stream's rows."""
    text = as_text(given)
    made = event_time_of(text, stream.schema)
    strategy = checked_watermark(watermark, stream.schema)
    _check_address(stream.node, stream.flow.timed_sources)
    node = WithEventTime(
        "", stream.schema, (stream.node,), users_line(), text, made, strategy, follows_rows=watermark is not None
    )
    node = stream.flow.named(node, "with_event_time", name)
    stream.flow.timed_sources.update(dict.fromkeys(_sources(node), node))
    return node


def _check_address(node: Node, timed: dict[Read, WithEventTime]) -> None:
    before: Sequence[Node] = in_order([node])
    if state := next((given for given in before if given.keeps_state), None):
        raise refusal(
            f"with_event_time comes before steps that keep state, but '{state.name}' does",
            "set it before that step; process(…, event_time='…') sets the event time of its results",
        )
    for given in before:
        if isinstance(given, Read) and given.event_time is not None:
            raise refusal(
                f"the rows of '{given.name}' already have an event time, {given.event_time}",
                "leave out event_time= in read(…)",
            )
        if isinstance(given, Read) and given in timed:
            raise refusal(
                f"the rows of '{given.name}' already get an event time, at {timed[given].user_line}",
                "set it once, before the stream branches; or read the source twice",
            )
