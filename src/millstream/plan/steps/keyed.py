"""Keyed and windowed streams: the four questions, one call each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import pyarrow as pa

from millstream.errors import InvalidAggregate, InvalidWindow
from millstream.expressions.column_texts import ExpressionLike
from millstream.expressions.expression import Expression
from millstream.plan.aggregates.basic import Aggregate
from millstream.plan.aggregates.texts import named
from millstream.plan.checks import (
    check_event_time,
    check_process,
    check_stream,
    fed_with,
    refusal,
    result_type,
    row_order,
    window_arguments,
)
from millstream.plan.nodes import (
    INSTANT,
    PANE,
    SPAN,
    Mode,
    PaneTime,
    Process,
    WindowedAggregate,
)
from millstream.plan.on_spark.hints import OF_GROUPS, OF_KEYED, Hinted
from millstream.plan.stream import RESERVED, Stream
from millstream.plan.time.triggers import CHOICES as TRIGGERS
from millstream.plan.time.triggers import AfterWatermark, Repeatedly, Trigger
from millstream.plan.time.windows import Everything, Window
from millstream.records import Schema, SchemaLike, duration
from millstream.user_lines import AtUsersLine, users_line

if TYPE_CHECKING:
    from millstream.plan.joins.joining import Joined
    from millstream.plan.joins.keys import On
    from millstream.plan.models.learning import Learner
    from millstream.plan.patterns.matching import Found
    from millstream.plan.patterns.pattern import Pattern
    from millstream.plan.patterns.rule_matching import RuleMatches
    from millstream.plan.table_nodes import How
    from millstream.plan.tables import Table

WINDOWS = "windows: fixed, sliding, sessions, calendar, rows, delta_window, closed_by, everything"


class Keyed(Hinted):
    """A stream grouped by key columns."""

    _noun = "a keyed stream"
    _hints = OF_KEYED
    if not TYPE_CHECKING:
        __getattr__ = Hinted._unknown

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self.stream = stream
        self.keys = keys

    def window(
        self,
        window: Window,
        *,
        allowed_lateness: str | timedelta = timedelta(0),
        timestamp: str = "end_of_window",
    ) -> Windowed:
        """Divides event time into windows. `timestamp` is a pane's event time: end_of_window, earliest or latest."""
        if not isinstance(window, Window):
            size = f"window(ms.fixed('{window}')); " if isinstance(window, str) else ""
            raise refusal(f"{window!r} is not a window", f"{size}{WINDOWS}")
        check_stream(self.stream, "a window", "group_by(…).agg(…) aggregates it as it is")
        choices = [choice.value for choice in PaneTime]
        if timestamp not in choices:
            raise refusal(f"timestamp is one of {', '.join(choices)}, not {timestamp!r}", "default: end_of_window")
        with AtUsersLine():
            lateness = duration(allowed_lateness, what="allowed_lateness")
        if lateness and (not window.has_end or isinstance(window, Everything)):
            raise InvalidWindow(
                f"{window} has no end in event time, so no row is late",
                where=users_line(),
                next_step="remove allowed_lateness=",
            )
        if getattr(window, "time", "event") == "event":
            check_event_time(self.stream.node, window)
        arguments = window_arguments(window, self.stream.schema)
        return Windowed(self, window, lateness, PaneTime(timestamp), arguments)

    def process(
        self,
        function: Callable[..., Any],
        schema: SchemaLike | None = None,
        *,
        on_timer: Callable[..., Any] | None = None,
        event_time: str | None = None,
        order: Literal["event_time", "arrival"] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Calls a Python function with each row and its key, which has state and timers; it returns rows or None.

        `function(row, key)` is called for rows, `on_timer(tag, time, key)` for timers that are due. `key` is an
        `ms.Key`. A row for which the function raises goes to `.dead`. Results have the event time of the row or of the
        timer, unless `event_time` names a column of `schema`.
        With `order="event_time"`, rows wait until the watermark has reached them, then rows and event-time timers are
        called in one order of event time, whatever the batches; rows behind the watermark go to `.late`. This is the
        default if there is an `on_timer` and the rows have event time. With `order="arrival"`, each row is called at
        once, and timers after the rows of a batch.
        """
        stream = self.stream
        columns = check_process(stream.node, function, schema, on_timer, event_time)
        chosen = row_order(stream.node, order, has_on_timer=on_timer is not None)
        node = Process("", columns, (stream.node,), users_line(), self.keys, function, on_timer, event_time, chosen)
        return Stream(stream.flow, stream.flow.named(node, "process", name))

    def learn(self, model: Learner, *, name: str | None = None) -> Stream:
        """Updates a small model of each key with every row, in order of event time, and adds its columns to the row.

        `model` is `ms.ewma(…)`, `ms.zscore(…)`, `ms.seasonal(…)` or `ms.kmeans(…)`. The columns of a row are computed
        from what the rows before it have taught; those of a row with a null or NaN are null, and it teaches nothing.
        """
        from millstream.plan.models.learning import learned

        return learned(self, model, name)

    @overload
    def match(
        self,
        pattern: Pattern,
        *,
        skip: str = ...,
        matches: Literal["every", "preferred"] = ...,
        rows: Literal["one", "all"] = ...,
        early: bool = ...,
        name: str | None = ...,
    ) -> Found: ...

    @overload
    def match(self, *, rules: Table, history: str | timedelta | None = ..., name: str | None = ...) -> RuleMatches: ...

    def match(
        self,
        pattern: Pattern | None = None,
        *,
        skip: str = "past last",
        matches: Literal["every", "preferred"] = "every",
        rows: Literal["one", "all"] = "one",
        early: bool = False,
        rules: Table | None = None,
        history: str | timedelta | None = None,
        name: str | None = None,
    ) -> Found | RuleMatches:
        """Finds the sequences of rows of each key, in order of event time, that a pattern describes.

        `skip` is where the search goes on after a match: "past last" row, "to next" row, "to first NAME", "to last
        NAME", or "none" for all matches. `matches` is "every" match, or the "preferred" one of each first row, as in
        SQL. With `rows="one"` a match is one row, with a list of rows for each variable: `.select(…)` computes
        measures of them. With `rows="all"` it is all its rows, each with its `variable`. Rows wait for the watermark;
        with `early`, they do not, and a match that a later row undoes is retracted.

        With `rules`, a table with the columns `id`, `version`, `filter` and `pattern`, the patterns are rows that may
        change while the job runs, as the text of MATCH_RECOGNIZE. Rows are held for `history`, so that a rule that is
        added or changed sees them. A rule that is wrong goes to `.dead`.
        """
        if rules is not None:
            from millstream.plan.patterns.rule_matching import match_rules

            chosen = {"skip": skip != "past last", "matches": matches != "every", "rows": rows != "one", "early": early}
            given = ["pattern"] * (pattern is not None) + [option for option, is_set in chosen.items() if is_set]
            return match_rules(self, rules, history, given, name)
        from millstream.plan.patterns.matching import match

        if history is not None:
            raise refusal("history is for rules that change", "remove history=, or pass rules=")
        if pattern is None:
            raise refusal(
                "match needs a pattern, or a table of rules", "match(ms.pattern('a', …)), or match(rules=table)"
            )
        return match(self, pattern, skip, matches, rows, early, name)

    def agg(self, *_: object, **__: object) -> NoReturn:
        """Raises an error that names the alternatives: a keyed stream needs a window first."""
        raise refusal(
            "a keyed stream needs a window before agg",
            f"use .window(…).agg(…), or stream.group_by({self._quoted_keys}).agg(…) for a table without windows",
        )

    def join(self, *_: object, **__: object) -> NoReturn:
        """Raises an error that names the alternatives: this is for a stream without `key_by`."""
        on = self._quoted_keys if len(self.keys) == 1 else f"({self._quoted_keys})"
        raise refusal(
            "join takes its columns with on=, not with key_by",
            f"use stream.join(other, on={on})",
        )

    def to_table(self, *_: object, **__: object) -> NoReturn:
        """Raises an error that names the alternatives: this is for a stream without `key_by`."""
        key = self._quoted_keys if len(self.keys) == 1 else f"({self._quoted_keys})"
        raise refusal("to_table takes its key with key=, not with key_by", f"use stream.to_table(key={key})")

    @property
    def _quoted_keys(self) -> str:
        return ", ".join(map(repr, self.keys))


class Windowed(Hinted):
    """A keyed stream in windows: choose when panes are emitted, how they relate, and what is computed."""

    _noun = "a windowed stream"
    _hints = OF_GROUPS
    if not TYPE_CHECKING:
        __getattr__ = Hinted._unknown

    def __init__(
        self,
        keyed: Keyed,
        window: Window,
        lateness: timedelta,
        pane_time: PaneTime,
        arguments: Mapping[str, Expression],
        trigger: Trigger | None = None,
        mode: Mode = Mode.ACCUMULATING,
        until_expiry: bool = False,
    ) -> None:
        self._keyed = keyed
        self._window = window
        self._lateness = lateness
        self._pane_time = pane_time
        self._arguments = arguments
        self._trigger = trigger or Repeatedly(AfterWatermark())
        self._mode = mode
        self._until_expiry = until_expiry

    def trigger(self, trigger: Trigger) -> Windowed:
        """Chooses when panes are emitted; default: when the watermark passes a window's end, then with late rows."""
        if not isinstance(trigger, Trigger):
            raise refusal(f"{trigger!r} is not a trigger", TRIGGERS)
        if self._window.slides:
            raise InvalidWindow(
                f"{self._window} emits a pane with every row", where=users_line(), next_step="remove trigger(…)"
            )
        return self._with(trigger, self._mode, self._until_expiry)

    def discarding(self) -> Windowed:
        """Each pane contains what is new since the previous one."""
        return self._with(self._trigger, Mode.DISCARDING)

    def accumulating(self) -> Windowed:
        """Each pane contains the whole window so far, and replaces the previous one. This is the default."""
        return self._with(self._trigger, Mode.ACCUMULATING)

    def retracting(self, *, until_expiry: bool = False) -> Windowed:
        """Each pane retracts the previous one, and then contains the whole window so far.

        With `until_expiry`, the last pane is retracted when its window expires: a table of the panes has only windows
        that can still change.
        """
        if until_expiry and not self._window.has_end:
            raise InvalidWindow(
                f"{self._window} has no end in event time, so it does not expire",
                where=users_line(),
                next_step="remove until_expiry=",
            )
        return self._with(self._trigger, Mode.RETRACTING, until_expiry)

    def _with(self, trigger: Trigger, mode: Mode, until_expiry: bool = False) -> Windowed:
        return Windowed(
            self._keyed, self._window, self._lateness, self._pane_time, self._arguments, trigger, mode, until_expiry
        )

    def agg(self, *texts: object, name: str | None = None, **aggregates: Aggregate | str) -> Panes:
        """Computes aggregates, given as name=aggregate, as name="sum(score)", or as "sum(score) as name"."""
        stream, chosen = self._keyed.stream, named(texts, aggregates)
        made, arguments = aggregated(stream, chosen, [*RESERVED, *self._keyed.keys], "a pane")
        fields = [stream.schema.field(key) for key in self._keyed.keys]
        fields += [pa.field("window", SPAN), pa.field("pane", PANE), pa.field("weight", pa.int32()), *made]
        fields.append(pa.field("event_time", INSTANT))
        with AtUsersLine():
            columns = Schema.from_arrow(pa.schema(fields))
        node = WindowedAggregate(
            "",
            columns,
            (stream.node,),
            users_line(),
            self._keyed.keys,
            self._window,
            self._lateness,
            self._pane_time,
            self._trigger,
            self._mode,
            tuple(chosen.items()),
            tuple((arguments | dict(self._arguments)).items()),
            self._until_expiry,
        )
        return Panes(stream.flow, stream.flow.named(node, "agg", name))

    def join(
        self,
        other: Stream,
        on: On | None = None,
        how: How = "inner",
        *,
        suffix: str = "_right",
        condition: ExpressionLike | None = None,
        name: str | None = None,
    ) -> Joined:
        """Joins the rows of two streams that are in the same window and equal in some columns.

        The result is emitted once, when the window closes. `on` and `condition` are as in `Stream.join`; default of
        `on`: the keys.
        """
        from millstream.plan.joins.joining import join_in_windows

        if self._has_trigger_or_mode:
            raise refusal("a join in windows has no trigger or mode", "remove trigger(…), discarding() and the like")
        chosen = on if on is not None else self._keyed.keys
        stream, window, lateness = self._keyed.stream, self._window, self._lateness
        return join_in_windows(stream, other, window, lateness, chosen, how, suffix, condition, name)

    @property
    def _has_trigger_or_mode(self) -> bool:
        return self._trigger != Repeatedly(AfterWatermark()) or self._mode is not Mode.ACCUMULATING


def aggregated(
    stream: Stream, aggregates: Mapping[str, Aggregate], columns: Sequence[str], what: str
) -> tuple[list[pa.Field], dict[str, Expression]]:
    """The result fields of aggregates, next to the columns that `what` already has, and their arguments."""
    fields: list[pa.Field] = []
    arguments: dict[str, Expression] = {}
    taken = {column.lower() for column in columns}
    for column, aggregate in aggregates.items():
        if column.lower() in taken:
            raise refusal(
                f"{what} already has a column '{column}'",
                f"choose a name other than {', '.join(taken)}",
            )
        if stream.node.is_changing and not aggregate.forgets:
            raise InvalidAggregate(
                f"{column}={aggregate} needs rows that are never retracted, but those of '{stream.node.name}' may be: "
                "a sketch cannot forget a row",
                where=users_line(),
                next_step="use the exact aggregate, or aggregate the rows before they become a table",
            )
        fed = fed_with(column, aggregate, stream.schema)
        fields.append(pa.field(column, result_type(column, aggregate, fed)))
        arguments |= fed
    return fields, arguments


class Panes(Stream):
    """The result of a windowed aggregation."""
