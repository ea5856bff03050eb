"""What the time plane of a windowed step shows: batches with their rows, watermarks, panes and late rows.

Of many rows, each batch shows a sample in which every row is equally likely; how many there were is beside it. Times
are milliseconds since 1970, as browsers use them; a time without an end is null. Keys and values are lists of texts,
in the order of their names in the heading: the supervisor hides masked columns before it joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from millstream.local import Flowing
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET
from millstream.plan.nodes import Late, Node, WindowedAggregate
from millstream.plan.steps.keyed import Panes
from millstream.plan.time.bundles import BEGINNING, END
from millstream.provenance.history import History
from millstream.provenance.replaying import Moment, Replay
from millstream.web_console.shown_records import plain

ROWS_MAX = 500
PANES_MAX = 300
LABEL_MAX = 40
VALUES_MAX = 3


@dataclass(frozen=True)
class PlaneStep:
    """A windowed step, with what a plane shows of it."""

    step: WindowedAggregate
    late: Late

    @classmethod
    def of(cls, history: History, name: str | None) -> PlaneStep:
        step = history.windowed_step(name)
        late = Panes(history.flow, step).late.node
        assert isinstance(late, Late)
        return cls(step, late)

    @property
    def observed(self) -> list[Node]:
        return [self.step.inputs[0], self.step, self.late]

    def heading(self) -> dict[str, Any]:
        """What stays the same."""
        step = self.step
        what = ", ".join(f"{name}={made}" for name, made in step.aggregates)
        return {
            "step": step.name,
            "what": what,
            "where": str(step.window),
            "when": str(step.trigger),
            "how": step.mode.value,
            "keys": list(step.keys),
            "values": [name for name, _ in step.aggregates[:VALUES_MAX]],
        }

    def batch(self, moment: Moment, replay: Replay) -> dict[str, Any]:
        given, panes, late = (moment.sent[node] for node in self.observed)
        clock, number = given.clock, moment.batch.number
        rows = given.rows.filter(pl.col(TIME).is_not_null())
        return {
            "batch": number,
            "at": moment.clock // 1000,
            "watermark": _bounded_ms(clock.watermark),
            "before": _bounded_ms(clock.watermark_before),
            "partitions": {
                f"{track.source.name} {track.partition}": _bounded_ms(track.after)
                for track in moment.tracks
                if track.timed is not None
            },
            "rows": [[time // 1000, key] for time, key in zip(*self._sampled(rows, ROWS_MAX, number), strict=True)],
            "count": len(given.rows),
            "late": self._late(late.rows, given.rows, replay, number),
            "late_count": len(late.rows),
            "panes": self._panes(panes, number),
            "pane_count": int((panes.rows[WEIGHT] > 0).sum()),
        }

    def _sampled(self, rows: pl.DataFrame, at_most: int, seed: int) -> tuple[list[int], list[list[str]]]:
        """Event times and keys of rows, sampled fairly: always the same rows of a batch."""
        shown = _sample(rows, at_most, seed)
        return shown[TIME].to_list(), self._keys(shown)

    def _late(self, late: pl.DataFrame, given: pl.DataFrame, replay: Replay, seed: int) -> list[list[Any]]:
        """Event time, key and origin of late rows. The origin, with which to ask why, is null behind another step."""
        named = [TIME, *self.step.keys]
        rows = late.filter(pl.col(TIME).is_not_null())
        if OFFSET in given.columns:  # late rows have lost it: the n-th of a key and time is the n-th that came
            nth = pl.int_range(pl.len()).over(named).alias("nth")
            origins = given.with_columns(nth).select(*named, "nth", OFFSET)
            rows = rows.with_columns(nth).join(origins, on=[*named, "nth"], how="left", nulls_equal=True)
        shown = _sample(rows, ROWS_MAX, seed)
        numbers = shown[OFFSET].to_list() if OFFSET in shown.columns else [None] * len(shown)
        return [
            [time // 1000, key, None if origin is None else list(replay.origin(origin).document().values())]
            for time, key, origin in zip(shown[TIME].to_list(), self._keys(shown), numbers, strict=True)
        ]

    def _keys(self, rows: pl.DataFrame) -> list[list[str]]:
        columns = [rows[name].to_list() for name in self.step.keys]
        return [[_short(value) for value in key] for key in zip(*columns, strict=True)] or [[]] * len(rows)

    def _panes(self, panes: Flowing, seed: int) -> list[list[Any]]:
        """Of each: start, end, timing, index, key, values, and the question that explains it."""
        sent = panes.rows.filter(pl.col(WEIGHT) > 0)
        shown = _sample(sent, PANES_MAX, seed)
        names = [name for name, _ in self.step.aggregates[:VALUES_MAX]]
        values = zip(*(shown[name].to_list() for name in names), strict=True) if names else [()] * len(shown)
        found = []
        for key, window, pane, value in zip(
            self._keys(shown), _windows(shown), shown["pane"].to_list(), values, strict=True
        ):
            found.append([*window, pane["timing"], pane["index"], key, [_short(each) for each in value]])
        for shown_pane, row in zip(found, shown.select(*self.step.keys, "window").to_dicts(), strict=True):
            span = row.pop("window")
            times = {} if None in span.values() else {"window": "/".join(each.isoformat() for each in span.values())}
            shown_pane.append({**plain(row), **times, "index": shown_pane[3]})
        return found


def _sample(rows: pl.DataFrame, at_most: int, seed: int) -> pl.DataFrame:
    return rows if len(rows) <= at_most else rows.sample(at_most, seed=seed)


def _windows(panes: pl.DataFrame) -> Sequence[tuple[int | None, int | None]]:
    ends = [panes["window"].struct.field(name).dt.epoch("ms").to_list() for name in ("start", "end")]
    return list(zip(*ends, strict=True))


def _bounded_ms(micros: int) -> int | None:
    return None if micros <= BEGINNING or micros >= END else micros // 1000


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LABEL_MAX else text[: LABEL_MAX - 1] + "…"
