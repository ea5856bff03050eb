"""The step that finds the matches of rules that change while a job runs.

Its state is the versions of rules, which every key group has, and raw rows: those that wait for the watermark, those
with which a match of some rule may still begin and all after them, and those that are held for rules yet to come. A
step searches the rows that are held again; only for a key and a version that has had matches is there a record, with
their number and where the search goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from millstream.operators import elementwise, lateness
from millstream.operators.aggregates.accumulators import ORDER, ROW, TIME
from millstream.operators.clock import Clock, Frames
from millstream.operators.event_order import late_rows
from millstream.operators.keyed_rows import NUMBER, numbered
from millstream.operators.patterns.columns import Flags
from millstream.operators.patterns.rule_results import RuleResults
from millstream.operators.patterns.rule_search import HeldRows, Record, RuleSearch
from millstream.operators.process import ALL_ROWS
from millstream.operators.stateful import INPUTS, LATE, NO_MARKS, SENT, PlainStep
from millstream.plan.patterns.node import MatchRules
from millstream.plan.patterns.rule_text import FILTER, ID, TEXT, VERSION, WEIGHT, rule_input, rule_of
from millstream.plan.patterns.rule_versions import revised
from millstream.plan.stored.versions import Change, Version, next_change
from millstream.plan.time.bundles import END
from millstream.plan.time.windows import microseconds
from millstream.state.tables import EVERY_KEY, Marks

ROWS, RULES = "rows", "rules"
DUE, HOLD = "due", "hold"
TOKEN, FROM_TIME, FROM_ORDER, COUNT = "version", "from_time", "from_order", "count"
"""Of a record, which is a row without a time: the version it is about, from where its search goes on, its matches."""
START, STOP = "start", "end"
CONTENT = (ID, VERSION, FILTER, TEXT)


class RulesStep(PlainStep):
    own_keys: Mapping[str, list[str]] = MappingProxyType({RULES: []})

    def __init__(self, node: MatchRules) -> None:
        self.node = node
        self.keys = [f"key.{name}" for name in node.keys] or [ALL_ROWS]
        self.nothing = {
            name: self.fed(elementwise.frame_of([], given), 0, side)
            for side, (name, given) in enumerate(zip(INPUTS, node.inputs, strict=True))
        }
        self._given = rule_input(node)
        self._history = microseconds(node.history)
        self._results = RuleResults(node)

    def tables(self) -> Frames:
        rules = self.nothing[INPUTS[1]].select(CONTENT)
        times = [pl.lit(None, pl.Int64).alias(name) for name in (START, STOP)]
        return {ROWS: _noted(self.nothing[INPUTS[0]]), RULES: rules.with_columns(times)}

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """Of the rows, the whole row, its keys, its time, and its position in order of arrival; of rules, all."""
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        if side:
            return rows.select(*CONTENT, WEIGHT, TIME).with_columns(order)
        keys = [rows[name].alias(f"key.{name}") for name in self.node.keys] or [(order >= 0).alias(ALL_ROWS)]
        return pl.DataFrame([rows.select(self.node.inputs[0].schema.names).to_struct(ROW), *keys, rows[TIME], order])

    def asked(self, inputs: Frames) -> Frames:
        rows = inputs[INPUTS[0]].select(self.keys)
        if len(inputs[INPUTS[1]]):  # a rule that has changed concerns every key
            rows = rows.with_columns(pl.lit(True).alias(EVERY_KEY))
        return {ROWS: rows, RULES: pl.DataFrame()}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        return {ROWS: Marks(pl.col(DUE), pl.lit(None, pl.Int64), pl.col(HOLD)), RULES: NO_MARKS}

    # ------------------------------------------------------------ one step

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        new, came = inputs[INPUTS[0]], inputs[INPUTS[1]]
        in_time = new.select(lateness.is_in_time(clock)).to_series()
        late = new.filter(~in_time)
        new = _noted(new.filter(in_time) if len(late) else new)
        kept = held[ROWS].select(new.columns)
        is_record = pl.col(TIME).is_null()
        records, rows, new = numbered(self.keys, kept.filter(is_record), kept.filter(~is_record), new)
        known = [Version(tuple(row[:4]), *row[4:]) for row in held[RULES].select(*CONTENT, START, STOP).rows()]
        versions = revised(known, map(_change, came.rows(named=True)), clock.watermark_before)
        is_active = self._active(records, rows, new, clock, all_keys=bool(len(came)))
        rows = pl.concat([rows, new])
        chosen = pl.Series(is_active[rows[NUMBER].to_numpy()])
        active, asleep = rows.filter(chosen), rows.filter(~chosen)
        search = RuleSearch(HeldRows(active, self._given.schema), clock, self._history, f"step '{self.node.name}'")
        search.run([(each, rule_of(self._given, *each.content[2:])) for each in versions], _recorded(records))
        sent = self._results.sent(search.matches, search.held.rows, self.keys)
        lasting = [each for each in versions if not each.is_over(clock.watermark)]
        state = [
            self._records(records, search, {each.token for each in lasting}),
            self._kept(search, next_change(lasting, clock.watermark)),
            asleep.with_columns(pl.when(pl.col(TIME) > clock.watermark).then(TIME).otherwise(DUE).alias(DUE)),
        ]
        changes = {ROWS: pl.concat([part.select(new.columns) for part in state]).drop(NUMBER)}
        if len(came) or len(lasting) < len(known):
            changes[RULES] = self._rules(lasting)
        return changes, {SENT: sent, LATE: late_rows(late)}

    def _active(
        self, records: pl.DataFrame, rows: pl.DataFrame, new: pl.DataFrame, clock: Clock, *, all_keys: bool
    ) -> Flags:
        """By number of a key, whether it has something to do."""
        count = max((int(each[NUMBER].max()) + 1 for each in (records, rows, new) if len(each)), default=0)  # type: ignore[arg-type]
        if all_keys:
            return np.ones(count, np.bool_)
        active: Flags = np.zeros(count, np.bool_)
        active[rows.filter(pl.col(DUE) <= clock.watermark)[NUMBER].to_numpy()] = True
        active[new.filter(pl.col(TIME) <= clock.watermark)[NUMBER].to_numpy()] = True
        return active

    # ------------------------------------------------------------ state

    def _rules(self, versions: list[Version]) -> pl.DataFrame:
        rows = [(*each.content, each.start, each.end) for each in versions]
        return pl.DataFrame(rows, schema=dict(self.tables()[RULES].schema), orient="row")

    def _kept(self, search: RuleSearch, change: int | None) -> pl.DataFrame:
        """The rows that are still needed, and when their keys have something to do."""
        kept = search.kept()
        due = kept.due
        if change is not None and len(due):
            due[kept.is_first_of_key] = np.minimum(due[kept.is_first_of_key], change)
        return search.held.rows[kept.places].with_columns(
            pl.Series(DUE, due).replace(END + 1, None), pl.Series(HOLD, kept.hold).replace(END + 1, None)
        )

    def _records(self, records: pl.DataFrame, search: RuleSearch, tokens: set[str]) -> pl.DataFrame:
        """The records of versions that are still in force."""
        untouched = [
            (number, token) not in search.records for number, token in zip(records[NUMBER], records[TOKEN], strict=True)
        ]
        old = records.filter(pl.Series(untouched, dtype=pl.Boolean)).filter(pl.col(TOKEN).is_in(list(tokens)))
        made = [(number, token, each) for (number, token), each in search.records.items() if token in tokens]
        if not made:
            return old
        firsts = search.held.first_rows([number for number, *_ in made])
        empty = [pl.lit(None, firsts.schema[name]).alias(name) for name in (ROW, TIME, ORDER, DUE, HOLD)]
        return pl.concat(
            [
                old,
                firsts.with_columns(
                    *empty,
                    pl.Series(TOKEN, [token for _, token, _ in made], pl.String),
                    pl.Series(FROM_TIME, [each.time for *_, each in made], pl.Int64),
                    pl.Series(FROM_ORDER, [each.order for *_, each in made], pl.Int64),
                    pl.Series(COUNT, [each.count for *_, each in made], pl.Int64),
                ).select(old.columns),
            ]
        )


def _recorded(records: pl.DataFrame) -> dict[tuple[int, str], Record]:
    columns = records.select(NUMBER, TOKEN, FROM_TIME, FROM_ORDER, COUNT).rows()
    return {(number, token): Record(time, order, count) for number, token, time, order, count in columns}


def _change(row: dict[str, Any]) -> Change:
    return Change((row[ID], row[VERSION], row[FILTER], row[TEXT]), row[TIME], row[WEIGHT])


def _noted(rows: pl.DataFrame) -> pl.DataFrame:
    """New rows with the columns of the state."""
    numbers = (DUE, HOLD, FROM_TIME, FROM_ORDER, COUNT)
    return rows.with_columns(
        pl.lit(None, pl.String).alias(TOKEN), *(pl.lit(None, pl.Int64).alias(name) for name in numbers)
    )
